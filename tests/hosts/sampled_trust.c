/* A program that is sampled and does what a sampler easily breaks: each scenario says on stdout what it has noticed.
 *
 *   sampled_trust SCENARIO [NUMBER] */
#define _GNU_SOURCE
#include <alloca.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

static volatile double sink;

/* So much work, whatever time that takes. */
KEPT static void work(long turns)
{
    double x = sink;
    for (long i = 0; i < turns; i++)
        x = x * 0.999 + 1.0 / (x * x + 1.0);
    sink = x;
}

KEPT static int frames(int depth, long turns);

/* Larger than what is read of a stack at once. */
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

static void *in_thread(void *unused)
{
    frames((int)arguments[0], arguments[1]);
    return unused;
}

/* In a thread, of whose stack less is known than of the main thread's. */
static int deep(long depth, long turns)
{
    pthread_t thread;
    arguments[0] = depth;
    arguments[1] = turns;
    if (pthread_create(&thread, NULL, in_thread, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 2;
    puts("done");
    return 0;
}

static ucontext_t outside;

static void inside(void) { frames((int)arguments[0], arguments[1]); }

/* On a stack that is not the thread's own. */
static int context(long depth, long turns)
{
    const size_t size = 1 << 20;
    static ucontext_t other;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&other) != 0)
        return 2;
    arguments[0] = depth;
    arguments[1] = turns;
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = size;
    other.uc_link = &outside;
    makecontext(&other, inside, 0);
    if (swapcontext(&outside, &other) != 0)
        return 3;
    puts("done");
    return 0;
}

/* Signals come to a stack of so many bytes, with a pattern below it. */
static void *on_small_stack(void *bytes)
{
    const size_t size = (size_t)(long)bytes, below = 1 << 16;
    unsigned char *mapped =
        mmap(NULL, below + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return "mmap";
    memset(mapped, 0x5a, below);
    stack_t stack = {.ss_sp = mapped + below, .ss_size = size};
    if (sigaltstack(&stack, NULL) != 0)
        return "refused";
    work(100000000);
    for (size_t i = 0; i < below; i++)
        if (mapped[i] != 0x5a)
            return "overwritten";
    return "whole";
}

static int small_stacks(void)
{
    const long sizes[] = {2048, 3072, 5632, 8192};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, on_small_stack, (void *)sizes[i]) != 0 || pthread_join(thread, &result) != 0)
            return 2;
        printf("%ld: %s\n", sizes[i], (char *)result);
    }
    return 0;
}

static unsigned char in_use[65536 + 8192];

/* Of the stack, the kernel's part of the next handler and 2 KB are left, on every processor. */
static void on_stack(int number)
{
    const unsigned char *here = __builtin_frame_address(0);
    const long kernels = in_use + sizeof in_use - here, left = here - (in_use + 65536);
    volatile unsigned char *taken = __builtin_alloca(left > kernels + 2048 ? left - kernels - 2048 : 1);
    taken[0] = (unsigned char)number;
    work(100000000);
}

/* A handler of the program's is on that stack already, and has some of it in use. */
static int stack_in_use(void)
{
    memset(in_use, 0x5a, 65536);
    stack_t stack = {.ss_sp = in_use + 65536, .ss_size = 8192};
    struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0)
        return 2;
    raise(SIGUSR1);
    for (size_t i = 0; i < 65536; i++)
        if (in_use[i] != 0x5a)
            return puts("overwritten"), 0;
    puts("whole");
    return 0;
}

static volatile long ticks;
static void counts(int number) { ticks += number > 0; }

/* As daemons do. */
static int all_default(void)
{
    long others = 0;
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction before;
        if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_DFL && number != SIGPIPE)
            others++;
        struct sigaction usual = {.sa_handler = SIG_DFL};
        if (number % 2 == 0)
            sigaction(number, &usual, NULL);
        else
            signal(number, SIG_DFL);
    }
    work(100000000);
    printf("%ld other dispositions\n", others);
    return 0;
}

/* A handler for each real-time signal, which is sent once. */
static int all_handled(void)
{
    long sent = 0;
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++) {
        struct sigaction action = {.sa_handler = counts, .sa_flags = SA_RESTART}, now;
        if (sigaction(number, &action, NULL) != 0 || sigaction(number, NULL, &now) != 0 || now.sa_handler != counts)
            return 2;
    }
    work(100000000);
    printf("%ld ticks, ", ticks);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++, sent++)
        kill(getpid(), number);
    printf("%ld of %ld came\n", ticks, sent);
    return 0;
}

static pthread_t sender_of;

/* Sends after so much work that the sampler's signal has waited for the thread, too. */
static void *sends(void *number)
{
    work(50000000);
    pthread_kill(sender_of, (int)(long)number);
    return NULL;
}

