/* Threads that no `pthread_create` made, as those of other runtimes: two work for the given seconds of CPU time, and end
 * without a word to libc. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 2, STACK_BYTES = 1 << 20 };
static atomic_int running = THREADS;
static double seconds;

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((noinline)) static int raw_thread(void *unused)
{
    volatile double x = 1;
    while (cpu_seconds() < seconds)
        for (int i = 0; i < 10000; i++)
            x = x * 0.999 + 1;
    atomic_fetch_sub(&running, 1);
    return unused != 0;
}

int main(int argc, char **argv)
{
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    seconds = argc > 1 ? atof(argv[1]) : 1;
    for (int i = 0; i < THREADS; i++) {
        char *stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED || clone(raw_thread, stack + STACK_BYTES, flags, 0) < 0)
            return 1;
    }
    while (running)
        usleep(1000);
    puts("done");
    return 0;
}
