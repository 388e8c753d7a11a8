/* A program that opens the library under test, and then a library which asks whether a function is there that it imports weakly. Both are
 * made of this file, the second with -DAS_LIBRARY: it has what LLVM has for debuggers, so that it is taken for one.
 *
 *     weak_import LIBRARY [LIBJITLISTEN]
 *
 * Prints whether the function is there. The program has no libgcc_s, so it is nowhere. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#ifdef AS_LIBRARY
struct {
    uint32_t version, action;
    void *relevant, *first;
} __jit_debug_descriptor = {1, 0, NULL, NULL};

void __jit_debug_register_code(void) { __asm__ volatile(""); }

__attribute__((weak)) void __register_frame(const void *);

int is_there(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page, 4096, PROT_READ);
    munmap(page, 4096);
    return __register_frame != NULL;
}
#else
int main(int count, char **words)
{
    if (count < 2)
        return 2;
    if (count > 2) {
        void *listener = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
        int (*begin)(void *) = listener ? (int (*)(void *))dlsym(listener, "jitlisten_open") : NULL;
        if (!begin || begin(NULL))
            return 3;
    }
    void *library = dlopen(words[1], RTLD_NOW);
    int (*is_there)(void) = library ? (int (*)(void))dlsym(library, "is_there") : NULL;
    if (!is_there)
        return 4;
    printf("%d\n", is_there());
    return 0;
}
#endif
