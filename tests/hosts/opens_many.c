/* Opens COUNT copies of a library, then closes them: copy number i is at PREFIX + i + ".so". One function is compiled with
 * Debian's LLVM before. Prints the milliseconds for both.
 *
 *     opens_many PREFIX COUNT */
#include "llvm_c.h"
#include <dlfcn.h>
#include <time.h>

static double now(void)
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
    llvm_begin();
    struct compiled compiled = compile_named("before", "before", 1);
    if (!is_right(compiled, 1))
        return 1;
    double begin = now();
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%d.so", argv[1], i);
        if (!(handles[i] = dlopen(path, RTLD_NOW)))
            return 1;
    }
    double opened = now();
    for (int i = count; i-- > 0;)
        dlclose(handles[i]);
    printf("%.1f opening %.1f closing\n", opened - begin, now() - opened);
    return 0;
}
