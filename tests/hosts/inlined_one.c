/* Two modules of one program, each with a call that is inlined: their objects share a page. */
static inline __attribute__((always_inline)) long deep(long x)
{
    return x * 3 + 1;
}

__attribute__((noinline)) long one(long x)
{
    return deep(x) + x;
}

long two(long x);

int main(void)
{
    volatile long x = 5;
    return one(x) == 21 && two(x) == 27 ? 0 : 1;
}
