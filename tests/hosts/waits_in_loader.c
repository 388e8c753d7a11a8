/* One thread is inside dlopen, before an LLVM library is relocated, while another thread reads the loader's list of
 * libraries. Two files are built from this one:
 *
 *     waits_in_loader LIBRARY COUNT LOG    opens LIBRARY in one thread, calls dlsym in another, and compiles COUNT modules
 *     -DAS_LIBRARY                         a dependency of LIBRARY: the loader relocates it first, and blocks in it
 *
 * Continues when LOG, if given, shows that LIBRARY was examined. */
#define _GNU_SOURCE
#include <sys/syscall.h>

enum { STARTED_FILE = 100, CONTINUE_FILE = 101 };

#ifdef AS_LIBRARY
/* The loader has not relocated this library yet, so functions of other libraries cannot be called. */
static long system_call(long number, long file, char *byte)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(file), "S"(byte), "d"(1L) : "rcx", "r11", "memory");
    return result;
}

static int return_one(void) { return 1; }

static int (*resolve(void))(void)
{
    char byte = 0;
    system_call(SYS_write, STARTED_FILE, &byte);
    system_call(SYS_read, CONTINUE_FILE, &byte);
    return return_one;
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

static int started_pipe[2], continue_pipe[2];

static void *look_up(void *name)
{
    char byte;
    return read(started_pipe[0], &byte, 1) == 1 ? dlsym(RTLD_DEFAULT, name) : NULL;
}

static int log_contains(const char *log_path, const char *expected)
{
    char text[4096] = {0};
    FILE *file = fopen(log_path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    return size && strstr(text, expected);
}

int main(int argc, char **argv)
{
    pthread_t opening_thread, lookup_thread;
    char byte = 0;
    void *library;
    if (argc < 3 || pipe(started_pipe) || pipe(continue_pipe) || dup2(started_pipe[1], STARTED_FILE) != STARTED_FILE || dup2(continue_pipe[0], CONTINUE_FILE) != CONTINUE_FILE)
        return 2;
    /* Create both threads first: pthread_create blocks while another thread is in dlopen. */
    if (pthread_create(&lookup_thread, NULL, look_up, "nothing of this name") || pthread_create(&opening_thread, NULL, open_library, argv[1]))
        return 3;
    for (int turn = 0; argc > 3 && turn < 20000 && !log_contains(argv[3], argv[1]); turn++)
        usleep(1000);
    if (write(continue_pipe[1], &byte, 1) != 1 || pthread_join(opening_thread, &library) || pthread_join(lookup_thread, NULL) || !library)
        return 4;
    int (*embedded)(int, char **) = (int (*)(int, char **))dlsym(library, "embedded");
    char *arguments[] = {"embedded", "mcjit", argv[2], NULL};
    return embedded(3, arguments);
}
#endif
