/* Programs to be sampled. The behaviour of each scenario is known, and its recording is compared with it.
 *
 *   sampled SCENARIO [NUMBER..]
 *
 * Looks up the C API with dlsym, so that the program also runs without the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "jitlisten.h"

#define KEPT __attribute__((noinline, noclone))

static volatile double sink;

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

KEPT static double iterate(double x, long iterations)
{
    for (long i = 0; i < iterations; i++)
        x = x * 0.999 + 1.0 / (x * x + 1.0);
    return x;
}

/* Burns this many seconds of CPU time in the calling thread. */
KEPT static void burn(double seconds)
{
    double deadline = clock_seconds(CLOCK_THREAD_CPUTIME_ID) + seconds;
    while (clock_seconds(CLOCK_THREAD_CPUTIME_ID) < deadline)
        sink = iterate(sink, 1000);
}

static jitlisten_status start(const char *path)
{
    jitlisten_status (*function)(const char *, const void *) =
        (jitlisten_status (*)(const char *, const void *))dlsym(RTLD_DEFAULT, "jitlisten_record_start");
    return function ? function(path, NULL) : JITLISTEN_OK;
}

static jitlisten_status stop(void)
{
    jitlisten_status (*function)(void) = (jitlisten_status (*)(void))dlsym(RTLD_DEFAULT, "jitlisten_record_stop");
    return function ? function() : JITLISTEN_OK;
}

static struct jitlisten_record_statistics statistics(void)
{
    struct jitlisten_record_statistics result = {.size = sizeof result};
    jitlisten_status (*function)(void *) = (jitlisten_status (*)(void *))dlsym(RTLD_DEFAULT, "jitlisten_get_record_statistics");
    if (function)
        function(&result);
    return result;
}

/* Two functions whose CPU times have a ratio of 3:1. */
KEPT static void three_of_four(long n) { sink = iterate(1.0, 3 * n); sink = sink + 1; }
KEPT static void one_of_four(long n) { sink = iterate(1.0, n); sink = sink + 1; }

KEPT static double exp_three(long n)
{
    double sum = 0;
    for (long i = 0; i < 3 * n; i++)
        sum += exp((double)(i & 7));
    return sum;
}

KEPT static double exp_one(long n)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += exp((double)(i & 7));
    return sum;
}

/* Iterations are much shorter than the sampling period and of random length, so that samples are independent. If
 * iterations were as long as a kernel tick, the sampled position would drift slowly through the iteration, and the
 * measured shares would be wrong by several sigma. */
static int run_loops(double seconds)
{
    double deadline = clock_seconds(CLOCK_THREAD_CPUTIME_ID) + seconds;
    while (clock_seconds(CLOCK_THREAD_CPUTIME_ID) < deadline)
        for (int i = 0; i < 50; i++) {
            three_of_four(2000 + rand() % 2000);
            one_of_four(3000);
        }
    return 0;
}

static int run_exps(double seconds)
{
    double deadline = clock_seconds(CLOCK_THREAD_CPUTIME_ID) + seconds;
    while (clock_seconds(CLOCK_THREAD_CPUTIME_ID) < deadline)
        for (int i = 0; i < 50; i++)
            sink = exp_three(2000 + rand() % 2000) + exp_one(3000);
    return 0;
}

KEPT static void touch(long pages)
{
    char *memory = mmap(NULL, (size_t)pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, (size_t)pages * 4096, MADV_NOHUGEPAGE);
    for (long i = 0; i < pages; i++)
        ((volatile char *)memory)[i * 4096] = 1;
    munmap(memory, (size_t)pages * 4096);
}

KEPT static void touch_three(long n) { touch(3 * n); sink = sink + 1; }
KEPT static void touch_one(long n) { touch(n); sink = sink + 1; }

static void *cause_faults(void *iterations)
{
    for (long i = 0; i < (long)iterations; i++) {
        touch_three(300);
        touch_one(300);
    }
    return NULL;
}

