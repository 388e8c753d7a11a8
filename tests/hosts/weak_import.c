/* Opens the library under test, then a library that checks whether its weak import is bound. This file is both:
 * compiled with -DAS_LIBRARY, it exports LLVM's GDB JIT symbols, so that libjitlisten takes it for an LLVM library.
 *
 *     weak_import LIBRARY [LIBJITLISTEN]
 *
 * Prints whether the imported function exists. The program does not load libgcc_s, so nothing defines the function. */
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
int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (argc > 2) {
        void *jitlisten = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        int (*open_session)(void *) = jitlisten ? (int (*)(void *))dlsym(jitlisten, "jitlisten_open") : NULL;
        if (!open_session || open_session(NULL))
            return 3;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*is_there)(void) = library ? (int (*)(void))dlsym(library, "is_there") : NULL;
    if (!is_there)
        return 4;
    printf("%d\n", is_there());
    return 0;
}
#endif
