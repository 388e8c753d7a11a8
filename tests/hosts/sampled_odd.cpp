/* Scenarios with unusual stacks and threads, each with known behaviour, as in sampled.c.
 *
 *   sampled_odd SCENARIO NUMBER [WORD] */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#define KEPT __attribute__((noinline, noclone))

static volatile double sink;

static double now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

KEPT static void burn(double seconds) {
    for (double deadline = now(CLOCK_THREAD_CPUTIME_ID) + seconds; now(CLOCK_THREAD_CPUTIME_ID) < deadline;)
        for (int i = 0; i < 1000; i++) sink = sink * 0.999 + 1.0 / (sink * sink + 1.0);
}

namespace context = boost::context;

KEPT static void in_a_fiber(double seconds) { burn(seconds); sink = sink + 1; }

/* Runs short-lived fibers whose stacks differ in size and are unmapped after use. */
static int run_fibers(double seconds) {
    double deadline = now(CLOCK_THREAD_CPUTIME_ID) + seconds;
    for (size_t turn = 0; now(CLOCK_THREAD_CPUTIME_ID) < deadline; turn++) {
        context::protected_fixedsize_stack stack(size_t{16384} << turn % 4);
        context::fiber fiber_task(std::allocator_arg, stack, [](context::fiber &&caller) {
            for (int i = 0; i < 3; i++) {
                in_a_fiber(0.01);
                caller = std::move(caller).resume();
            }
            return std::move(caller);
        });
        while (fiber_task) {
            fiber_task = std::move(fiber_task).resume();
            burn(0.01);
        }
    }
    puts("done");
    return 0;
}

KEPT static int throw_from(int depth) {
    std::string destroyed_string(40, 'x');
    if (depth == 0) throw std::runtime_error(destroyed_string);
    return throw_from(depth - 1) + static_cast<int>(destroyed_string.size());
}

/* Throws and catches continuously, so that an exception is being handled nearly all the time. */
static int run_exceptions(double seconds) {
    long caught = 0, thrown = 0;
    for (double deadline = now(CLOCK_THREAD_CPUTIME_ID) + seconds; now(CLOCK_THREAD_CPUTIME_ID) < deadline; thrown++) try {
            sink = throw_from(30);
        } catch (const std::runtime_error &error) {
            caught += strlen(error.what()) == 40;
        }
    puts(caught == thrown ? "all caught" : "lost");
    return 0;
}

static jmp_buf return_point;
static void *library;
static double burn_seconds;

extern "C" void called_back(void) {
    if (dlclose(library) != 0) _exit(3);
    /* The caller's code is unmapped now, so longjmp is the only way back. */
    burn(burn_seconds);
    longjmp(return_point, 1);
}

/* Unloads a library while its function `through` is calling back. */
static int run_unloaded_caller(double seconds, const char *path) {
    burn_seconds = seconds / 10;
    for (volatile int i = 0; i < 10; i = i + 1) {
        library = dlopen(path, RTLD_NOW);
        if (!library) return 2;
        auto through = reinterpret_cast<void (*)(void (*)(void))>(dlsym(library, "through"));
        if (setjmp(return_point) == 0) through(called_back);
        if (dlopen(path, RTLD_NOW | RTLD_NOLOAD)) return 4;
    }
    puts("done");
    return 0;
}

static pthread_barrier_t barrier;

static void *burn_in_crowd(void *seconds) {
    pthread_barrier_wait(&barrier);
    burn(*static_cast<double *>(seconds));
    pthread_barrier_wait(&barrier);
    return nullptr;
}

/* Runs `count` threads at the same time. */
static int run_crowd(unsigned count, double seconds) {
    std::vector<pthread_t> threads(count);
    pthread_attr_t small_stack_attributes;
    pthread_attr_init(&small_stack_attributes);
    pthread_attr_setstacksize(&small_stack_attributes, 128 << 10);
    pthread_barrier_init(&barrier, nullptr, count + 1);
    for (auto &thread : threads)
        if (pthread_create(&thread, &small_stack_attributes, burn_in_crowd, &seconds) != 0) return 2;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (auto &thread : threads) pthread_join(thread, nullptr);
    puts("done");
    return 0;
}

static volatile long tick_counts[2];

