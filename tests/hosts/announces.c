/* A library to preload. After each dlopen with RTLD_NOLOAD it calls `_r_debug.r_brk` again, whether or not the loader's
 * lock is held, as glibc 2.41 itself does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

void *dlopen(const char *name, int mode)
{
    static void *(*real)(const char *, int);
    if (!real)
        real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    void *library = real(name, mode);
    if (mode & RTLD_NOLOAD)
        ((void (*)(void))_r_debug.r_brk)();
    return library;
}
