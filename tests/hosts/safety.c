/* A program that uses LLVM in situations where a library could do harm: safety SCENARIO [WORD...]
 *
 * Prints the same with and without libjitlisten. Functions named `first`, `second`, ... return 3 n + their number. */
#define _GNU_SOURCE
#include "jitlisten.h"
#include "llvm_c.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void compile(const char *name, long number) {
    printf("%s: %s\n", name, returns_expected(compile_named(name, name, number), number) ? "right" : "wrong");
    fflush(stdout);
}

static void fail(const char *operation) {
    perror(operation);
    exit(1);
}

/* --- Interposed libc functions, which intercept the library's calls ---------------------------------------------- */

static uintptr_t library_start, library_end;

static int find_library(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (strstr(info->dlpi_name, "libjitlisten") == NULL) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X)) continue;
        library_start = info->dlpi_addr + header->p_vaddr;
        library_end = library_start + header->p_memsz;
    }
    return 1;
}

#define FROM_LIBRARY (library_end && (uintptr_t)__builtin_return_address(0) - library_start < library_end - library_start)

/* Called in the middle of each file write by the library, that is, while the library holds its locks. */
static void (*write_hook)(void);

ssize_t write(int file, const void *bytes, size_t size) {
    if (write_hook && FROM_LIBRARY) write_hook();
    return syscall(SYS_write, file, bytes, size);
}

/* The library's page requests are counted from 0. The requests `fails_from` to `fails_to` fail. */
static volatile long page_requests, fails_from = LONG_MAX, fails_to = LONG_MAX;
#define IS_STARVED (FROM_LIBRARY && fails_from != LONG_MAX && is_starved())

static int is_starved(void) {
    long number = __sync_fetch_and_add(&page_requests, 1);
    return number >= fails_from && number <= fails_to;
}

/* With a limited address space (RLIMIT_AS), the kernel refuses the library's requests but grants the host's. */
static struct rlimit low_limit, high_limit;
static int is_space_limited;
static volatile long *refused_count;

#define WITH_LIMIT(result, is_refused, call)                                                                           \
    if (is_space_limited) {                                                                                            \
        int for_library = FROM_LIBRARY;                                                                                \
        if (!for_library) setrlimit(RLIMIT_AS, &high_limit);                                                           \
        result = call;                                                                                                 \
        int saved_errno = errno;                                                                                       \
        if (!for_library) setrlimit(RLIMIT_AS, &low_limit);                                                            \
        if (for_library && (is_refused)) ++*refused_count;                                                             \
        errno = saved_errno;                                                                                           \
    } else {                                                                                                           \
        result = call;                                                                                                 \
    }

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) {
    void *memory;
    WITH_LIMIT(memory, memory == NULL, __libc_malloc(size));
    return memory;
}
void *calloc(size_t count, size_t size) {
    void *memory;
    WITH_LIMIT(memory, memory == NULL, __libc_calloc(count, size));
    return memory;
}
void *realloc(void *old, size_t size) {
    void *memory;
    WITH_LIMIT(memory, memory == NULL && size > 0, __libc_realloc(old, size));
    return memory;
}
int posix_memalign(void **result, size_t alignment, size_t size) {
    WITH_LIMIT(*result, *result == NULL, __libc_memalign(alignment, size));
    return *result ? 0 : ENOMEM;
}

/* Refuses pages that the library requests for itself, but not those that it requests on behalf of the host. */
void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
    void *memory;
    int for_itself = flags & MAP_FIXED || file >= 0 || protection == PROT_NONE;
    if (for_itself && IS_STARVED) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (is_space_limited && !for_itself) setrlimit(RLIMIT_AS, &high_limit);
    WITH_LIMIT(memory, memory == MAP_FAILED, (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset));
    if (is_space_limited && !for_itself) setrlimit(RLIMIT_AS, &low_limit);
    return memory;
}

/* The library's own heap makes its system calls through this function. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) arguments[i] = va_arg(list, long);
    va_end(list);
    if ((number == SYS_mmap || number == SYS_mremap) && IS_STARVED) return errno = ENOMEM, -1;
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long result = real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (is_space_limited && number == SYS_mmap && result == -1 && FROM_LIBRARY) ++*refused_count;
    return result;
}

/* If true, dl_iterate_phdr takes long when the library calls it, and a lock of the loader is held meanwhile. */
static volatile int should_list_slowly;

