/* Sixteen threads compile, run and free, for a while, under a profiler and while sinks are switched: host_safety_threads SECONDS
 *
 * A timer sends SIGPROF at 1 kHz of processor time; its handler walks the stack with libunwind. One more thread switches
 * sinks off and on. Every function that was compiled must return the right value, and the library's count must be ours, which is
 * printed: `compiled N freed N walked N`. */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include "jitlisten.h"
#include "llvm_c.h"

#include <dlfcn.h>
#include <libunwind.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 16, KEPT = 4 };

static volatile int stop;
static unsigned long compiled_ones, freed_ones, wrong_ones, walks, walked_frames;
static const char *const sinks[] = {"perfmap", "jitdump", "unwind", "image"};

static void on_sigprof(int number, siginfo_t *info, void *context) {
    unw_cursor_t cursor;
    int frames = 0;
    (void)number, (void)info;
    if (unw_init_local2(&cursor, context, UNW_INIT_SIGNAL_FRAME) < 0) return;
    while (frames < 64 && unw_step(&cursor) > 0) frames++;
    __sync_fetch_and_add(&walks, 1);
    __sync_fetch_and_add(&walked_frames, frames);
}

static void *work(void *argument) {
    long worker = (long)argument;
    struct compiled kept[KEPT] = {{0}};
    for (long round = 0; !stop; round++) {
        char name[64];
        struct compiled *place = &kept[round % KEPT];
        if (place->engine) dispose(*place), __sync_fetch_and_add(&freed_ones, 1);
        snprintf(name, sizeof name, "worker_%ld_%ld", worker, round);
        *place = compile_named(name, name, round);
        __sync_fetch_and_add(&compiled_ones, 1);
        for (int i = 0; i < KEPT; i++)
            if (kept[i].engine && !is_right(kept[i], round - (round - i + KEPT) % KEPT)) __sync_fetch_and_add(&wrong_ones, 1);
    }
    for (int i = 0; i < KEPT; i++)
        if (kept[i].engine) dispose(kept[i]), __sync_fetch_and_add(&freed_ones, 1);
    return NULL;
}

static void *switch_sinks(void *nothing) {
    jitlisten_status (*enable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_enable");
    jitlisten_status (*disable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_disable");
    for (unsigned round = 0; enable && !stop; round++) {
        const char *sink = sinks[round % 4];
        /* Images are files that stay: they are on for a moment only. */
        jitlisten_status first = round % 4 == 3 ? enable(sink) : disable(sink);
        usleep(30000);
        if (first || (round % 4 == 3 ? disable(sink) : enable(sink))) __sync_fetch_and_add(&wrong_ones, 1);
    }
    return nothing;
}

int main(int count, char **words) {
    pthread_t threads[THREADS], switcher;
    struct sigaction action = {.sa_sigaction = on_sigprof, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval kilohertz = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    int seconds = count > 1 ? atoi(words[1]) : 1;
    llvm_begin();
    alarm(seconds + 100); /* a deadlock is an end by signal */
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &kilohertz, NULL);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&switcher, NULL, switch_sinks, NULL);
    for (time_t until = time(NULL) + seconds; time(NULL) < until;) usleep(100000); /* signals cut it short */
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_join(switcher, NULL);
    setitimer(ITIMER_PROF, &never, NULL);
    jitlisten_status (*ask)(struct jitlisten_statistics *) = dlsym(RTLD_DEFAULT, "jitlisten_get_statistics");
    struct jitlisten_statistics counted = {.size = sizeof counted};
    printf("wrong %lu\n", wrong_ones);
    if (ask && ask(&counted) == JITLISTEN_OK) {
        printf("compiled %lu freed %lu walks %lu frames %lu\n", compiled_ones, freed_ones, walks, walked_frames);
        printf("loaded %lu finalized %lu freed %lu refused %lu functions %lu\n", counted.objects_loaded,
               counted.objects_finalized, counted.objects_freed, counted.objects_refused, counted.functions);
        printf("failures %lu\n", counted.perfmap_failures + counted.jitdump_failures + counted.unwind_failures);
    }
    return wrong_ones != 0;
}
