/* One size of one dimension; prints the milliseconds of processor time of what is measured: growth DIMENSION SIZE
 *
 * With the library (preloaded) or without; then the JIT's own work alone is measured. See run.py. */
#define _GNU_SOURCE
#include "jitlisten.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
static const unsigned char CODE[] = {0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3};

static __typeof__(&jitlisten_code_loaded) code_loaded;
static __typeof__(&jitlisten_finalized) finalized;
static __typeof__(&jitlisten_freeing) freeing;

/* Of the processor, all threads, and the children that have been waited for: other programs use the machine, too. */
static double milliseconds(void) {
    struct timespec now;
    struct rusage children;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    getrusage(RUSAGE_CHILDREN, &children);
    double children_ms = (children.ru_utime.tv_sec + children.ru_stime.tv_sec) * 1e3
        + (children.ru_utime.tv_usec + children.ru_stime.tv_usec) / 1e3;
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6 + children_ms;
}

static unsigned char *memory(size_t bytes) {
    unsigned char *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) exit(2);
    for (size_t at = 0; at + 16 <= bytes; at += 16) memcpy(made + at, CODE, sizeof CODE);
    if (mprotect(made, bytes, PROT_READ | PROT_EXEC)) exit(2);
    return made;
}

/* An object of `count` functions, `step` bytes apart. */
static jitlisten_object load(unsigned char *place, size_t count, size_t step) {
    struct jitlisten_function *functions = calloc(count, sizeof *functions);
    char (*names)[24] = calloc(count, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof *names, "function_%zu", i);
        functions[i] = (struct jitlisten_function){(uintptr_t)place + i * step, sizeof CODE, names[i]};
    }
    struct jitlisten_code code = {.size = sizeof code, .functions = functions, .function_count = count};
    jitlisten_object object = {0};
    if (code_loaded && (code_loaded(&code, &object) || finalized(object))) exit(3);
    free(functions), free(names);
    return object;
}

static void *in_thread(void *place) {
    for (int i = 0; i < 64; i++) load((unsigned char *)place + i * PAGE, 1, 16);
    return NULL;
}

static double measure(const char *dimension, size_t size, const char *library) {
    double began = milliseconds();
    if (!strcmp(dimension, "objects")) {
        unsigned char *place = memory(size * PAGE);
        began = milliseconds();
        for (size_t i = 0; i < size; i++) load(place + i * PAGE, 1, 16);
    } else if (!strcmp(dimension, "functions")) {
        unsigned char *place = memory(size * 16);
        began = milliseconds();
        load(place, size, 16);
    } else if (!strcmp(dimension, "ranges")) {
        /* Functions that do not touch: each is a text range of its own. */
        unsigned char *place = memory(size * 64);
        began = milliseconds();
        load(place, size, 64);
    } else if (!strcmp(dimension, "turns")) {
        unsigned char *place = memory(PAGE);
        began = milliseconds();
        for (size_t i = 0; i < size; i++) {
            jitlisten_object object = load(place, 1, 16);
            if (object.number && freeing(object)) exit(3);
        }
    } else if (!strcmp(dimension, "threads")) {
        pthread_t *threads = calloc(size, sizeof *threads);
        unsigned char *place = memory(size * 64 * PAGE);
        began = milliseconds();
        for (size_t i = 0; i < size; i++)
            if (pthread_create(&threads[i], NULL, in_thread, place + i * 64 * PAGE)) exit(2);
        for (size_t i = 0; i < size; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(dimension, "forks")) {
        unsigned char *place = memory(size * PAGE);
        for (size_t i = 0; i < size; i++) load(place + i * PAGE, 1, 16);
        double best = 1e9;
        for (int i = 0; i < 5; i++) {
            began = milliseconds();
            pid_t child = fork();
            if (child == 0) _exit(0);
            waitpid(child, NULL, 0);
            double took = milliseconds() - began;
            best = took < best ? took : best;
        }
        return best;
    } else if (!strcmp(dimension, "libraries")) {
        char path[512];
        load(memory(PAGE), 1, 16);
        began = milliseconds();
        for (size_t i = 0; i < size; i++) {
            snprintf(path, sizeof path, "%s/lib%zu.so", library, i);
            if (!dlopen(path, RTLD_NOW)) exit(4);
        }
    } else {
        exit(1);
    }
    return milliseconds() - began;
}

int main(int count, char **words) {
    if (count < 3) return 1;
    code_loaded = (__typeof__(code_loaded))dlsym(RTLD_DEFAULT, "jitlisten_code_loaded");
    finalized = (__typeof__(finalized))dlsym(RTLD_DEFAULT, "jitlisten_finalized");
    freeing = (__typeof__(freeing))dlsym(RTLD_DEFAULT, "jitlisten_freeing");
    double took = measure(words[1], strtoul(words[2], NULL, 10), count > 3 ? words[3] : "");
    char map[64];
    snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
    unlink(map);
    printf("%.3f\n", took);
    return 0;
}