struct listing {
    int (*callback)(struct dl_phdr_info *, size_t, void *);
    void *data;
    int waits;
};

static int list_slowly(struct dl_phdr_info *info, size_t size, void *pointer) {
    struct listing *listing = pointer;
    if (listing->waits) listing->waits = 0, usleep(3000);
    return listing->callback(info, size, listing->data);
}

int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    int (*next)(int (*)(struct dl_phdr_info *, size_t, void *), void *) = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    struct listing listing = {callback, data, should_list_slowly && FROM_LIBRARY};
    return next(list_slowly, &listing);
}

/* --- Signals while the library holds its locks ------------------------------------------------------------------- */

static struct compiled live_function;
static void dispose_live(void) { dispose(live_function); }

static void on_exit_signal(int number) {
    (void)number;
    puts("the handler exits");
    exit(0); /* exit runs dispose_live, which frees code */
}

static void on_fork_signal(int number) {
    (void)number;
    int status;
    pid_t child = fork();
    if (child == 0) _exit(7);
    waitpid(child, &status, 0);
    printf("the handler's child ended with %d\n", WEXITSTATUS(status));
}

static void on_dlopen_signal(int number) {
    (void)number;
    printf("the handler opened a library: %d\n", dlopen("libresolv.so.2", RTLD_NOW) != NULL);
}

static int write_count;

static void raise_in_write(void) {
    if (write_count++ == 0) raise(SIGUSR1);
}

static int compile_interrupted(const char *action) {
    signal(SIGUSR1, !strcmp(action, "exit") ? on_exit_signal : !strcmp(action, "fork") ? on_fork_signal : on_dlopen_signal);
    live_function = compile_named("first", "first", 1);
    atexit(dispose_live);
    write_hook = raise_in_write;
    alarm(60);
    struct compiled second = compile_named("second", "second", 2);
    write_hook = NULL;
    if (write_count == 0) raise(SIGUSR1); /* without the library */
    printf("second: %d\n", returns_expected(second, 2));
    compile("third", 3);
    return 0;
}

static void cancel_in_write(void) {
    if (write_count++ == 0) {
        pthread_cancel(pthread_self());
        pthread_testcancel(); /* as the real write does */
    }
}

static void *compile_until_cancelled(void *unused) {
    write_hook = cancel_in_write;
    struct compiled second = compile_named("second", "second", 2);
    write_hook = NULL;
    if (write_count == 0) pthread_cancel(pthread_self());
    printf("second: %d\n", returns_expected(second, 2));
    fflush(stdout);
    pthread_testcancel();
    return unused;
}

static int compile_cancelled(void) {
    pthread_t thread;
    void *result;
    compile("first", 1);
    alarm(60);
    pthread_create(&thread, NULL, compile_until_cancelled, NULL);
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
    compile("third", 3);
    return 0;
}

/* --- errno ------------------------------------------------------------------------------------------------------- */

void __jit_debug_register_code(void);

static int check_errno(void) {
    compile("first", 1);
    errno = EXDEV;
    __jit_debug_register_code();
    printf("__jit_debug_register_code: %d\n", errno == EXDEV);
    errno = EXDEV;
    void *library = dlopen("libresolv.so.2", RTLD_NOW);
    printf("dlopen: %d %d\n", library != NULL, errno);
    errno = EXDEV;
    dlclose(library);
    printf("dlclose: %d\n", errno);
    errno = EXDEV;
    struct compiled second = compile_named("second", "second", 2);
    printf("a function: %d\n", errno);
    errno = EXDEV;
    dispose(second);
    printf("none: %d\n", errno);
    return 0;
}

/* --- Descriptors ------------------------------------------------------------------------------------------------- */

/* Runs a command that interferes with the library's files, in a process without the library. */
static void run_command(const char *command) {
    const char *preload = getenv("LD_PRELOAD");
    char *saved_preload = preload ? strdup(preload) : NULL;
    unsetenv("LD_PRELOAD");
    if (system(command)) fail(command);
    if (saved_preload) setenv("LD_PRELOAD", saved_preload, 1);
    usleep(20000); /* the jitdump thread polls every 10 ms */
}

