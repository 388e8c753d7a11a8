/* Operations that a sampler could easily break. Each scenario prints the effects that it observed.
 *
 *   sampled_trust SCENARIO [NUMBER] */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

static volatile double sink;

/* Does a fixed amount of work, independent of time. */
KEPT static void work(long turns)
{
    double x = sink;
    for (long i = 0; i < turns; i++)
        x = x * 0.999 + 1.0 / (x * x + 1.0);
    sink = x;
}

KEPT static int frames(int depth, long turns);

/* Uses a frame larger than the part of a stack that the sampler reads in one call. */
KEPT static int large_frame(int depth, long turns)
{
    volatile char frame[40000];
    frame[0] = (char)depth;
    frames(depth - 1, turns);
    return frame[0];
}

KEPT static int frames(int depth, long turns)
{
    volatile char frame[512];
    frame[0] = (char)depth;
    if (depth == 0)
        work(turns);
    else if (depth == 40)
        large_frame(depth, turns);
    else
        frames(depth - 1, turns);
    return frame[0];
}

static long arguments[2];

static void *run_frames(void *unused)
{
    frames((int)arguments[0], arguments[1]);
    return unused;
}

/* Runs in a thread that is not the main thread, because its stack bounds are harder to find. */
static int run_deep(long depth, long turns)
{
    pthread_t thread;
    arguments[0] = depth;
    arguments[1] = turns;
    if (pthread_create(&thread, NULL, run_frames, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 2;
    puts("done");
    return 0;
}

static ucontext_t main_context;

static void run_frames_on_context(void) { frames((int)arguments[0], arguments[1]); }

/* Runs on a stack that is not the thread's own (makecontext). */
static int run_on_context(long depth, long turns)
{
    const size_t size = 1 << 20;
    static ucontext_t other_context;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&other_context) != 0)
        return 2;
    arguments[0] = depth;
    arguments[1] = turns;
    other_context.uc_stack.ss_sp = stack;
    other_context.uc_stack.ss_size = size;
    other_context.uc_link = &main_context;
    makecontext(&other_context, run_frames_on_context, 0);
    if (swapcontext(&main_context, &other_context) != 0)
        return 3;
    puts("done");
    return 0;
}

/* Handles signals on an alternate stack of `bytes` bytes, and checks the pattern below that stack. */
static void *work_on_small_stack(void *bytes)
{
    const size_t size = (size_t)(long)bytes, guard_bytes = 1 << 16;
    unsigned char *mapped =
        mmap(NULL, guard_bytes + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return "mmap";
    memset(mapped, 0x5a, guard_bytes);
    stack_t stack = {.ss_sp = mapped + guard_bytes, .ss_size = size};
    if (sigaltstack(&stack, NULL) != 0)
        return "refused";
    work(100000000);
    for (size_t i = 0; i < guard_bytes; i++)
        if (mapped[i] != 0x5a)
            return "overwritten";
    return "whole";
}

static int run_on_small_stacks(void)
{
    const long sizes[] = {2048, 3072, 5632, 8192};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, work_on_small_stack, (void *)sizes[i]) != 0 || pthread_join(thread, &result) != 0)
            return 2;
        printf("%ld: %s\n", sizes[i], (char *)result);
    }
    return 0;
}

static unsigned char used_stack[65536 + 8192];

/* Uses up the stack, except for 512 bytes: no signal frame fits there. */
static void fill_stack_and_work(int number)
{
    const long bytes_left = (const unsigned char *)__builtin_frame_address(0) - (used_stack + 65536);
    volatile unsigned char *filler = __builtin_alloca(bytes_left > 512 ? bytes_left - 512 : 1);
    filler[0] = (unsigned char)number;
    work(100000000);
}

/* Starts a recording, if the library is loaded. */
static int start_recording(const char *path)
{
    int (*start)(const char *, const void *) = (int (*)(const char *, const void *))dlsym(RTLD_DEFAULT, "jitlisten_record_start");
    return start == NULL ? 0 : start(path, NULL);
}

/* Samples a thread whose own signal handler occupies nearly all of the alternate signal stack. With `path`, the
 * recording begins after the handler has been installed. */
