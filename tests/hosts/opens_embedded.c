/* Opens, runs and closes several libraries that embed LLVM (embedded.c):
 *
 *     opens_embedded ROUNDS COUNT LIBRARY... [-- LIBRARY...]
 *
 * Starts one thread per library, which compiles and runs COUNT modules ROUNDS times. Every library prints its sums.
 * Libraries after the dashes are opened and closed until the others have finished. With 0 ROUNDS, a single thread opens
 * all libraries, compiles with each, closes the first, and compiles with the rest without opening or looking up
 * anything further. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rounds;
static char *count;
static atomic_int compiling;

static void *open_or_exit(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void *compile(void *path) {
    for (int round = 0; round < rounds; round++) {
        void *library = open_or_exit(path);
        int (*embedded)(int, char **) = (int (*)(int, char **))dlsym(library, "embedded");
        char *argv[] = {"embedded", round % 2 ? "orc" : "mcjit", count, NULL};
        if (embedded(3, argv)) exit(1);
        dlclose(library);
    }
    atomic_fetch_sub(&compiling, 1);
    return NULL;
}

static void *open_and_close(void *path) {
    /* Sleep between two iterations, so that other threads can take the loader's lock. */
    for (; atomic_load(&compiling); usleep(200)) dlclose(open_or_exit(path));
    return NULL;
}

static int compile_after_closing(char **paths, int library_count) {
    int (*embedded[20])(int, char **) = {NULL};
    void *opened_libraries[20];
    char *mcjit[] = {"embedded", "mcjit", count, NULL};
    for (int library = 0; library < library_count; library++) {
        opened_libraries[library] = open_or_exit(paths[library]);
        embedded[library] = (int (*)(int, char **))dlsym(opened_libraries[library], "embedded");
    }
    for (int library = 0; library < library_count; library++)
        if (embedded[library](3, mcjit)) return 1;
    if (dlclose(opened_libraries[0])) return 1;
    for (int library = 1; library < library_count; library++)
        if (embedded[library](3, mcjit)) return 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 20) return 2;
    rounds = atoi(argv[1]);
    count = argv[2];
    if (!rounds) return compile_after_closing(&argv[3], argc - 3);
    pthread_t threads[20];
    int started = 0, first_dash_or_end = 3;
    while (first_dash_or_end < argc && strcmp(argv[first_dash_or_end], "--")) first_dash_or_end++;
    atomic_store(&compiling, first_dash_or_end - 3);
    for (int word = 3; word < argc; word++)
        if (word != first_dash_or_end && pthread_create(&threads[started++], NULL, word < first_dash_or_end ? compile : open_and_close, argv[word])) return 1;
    while (started) pthread_join(threads[--started], NULL);
    return 0;
}