/* Closes all unknown descriptors, like a daemon, and then opens its own files under the same numbers. */
static int close_like_daemon(const char *path) {
    compile("first", 1);
    for (int file = 3; file < 1100; file++) close(file);
    int own_file = open(path, O_RDWR | O_CREAT, 0600);
    printf("the lowest number: %d\n", own_file);
    for (int file = own_file + 1; file < 1000; file++)
        if (dup2(own_file, file) < 0) fail("dup2");
    if (getenv("SAFETY_RUNS")) run_command(getenv("SAFETY_RUNS"));
    compile("second", 2);
    int open_count = 0;
    for (int file = own_file; file < 1000; file++) open_count += fcntl(file, F_GETFD) >= 0;
    printf("mine: %d of %d, %ld bytes\n", open_count, 1000 - own_file, (long)lseek(own_file, 0, SEEK_END));
    for (int file = own_file; file < 1000; file++) close(file);
    compile("third", 3);
    return 0;
}

static int print_next_descriptor(void) {
    compile("first", 1);
    int file = open("/dev/null", O_RDONLY);
    printf("the next descriptor: %d\n", file);
    return 0;
}

static void wait_for(pid_t child) {
    int status = -1;
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return;
    fprintf(stderr, "child %d: status %x\n", child, status);
    exit(1);
}

/* Children that run another program inherit the host's descriptors and no others. */
static int run_other_programs(void) {
    char *words[] = {"sh", "-c", "cd /proc/self/fd && echo *", NULL};
    char *variables[] = {"PATH=/usr/bin:/bin", NULL};
    pid_t child;
    compile("first", 1);
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, variables)) fail("posix_spawn");
    wait_for(child);
    child = vfork();
    if (child == 0) {
        execve("/bin/sh", words, variables);
        _exit(1);
    }
    wait_for(child);
    child = fork();
    if (child == 0) {
        compile("second", 2);
        execve("/bin/sh", words, variables);
        _exit(1);
    }
    wait_for(child);
    compile("third", 3);
    unsetenv("LD_PRELOAD");
    return system(words[2]);
}

/* Forks with clone(2), which calls no pthread_atfork handler. */
static int fork_without_handlers(void) {
    compile("first", 1);
    pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        compile("of_child", 2);
        _exit(0);
    }
    wait_for(child);
    compile("of_parent", 3);
    fprintf(stderr, "child %d\n", child);
    return 0;
}

/* Replaces the program in the same process. */
static int exec_self(void) {
    compile("first", 1);
    execl("/proc/self/exe", "safety", "second", NULL);
    fail("exec");
    return 1;
}

/* Forks a child that compiles nothing. */
static int fork_idle_child(void) {
    compile("first", 1);
    pid_t child = fork();
    if (child == 0) _exit(0);
    wait_for(child);
    fprintf(stderr, "child %d\n", child);
    return 0;
}

/* Forks repeatedly while other threads compile and free code. Each child uses resources that the library protects with
 * locks.
 */
static volatile int stop;

static void *compile_until_stopped(void *number) {
    for (int round = 0; !stop; round++) {
        char name[32];
        snprintf(name, sizeof name, "worker_%ld_%d", (long)number, round % 10);
        dispose(compile_named(name, name, round));
    }
    return NULL;
}

static int fork_storm(int forks) {
    pthread_t threads[2];
    jitlisten_status (*enable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_enable");
    jitlisten_status (*disable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_disable");
    compile("first", 1);
    should_list_slowly = 1;
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, compile_until_stopped, (void *)i);
    for (int i = 0; i < forks; i++) {
        usleep(1000 * (i % 7));
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            if (enable && (disable("perfmap") || enable("perfmap"))) _exit(1);
            _exit(dlopen("libresolv.so.2", RTLD_NOW) ? 0 : 2);
        }
        fprintf(stderr, "child %d\n", child);
        wait_for(child);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    compile("last", 2);
    return 0;
}

/* --- Ends -------------------------------------------------------------------------------------------------------- */

static int end_process(const char *ending) {
    compile("first", 1);
    if (getenv("SAFETY_RUNS")) run_command(getenv("SAFETY_RUNS"));
    compile("second", 2);
    if (!strcmp(ending, "_exit")) _exit(3);
    if (!strcmp(ending, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(ending, "fault")) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile int *)8 = 1;
    }
    if (!strcmp(ending, "abort")) abort();
    return 0; /* while engines are live */
}

/* --- Resources --------------------------------------------------------------------------------------------------- */