/* Causes page faults in two threads, 1,200 per iteration in each. Prints the page faults of the process. */
static int run_faults(long iterations)
{
    pthread_t thread;
    struct rusage usage;
    pthread_create(&thread, NULL, cause_faults, (void *)iterations);
    cause_faults((void *)iterations);
    pthread_join(thread, NULL);
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld\n", usage.ru_minflt);
    return 0;
}

/* Does a fixed amount of work, for callgrind. */
static int run_fixed_work(double rounds)
{
    for (long i = 0; i < (long)rounds; i++) {
        three_of_four(10000);
        one_of_four(10000);
        sink = exp_three(3000) + exp_one(3000);
    }
    return 0;
}

static double thread_seconds;

static void *burn_and_report(void *unused)
{
    burn(thread_seconds);
    printf("%ld %.0f\n", syscall(SYS_gettid), clock_seconds(CLOCK_THREAD_CPUTIME_ID) * 1e9);
    return unused;
}

/* Runs `count` threads, `concurrent` at a time; each works for `seconds`. */
static int run_threads(int count, double seconds, int concurrent)
{
    pthread_t running[64];
    thread_seconds = seconds;
    for (int i = 0; i < count; i += concurrent) {
        for (int j = 0; j < concurrent; j++)
            pthread_create(&running[j], NULL, burn_and_report, NULL);
        for (int j = 0; j < concurrent; j++)
            pthread_join(running[j], NULL);
    }
    return 0;
}

KEPT static void burn_early(double seconds) { burn(seconds); sink = sink + 1; }
KEPT static void burn_late(double seconds) { burn(seconds); sink = sink + 1; }

static void *burn_in_two_phases(void *unused)
{
    burn_early(thread_seconds * 0.75);
    burn_late(thread_seconds * 0.25);
    return unused;
}

/* Runs threads one after the other for `seconds`; each works for `each`. */
static int run_phases(double seconds, double each)
{
    thread_seconds = each;
    for (int i = 0; i < (int)(seconds / each); i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, burn_in_two_phases, NULL);
        pthread_join(thread, NULL);
    }
    return 0;
}

static volatile sig_atomic_t handled_count;

static void burn_in_handler(int signal)
{
    (void)signal;
    burn(0.05);
    handled_count++;
}

/* Burns CPU time in a signal handler, alternately on the thread's stack and on an alternate stack. */
static int run_handlers(double seconds)
{
    static char stack[65536];
    stack_t alternate_stack = {.ss_sp = stack, .ss_size = sizeof stack};
    double deadline = clock_seconds(CLOCK_THREAD_CPUTIME_ID) + seconds;
    sigaltstack(&alternate_stack, NULL);
    for (int i = 0; clock_seconds(CLOCK_THREAD_CPUTIME_ID) < deadline; i++) {
        struct sigaction action = {.sa_handler = burn_in_handler, .sa_flags = i % 2 ? SA_ONSTACK : 0};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    return 0;
}

KEPT static int deep(int depth, double seconds)
{
    volatile char frame[64];
    frame[0] = (char)depth;
    if (depth == 0)
        burn(seconds);
    else
        deep(depth - 1, seconds);
    return frame[0];
}

static sigjmp_buf overflow_point;
static void on_overflow(int signal) { (void)signal; siglongjmp(overflow_point, 1); }

KEPT static int recurse_forever(int depth)
{
    volatile char frame[256];
    frame[0] = (char)depth;
    return depth < 0 ? 0 : recurse_forever(depth + 1) + frame[0];
}

/* Overflows its stack repeatedly, and recovers each time. */
static void *overflows(void *seconds)
{
    static __thread char stack[65536];
    stack_t alternate_stack = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate_stack, NULL);
    double deadline = clock_seconds(CLOCK_THREAD_CPUTIME_ID) + *(double *)seconds;
    while (clock_seconds(CLOCK_THREAD_CPUTIME_ID) < deadline)
        if (sigsetjmp(overflow_point, 1) == 0)
            recurse_forever(0);
    return NULL;
}

