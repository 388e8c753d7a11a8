/* The chain, reported by a JIT without LLVM, which passes addresses, names, lines and unwind tables to the C API.
 *
 *     raw_jit SECONDS [frameless|tableless|padded]    of CPU time, however busy the machine is
 *
 * frameless: beta has no frame pointer. tableless: and the code has no .eh_frame. padded: beta has no frame pointer, and
 * a page in front of the code is left to the image.
 *
 * The program is linked to libjitlisten; the environment selects the sinks. */
#include "../c/chain_code.h"
#include <jitlisten.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 2000000

static volatile unsigned long result;

static int report_failure(const char *operation) {
    fprintf(stderr, "raw_jit: %s: %s\n", operation, jitlisten_last_error());
    return 1;
}

__attribute__((noinline)) static void call_alpha(const struct chain_code *chain) {
    result = chain_run(chain, ROUNDS) + 1;
}

int main(int argc, char **argv) {
    int tableless = argc > 2 && !strcmp(argv[2], "tableless");
    struct chain_code chain = chain_make(argc < 3);
    uint64_t base = (uint64_t)(uintptr_t)chain.memory;
    struct jitlisten_function functions[] = {{base + CHAIN_ALPHA, chain.alpha_size, "alpha"},
                                             {base + CHAIN_BETA, chain.beta_size, "beta"},
                                             {base + CHAIN_GAMMA, chain.gamma_size, "gamma"}};
    struct jitlisten_line lines[] = {
        {base + CHAIN_ALPHA, "/source/chain.raw", 1, 1},     {base + CHAIN_BETA, "/source/chain.raw", 11, 1},
        {base + CHAIN_GAMMA, "/source/chain.raw", 21, 1},    {base + CHAIN_GAMMA + CHAIN_LOOP_AT, "/source/chain.raw", 22, 5},
        {base + CHAIN_GAMMA + CHAIN_LEAVE_AT, "/source/chain.raw", 23, 1}};
    struct jitlisten_code code = {sizeof code, functions, 3, lines, 5, chain.eh_frame, chain.eh_frame_size};
    struct jitlisten_options options = {.size = sizeof options, .listen = JITLISTEN_LISTEN_CALLS};
    jitlisten_object object;

    if (tableless) code.eh_frame_size = 0;
    if (!chain.memory) return report_failure("no executable memory");
    if (jitlisten_open_with(&options)) return report_failure("open");
    if (jitlisten_code_loaded(&code, &object)) return report_failure("loaded");
    if (argc > 2 && !strcmp(argv[2], "padded") && jitlisten_owns_padding(object, CHAIN_PAGE)) return report_failure("padding");
    if (jitlisten_finalized(object)) return report_failure("finalized");
    puts("running");
    fflush(stdout);
    do
        for (int call = 0; call < 20; call++) call_alpha(&chain);
    while (clock() / CLOCKS_PER_SEC < (argc > 1 ? atoi(argv[1]) : 1));
    if (jitlisten_freeing(object)) return report_failure("freeing");
    chain_free(&chain);
    return 0;
}
