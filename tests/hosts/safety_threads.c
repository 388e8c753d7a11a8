/* Sixteen threads compile, run and free functions while a profiler samples them and sinks are toggled:
 * safety_threads SECONDS
 *
 * A timer sends SIGPROF at 1 kHz of CPU time, and its handler walks the stack with libunwind. Another thread toggles
 * the sinks. Every compiled function must return the right value, and the library's counts must match the program's,
 * which are printed: `compiled N freed N walks N frames N`. */
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

static volatile int should_stop;
static unsigned long compiled_count, freed_count, wrong_results, walk_count, frame_count;
static const char *const sinks[] = {"perfmap", "jitdump", "unwind", "image"};

static void on_sigprof(int number, siginfo_t *info, void *context) {
    unw_cursor_t cursor;
    int frames = 0;
    (void)number, (void)info;
    if (unw_init_local2(&cursor, context, UNW_INIT_SIGNAL_FRAME) < 0) return;
    while (frames < 64 && unw_step(&cursor) > 0) frames++;
    __sync_fetch_and_add(&walk_count, 1);
    __sync_fetch_and_add(&frame_count, frames);
}

static void *work(void *argument) {
    long worker = (long)argument;
    struct compiled kept_functions[KEPT] = {{0}};
    for (long round = 0; !should_stop; round++) {
        char name[64];
        struct compiled *slot = &kept_functions[round % KEPT];
        if (slot->engine) dispose(*slot), __sync_fetch_and_add(&freed_count, 1);
        snprintf(name, sizeof name, "worker_%ld_%ld", worker, round);
        *slot = compile_named(name, name, round);
        __sync_fetch_and_add(&compiled_count, 1);
        for (int i = 0; i < KEPT; i++)
            if (kept_functions[i].engine && !returns_expected(kept_functions[i], round - (round - i + KEPT) % KEPT)) __sync_fetch_and_add(&wrong_results, 1);
    }
    for (int i = 0; i < KEPT; i++)
        if (kept_functions[i].engine) dispose(kept_functions[i]), __sync_fetch_and_add(&freed_count, 1);
    return NULL;
}

static void *switch_sinks(void *unused) {
    jitlisten_status (*enable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_enable");
    jitlisten_status (*disable)(const char *) = dlsym(RTLD_DEFAULT, "jitlisten_disable");
    for (unsigned round = 0; enable && !should_stop; round++) {
        const char *sink = sinks[round % 4];
        /* Images leave files on disk, so the image sink is enabled only briefly. */
        jitlisten_status first = round % 4 == 3 ? enable(sink) : disable(sink);
        usleep(30000);
        if (first || (round % 4 == 3 ? disable(sink) : enable(sink))) __sync_fetch_and_add(&wrong_results, 1);
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS], switcher;
    struct sigaction action = {.sa_sigaction = on_sigprof, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval kilohertz = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    int seconds = argc > 1 ? atoi(argv[1]) : 1;
    initialize_llvm();
    alarm(seconds + 100); /* turns a deadlock into death by SIGALRM */
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &kilohertz, NULL);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&switcher, NULL, switch_sinks, NULL);
    for (time_t until = time(NULL) + seconds; time(NULL) < until;) usleep(100000); /* signals interrupt usleep */
    should_stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_join(switcher, NULL);
    setitimer(ITIMER_PROF, &never, NULL);
    jitlisten_status (*get_statistics)(struct jitlisten_statistics *) = dlsym(RTLD_DEFAULT, "jitlisten_get_statistics");
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    printf("wrong %lu\n", wrong_results);
    if (get_statistics && get_statistics(&statistics) == JITLISTEN_OK) {
        printf("compiled %lu freed %lu walks %lu frames %lu\n", compiled_count, freed_count, walk_count, frame_count);
        printf("loaded %lu finalized %lu freed %lu refused %lu functions %lu\n", statistics.objects_loaded,
               statistics.objects_finalized, statistics.objects_freed, statistics.objects_refused, statistics.functions);
        printf("failures %lu\n", statistics.perfmap_failures + statistics.jitdump_failures + statistics.unwind_failures);
    }
    return wrong_results != 0;
}
