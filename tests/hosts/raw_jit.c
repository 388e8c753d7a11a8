/* The chain from a JIT without LLVM, reported through the C API: addresses, names, lines and unwind tables.
 *
 *     raw_jit SECONDS    of processor time, however busy the machine is
 *
 * Linked with libjitlisten; the environment chooses the sinks. */
#include "../c/chain_code.h"
#include <jitlisten.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 2000000

static volatile unsigned long result;

static int failed(const char *what) {
    fprintf(stderr, "raw_jit: %s: %s\n", what, jitlisten_last_error());
    return 1;
}

__attribute__((noinline)) static void call_alpha(const struct chain_code *made) {
    result = chain_run(made, ROUNDS) + 1;
}

int main(int argc, char **argv) {
    struct chain_code made = chain_make();
    uint64_t base = (uint64_t)(uintptr_t)made.memory;
    struct jitlisten_function functions[] = {{base + CHAIN_ALPHA, made.alpha_size, "alpha"},
                                             {base + CHAIN_BETA, made.beta_size, "beta"},
                                             {base + CHAIN_GAMMA, made.gamma_size, "gamma"}};
    struct jitlisten_line lines[] = {
        {base + CHAIN_ALPHA, "/source/chain.raw", 1, 1},     {base + CHAIN_BETA, "/source/chain.raw", 11, 1},
        {base + CHAIN_GAMMA, "/source/chain.raw", 21, 1},    {base + CHAIN_GAMMA + CHAIN_LOOP_AT, "/source/chain.raw", 22, 5},
        {base + CHAIN_GAMMA + CHAIN_LEAVE_AT, "/source/chain.raw", 23, 1}};
    struct jitlisten_code code = {sizeof code, functions, 3, lines, 5, made.eh_frame, made.eh_frame_size};
    struct jitlisten_options options = {.size = sizeof options, .listen = JITLISTEN_LISTEN_CALLS};
    jitlisten_object object;

    if (!made.memory) return failed("no executable memory");
    if (jitlisten_open_with(&options)) return failed("open");
    if (jitlisten_code_loaded(&code, &object)) return failed("loaded");
    if (jitlisten_finalized(object)) return failed("finalized");
    puts("running");
    fflush(stdout);
    do
        for (int call = 0; call < 20; call++) call_alpha(&made);
    while (clock() / CLOCKS_PER_SEC < (argc > 1 ? atoi(argv[1]) : 1));
    if (jitlisten_freeing(object)) return failed("freeing");
    chain_free(&made);
    return 0;
}
