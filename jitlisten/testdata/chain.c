/* alpha -> beta -> gamma in two text sections, with an alias, a weak function and one that is only a tail call. */
int raise(int);
__attribute__((noinline)) int gamma_(int x) { raise(5); return x + 1; }
__attribute__((noinline)) static int beta(int x) {
    volatile int room[8];
    for (int i = 0; i < 8; i++) room[i] = x + i;
    return gamma_(room[3]) + room[x & 7];
}
__attribute__((noinline, weak)) int alpha(int x) { return beta(x) * 3; }
int alpha_alias(int) __attribute__((alias("alpha")));
__attribute__((noinline, section(".text.hot"))) int tail(int x) { return alpha(x); }
int main(void) { return tail(2); }