/* Compiles `functions` functions in a child where the library's page requests numbered `from` to `to` fail. */
static long starved_child(long from, long to, int functions, volatile long *request_count) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        page_requests = 0, fails_from = from, fails_to = to;
        for (int i = 0; i < functions; i++) {
            struct compiled function = compile_named("more", "more", i);
            if (!returns_expected(function, i)) _exit(1);
            if (i % 2) dispose(function);
        }
        *request_count = page_requests;
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (status) fprintf(stderr, "%d functions, from %ld to %ld: status %x\n", functions, from, to, status);
    return status != 0;
}

/* Runs one child after another. In each, either only the Nth page request fails, or the Nth and all later ones. */
static int starve_children(int functions) {
    volatile long *request_count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    compile("first", 1);
    long failed_children = starved_child(LONG_MAX - 1, LONG_MAX - 1, functions, request_count), total_requests = *request_count;
    fprintf(stderr, "%ld requests\n", total_requests);
    for (long number = 0; number <= total_requests; number++) {
        failed_children += starved_child(number, LONG_MAX, functions, request_count);
        failed_children += starved_child(number, number, functions, request_count);
    }
    /* More functions than the library's reserve of memory can hold. */
    failed_children += starved_child(0, LONG_MAX, 300, request_count);
    printf("%ld children went wrong\n", failed_children);
    return failed_children != 0;
}

/* Bytes of address space in use. */
static rlim_t address_space(void) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm == NULL || fscanf(statm, "%lu", &pages) != 1) fail("statm");
    fclose(statm);
    return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Compiles in a process that may use only `extra_bytes` additional bytes of address space. */
static void compile_with_limited_space(rlim_t extra_bytes) {
    jitlisten_status (*get_statistics)(struct jitlisten_statistics *) = dlsym(RTLD_DEFAULT, "jitlisten_get_statistics");
    jitlisten_status (*enable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_enable");
    jitlisten_status (*disable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_disable");
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    alarm(60);
    /* The jitdump sink made its mapping before the fork. Re-enable the sink, so that it maps again. */
    if (disable) disable("jitdump");
    getrlimit(RLIMIT_AS, &high_limit);
    low_limit = high_limit;
    low_limit.rlim_cur = address_space() + extra_bytes;
    setrlimit(RLIMIT_AS, &low_limit);
    is_space_limited = 1;
    if (enable) enable("jitdump");
    struct compiled second = compile_named("second", "second", 2), third = compile_named("third", "third", 3);
    int right = returns_expected(second, 2) && returns_expected(third, 3);
    dispose(second);
    right &= returns_expected(third, 3);
    is_space_limited = 0;
    setrlimit(RLIMIT_AS, &high_limit);
    if (get_statistics && get_statistics(&statistics) == JITLISTEN_OK)
        fprintf(stderr, "child %d perfmap %lu jitdump %lu image %lu\n", getpid(), statistics.perfmap_failures,
                statistics.jitdump_failures, statistics.image_failures);
    _exit(right ? 0 : 1);
}

static int limit_address_space_of_children(void) {
    static const rlim_t extra_bytes[] = {0, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
    refused_count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mallopt(M_TOP_PAD, 0); /* the host's heap gets exactly what it requests, so no free memory is left over */
    compile("first", 1);
    for (size_t i = 0; i < sizeof extra_bytes / sizeof *extra_bytes; i++) {
        int status;
        long refused_before = *refused_count;
        pid_t child = fork();
        if (child == 0) compile_with_limited_space(extra_bytes[i]);
        waitpid(child, &status, 0);
        printf("%lu bytes more: status %x\n", (unsigned long)extra_bytes[i], status);
        fflush(stdout);
        fprintf(stderr, "refused %ld\n", *refused_count - refused_before);
    }
    return 0;
}

static int compile_with_limit(const char *what) {
    int limits_files = !strcmp(what, "files");
    struct rlimit old_limit, limit;
    getrlimit(limits_files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &old_limit);
    limit = old_limit;
    limit.rlim_cur = limits_files ? 3 : 0;
    setrlimit(limits_files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &limit);
    struct compiled first = compile_named("first", "first", 1), second = compile_named("second", "second", 2);
    setrlimit(limits_files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &old_limit);
    printf("%d %d\n", returns_expected(first, 1), returns_expected(second, 2));
    compile("third", 3);
    return 0;
}

/* Makes system calls fail with EPERM, like a container's seccomp profile. */
static int compile_under_filter(void) {
    static const int forbidden[] = {SYS_process_vm_readv, SYS_process_vm_writev, SYS_flock, SYS_fstatfs, SYS_ioctl,
                                    SYS_membarrier, SYS_getrandom, SYS_memfd_create, SYS_rt_sigtimedwait, SYS_ptrace};
    struct sock_filter filter[64];
    int count = 0;
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)forbidden[i], 0, 1);
        filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)count, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
    compile("first", 1);
    compile("second", 2);
    return 0;
}

