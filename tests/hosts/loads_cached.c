/* A program that looks up LLVM by a symbol name, and loads its own cached kernels: loads_cached COUNT
 *
 * Each kernel gets its own memory, made executable with mprotect. Prints the kernels' addresses and the sum of their
 * results. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* lea eax, [rdi + 1]; ret */
static const unsigned char kernel[] = {0x8d, 0x47, 0x01, 0xc3};

int main(int argc, char **argv) {
    int sum = 0;
    /* The program runs cached kernels even without LLVM. */
    if (dlsym(RTLD_DEFAULT, "LLVMOrcCreateLLJIT")) return 1;
    for (int number = 0; argc > 1 && number < atoi(argv[1]); number++) {
        void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 1;
        memcpy(memory, kernel, sizeof kernel);
        if (mprotect(memory, sizeof kernel, PROT_READ | PROT_EXEC)) return 1;
        sum += ((int (*)(int))memory)(number);
        printf("%p\n", memory);
    }
    printf("%d\n", sum);
    return 0;
}
