/* Measures one dimension at one size, and prints milliseconds of processor time: growth DIMENSION SIZE
 *
 * Without the preloaded library, only the JIT's own work is measured. See run.py. */
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

/* Processor time of all threads and of reaped children, because wall-clock time would depend on other programs. */
static double processor_ms(void) {
    struct timespec now;
    struct rusage children;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    getrusage(RUSAGE_CHILDREN, &children);
    double children_ms = (children.ru_utime.tv_sec + children.ru_stime.tv_sec) * 1e3
        + (children.ru_utime.tv_usec + children.ru_stime.tv_usec) / 1e3;
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6 + children_ms;
}

static unsigned char *map_code(size_t bytes) {
    unsigned char *code = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) exit(2);
    for (size_t offset = 0; offset + 16 <= bytes; offset += 16) memcpy(code + offset, CODE, sizeof CODE);
    if (mprotect(code, bytes, PROT_READ | PROT_EXEC)) exit(2);
    return code;
}

/* Loads an object of `count` functions, `step` bytes apart. */
static jitlisten_object load_object(unsigned char *address, size_t count, size_t step) {
    struct jitlisten_function *functions = calloc(count, sizeof *functions);
    char (*names)[24] = calloc(count, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof *names, "function_%zu", i);
        functions[i] = (struct jitlisten_function){(uintptr_t)address + i * step, sizeof CODE, names[i]};
    }
    struct jitlisten_code code = {.size = sizeof code, .functions = functions, .function_count = count};
    jitlisten_object object = {0};
    if (code_loaded && (code_loaded(&code, &object) || finalized(object))) exit(3);
    free(functions), free(names);
    return object;
}

static void *load_64_objects(void *memory) {
    for (int i = 0; i < 64; i++) load_object((unsigned char *)memory + i * PAGE, 1, 16);
    return NULL;
}

static double measure(const char *dimension, size_t size, const char *directory) {
    double started = processor_ms();
    if (!strcmp(dimension, "objects")) {
        unsigned char *code = map_code(size * PAGE);
        started = processor_ms();
        for (size_t i = 0; i < size; i++) load_object(code + i * PAGE, 1, 16);
    } else if (!strcmp(dimension, "functions")) {
        unsigned char *code = map_code(size * 16);
        started = processor_ms();
        load_object(code, size, 16);
    } else if (!strcmp(dimension, "ranges")) {
        /* Functions that are not adjacent become separate text ranges. */
        unsigned char *code = map_code(size * 64);
        started = processor_ms();
        load_object(code, size, 64);
    } else if (!strcmp(dimension, "turns")) {
        unsigned char *code = map_code(PAGE);
        started = processor_ms();
        for (size_t i = 0; i < size; i++) {
            jitlisten_object object = load_object(code, 1, 16);
            if (object.number && freeing(object)) exit(3);
        }
    } else if (!strcmp(dimension, "threads")) {
        pthread_t *threads = calloc(size, sizeof *threads);
        unsigned char *code = map_code(size * 64 * PAGE);
        started = processor_ms();
        for (size_t i = 0; i < size; i++)
            if (pthread_create(&threads[i], NULL, load_64_objects, code + i * 64 * PAGE)) exit(2);
        for (size_t i = 0; i < size; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(dimension, "forks")) {
        unsigned char *code = map_code(size * PAGE);
        for (size_t i = 0; i < size; i++) load_object(code + i * PAGE, 1, 16);
        double best = 1e9;
        for (int i = 0; i < 5; i++) {
            started = processor_ms();
            pid_t child = fork();
            if (child == 0) _exit(0);
            waitpid(child, NULL, 0);
            double elapsed = processor_ms() - started;
            best = elapsed < best ? elapsed : best;
        }
        return best;
    } else if (!strcmp(dimension, "libraries")) {
        char path[512];
        load_object(map_code(PAGE), 1, 16);
        started = processor_ms();
        for (size_t i = 0; i < size; i++) {
            snprintf(path, sizeof path, "%s/lib%zu.so", directory, i);
            if (!dlopen(path, RTLD_NOW)) exit(4);
        }
    } else {
        exit(1);
    }
    return processor_ms() - started;
}

int main(int argument_count, char **arguments) {
    if (argument_count < 3) return 1;
    code_loaded = (__typeof__(code_loaded))dlsym(RTLD_DEFAULT, "jitlisten_code_loaded");
    finalized = (__typeof__(finalized))dlsym(RTLD_DEFAULT, "jitlisten_finalized");
    freeing = (__typeof__(freeing))dlsym(RTLD_DEFAULT, "jitlisten_freeing");
    double elapsed = measure(arguments[1], strtoul(arguments[2], NULL, 10), argument_count > 3 ? arguments[3] : "");
    char map[64];
    snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
    unlink(map);
    printf("%.3f\n", elapsed);
    return 0;
}