/* --- The rest ---------------------------------------------------------------------------------------------------- */

/* Compiles functions with hostile names, spelled as in LLVM assembly. */
static int compile_hostile_names(void) {
    static const char *const escaped_names[] = {"two\\0Alines",         "7f0000000000 10 forged\\0A7f0000001000 10 other",
                                          "\\1B[31mred\\1B[0m",    "\\1B]0;title\\07",
                                          "bad \\FF\\FE utf-8",    "\\E2\\80\\AEright to left",
                                          " ",                    "x",
                                          "0xdeadbeef",           "\\0D\\0A",
                                          "\\7F\\C2\\9B31m",       "../../../../etc/passwd",
                                          "%s%n%x",               "\\C0\\80overlong"};
    int count = sizeof escaped_names / sizeof *escaped_names;
    for (int i = 0; i < count; i++) {
        char plain_name[256], *end = plain_name;
        for (const char *at = escaped_names[i]; *at; at++) {
            unsigned byte = (unsigned char)*at;
            if (byte == '\\') sscanf(at + 1, "%2x", &byte), at += 2;
            *end++ = (char)byte;
        }
        *end = 0;
        printf("%d", returns_expected(compile_named(escaped_names[i], plain_name, i), i));
    }
    char *long_name = malloc((1 << 20) + 1);
    memset(long_name, 'n', 1 << 20);
    long_name[1 << 20] = 0;
    printf("%d\n", returns_expected(compile_named(long_name, long_name, 99), 99));
    compile("last", 1);
    return 0;
}

/* Compiles a function that runs long enough for a profiler. */
static struct compiled compile_loop(const char *name) {
    char text[512];
    snprintf(text, sizeof text,
             "define i64 @%s(i64 %%n) uwtable \"frame-pointer\"=\"all\" {\nentry:\n  br label %%loop\nloop:\n"
             "  %%i = phi i64 [ %%n, %%entry ], [ %%next, %%loop ]\n  %%next = sub i64 %%i, 1\n"
             "  %%more = icmp ne i64 %%next, 0\n  br i1 %%more, label %%loop, label %%out\nout:\n  ret i64 %%next\n}\n",
             name);
    return compile_text(text, name);
}

static void run_loop(struct compiled compiled, double seconds) {
    clock_t deadline = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    while (clock() < deadline) ((long (*)(long))compiled.address)(10 * 1000 * 1000);
}

/* Frees a function and compiles others until one of them gets its address. */
static int reuse_address(double seconds) {
    struct compiled compiled = compile_loop("summer");
    unsigned long address = compiled.address;
    int turns = 0;
    run_loop(compiled, seconds);
    do {
        dispose(compiled);
        compiled = compile_loop("winter");
    } while (compiled.address != address && ++turns < 8000);
    printf("%s address after %d others\n", compiled.address == address ? "the same" : "another", turns);
    run_loop(compiled, seconds);
    return 0;
}

