/* Cost of one sample in nanoseconds of the thread's processor time, on a machine that may be busy.
 *
 *   LD_PRELOAD=libjitlisten.so sampling_cost PATH [ROUNDS]
 *
 * The thread sends signals to itself in small bursts, with the siginfo of a timer, and reads its own clock around each
 * burst. Prints the median of many bursts, beside the cost of the same signals with an empty handler. In the "cold"
 * rows, four megabytes are read before each signal, to evict code and data from the inner caches. The cost of reading
 * them is measured separately and subtracted.
 *
 * The last table uses real timers: a loop that only reads the time-stamp counter detects interruptions, with
 * and without a recording. Interruptions longer than 100 us are time slices of other programs and ignored. */
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

enum { BURST_SIGNALS = 40, MAX_ROUNDS = 4096, CACHE_BYTES = 4 << 20 };

static volatile char cache[CACHE_BYTES];
static volatile long sink;
static jitlisten_status (*record_start)(const char *, const struct jitlisten_record_options *);
static jitlisten_status (*record_stop)(void);
static jitlisten_status (*record_statistics)(struct jitlisten_record_statistics *);

static double thread_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static uint64_t sample_count(void)
{
    struct jitlisten_record_statistics result = {.size = sizeof result};
    record_statistics(&result);
    if (result.lost)
        abort();
    return result.samples;
}

static void empty_handler(int number, siginfo_t *info, void *context) { (void)number; (void)info; (void)context; }

/* Layout of siginfo_t as the kernel fills it in for a timer. */
struct timer_info {
    int number, error, code, padding, timer, overrun;
    uint64_t value, rest[12];
};

static void evict_caches(void)
{
    for (size_t i = 0; i < CACHE_BYTES; i += 64)
        sink += cache[i];
}

static void send(int number, uint64_t value)
{
    struct timer_info info = {.number = number, .code = SI_TIMER, .value = value};
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), number, &info);
}

/* Sends a burst of signals, or none if `number` is 0. Returns the nanoseconds per signal. */
static double measure_burst(int number, uint64_t value, int cold)
{
    double started = thread_time_ns();
    for (int i = 0; i < BURST_SIGNALS; i++) {
        if (cold)
            evict_caches();
        if (number)
            send(number, value);
    }
    return (thread_time_ns() - started) / BURST_SIGNALS;
}

static double __attribute__((noinline)) measure_at_depth(int depth, int number, uint64_t value, int cold)
{
    volatile char frame[64];
    frame[0] = (char)depth;
    double nanoseconds = depth ? measure_at_depth(depth - 1, number, value, cold) : measure_burst(number, value, cold);
    return nanoseconds + 0 * frame[0];
}

