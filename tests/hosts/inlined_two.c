/* Second module of the program in inlined_one.c. */
static inline __attribute__((always_inline)) long deeper(long x)
{
    long sum = 0;
    for (long i = 0; i < x; i++)
        sum = sum * 17 + i;
    return sum;
}

__attribute__((noinline)) long two(long x)
{
    return deeper(x) - x;
}