static int run_on_used_stack(const char *path)
{
    memset(used_stack, 0x5a, 65536);
    stack_t stack = {.ss_sp = used_stack + 65536, .ss_size = 8192};
    struct sigaction action = {.sa_handler = fill_stack_and_work, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0)
        return 2;
    if (path != NULL && start_recording(path) != 0)
        return 3;
    raise(SIGUSR1);
    work(100000000);
    struct sigaction installed;
    sigaction(SIGUSR1, NULL, &installed);
    for (int signal = 1; signal < 65; signal++)
        if (sigismember(&installed.sa_mask, signal) == 1)
            printf("the handler blocks %d\n", signal);
    for (size_t i = 0; i < 65536; i++)
        if (used_stack[i] != 0x5a)
            return puts("overwritten"), 0;
    puts("whole");
    return 0;
}

static volatile long handled_count;
static void count_signal(int number) { handled_count += number > 0; }

/* Resets every signal to its default, like a daemon. Prints how many had another disposition. */
static int reset_all_signals(void)
{
    long other_dispositions = 0;
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction before;
        if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_DFL && number != SIGPIPE)
            other_dispositions++;
        struct sigaction default_action = {.sa_handler = SIG_DFL};
        if (number % 2 == 0)
            sigaction(number, &default_action, NULL);
        else
            signal(number, SIG_DFL);
    }
    work(100000000);
    printf("%ld other dispositions\n", other_dispositions);
    return 0;
}

/* Installs a handler for each real-time signal, and sends each signal once. */
static int handle_all_signals(void)
{
    long sent = 0;
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++) {
        struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART}, installed;
        if (sigaction(number, &action, NULL) != 0 || sigaction(number, NULL, &installed) != 0 || installed.sa_handler != count_signal)
            return 2;
    }
    work(100000000);
    printf("%ld ticks, ", handled_count);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++, sent++)
        kill(getpid(), number);
    printf("%ld of %ld came\n", handled_count, sent);
    return 0;
}

static pthread_t waiting_thread;

/* Sends the signal late, so that a signal of the sampler is pending in the waiting thread as well. */
static void *send_signal(void *number)
{
    work(50000000);
    pthread_kill(waiting_thread, (int)(long)number);
    return NULL;
}

static void *wait_for_signal(void *method)
{
    sigset_t all;
    siginfo_t info = {0};
    int number = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_t sender;
    waiting_thread = pthread_self();
    /* Works with every signal blocked, including the sampler's. A signal of the sampler is pending afterwards, but the
     * program must not see it.
     */
    work(50000000);
    sigset_t pending;
    sigpending(&pending);
    for (int signal_number = SIGRTMIN; signal_number <= SIGRTMAX; signal_number++)
        if (sigismember(&pending, signal_number))
            return "a signal waits";
    if (pthread_create(&sender, NULL, send_signal, (void *)(long)SIGUSR2) != 0)
        return "no thread";
    const struct timespec one_minute = {60, 0};
    switch ((long)method) {
    case 0: sigwait(&all, &number); break;
    case 1: number = sigwaitinfo(&all, &info); break;
    case 2: number = sigtimedwait(&all, &info, &one_minute); break;
    default: {
        struct signalfd_siginfo read_info = {0};
        int descriptor = signalfd(-1, &all, SFD_CLOEXEC);
        if (read(descriptor, &read_info, sizeof read_info) == sizeof read_info)
            number = (int)read_info.ssi_signo;
        close(descriptor);
    }
    }
    pthread_join(sender, NULL);
    return number == SIGUSR2 ? "the one that was sent" : "another signal";
}

static int wait_for_all_signals(void)
{
    for (long method = 0; method < 4; method++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, wait_for_signal, (void *)method) != 0 || pthread_join(thread, &result) != 0)
            return 2;
        puts(result);
    }
    return 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void ignore_signal(int number)
{
    (void)number;
}

