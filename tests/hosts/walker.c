/* A profiler inside the process: SIGPROF at 1 kHz, and a walk of the stack in its handler.
 *
 *   walk_start(walker, ranges, count)  walker: 0 nongnu libunwind (unw_step), 1 libgcc (_Unwind_Backtrace);
 *                                      ranges: first and last-but-one address of code whose samples count, in pairs
 *   walk_stop()                        how many samples were taken there
 *   walk_taken()                       so far
 *   walk_complete()                    how many of those walks reached the start of the program
 *   walk_stack(frames, most)           the addresses of the first of them, the innermost first
 *
 * Preloaded into a program that has all its libraries from the start, with WALK_WITH=libunwind or WALK_WITH=libgcc, it walks from
 * every sample outside of these libraries, and prints at exit, to standard error: the unwinder, the samples, how many of those
 * walks reached the start of the program, and the most frames outside of the libraries that one of these has.
 *
 * Debian's libunwind exports _Unwind_Backtrace, too: libgcc's is asked for by its library's name.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <libunwind.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unwind.h>

#define MOST 256

static int walker;
static uintptr_t ranges[2 * MOST], start_code, start_callee;
static int range_count, all_but_ranges;
static _Unwind_Reason_Code (*backtrace_of_libgcc)(_Unwind_Trace_Fn, void *);
static uintptr_t (*ip_of_libgcc)(struct _Unwind_Context *);
static volatile int taken, complete, kept;
static uintptr_t stack[MOST], first[MOST];
static char name[256];
static volatile int depth;

#ifdef __aarch64__
enum { callee_size = 512 };
#else
enum { callee_size = 0 };
#endif

static int counts(uintptr_t ip) {
    for (int at = 0; at < range_count; at++) {
        if (ip >= ranges[2 * at] && ip < ranges[2 * at + 1]) return !all_but_ranges;
    }
    return all_but_ranges;
}

static int find_libgcc(void) {
    void *libgcc = dlopen("libgcc_s.so.1", RTLD_NOW);
    if (!libgcc) return -1;
    *(void **)&backtrace_of_libgcc = dlsym(libgcc, "_Unwind_Backtrace");
    *(void **)&ip_of_libgcc = dlsym(libgcc, "_Unwind_GetIP");
    return backtrace_of_libgcc && ip_of_libgcc ? 0 : -1;
}

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *nothing) {
    (void)nothing;
    if (depth < MOST) stack[depth++] = ip_of_libgcc(context);
    return _URC_NO_REASON;
}

/* The handler's own frames and the signal frame are not part of the scenario. */
static void drop_until(uintptr_t address) {
    int at = 0;
    while (at < depth && stack[at] != address) at++;
    if (at == depth) {
        depth = 0;
        return;
    }
    memmove(stack, stack + at, (depth - at) * sizeof *stack);
    depth -= at;
}

static void with_libunwind(ucontext_t *context) {
    unw_cursor_t cursor;
    unw_word_t ip;
    if (unw_init_local2(&cursor, (unw_context_t *)context, UNW_INIT_SIGNAL_FRAME) < 0) return;
    do {
        if (unw_get_reg(&cursor, UNW_REG_IP, &ip) < 0 || depth == MOST) return;
        stack[depth++] = ip;
    } while (unw_step(&cursor) > 0);
}

static volatile int deepest;

static void keep_deepest(void) {
    int at = 0;
    while (at < depth && counts(stack[at])) at++;
    if (at > deepest) deepest = at;
}

static void on_signal(int number, siginfo_t *info, void *ucontext) {
    ucontext_t *context = ucontext;
#ifdef __aarch64__
    uintptr_t ip = context->uc_mcontext.pc;
#else
    uintptr_t ip = context->uc_mcontext.gregs[REG_RIP];
#endif
    (void)number, (void)info;
    if (!counts(ip)) return;
    taken++;
    depth = 0;
    if (walker == 0) {
        with_libunwind(context);
    } else {
        backtrace_of_libgcc(frame, NULL);
        drop_until(ip);
    }
    /* The outermost frame of a whole walk is _start, in the program; libunwind 1.8 on aarch64 stops at its callee, in libc. */
    for (int at = depth - 1; at >= 0 && at >= depth - 3; at--) {
        if (stack[at] - start_code < 64 || (walker == 0 && stack[at] - start_callee < callee_size)) {
            complete++;
            if (all_but_ranges) keep_deepest();
            if (!kept) {
                memcpy(first, stack, depth * sizeof *stack);
                kept = depth;
            }
            return;
        }
    }
}

int walk_start(int which, const uintptr_t *pairs, int count) {
    struct sigaction action;
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    if (count > MOST || (which == 1 && find_libgcc() < 0)) return -1;
    memcpy(ranges, pairs, 2 * count * sizeof *pairs);
    walker = which, range_count = count, start_code = getauxval(AT_ENTRY);
    start_callee = (uintptr_t)dlsym(RTLD_DEFAULT, "__libc_start_main");
    taken = complete = kept = 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    return setitimer(ITIMER_PROF, &timer, NULL);
}

int walk_stop(void) {
    struct itimerval timer = {{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &timer, NULL);
    return taken;
}

int walk_taken(void) { return taken; }

int walk_complete(void) { return complete; }

int walk_stack(uintptr_t *frames, int most) {
    int count = kept < most ? kept : most;
    memcpy(frames, first, count * sizeof *frames);
    return count;
}

/* What libunwind calls the function at an address. */
const char *walk_name(uintptr_t address) {
    unw_word_t offset;
    unw_accessors_t *accessors = unw_get_accessors(unw_local_addr_space);
    name[0] = 0;
    accessors->get_proc_name(unw_local_addr_space, address, name, sizeof name, &offset, NULL);
    return name;
}

static uintptr_t own[2 * MOST];

/* Where code is now. */
static int executable_ranges(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], protection[8];
    unsigned long low, high;
    int count = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &low, &high, protection) == 3 && strchr(protection, 'x') && count < MOST) {
            own[2 * count] = low, own[2 * count + 1] = high;
            count++;
        }
    }
    if (maps) fclose(maps);
    return count;
}

static const char *asked;

__attribute__((constructor)) static void start_by_itself(void) {
    asked = getenv("WALK_WITH");
    if (!asked) return;
    int which = strcmp(asked, "libgcc") == 0;
    if (which) find_libgcc();
    all_but_ranges = 1;
    walk_start(which, own, executable_ranges());
}

__attribute__((destructor)) static void report(void) {
    if (!asked) return;
    walk_stop();
    fprintf(stderr, "%s %d %d %d\n", asked, taken, complete, deepest);
}
