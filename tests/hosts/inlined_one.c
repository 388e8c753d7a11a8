/* First of two modules of a program, each with an inlined call. Their objects share a page. */
static inline __attribute__((always_inline)) long deep(long x)
{
    long sum = 0;
    for (long i = 0; i < x; i++)
        sum = sum * 31 + i;
    return sum;
}

__attribute__((noinline)) long one(long x)
{
    return deep(x) + x;
}

long two(long x);

int main(void)
{
    volatile long x = 5;
    return one(x) == 31815 && two(x) == 5541 ? 0 : 1;
}