#if defined(__x86_64__)
/* An inline system call, as in liburing and libaio. */
static inline __attribute__((always_inline)) long inline_syscall(long number, long first, long second, long third,
                                                                 long fourth, const void *fifth, long sixth)
{
    long result;
    register long r10 __asm__("r10") = fourth;
    register const void *r8 __asm__("r8") = fifth;
    register long r9 __asm__("r9") = sixth;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#endif

/* Waits in io_uring_enter for an operation that does not come. Returns true if the wait was interrupted. Containers
 * often forbid io_uring, and headers before Linux 5.11 lack the timeout. */
static inline __attribute__((always_inline)) int wait_for_ring(const struct timespec *timeout)
{
#if defined(__x86_64__) && defined(IORING_ENTER_EXT_ARG)
    static int ring = -1;
    /* The ring stays open, because closing it interrupts a later wait. */
    if (ring < 0)
        ring = (int)syscall(SYS_io_uring_setup, 1, &(struct io_uring_params){0});
    if (ring < 0)
        return 0;
    const struct io_uring_getevents_arg wait = {.ts = (unsigned long)timeout};
    const long flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    return inline_syscall(SYS_io_uring_enter, ring, 0, 1, flags, &wait, sizeof wait) == -EINTR;
#else
    (void)timeout;
    return 0;
#endif
}

/* Waits in io_pgetevents for a read that does not come. Returns true if the wait was interrupted. */
static inline __attribute__((always_inline)) int wait_for_read(const struct timespec *timeout)
{
#if defined(__x86_64__)
    static unsigned long context;
    char event[32];
    if (context == 0 && syscall(SYS_io_setup, 1, &context) != 0)
        return 0;
    return inline_syscall(SYS_io_pgetevents, (long)context, 1, 1, (long)event, timeout, 0) == -EINTR;
#else
    (void)timeout;
    return 0;
#endif
}

/* Waits for a server that accepts no connection. Returns true if the wait was interrupted. */
static int wait_for_connection(struct timeval timeout)
{
    static struct sockaddr_un address = {.sun_family = AF_UNIX};
    static int listener = -1;
    if (listener < 0) {
        /* An abstract name, and a queue of one connection, which is never accepted. */
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "sampled-trust-%d", getpid());
        listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 0) != 0 ||
            connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address) != 0)
            return 1;
    }
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    int result = connect(client, (struct sockaddr *)&address, sizeof address);
    int is_interrupted = result == 0 || errno == EINTR;
    close(client);
    return is_interrupted;
}

/* Waits for 50 ms. The frame size is known only at run time, so unwinding needs registers that only a signal frame has.
 * */
KEPT static int wait_once(long call, size_t size)
{
    volatile char *frame = alloca(size);
    frame[0] = 1;
    struct timespec timeout = {0, 50000000};
    struct timeval select_timeout = {0, 50000};
    struct epoll_event event;
    int descriptor, result = 0;
    switch (call) {
    case 0:
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 50000}}, NULL);
        double start = now();
        pause();
        return now() - start < 0.045;
    case 1:
        return poll(NULL, 0, 50) < 0;
    case 2:
        return nanosleep(&timeout, NULL) < 0;
    case 3:
        return select(0, NULL, NULL, NULL, &select_timeout) < 0;
    case 4:
        return wait_for_ring(&timeout);
    case 5:
        return wait_for_read(&timeout);
    case 6:
        return wait_for_connection(select_timeout);
    default:
        descriptor = epoll_create1(0);
        result = epoll_wait(descriptor, &event, 1, 50) < 0;
        close(descriptor);
        return result;
    }
}

static int count_interrupted_waits(void)
{
    signal(SIGALRM, ignore_signal);
    int interrupted = 0;
    for (long i = 0; i < 64; i++) {
        work(100000);
        interrupted += wait_once(i % 8, 64 + (size_t)i);
    }
    printf("%d\n", interrupted);
    return 0;
}

static atomic_bool are_polls_done;

static void *occupy(void *unused)
{
    (void)unused;
    while (!are_polls_done)
        work(1000);
    return NULL;
}

/* Prints how many of 1,000 calls of poll were interrupted. Two other threads need the same processor, so that this one
 * stands on the run queue when its calls have timed out. */
