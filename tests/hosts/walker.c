/* An in-process profiler: its SIGPROF handler, called at 1 kHz, walks the stack.
 *
 *   walk_start(walker, ranges, count)  walker: 0 nongnu libunwind (unw_step), 1 libgcc (_Unwind_Backtrace);
 *                                      ranges: start and end address pairs of the code whose samples count
 *   walk_stop()                        stops, and returns the number of samples in that code
 *   walk_taken()                       number of samples so far
 *   walk_complete()                    number of those walks that reached the program's entry point
 *   walk_stack(frames, most)           addresses of the first complete walk, innermost first
 *
 * Preloaded with WALK_WITH=libunwind or WALK_WITH=libgcc into a program that loads no libraries later, it walks
 * the stack at every sample outside the libraries loaded at the start. At exit it prints to standard error: the
 * unwinder, the number of samples, the number of complete walks, and the largest number of consecutive innermost frames
 * outside those libraries in a complete walk.
 *
 * Debian's libunwind exports _Unwind_Backtrace, too. libgcc's is therefore looked up in its own library.
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

#define MAX_ENTRIES 256

static int walker;
static uintptr_t ranges[2 * MAX_ENTRIES], entry_point, entry_callee;
static int range_count, counts_outside_ranges;
static _Unwind_Reason_Code (*libgcc_backtrace)(_Unwind_Trace_Fn, void *);
static uintptr_t (*libgcc_get_ip)(struct _Unwind_Context *);
static volatile int sample_count, complete_count, first_stack_depth;
static uintptr_t stack[MAX_ENTRIES], first_stack[MAX_ENTRIES];
static char name[256];
static volatile int depth;

#ifdef __aarch64__
enum { callee_size = 512 };
#else
enum { callee_size = 0 };
#endif

static int is_counted(uintptr_t ip) {
    for (int i = 0; i < range_count; i++) {
        if (ip >= ranges[2 * i] && ip < ranges[2 * i + 1]) return !counts_outside_ranges;
    }
    return counts_outside_ranges;
}

static int find_libgcc(void) {
    void *libgcc = dlopen("libgcc_s.so.1", RTLD_NOW);
    if (!libgcc) return -1;
    *(void **)&libgcc_backtrace = dlsym(libgcc, "_Unwind_Backtrace");
    *(void **)&libgcc_get_ip = dlsym(libgcc, "_Unwind_GetIP");
    return libgcc_backtrace && libgcc_get_ip ? 0 : -1;
}

static _Unwind_Reason_Code append_frame(struct _Unwind_Context *context, void *unused) {
    (void)unused;
    if (depth < MAX_ENTRIES) stack[depth++] = libgcc_get_ip(context);
    return _URC_NO_REASON;
}

/* Drops the frames of the handler and the signal frame. */
static void drop_until(uintptr_t address) {
    int i = 0;
    while (i < depth && stack[i] != address) i++;
    if (i == depth) {
        depth = 0;
        return;
    }
    memmove(stack, stack + i, (depth - i) * sizeof *stack);
    depth -= i;
}

static void walk_with_libunwind(ucontext_t *context) {
    unw_cursor_t cursor;
    unw_word_t ip;
    if (unw_init_local2(&cursor, (unw_context_t *)context, UNW_INIT_SIGNAL_FRAME) < 0) return;
    do {
        if (unw_get_reg(&cursor, UNW_REG_IP, &ip) < 0 || depth == MAX_ENTRIES) return;
        stack[depth++] = ip;
    } while (unw_step(&cursor) > 0);
}

static volatile int max_depth;

static void keep_deepest(void) {
    int i = 0;
    while (i < depth && is_counted(stack[i])) i++;
    if (i > max_depth) max_depth = i;
}

static void on_signal(int number, siginfo_t *info, void *ucontext) {
    ucontext_t *context = ucontext;
#ifdef __aarch64__
    uintptr_t ip = context->uc_mcontext.pc;
#else
    uintptr_t ip = context->uc_mcontext.gregs[REG_RIP];
#endif
    (void)number, (void)info;
    if (!is_counted(ip)) return;
    sample_count++;
    depth = 0;
    if (walker == 0) {
        walk_with_libunwind(context);
    } else {
        libgcc_backtrace(append_frame, NULL);
        drop_until(ip);
    }
    /* A complete walk ends in _start of the program; libunwind 1.8 on aarch64 stops at _start's callee, in libc. */
    for (int i = depth - 1; i >= 0 && i >= depth - 3; i--) {
        if (stack[i] - entry_point < 64 || (walker == 0 && stack[i] - entry_callee < callee_size)) {
            complete_count++;
            if (counts_outside_ranges) keep_deepest();
            if (!first_stack_depth) {
                memcpy(first_stack, stack, depth * sizeof *stack);
                first_stack_depth = depth;
            }
            return;
        }
    }
}

int walk_start(int requested_walker, const uintptr_t *pairs, int count) {
    struct sigaction action;
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    if (count > MAX_ENTRIES || (requested_walker == 1 && find_libgcc() < 0)) return -1;
    memcpy(ranges, pairs, 2 * count * sizeof *pairs);
    walker = requested_walker, range_count = count, entry_point = getauxval(AT_ENTRY);
    entry_callee = (uintptr_t)dlsym(RTLD_DEFAULT, "__libc_start_main");
    sample_count = complete_count = first_stack_depth = 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    return setitimer(ITIMER_PROF, &timer, NULL);
}

int walk_stop(void) {
    struct itimerval timer = {{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &timer, NULL);
    return sample_count;
}

int walk_taken(void) { return sample_count; }

int walk_complete(void) { return complete_count; }

int walk_stack(uintptr_t *frames, int max_frames) {
    int count = first_stack_depth < max_frames ? first_stack_depth : max_frames;
    memcpy(frames, first_stack, count * sizeof *frames);
    return count;
}

/* Returns libunwind's name of the function at an address. */
const char *walk_name(uintptr_t address) {
    unw_word_t offset;
    unw_accessors_t *accessors = unw_get_accessors(unw_local_addr_space);
    name[0] = 0;
    accessors->get_proc_name(unw_local_addr_space, address, name, sizeof name, &offset, NULL);
    return name;
}

static uintptr_t executable[2 * MAX_ENTRIES];

/* Fills `executable` with the current executable mappings and returns their number. */
static int executable_ranges(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], protection[8];
    unsigned long low, high;
    int count = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &low, &high, protection) == 3 && strchr(protection, 'x') && count < MAX_ENTRIES) {
            executable[2 * count] = low, executable[2 * count + 1] = high;
            count++;
        }
    }
    if (maps) fclose(maps);
    return count;
}

static const char *unwinder_name;

__attribute__((constructor)) static void start_if_preloaded(void) {
    unwinder_name = getenv("WALK_WITH");
    if (!unwinder_name) return;
    int requested_walker = strcmp(unwinder_name, "libgcc") == 0;
    if (requested_walker) find_libgcc();
    counts_outside_ranges = 1;
    walk_start(requested_walker, executable, executable_ranges());
}

__attribute__((destructor)) static void report(void) {
    if (!unwinder_name) return;
    walk_stop();
    fprintf(stderr, "%s %d %d %d\n", unwinder_name, sample_count, complete_count, max_depth);
}