static void *waits(void *how)
{
    sigset_t all;
    siginfo_t info = {0};
    int number = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_t sender;
    sender_of = pthread_self();
    /* With every signal blocked: also the sampler's, of which one waits after this. */
    work(50000000);
    sigset_t waiting;
    sigpending(&waiting);
    for (int one = SIGRTMIN; one <= SIGRTMAX; one++)
        if (sigismember(&waiting, one))
            return "a signal waits";
    if (pthread_create(&sender, NULL, sends, (void *)(long)SIGUSR2) != 0)
        return "no thread";
    const struct timespec minute = {60, 0};
    switch ((long)how) {
    case 0: sigwait(&all, &number); break;
    case 1: number = sigwaitinfo(&all, &info); break;
    case 2: number = sigtimedwait(&all, &info, &minute); break;
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

static int all_waited_for(void)
{
    for (long how = 0; how < 4; how++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, waits, (void *)how) != 0 || pthread_join(thread, &result) != 0)
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

static void nothing(int number)
{
    (void)number;
}

/* A wait of 50 ms. Its frame is of a size known at run time only, so its callers are found by registers that only a signal has. */
KEPT static int wait_once(long how, size_t size)
{
    volatile char *frame = alloca(size);
    frame[0] = 1;
    struct timespec time = {0, 50000000};
    struct timeval again = {0, 50000};
    struct epoll_event event;
    int descriptor, result = 0;
    switch (how) {
    case 0:
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 50000}}, NULL);
        double start = now();
        pause();
        return now() - start < 0.045;
    case 1:
        return poll(NULL, 0, 50) < 0;
    case 2:
        return nanosleep(&time, NULL) < 0;
    case 3:
        return select(0, NULL, NULL, NULL, &again) < 0;
    default:
        descriptor = epoll_create1(0);
        result = epoll_wait(descriptor, &event, 1, 50) < 0;
        close(descriptor);
        return result;
    }
}

static int waits_interrupted(void)
{
    signal(SIGALRM, nothing);
    int interrupted = 0;
    for (long i = 0; i < 50; i++) {
        work(100000);
        interrupted += wait_once(i % 5, 64 + (size_t)i);
    }
    printf("%d\n", interrupted);
    return 0;
}

static int ends[2];

static void *reads_slowly(void *bytes)
{
    char buffer[4096];
    for (ssize_t got, left = (ssize_t)bytes; left > 0; left -= got > 0 ? got : 0) {
        got = read(ends[0], buffer, sizeof buffer);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NULL;
}

/* How many parts a write to a pipe has without another writer. */
KEPT static int writes_cut_short(void)
{
    ssize_t left = 2 << 20;
    int parts = 0;
    char *bytes = calloc(1, (size_t)left);
    pthread_t reader;
    if (bytes == NULL || pipe(ends) != 0 || pthread_create(&reader, NULL, reads_slowly, (void *)left) != 0)
        return 2;
    for (ssize_t written; left > 0; parts++) {
        written = write(ends[1], bytes, (size_t)left);
        left -= written > 0 ? written : 0;
    }
    pthread_join(reader, NULL);
    free(bytes);
    printf("%d\n", parts - 1);
    return 0;
}

static sem_t end;

KEPT static void *idles(void *argument)
{
    while (sem_wait(&end) != 0)
        ;
    return argument;
}

static int idle(long seconds)
{
    pthread_t threads[100];
    sem_init(&end, 0, 0);
    for (int i = 0; i < 100; i++)
        if (pthread_create(&threads[i], NULL, idles, NULL) != 0)
            return 2;
    sleep((unsigned)seconds);
    for (int i = 0; i < 100; i++)
        sem_post(&end);
    for (int i = 0; i < 100; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    long number = argc > 2 ? atol(argv[2]) : 1;
    if (strcmp(scenario, "deep") == 0)
        return deep(number, argc > 3 ? atol(argv[3]) : 1);
    if (strcmp(scenario, "context") == 0)
        return context(number, argc > 3 ? atol(argv[3]) : 1);
    if (strcmp(scenario, "small-stacks") == 0)
        return small_stacks();
    if (strcmp(scenario, "stack-in-use") == 0)
        return stack_in_use();
    if (strcmp(scenario, "all-default") == 0)
        return all_default();
    if (strcmp(scenario, "all-handled") == 0)
        return all_handled();
    if (strcmp(scenario, "all-waited-for") == 0)
        return all_waited_for();
    if (strcmp(scenario, "waits-interrupted") == 0)
        return waits_interrupted();
    if (strcmp(scenario, "writes-cut-short") == 0)
        return writes_cut_short();
    if (strcmp(scenario, "idle") == 0)
        return idle(number);
    return 1;
}