static int count_interrupted_polls(void)
{
    pthread_t threads[2];
    cpu_set_t one_processor;
    CPU_ZERO(&one_processor);
    CPU_SET(sched_getcpu(), &one_processor);
    sched_setaffinity(0, sizeof one_processor, &one_processor);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, occupy, NULL) != 0)
            return 2;
    int interrupted = 0;
    for (int i = 0; i < 1000; i++) {
        interrupted += poll(NULL, 0, 1) < 0;
        work(100000);
    }
    are_polls_done = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", interrupted);
    return 0;
}

static int pipe_ends[2];

static void *read_slowly(void *bytes)
{
    char buffer[4096];
    for (ssize_t received, remaining = (ssize_t)bytes; remaining > 0; remaining -= received > 0 ? received : 0) {
        received = read(pipe_ends[0], buffer, sizeof buffer);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NULL;
}

/* Prints into how many additional parts a write to a pipe was split; there is no other writer. */
KEPT static int writes_cut_short(void)
{
    ssize_t remaining = 2 << 20;
    int parts = 0;
    char *bytes = calloc(1, (size_t)remaining);
    pthread_t reader;
    if (bytes == NULL || pipe(pipe_ends) != 0 || pthread_create(&reader, NULL, read_slowly, (void *)remaining) != 0)
        return 2;
    for (ssize_t written; remaining > 0; parts++) {
        written = write(pipe_ends[1], bytes, (size_t)remaining);
        remaining -= written > 0 ? written : 0;
    }
    pthread_join(reader, NULL);
    free(bytes);
    printf("%d\n", parts - 1);
    return 0;
}

static sem_t finished;

KEPT static void *idles(void *argument)
{
    while (sem_wait(&finished) != 0)
        ;
    return argument;
}

static int run_idle_threads(long seconds)
{
    pthread_t threads[100];
    sem_init(&finished, 0, 0);
    for (int i = 0; i < 100; i++)
        if (pthread_create(&threads[i], NULL, idles, NULL) != 0)
            return 2;
    if (sleep((unsigned)seconds) != 0)
        return 3;
    for (int i = 0; i < 100; i++)
        sem_post(&finished);
    for (int i = 0; i < 100; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

// Prints what a thread without a signal stack is told, and after it has set and reset one.
static void *print_signal_stacks(void *unused)
{
    (void)unused;
    stack_t old = {0}, stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(NULL, &old);
    printf("%d %zu %p\n", old.ss_flags, old.ss_size, old.ss_sp);
    sigaltstack(&stack, &old);
    printf("%d %zu\n", old.ss_flags, old.ss_size);
    sigaltstack(&old, &stack);
    printf("%d %zu\n", stack.ss_flags, stack.ss_size);
    sigaltstack(NULL, &old);
    printf("%d %zu\n", old.ss_flags, old.ss_size);
    return NULL;
}

static int print_all_signal_stacks(void)
{
    pthread_t thread;
    print_signal_stacks(NULL);
    return pthread_create(&thread, NULL, print_signal_stacks, NULL) != 0 || pthread_join(thread, NULL) != 0;
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    long number = argc > 2 ? atol(argv[2]) : 1;
    if (strcmp(scenario, "deep") == 0)
        return run_deep(number, argc > 3 ? atol(argv[3]) : 1);
    if (strcmp(scenario, "context") == 0)
        return run_on_context(number, argc > 3 ? atol(argv[3]) : 1);
    if (strcmp(scenario, "small-stacks") == 0)
        return run_on_small_stacks();
    if (strcmp(scenario, "stack-in-use") == 0)
        return run_on_used_stack(argc > 2 ? argv[2] : NULL);
    if (strcmp(scenario, "all-default") == 0)
        return reset_all_signals();
    if (strcmp(scenario, "all-handled") == 0)
        return handle_all_signals();
    if (strcmp(scenario, "all-waited-for") == 0)
        return wait_for_all_signals();
    if (strcmp(scenario, "signal-stacks") == 0)
        return print_all_signal_stacks();
    if (strcmp(scenario, "waits-interrupted") == 0)
        return count_interrupted_waits();
    if (strcmp(scenario, "polls-interrupted") == 0)
        return count_interrupted_polls();
    if (strcmp(scenario, "writes-cut-short") == 0)
        return writes_cut_short();
    if (strcmp(scenario, "idle") == 0)
        return run_idle_threads(number);
    return 1;
}
