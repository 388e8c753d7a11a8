/* One object with COUNT functions, each in a section of its own, compiled through MCJIT with Debian's LLVM.
 *
 *     sections COUNT
 *
 * Prints the CPU time in ms from the creation of the module to the lookup of the last function's address. */
#include "llvm_c.h"
#include <time.h>

static double cpu_milliseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 0;
    if (count < 1)
        return 2;
    char *text = malloc(128 * (size_t)count), *end = text, last_name[32];
    for (int i = 0; i < count; i++)
        end += sprintf(end, "define i32 @f%d(i32 %%x) uwtable section \".text.f%d\" {\n %%y = add i32 %%x, %d\n ret i32 %%y\n}\n", i, i, i);
    sprintf(last_name, "f%d", count - 1);
    initialize_llvm();
    double before = cpu_milliseconds();
    struct compiled compiled = compile_text(text, last_name);
    double after = cpu_milliseconds();
    printf("%d sections %.1f ms\n", ((int (*)(int))compiled.address)(1), after - before);
    return 0;
}
