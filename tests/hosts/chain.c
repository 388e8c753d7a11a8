/* The chain for hosts that run bitcode (lli): main calls alpha calls beta calls gamma, which takes nearly all the time.
 *
 *     lli chain.bc SECONDS
 *
 * Work after every call prevents tail calls. The volatile variables keep the compiler from moving the pure chain out of
 * the loop. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define LOOP 2000000

__attribute__((noinline)) double gamma(long n, double x)
{
    for (long i = 0; i < n; i++)
        x = x * 0.999 + 1.0 / (x * x + 1.0);
    return x + 1.0;
}

__attribute__((noinline)) double beta(long n, double x)
{
    return gamma(n, x) * 2.0;
}

__attribute__((noinline)) double alpha(long n, double x)
{
    return beta(n, x) - 3.0;
}

static volatile double start = 1.0;
static volatile double result;

int main(int argc, char **argv)
{
    printf("%.17g\nrunning\n", alpha(10, 1.0));
    fflush(stdout);
    if (argc > 2 && strcmp(argv[2], "timer") == 0) {
        struct itimerval half = {{0, 0}, {0, 500000}};
        setitimer(ITIMER_VIRTUAL, &half, NULL);
    }
    /* Measure CPU time, so that even a busy machine yields enough samples. */
    clock_t deadline = clock() + (argc > 1 ? atoi(argv[1]) : 1) * CLOCKS_PER_SEC;
    do
        result = alpha(LOOP, start);
    while (clock() < deadline);
    printf("%.17g\n", result);
    return 0;
}
