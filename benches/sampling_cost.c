/* What one sample costs, in nanoseconds of the thread's processor time, on a machine that may be busy with other things.
 *
 *   LD_PRELOAD=libjitlisten.so sampling_cost PATH [ROUNDS]
 *
 * Signals are sent by the thread to itself with what a timer would have put into them, in small bursts, and the
 * thread's own clock is read around each burst; the median of many bursts is printed. Beside it what the same signals
 * cost with a handler that does nothing. "cold": four megabytes are read before each signal, so that neither code nor
 * data is in the nearer caches; what the reading costs is measured by itself and taken away.
 *
 * The last table is of real timers: a loop that does nothing but read the processor's counter sees how long it was
 * interrupted, with a recording and without. Interruptions of more than 100 us are other programs' turns and not
 * counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "jitlisten.h"

enum { BURST = 40, MOST = 4096, CACHE = 4 << 20 };

static volatile char cache[CACHE];
static volatile long sink;
static jitlisten_status (*start)(const char *, const struct jitlisten_record_options *);
static jitlisten_status (*stop)(void);
static jitlisten_status (*statistics)(struct jitlisten_record_statistics *);

static double spent(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static uint64_t samples(void)
{
    struct jitlisten_record_statistics found = {.size = sizeof found};
    statistics(&found);
    if (found.lost)
        abort();
    return found.samples;
}

static void empty(int number, siginfo_t *info, void *context) { (void)number; (void)info; (void)context; }

/* As the kernel fills it in for a timer. */
struct timer_info {
    int number, error, code, padding, timer, overrun;
    uint64_t value, rest[12];
};

static void chill(void)
{
    for (size_t i = 0; i < CACHE; i += 64)
        sink += cache[i];
}

static void send(int number, uint64_t value)
{
    struct timer_info info = {.number = number, .code = SI_TIMER, .value = value};
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), number, &info);
}

/* A burst of signals, or of nothing, in nanoseconds for each. */
static double burst(int number, uint64_t value, int cold)
{
    double began = spent();
    for (int i = 0; i < BURST; i++) {
        if (cold)
            chill();
        if (number)
            send(number, value);
    }
    return (spent() - began) / BURST;
}

static double __attribute__((noinline)) at_depth(int depth, int number, uint64_t value, int cold)
{
    volatile char frame[64];
    frame[0] = (char)depth;
    double found = depth ? at_depth(depth - 1, number, value, cold) : burst(number, value, cold);
    return found + 0 * frame[0];
}

static void bursts(const char *path, int rounds)
{
    static double ours[MOST], others[MOST], nothing[MOST];
    struct sigaction action = {.sa_sigaction = empty, .sa_flags = SA_SIGINFO | SA_RESTART};
    int other = SIGRTMIN + 3, number = 0;
    sigaction(other, &action, NULL);
    struct jitlisten_record_options options = {.size = sizeof options, .hz = 1};
    if (start(path, &options) != JITLISTEN_OK)
        abort();
    for (int i = SIGRTMAX; i > SIGRTMIN && !number; i--) {
        struct sigaction now;
        sigaction(i, NULL, &now);
        if (now.sa_handler != SIG_DFL)
            number = i;
    }
    /* The main thread has the first slot, for the first time. */
    uint64_t value = 1ull << 32, before = samples();
    puts("| stack | caches | handler that does nothing | a sample | more, ns |\n| --- | --- | --- | --- | --- |");
    int depths[] = {5, 20, 80};
    for (int row = 0; row < 6; row++) {
        int depth = depths[row / 2], cold = row % 2;
        for (int i = 0; i < rounds; i++) {
            ours[i] = at_depth(depth, number, value, cold);
            others[i] = at_depth(depth, other, value, cold);
            nothing[i] = at_depth(depth, 0, value, cold);
            before += BURST;
            while (samples() + BURST < before)
                usleep(5000);
        }
        double none = median(nothing, rounds), one = median(others, rounds) - none, all = median(ours, rounds) - none;
        printf("| %d frames | %s | %.0f | %.0f | %.0f |\n", depth + 5, cold ? "cold" : "warm", one, all, all - one);
        fflush(stdout);
    }
    stop();
}

struct interruptions {
    double nanoseconds, seconds, count;
};

static struct interruptions watch(double seconds)
{
    struct interruptions found = {0, 0, 0};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t began = __rdtsc(), last = began;
    double first = (double)now.tv_sec * 1e9 + (double)now.tv_nsec, until = spent() + seconds * 1e9, from = spent();
    uint64_t gaps = 0;
    do {
        for (int i = 0; i < 1000000; i++) {
            uint64_t time = __rdtsc();
            uint64_t gap = time - last;
            last = time;
            if (gap > 600 && gap < 250000) {
                gaps += gap;
                found.count++;
            }
        }
    } while (spent() < until);
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)now.tv_sec * 1e9 + (double)now.tv_nsec - first;
    found.nanoseconds = (double)gaps * passed / (double)(__rdtsc() - began);
    found.seconds = (spent() - from) / 1e9;
    return found;
}

static void timers(const char *path, int rounds)
{
    static const struct { const char *name; unsigned hz, flags; } ways[] = {
        {"199 Hz of processor time", 199, 0}, {"1,000 Hz of processor time", 1000, 0}, {"1,000 Hz of wall-clock time", 1000, JITLISTEN_RECORD_WALL}};
    static double shares[3][MOST], costs[3][MOST], again[MOST];
    for (int i = 0; i < rounds; i++) {
        for (int way = 0; way < 3; way++) {
            struct interruptions before = watch(0.3);
            struct jitlisten_record_options options = {.size = sizeof options, .hz = ways[way].hz, .flags = ways[way].flags};
            if (start(path, &options) != JITLISTEN_OK)
                abort();
            struct interruptions during = watch(0.6);
            stop();
            struct interruptions after = watch(0.3);
            double without = (before.nanoseconds + after.nanoseconds) / (before.seconds + after.seconds);
            double more = during.nanoseconds / during.seconds - without;
            shares[way][i] = more / 1e7;
            costs[way][i] = more * during.seconds / (double)samples();
            if (!way)
                again[i] = (after.nanoseconds / after.seconds - before.nanoseconds / before.seconds) / 1e7;
        }
    }
    puts("\n| timers | interruptions more, percent of the thread's time | for each sample, ns |\n| --- | --- | --- |");
    for (int way = 0; way < 3; way++)
        printf("| %s | %.3f | %.0f |\n", ways[way].name, median(shares[way], rounds), median(costs[way], rounds));
    printf("| A/A | %.3f | |\n", median(again, rounds));
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 200;
    start = (jitlisten_status (*)(const char *, const struct jitlisten_record_options *))dlsym(RTLD_DEFAULT, "jitlisten_record_start");
    stop = (jitlisten_status (*)(void))dlsym(RTLD_DEFAULT, "jitlisten_record_stop");
    statistics = (jitlisten_status (*)(struct jitlisten_record_statistics *))dlsym(RTLD_DEFAULT, "jitlisten_get_record_statistics");
    if (argc < 2 || rounds > MOST || rounds < 1 || !start || !stop || !statistics)
        return 1;
    memset((void *)cache, 1, CACHE);
    bursts(argv[1], rounds);
    timers(argv[1], rounds / 10 + 1);
    return 0;
}