static void print_bursts(const char *path, int rounds)
{
    static double our_times[MAX_ROUNDS], empty_times[MAX_ROUNDS], baseline_times[MAX_ROUNDS];
    struct sigaction action = {.sa_sigaction = empty_handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    int other_signal = SIGRTMIN + 3, our_signal = 0;
    sigaction(other_signal, &action, NULL);
    struct jitlisten_record_options options = {.size = sizeof options, .hz = 1};
    if (record_start(path, &options) != JITLISTEN_OK)
        abort();
    for (int i = SIGRTMAX; i > SIGRTMIN && !our_signal; i--) {
        struct sigaction current;
        sigaction(i, NULL, &current);
        if (current.sa_handler != SIG_DFL)
            our_signal = i;
    }
    /* Timer value of the main thread: slot 0, generation 1. */
    uint64_t value = 1ull << 32, expected_samples = sample_count();
    puts("| stack | caches | handler that does nothing | a sample | more, ns |\n| --- | --- | --- | --- | --- |");
    int depths[] = {5, 20, 80};
    for (int row = 0; row < 6; row++) {
        int depth = depths[row / 2], cold = row % 2;
        for (int i = 0; i < rounds; i++) {
            our_times[i] = measure_at_depth(depth, our_signal, value, cold);
            empty_times[i] = measure_at_depth(depth, other_signal, value, cold);
            baseline_times[i] = measure_at_depth(depth, 0, value, cold);
            expected_samples += BURST_SIGNALS;
            while (sample_count() + BURST_SIGNALS < expected_samples)
                usleep(5000);
        }
        double baseline = median(baseline_times, rounds), empty_cost = median(empty_times, rounds) - baseline,
               sample_cost = median(our_times, rounds) - baseline;
        printf("| %d frames | %s | %.0f | %.0f | %.0f |\n", depth + 5, cold ? "cold" : "warm", empty_cost, sample_cost,
               sample_cost - empty_cost);
        fflush(stdout);
    }
    record_stop();
}

struct interruptions {
    double nanoseconds, seconds, count;
};

static struct interruptions measure_interruptions(double seconds)
{
    struct interruptions result = {0, 0, 0};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t first_tsc = __rdtsc(), last_tsc = first_tsc;
    double started_ns = (double)now.tv_sec * 1e9 + (double)now.tv_nsec, deadline = thread_time_ns() + seconds * 1e9,
           thread_started_ns = thread_time_ns();
    uint64_t gap_ticks = 0;
    do {
        for (int i = 0; i < 1000000; i++) {
            uint64_t tsc = __rdtsc();
            uint64_t gap = tsc - last_tsc;
            last_tsc = tsc;
            if (gap > 600 && gap < 250000) {
                gap_ticks += gap;
                result.count++;
            }
        }
    } while (thread_time_ns() < deadline);
    clock_gettime(CLOCK_MONOTONIC, &now);
    double elapsed_ns = (double)now.tv_sec * 1e9 + (double)now.tv_nsec - started_ns;
    result.nanoseconds = (double)gap_ticks * elapsed_ns / (double)(__rdtsc() - first_tsc);
    result.seconds = (thread_time_ns() - thread_started_ns) / 1e9;
    return result;
}

static void print_timers(const char *path, int rounds)
{
    static const struct { const char *name; unsigned hz, flags; } configurations[] = {
        {"199 Hz of processor time", 199, 0}, {"1,000 Hz of processor time", 1000, 0}, {"1,000 Hz of wall-clock time", 1000, JITLISTEN_RECORD_WALL}};
    static double shares[3][MAX_ROUNDS], costs[3][MAX_ROUNDS], a_a_shares[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        for (int index = 0; index < 3; index++) {
            struct interruptions before = measure_interruptions(0.3);
            struct jitlisten_record_options options = {
                .size = sizeof options, .hz = configurations[index].hz, .flags = configurations[index].flags};
            if (record_start(path, &options) != JITLISTEN_OK)
                abort();
            struct interruptions during = measure_interruptions(0.6);
            record_stop();
            struct interruptions after = measure_interruptions(0.3);
            double baseline = (before.nanoseconds + after.nanoseconds) / (before.seconds + after.seconds);
            double extra_ns = during.nanoseconds / during.seconds - baseline;
            shares[index][i] = extra_ns / 1e7;
            costs[index][i] = extra_ns * during.seconds / (double)sample_count();
            if (!index)
                a_a_shares[i] = (after.nanoseconds / after.seconds - before.nanoseconds / before.seconds) / 1e7;
        }
    }
    puts("\n| timers | interruptions more, percent of the thread's time | for each sample, ns |\n| --- | --- | --- |");
    for (int index = 0; index < 3; index++)
        printf("| %s | %.3f | %.0f |\n", configurations[index].name, median(shares[index], rounds), median(costs[index], rounds));
    printf("| A/A | %.3f | |\n", median(a_a_shares, rounds));
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 200;
    record_start = (jitlisten_status (*)(const char *, const struct jitlisten_record_options *))dlsym(RTLD_DEFAULT, "jitlisten_record_start");
    record_stop = (jitlisten_status (*)(void))dlsym(RTLD_DEFAULT, "jitlisten_record_stop");
    record_statistics = (jitlisten_status (*)(struct jitlisten_record_statistics *))dlsym(RTLD_DEFAULT, "jitlisten_get_record_statistics");
    if (argc < 2 || rounds > MAX_ROUNDS || rounds < 1 || !record_start || !record_stop || !record_statistics)
        return 1;
    memset((void *)cache, 1, CACHE_BYTES);
    print_bursts(argv[1], rounds);
    print_timers(argv[1], rounds / 10 + 1);
    return 0;
}