static int run_overflow(double seconds)
{
    struct sigaction action = {.sa_handler = on_overflow, .sa_flags = SA_ONSTACK};
    pthread_t thread;
    pthread_attr_t small_stack_attributes;
    sigaction(SIGSEGV, &action, NULL);
    pthread_attr_init(&small_stack_attributes);
    pthread_attr_setstacksize(&small_stack_attributes, 128 << 10);
    pthread_create(&thread, &small_stack_attributes, overflows, &seconds);
    pthread_join(thread, NULL);
    puts("alive");
    return 0;
}

static volatile long tick_count;
static void count_tick(int signal) { (void)signal; tick_count++; }

/* Runs a SIGPROF profiler of its own. */
static int run_own_profiler(double seconds)
{
    struct itimerval interval = {{0, 10000}, {0, 10000}};
    signal(SIGPROF, count_tick);
    setitimer(ITIMER_PROF, &interval, NULL);
    burn(seconds);
    printf("%ld\n", tick_count);
    return 0;
}

/* Prints how many blocking system calls were interrupted, in a thread that also works. */
static int count_interrupted_calls(double seconds)
{
    int count = 0;
    double deadline = clock_seconds(CLOCK_MONOTONIC) + seconds;
    while (clock_seconds(CLOCK_MONOTONIC) < deadline) {
        struct timespec two_ms = {0, 2000000};
        count += nanosleep(&two_ms, NULL) != 0;
        count += poll(NULL, 0, 2) < 0;
        burn(0.002);
    }
    printf("%d\n", count);
    return 0;
}

static int record_in_fork(const char *directory)
{
    int status;
    burn(0.2);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        burn(0.3);
        /* The child may start its own recording. */
        char path[4096];
        snprintf(path, sizeof path, "%s/child.data", directory);
        if (start(path) != JITLISTEN_OK)
            _exit(2);
        burn(0.3);
        _exit(stop() == JITLISTEN_OK ? 0 : 3);
    }
    waitpid(child, &status, 0);
    burn(0.2);
    printf("%d\n", status);
    return 0;
}

/* Runs children one after another. Each works for 20 ms, and none calls exit(3). */
static int run_short_children(const char *ending)
{
    char *const words[] = {"true", NULL};
    for (int i = 0; i < 40; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            burn(0.01);
            if (strcmp(ending, "fails") == 0 && (execv("/", words) != -1 || errno != EACCES))
                abort();
            burn(0.01);
            if (strcmp(ending, "killed") == 0)
                kill(getpid(), SIGKILL);
            if (strcmp(ending, "terminated") == 0)
                kill(getpid(), SIGTERM);
            if (strcmp(ending, "aborts") == 0)
                abort();
            if (strcmp(ending, "crashes") == 0)
                *(volatile int *)8 = 1;
            if (strcmp(ending, "executes") == 0)
                execvp("true", words);
            if (strcmp(ending, "quickly") == 0)
                quick_exit(0);
            if (strcmp(ending, "as-c") == 0)
                _Exit(0);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}

/* Forks 100 children that do nothing or exec, and prints their average CPU time in ms. */
static int time_children(const char *kind)
{
    char *const words[] = {"true", NULL};
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0 && strcmp(kind, "exec") == 0)
            execv("/bin/true", words);
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    long microseconds = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    printf("%.3f\n", (double)microseconds / 1000 / 100);
    return 0;
}

/* Prints the CPU time in ms that each of 100 children has used when its own code starts after a fork or an exec. In the
 * executed program, `kind` is the CPU time in s before the exec. */
static int time_first_instruction(const char *kind)
{
    char used[32];
    double now = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (strcmp(kind, "fork") != 0 && strcmp(kind, "exec") != 0)
        return printf("%.4f\n", (now - atof(kind)) * 1000) < 0;
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            now = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
            snprintf(used, sizeof used, "%.9f", now);
            if (strcmp(kind, "exec") == 0)
                execl("/proc/self/exe", "sampled", "first", used, (char *)NULL);
            printf("%.4f\n", now * 1000);
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}

/* The child of a vfork shares this process's memory, but its exit must not end the recording. */
static int run_vforks(double seconds)
{
    for (int i = 0; i < 20; i++) {
        burn(seconds / 20);
        pid_t child = vfork();
        if (child == 0)
            _exit(3);
        int status = 0;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
            return 1;
    }
    return 0;
}

