/* Threads call __jit_debug_register_code and _r_debug.r_brk in a loop while libjitlisten is opened and hooks both.
 *
 *     through_hooks LIBLLVMLITE OFFSET LIBJITLISTEN
 *
 * OFFSET is the offset of __jit_debug_register_code in LIBLLVMLITE, in hexadecimal as printed by nm. After the hooks
 * are in place, each thread must return from many more calls, and the function must no longer be empty. Prints the
 * function's first eight bytes before and after, and the number of calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLERS = 4, OPENERS = 2, THREADS = CALLERS + OPENERS, MIN_CALLS = 2000, MIN_OPENS = 20 };

static void (*register_code)(void);
static volatile int should_stop;
static volatile unsigned long calls_by_thread[THREADS];

static void *call(void *counter) {
    volatile unsigned long *calls = counter;
    while (!should_stop) {
        register_code();
        ++*calls;
    }
    return NULL;
}

/* Opens and closes a library that nothing else in this program has loaded. */
static void *open_and_close(void *counter) {
    volatile unsigned long *calls = counter;
    while (!should_stop) {
        void *library = dlopen("librt.so.1", RTLD_NOW);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        dlclose(library);
        ++*calls;
    }
    return NULL;
}

static void wait_for_progress_of_all_threads(void) {
    unsigned long before[THREADS];
    for (int i = 0; i < THREADS; i++) before[i] = calls_by_thread[i];
    for (int i = 0; i < THREADS; i++) {
        while (calls_by_thread[i] - before[i] < (i < CALLERS ? MIN_CALLS : MIN_OPENS)) usleep(1000);
    }
}

static void print_bytes(const char *label) {
    unsigned char bytes[8];
    memcpy(bytes, (const void *)register_code, sizeof bytes);
    printf("%s:", label);
    for (unsigned i = 0; i < sizeof bytes; i++) printf(" %02x", bytes[i]);
    printf("\n");
}

static void *open_or_exit(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library) return library;
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    struct link_map *map = NULL;
    unsigned char before[8];
    unsigned long total_calls = 0;
    int (*open_session)(void);
    if (argc != 4) return 2;
    alarm(300); /* turns a thread that never returns into death by SIGALRM */
    if (dlinfo(open_or_exit(argv[1]), RTLD_DI_LINKMAP, &map) != 0) return 1;
    register_code = (void (*)(void))(map->l_addr + strtoul(argv[2], NULL, 16));
    memcpy(before, (const void *)register_code, sizeof before);
    print_bytes("before");
    for (int i = 0; i < THREADS; i++) {
        void *(*work)(void *) = i < CALLERS ? call : open_and_close;
        if (pthread_create(&threads[i], NULL, work, (void *)&calls_by_thread[i]) != 0) return 1;
    }
    wait_for_progress_of_all_threads();
    *(void **)&open_session = dlsym(open_or_exit(argv[3]), "jitlisten_open");
    if (!open_session || open_session() != 0) return 1;
    wait_for_progress_of_all_threads();
    print_bytes("after");
    should_stop = 1;
    for (int i = 0; i < THREADS; i++) {
        if (pthread_join(threads[i], NULL) != 0) return 1;
        total_calls += calls_by_thread[i];
    }
    printf("passed: %lu\n", total_calls);
    return memcmp(before, (const void *)register_code, sizeof before) == 0;
}
