/* Opens, runs and closes libraries that LLVM is linked into (embedded.c), while others do the same:
 *
 *     opens_embedded ROUNDS COUNT LIBRARY...
 *
 * One thread for each library, each with ROUNDS rounds; COUNT modules a round. Every library prints its sums. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int rounds;
static char *count;

static void *work(void *path) {
    for (int round = 0; round < rounds; round++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        int (*embedded)(int, char **) = (int (*)(int, char **))dlsym(library, "embedded");
        char *words[] = {"embedded", round % 2 ? "orc" : "mcjit", count, NULL};
        if (embedded(3, words)) exit(1);
        dlclose(library);
    }
    return NULL;
}

int main(int count_of_words, char **words) {
    if (count_of_words < 4 || count_of_words > 20) return 2;
    rounds = atoi(words[1]);
    count = words[2];
    pthread_t threads[20];
    for (int word = 3; word < count_of_words; word++)
        if (pthread_create(&threads[word], NULL, work, words[word])) return 1;
    for (int word = 3; word < count_of_words; word++) pthread_join(threads[word], NULL);
    return 0;
}