/* Prints the signal dispositions that a program observes when it queries and changes them. */
static void show_fatal_signals(void)
{
    for (int number = 1; number < 32; number++) {
        struct sigaction current = {.sa_handler = SIG_ERR};
        sigaction(number, NULL, &current);
        printf("%d %d %x", number, current.sa_handler == SIG_DFL, current.sa_flags);
        if (number == SIGKILL || number == SIGSTOP)
            continue;
        printf(" %d", signal(number, SIG_IGN) == SIG_DFL);
        printf(" %d", signal(number, SIG_DFL) == SIG_IGN);
        struct sigaction *volatile same_action = &current;
        sigaction(number, same_action, same_action);
        printf(" %d\n", current.sa_handler == SIG_DFL);
    }
    fflush(stdout);
}

static void exit_from_handler(int signal)
{
    (void)signal;
    _exit(7);
}

/* Calls _exit in a signal handler, most likely while malloc's lock is held. */
static int exit_during_malloc(void)
{
    struct itimerval alarm_in_200_ms = {.it_value = {.tv_usec = 200000}};
    signal(SIGALRM, exit_from_handler);
    setitimer(ITIMER_REAL, &alarm_in_200_ms, NULL);
    while (clock_seconds(CLOCK_THREAD_CPUTIME_ID) < 20) {
        void *volatile memory = malloc(100000);
        free(memory);
    }
    return 1;
}

static void *blocked(void *seconds)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    burn(*(double *)seconds);
    return NULL;
}

static int run_with_blocked_thread(double seconds)
{
    pthread_t thread;
    pthread_create(&thread, NULL, blocked, &seconds);
    burn(seconds);
    pthread_join(thread, NULL);
    return 0;
}

/* Records part of the program, twice, into two files. */
static int record_two_parts(const char *directory)
{
    char path[4096];
    three_of_four(50000000);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/part-%d.data", directory, i);
        if (start(path) != JITLISTEN_OK || start(path) != JITLISTEN_ALREADY_RECORDING)
            return 2;
        burn(0.5);
        if (stop() != JITLISTEN_OK || stop() != JITLISTEN_NOT_RECORDING)
            return 3;
        struct jitlisten_record_statistics recorded = statistics();
        printf("%lu %lu\n", (unsigned long)recorded.samples, (unsigned long)recorded.lost);
        three_of_four(50000000);
    }
    return 0;
}

static int run_without_timers(const char *directory)
{
    struct rlimit low_limit = {4, 4};
    char path[4096];
    setrlimit(RLIMIT_SIGPENDING, &low_limit);
    snprintf(path, sizeof path, "%s/few.data", directory);
    if (start(path) != JITLISTEN_OK)
        return 2;
    run_threads(40, 0.02, 20);
    if (stop() != JITLISTEN_OK)
        return 3;
    printf("without %lu\n", (unsigned long)statistics().threads_without_timer);
    return 0;
}

static int run_with_file_limit(const char *directory)
{
    struct rlimit low_limit = {100000, 100000};
    char path[4096];
    setrlimit(RLIMIT_FSIZE, &low_limit);
    snprintf(path, sizeof path, "%s/full.data", directory);
    if (start(path) != JITLISTEN_OK)
        return 2;
    for (int i = 0; i < 30 && !statistics().failures; i++)
        deep(400, 0.2);
    if (stop() != JITLISTEN_OK)
        return 3;
    printf("failures %lu\n", (unsigned long)statistics().failures);
    return 0;
}

static volatile int done;