/* Opens the library with dlopen, and closes it again. */
static int open_and_close_library(const char *path) {
    compile("first", 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail(dlerror());
    int (*open_session)(void) = (int (*)(void))dlsym(library, "jitlisten_open");
    printf("open: %d\n", open_session());
    compile("second", 2);
    printf("close: %d\n", dlclose(library));
    compile("third", 3);
    return 0;
}

/* Writes the library's statistics to $SAFETY_STATISTICS, one `name number` per line. */
static void write_statistics(void) {
    jitlisten_status (*get_statistics)(struct jitlisten_statistics *) = dlsym(RTLD_DEFAULT, "jitlisten_get_statistics");
    const char *path = getenv("SAFETY_STATISTICS");
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    if (path == NULL || get_statistics == NULL || get_statistics(&statistics) != JITLISTEN_OK) return;
    FILE *file = fopen(path, "w");
    fprintf(file, "loaded %lu\nfinalized %lu\nfreed %lu\nrefused %lu\n", statistics.objects_loaded,
            statistics.objects_finalized, statistics.objects_freed, statistics.objects_refused);
    fprintf(file, "perfmap %lu\njitdump %lu\nimage %lu\n", statistics.perfmap_failures, statistics.jitdump_failures,
            statistics.image_failures);
    fclose(file);
}

/* Opens a session in a program that is linked with the library and may be privileged (set-user-ID). */
static int open_privileged(void) {
    jitlisten_status (*open_session)(void) = dlsym(RTLD_DEFAULT, "jitlisten_open");
    jitlisten_status (*enable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_enable");
    printf("AT_SECURE: %lu\n", getauxval(AT_SECURE));
    int opened = open_session();
    printf("open: %d, enable: %d\n", opened, enable("perfmap"));
    compile("first", 1);
    return 0;
}

/* Returns "empty" if the function only returns, as the debugger interface's functions do until they are patched;
 * otherwise "changed". */
static const char *describe_function(uintptr_t function) {
#ifdef __aarch64__
    static const unsigned char branch_target_marker[] = {0x5f, 0x24, 0x03, 0xd5}, return_instruction[] = {0xc0, 0x03, 0x5f, 0xd6};
#else
    static const unsigned char branch_target_marker[] = {0xf3, 0x0f, 0x1e, 0xfa}, return_instruction[] = {0xc3};
#endif
    const unsigned char *code = (const unsigned char *)function;
    if (!memcmp(code, branch_target_marker, sizeof branch_target_marker)) code += sizeof branch_target_marker;
    return memcmp(code, return_instruction, sizeof return_instruction) ? "changed" : "empty";
}

/* Opens a session in a program into which the library was preloaded in a way that also affects set-user-ID programs. */
static int open_preloaded(void) {
    jitlisten_status (*open_session)(void) = dlsym(RTLD_DEFAULT, "jitlisten_open");
    printf("AT_SECURE: %lu, library: %s\n", getauxval(AT_SECURE), open_session && library_end ? "there" : "not there");
    compile("first", 1);
    printf("entry points: %s, %s\n", describe_function(_r_debug.r_brk), describe_function((uintptr_t)__jit_debug_register_code));
    if (open_session) printf("open: %d\n", open_session());
    compile("second", 2);
    printf("entry points: %s, %s\n", describe_function(_r_debug.r_brk), describe_function((uintptr_t)__jit_debug_register_code));
    return 0;
}

int main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "";
    const char *word = argc > 2 ? argv[2] : "";
    dl_iterate_phdr(find_library, NULL);
    initialize_llvm();
    atexit(write_statistics);
    if (!strcmp(scenario, "interrupted")) return compile_interrupted(word);
    if (!strcmp(scenario, "cancelled")) return compile_cancelled();
    if (!strcmp(scenario, "errno")) return check_errno();
    if (!strcmp(scenario, "daemon")) return close_like_daemon(word);
    if (!strcmp(scenario, "numbers")) return print_next_descriptor();
    if (!strcmp(scenario, "runs-others")) return run_other_programs();
    if (!strcmp(scenario, "fork-storm")) return fork_storm(atoi(word));
    if (!strcmp(scenario, "raw-fork")) return fork_without_handlers();
    if (!strcmp(scenario, "execs")) return exec_self();
    if (!strcmp(scenario, "idle-fork")) return fork_idle_child();
    if (!strcmp(scenario, "ends")) return end_process(word);
    if (!strcmp(scenario, "starves")) return starve_children(atoi(word));
    if (!strcmp(scenario, "limited")) return compile_with_limit(word);
    if (!strcmp(scenario, "narrows")) return limit_address_space_of_children();
    if (!strcmp(scenario, "filtered")) return compile_under_filter();
    if (!strcmp(scenario, "privileged")) return open_privileged();
    if (!strcmp(scenario, "preloaded")) return open_preloaded();
    if (!strcmp(scenario, "names")) return compile_hostile_names();
    if (!strcmp(scenario, "opens")) return open_and_close_library(word);
    if (!strcmp(scenario, "recycles")) return reuse_address(atof(word));
    for (int i = 1; i < argc; i++) compile(argv[i], i);
    return 0;
}