/* Uses POSIX timers of the program's own, with real-time signals; one measures the thread's CPU time. */
static int run_own_timers(double seconds) {
    const clockid_t clocks[2] = {CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {};
        action.sa_sigaction = [](int, siginfo_t *info, void *) {
            tick_counts[info->si_value.sival_int] = tick_counts[info->si_value.sival_int] + 1 + info->si_overrun;
        };
        action.sa_flags = SA_SIGINFO | SA_RESTART;
        sigaction(SIGRTMIN + i, &action, nullptr);
        sigevent event = {};
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGRTMIN + i;
        event.sigev_value.sival_int = i;
        timer_t timer;
        itimerspec interval = {{0, 20000000}, {0, 20000000}};
        if (timer_create(clocks[i], &event, &timer) != 0 || timer_settime(timer, 0, &interval, nullptr) != 0) return 2;
    }
    burn(seconds);
    printf("%ld %ld\n", tick_counts[0], tick_counts[1]);
    return 0;
}

/* Starts children that share this process's memory until they exec. */
static int run_vforks(double seconds) {
    long count = 0;
    for (double deadline = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < deadline; count++) {
        pid_t child = vfork();
        if (child == 0) {
            burn(0.01);
            char *const words[] = {const_cast<char *>("true"), nullptr};
            execv("/bin/true", words);
            _exit(9);
        }
        int status = 1;
        if (waitpid(child, &status, 0) != child || status != 0) return 2;
        burn(0.01);
    }
    puts("done");
    return 0;
}

static void *burn_after_main(void *seconds) {
    burn(*static_cast<double *>(seconds));
    puts("done");
    return nullptr;
}

/* Ends the main thread first; the process ends with its last thread. */
static int run_last_thread(double seconds) {
    static double argument;
    argument = seconds;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, burn_after_main, &argument)) return 1;
    pthread_exit(nullptr);
}

static void *waits(void *index) {
    for (;;) {
        timespec one_second = {1, 0};
        switch (reinterpret_cast<uintptr_t>(index) % 3) {
        case 0: nanosleep(&one_second, nullptr); break;
        case 1: poll(nullptr, 0, 1000); break;
        default: pause();
        }
    }
}

/* Cancels waiting threads, eight at a time. */
static int cancel_threads(double seconds) {
    for (double deadline = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < deadline;) {
        pthread_t threads[8];
        for (uintptr_t i = 0; i < 8; i++)
            if (pthread_create(&threads[i], nullptr, waits, reinterpret_cast<void *>(i)) != 0) return 2;
        usleep(2000);
        for (pthread_t thread : threads) {
            void *result = nullptr;
            if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0 || result != PTHREAD_CANCELED) return 3;
        }
    }
    puts("done");
    return 0;
}

static char *volatile handler_frame;
static void record_handler_frame(int) { handler_frame = static_cast<char *>(__builtin_frame_address(0)); }

/* Handles signals on an 8 KiB stack with a guard page. Prints how many bytes of the stack were used, and how many of
 * these the kernel used.
 */
static int measure_signal_stack(double seconds) {
    const size_t size = 8192, page = 4096;
    void *mapped = mmap(nullptr, page + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, page, PROT_NONE) != 0) return 2;
    char *stack_bottom = static_cast<char *>(mapped) + page;
    stack_t stack = {};
    stack.ss_sp = stack_bottom;
    stack.ss_size = size;
    struct sigaction action = {};
    action.sa_handler = record_handler_frame;
    action.sa_flags = SA_ONSTACK;
    if (sigaltstack(&stack, nullptr) != 0 || sigaction(SIGUSR1, &action, nullptr) != 0) return 3;
    raise(SIGUSR1);
    memset(stack_bottom, 0x5a, size);
    burn(seconds);
    run_exceptions(seconds);
    size_t untouched_bytes = 0;
    while (untouched_bytes < size && stack_bottom[untouched_bytes] == 0x5a) untouched_bytes++;
    printf("%zu %zu\n", size - untouched_bytes, static_cast<size_t>(stack_bottom + size - handler_frame));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 1;
    std::string scenario = argv[1];
    double number = atof(argv[2]);
    if (scenario == "fibers") return run_fibers(number);
    if (scenario == "exceptions") return run_exceptions(number);
    if (scenario == "unloaded") return run_unloaded_caller(number, argv[3]);
    if (scenario == "crowd") return run_crowd(static_cast<unsigned>(number), atof(argv[3]));
    if (scenario == "own-timers") return run_own_timers(number);
    if (scenario == "vforks") return run_vforks(number);
    if (scenario == "last-thread") return run_last_thread(number);
    if (scenario == "cancels") return cancel_threads(number);
    if (scenario == "small-signal-stack") return measure_signal_stack(number);
    return 1;
}
