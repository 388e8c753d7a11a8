/* Opens COUNT copies of a library, then closes them; copy number i is PREFIX + i + ".so". Before that, it compiles one
 * function with Debian's LLVM. Prints the CPU time in ms for opening and for closing.
 *
 *     opens_many PREFIX COUNT */
#include "llvm_c.h"
#include <dlfcn.h>
#include <time.h>

static double cpu_milliseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int count = atoi(argv[2]);
    void **handles = malloc((size_t)count * sizeof *handles);
    initialize_llvm();
    struct compiled compiled = compile_named("before", "before", 1);
    if (!returns_expected(compiled, 1))
        return 1;
    double before_opening = cpu_milliseconds();
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%d.so", argv[1], i);
        if (!(handles[i] = dlopen(path, RTLD_NOW)))
            return 1;
    }
    double after_opening = cpu_milliseconds();
    for (int i = count; i-- > 0;)
        dlclose(handles[i]);
    printf("%.1f opening %.1f closing\n", after_opening - before_opening, cpu_milliseconds() - after_opening);
    return 0;
}
