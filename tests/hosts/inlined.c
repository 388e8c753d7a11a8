/* Calls that the compiler inlines: outer contains no call, and middle and hot lack symbols.
 *
 *     lli inlined.bc SECONDS
 *     bitcode.py inlined.bc outer SECONDS
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline __attribute__((always_inline)) double hot(long n, double x)
{
    for (long i = 0; i < n; i++)
        x = x * 0.999 + 1.0 / (x * x + 1.0);
    return x;
}

static inline __attribute__((always_inline)) double middle(long n, double x)
{
    return hot(n, x) * 2.0;
}

__attribute__((noinline)) double outer(long n, double x)
{
    return middle(n, x) - 3.0;
}

int main(int argc, char **argv)
{
    volatile double start = 1.0;
    printf("%.17g\nrunning\n", outer(10, start));
    fflush(stdout);
    time_t until = time(NULL) + (argc > 1 ? atoi(argv[1]) : 0);
    while (time(NULL) < until)
        outer(2000000, start);
    return 0;
}
