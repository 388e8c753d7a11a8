/* Opens llvmlite's library in a program that is not Python, and compiles the chain through its LLVMPY_* functions.
 *
 *     opens_llvmlite LIBLLVMLITE CHAIN.LL (lazy|now) SECONDS
 *
 * RTLD_LAZY resolves each import slot of the library on its first call. RTLD_NOW fills all of them inside dlopen, after
 * `_r_debug.r_brk`. A tool that patches import slots must survive both. */
#include "llvmlite.h"
#include <string.h>
#include <time.h>

#define LOOP 2000000

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    void *library = llvmlite_open(argv[1], strcmp(argv[3], "now") == 0 ? RTLD_NOW : RTLD_LAZY);
    size_t size;
    char *text = read_text_file(argv[2], &size);
    double (*alpha)(int64_t, double) = (double (*)(int64_t, double))(uintptr_t)llvmlite_compile(library, text, "alpha");
    free(text);
    printf("%.17g\nrunning\n", alpha(10, 1.0));
    fflush(stdout);
    /* Measure CPU time, so that even a busy machine yields enough samples. */
    clock_t deadline = clock() + atoi(argv[4]) * CLOCKS_PER_SEC;
    double result;
    do
        result = alpha(LOOP, 1.0);
    while (clock() < deadline);
    printf("%.17g\n", result);
    return 0;
}