static void *disturb(void *number)
{
    for (long i = 0; !done; i++) {
        switch ((i + (long)number) % 5) {
        case 0: burn(0.01); break;
        case 1: raise(SIGUSR1); break;
        case 2: {
            pthread_t thread;
            thread_seconds = 0.002;
            if (pthread_create(&thread, NULL, blocked, &thread_seconds) == 0)
                pthread_join(thread, NULL);
            break;
        }
        case 3: {
            pid_t child = fork();
            if (child == 0) {
                if (i % 2)
                    execl("/bin/true", "true", (char *)NULL);
                _exit(0);
            }
            int status = 1;
            if (waitpid(child, &status, 0) != child || status != 0)
                abort();
            break;
        }
        default: {
            void *library = dlopen("libz.so.1", RTLD_NOW);
            if (library) {
                unsigned long (*crc)(unsigned long, const void *, unsigned) =
                    (unsigned long (*)(unsigned long, const void *, unsigned))dlsym(library, "crc32");
                static char bytes[1 << 16];
                for (int j = 0; j < 20; j++)
                    sink += (double)crc(0, bytes, sizeof bytes);
                dlclose(library);
            }
        }
        }
    }
    return NULL;
}

static void ignore_signal(int signal) { (void)signal; }

/* Starts and stops a recording every tenth of a second, while threads perform all kinds of operations. */
static int run_soak(double seconds, const char *directory)
{
    pthread_t thread[4];
    char path[4096];
    int count = 0;
    signal(SIGUSR1, ignore_signal);
    for (long i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, disturb, (void *)i);
    double deadline = clock_seconds(CLOCK_MONOTONIC) + seconds;
    for (; clock_seconds(CLOCK_MONOTONIC) < deadline; count++) {
        snprintf(path, sizeof path, "%s/soak-%d.data", directory, count % 8);
        if (start(path) != JITLISTEN_OK)
            return 2;
        usleep(100000);
        if (stop() != JITLISTEN_OK)
            return 3;
    }
    done = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    fprintf(stderr, "%d recordings, %ld KiB\n", count, usage.ru_maxrss);
    puts("done");
    return 0;
}

/* Starts programs through a shell, like programs that look for their own components. */
static int run_commands(double seconds)
{
    burn(seconds / 2);
    if (system("true; /bin/ls / >/dev/null") != 0)
        return 1;
    burn(seconds / 2);
    puts("done");
    return 0;
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    const char *word = argc > 2 ? argv[2] : "1";
    double number = atof(word);
#define SCENARIO(name, call)                                                                                              \
    if (strcmp(scenario, name) == 0)                                                                                      \
        return call;
    SCENARIO("loops", run_loops(number))
    SCENARIO("exps", run_exps(number))
    SCENARIO("fixed", run_fixed_work(number))
    SCENARIO("faults", run_faults(atol(word)))
    SCENARIO("threads", run_threads(atoi(word), atof(argv[3]), atoi(argv[4])))
    SCENARIO("phases", run_phases(number, atof(argv[3])))
    SCENARIO("handlers", run_handlers(number))
    SCENARIO("deep", deep(atoi(word), atof(argv[3])) * 0)
    SCENARIO("overflow", run_overflow(number))
    SCENARIO("own-profiler", run_own_profiler(number))
    SCENARIO("interrupted", count_interrupted_calls(number))
    SCENARIO("forks", record_in_fork(word))
    SCENARIO("short-lived", run_short_children(word))
    SCENARIO("children", time_children(word))
    SCENARIO("first", time_first_instruction(word))
    SCENARIO("vforks", run_vforks(number))
    SCENARIO("leaves", exit_during_malloc())
    SCENARIO("commands", run_commands(number))
    SCENARIO("blocks", run_with_blocked_thread(number))
    SCENARIO("parts", record_two_parts(word))
    SCENARIO("no-timers", run_without_timers(word))
    SCENARIO("large-file", run_with_file_limit(word))
    SCENARIO("soak", run_soak(number, argv[3]))
    if (strcmp(scenario, "killed") == 0) {
        burn(number);
        kill(getpid(), SIGKILL);
    }
    if (strcmp(scenario, "ended-by") == 0) {
        show_fatal_signals();
        burn(0.3);
        if (atoi(word) == SIGSEGV)
            *(volatile int *)8 = 1;
        raise(atoi(word));
    }
    if (strcmp(scenario, "crashed") == 0) {
        burn(number);
        abort();
    }
    if (strcmp(scenario, "exec") == 0) {
        burn(number);
        execl("/proc/self/exe", "sampled", "loops", word, (char *)NULL);
    }
    return 1;
}
