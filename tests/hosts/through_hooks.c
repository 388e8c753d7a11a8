/* Threads run through __jit_debug_register_code, and others through _r_debug.r_brk, while the library is opened late and hooks both.
 *
 *     through_hooks LIBLLVMLITE OFFSET LIBJITLISTEN
 *
 * OFFSET is that of __jit_debug_register_code in LIBLLVMLITE, in hexadecimal, as nm prints it. Each thread must come out of many
 * more calls after the redirection, and the function must not be the empty one any more. Prints its first eight bytes before
 * and after, and how many calls there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLERS = 4, OPENERS = 2, THREADS = CALLERS + OPENERS, ENOUGH = 2000, ENOUGH_OPENED = 20 };

static void (*register_code)(void);
static volatile int stop;
static volatile unsigned long passed[THREADS];

static void *call(void *mine) {
    volatile unsigned long *count = mine;
    while (!stop) {
        register_code();
        ++*count;
    }
    return NULL;
}

/* Any library that nothing else here has opened. */
static void *open_and_close(void *mine) {
    volatile unsigned long *count = mine;
    while (!stop) {
        void *library = dlopen("librt.so.1", RTLD_NOW);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        dlclose(library);
        ++*count;
    }
    return NULL;
}

static void every_thread_goes_on(void) {
    unsigned long before[THREADS];
    for (int at = 0; at < THREADS; at++) before[at] = passed[at];
    for (int at = 0; at < THREADS; at++) {
        while (passed[at] - before[at] < (at < CALLERS ? ENOUGH : ENOUGH_OPENED)) usleep(1000);
    }
}

static void show(const char *when) {
    unsigned char bytes[8];
    memcpy(bytes, (const void *)register_code, sizeof bytes);
    printf("%s:", when);
    for (unsigned at = 0; at < sizeof bytes; at++) printf(" %02x", bytes[at]);
    printf("\n");
}

static void *must_open(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library) return library;
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

int main(int count, char **words) {
    pthread_t threads[THREADS];
    struct link_map *map = NULL;
    unsigned char before[8];
    unsigned long all = 0;
    int (*open_session)(void);
    if (count != 4) return 2;
    alarm(300); /* a thread that does not come back is an end by signal */
    if (dlinfo(must_open(words[1]), RTLD_DI_LINKMAP, &map) != 0) return 1;
    register_code = (void (*)(void))(map->l_addr + strtoul(words[2], NULL, 16));
    memcpy(before, (const void *)register_code, sizeof before);
    show("before");
    for (int at = 0; at < THREADS; at++) {
        void *(*work)(void *) = at < CALLERS ? call : open_and_close;
        if (pthread_create(&threads[at], NULL, work, (void *)&passed[at]) != 0) return 1;
    }
    every_thread_goes_on();
    *(void **)&open_session = dlsym(must_open(words[3]), "jitlisten_open");
    if (!open_session || open_session() != 0) return 1;
    every_thread_goes_on();
    show("after");
    stop = 1;
    for (int at = 0; at < THREADS; at++) {
        if (pthread_join(threads[at], NULL) != 0) return 1;
        all += passed[at];
    }
    printf("passed: %lu\n", all);
    return memcmp(before, (const void *)register_code, sizeof before) == 0;
}
