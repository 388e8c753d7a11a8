/* Opens, runs and closes libraries that LLVM is linked into (embedded.c), while others do the same:
 *
 *     opens_embedded ROUNDS COUNT LIBRARY... [-- LIBRARY...]
 *
 * One thread for each library, each with ROUNDS rounds; COUNT modules a round. Every library prints its sums. Those behind the dashes are
 * opened and closed for as long as others compile. With 0 ROUNDS, one thread opens all, compiles with each, closes the first, and compiles with
 * the others once more, without opening or looking anything up behind that. */
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

static void *opened(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void *compile(void *path) {
    for (int round = 0; round < rounds; round++) {
        void *library = opened(path);
        int (*embedded)(int, char **) = (int (*)(int, char **))dlsym(library, "embedded");
        char *words[] = {"embedded", round % 2 ? "orc" : "mcjit", count, NULL};
        if (embedded(3, words)) exit(1);
        dlclose(library);
    }
    atomic_fetch_sub(&compiling, 1);
    return NULL;
}

static void *open_and_close(void *path) {
    /* Between two of them, others get the loader's lock. */
    for (; atomic_load(&compiling); usleep(200)) dlclose(opened(path));
    return NULL;
}

static int after_closing(char **paths, int libraries) {
    int (*embedded[20])(int, char **) = {NULL};
    void *opened_libraries[20];
    char *mcjit[] = {"embedded", "mcjit", count, NULL};
    for (int library = 0; library < libraries; library++) {
        opened_libraries[library] = opened(paths[library]);
        embedded[library] = (int (*)(int, char **))dlsym(opened_libraries[library], "embedded");
    }
    for (int library = 0; library < libraries; library++)
        if (embedded[library](3, mcjit)) return 1;
    if (dlclose(opened_libraries[0])) return 1;
    for (int library = 1; library < libraries; library++)
        if (embedded[library](3, mcjit)) return 1;
    return 0;
}

int main(int count_of_words, char **words) {
    if (count_of_words < 4 || count_of_words > 20) return 2;
    rounds = atoi(words[1]);
    count = words[2];
    if (!rounds) return after_closing(&words[3], count_of_words - 3);
    pthread_t threads[20];
    int started = 0, last = 3;
    while (last < count_of_words && strcmp(words[last], "--")) last++;
    atomic_store(&compiling, last - 3);
    for (int word = 3; word < count_of_words; word++)
        if (word != last && pthread_create(&threads[started++], NULL, word < last ? compile : open_and_close, words[word])) return 1;
    while (started) pthread_join(threads[--started], NULL);
    return 0;
}
