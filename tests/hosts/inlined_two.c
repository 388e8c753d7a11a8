/* See inlined_one.c. */
static inline __attribute__((always_inline)) long deeper(long x)
{
    return x * 5 + 7;
}

__attribute__((noinline)) long two(long x)
{
    return deeper(x) - x;
}
