/* A thread is inside dlopen, in front of the relocations of an LLVM, when another one looks at the list of libraries. Made of this file:
 *
 *     waits_in_loader LIBRARY COUNT LOG    opens LIBRARY in a thread, looks something up in another one, and compiles COUNT modules with it
 *     -DAS_LIBRARY                         what LIBRARY needs: the loader relocates it first, and waits in it
 *
 * Goes on when LOG, if there is one, says that LIBRARY was looked at. */
#define _GNU_SOURCE
#include <sys/syscall.h>

enum { TELLS = 100, WAITS = 101 };

#ifdef AS_LIBRARY
/* Nothing of other libraries can be called here yet. */
static long system_call(long number, long file, char *byte)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(file), "S"(byte), "d"(1L) : "rcx", "r11", "memory");
    return result;
}

static int found(void) { return 1; }

static int (*resolve(void))(void)
{
    char byte = 0;
    system_call(SYS_write, TELLS, &byte);
    system_call(SYS_read, WAITS, &byte);
    return found;
}

static int waited_for(void) __attribute__((ifunc("resolve")));

int waits(void) { return waited_for(); }
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *open_library(void *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    return library;
}

static int tells[2], waits[2];

static void *look_up(void *name)
{
    char byte;
    return read(tells[0], &byte, 1) == 1 ? dlsym(RTLD_DEFAULT, name) : NULL;
}

static int says(const char *log, const char *what)
{
    char text[4096] = {0};
    FILE *file = fopen(log, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    return size && strstr(text, what);
}

int main(int count, char **words)
{
    pthread_t opens, looks;
    char byte = 0;
    void *library;
    if (count < 3 || pipe(tells) || pipe(waits) || dup2(tells[1], TELLS) != TELLS || dup2(waits[0], WAITS) != WAITS)
        return 2;
    /* No thread can be created while one is in dlopen. */
    if (pthread_create(&looks, NULL, look_up, "nothing of this name") || pthread_create(&opens, NULL, open_library, words[1]))
        return 3;
    for (int turn = 0; count > 3 && turn < 20000 && !says(words[3], words[1]); turn++)
        usleep(1000);
    if (write(waits[1], &byte, 1) != 1 || pthread_join(opens, &library) || pthread_join(looks, NULL) || !library)
        return 4;
    int (*embedded)(int, char **) = (int (*)(int, char **))dlsym(library, "embedded");
    char *arguments[] = {"embedded", "mcjit", words[2], NULL};
    return embedded(3, arguments);
}
#endif
