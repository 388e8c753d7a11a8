/* The chain alpha -> beta -> gamma as a minimal JIT would compile it: hand-written machine code (x86-64, AArch64) in
 * its own memory, followed by its relocated .eh_frame. For tests/c/tour.c and tests/hosts/raw_jit.c. Compiles as C11
 * and as C++17. */
#ifndef CHAIN_CODE_H
#define CHAIN_CODE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the machine code here is that of x86-64 and AArch64"
#endif

#define CHAIN_PAGE 4096

typedef unsigned long (*chain_function)(unsigned long rounds);

struct chain_code {
    /* Two pages: the code, readable and executable, and the .eh_frame, read-only. An unused page precedes them. */
    unsigned char *memory;
    size_t alpha_size, beta_size, gamma_size;
    const unsigned char *eh_frame;
    size_t eh_frame_size;
};

enum { CHAIN_ALPHA = 0, CHAIN_BETA = 0x40, CHAIN_GAMMA = 0x80 };

#ifdef __x86_64__

/* Writes a function that calls target and then changes the result, so that the call is not a tail call. */
static size_t chain_write_caller(unsigned char *out, const unsigned char *target) {
    static const unsigned char code[] = {0x55,                    /*  0 push %rbp       */
                                         0x48, 0x89, 0xe5,        /*  1 mov  %rsp, %rbp */
                                         0xe8, 0,    0,    0, 0,  /*  4 call target     */
                                         0x48, 0xff, 0xc0,        /*  9 inc  %rax       */
                                         0x5d,                    /* 12 pop  %rbp       */
                                         0xc3};                   /* 13 ret             */
    int32_t distance = (int32_t)(target - (out + 9));
    memcpy(out, code, sizeof code);
    memcpy(out + 5, &distance, sizeof distance);
    return sizeof code;
}

/* Same, but with %rbp as a general register, which holds 0 during the call. */
static size_t chain_write_frameless_caller(unsigned char *out, const unsigned char *target) {
    static const unsigned char code[] = {0x55,                    /*  0 push %rbp       */
                                         0x31, 0xed,              /*  1 xor  %ebp, %ebp */
                                         0xe8, 0,    0,    0, 0,  /*  3 call target     */
                                         0x48, 0xff, 0xc0,        /*  8 inc  %rax       */
                                         0x5d,                    /* 11 pop  %rbp       */
                                         0xc3};                   /* 12 ret             */
    int32_t distance = (int32_t)(target - (out + 8));
    memcpy(out, code, sizeof code);
    memcpy(out + 4, &distance, sizeof distance);
    return sizeof code;
}

/* Offsets of the loop and of the epilogue in the function with the loop. */
enum { CHAIN_LOOP_AT = 6, CHAIN_LEAVE_AT = 17 };

/* Writes a function that loops as many times as its argument, at least once. */
static size_t chain_write_loop(unsigned char *out) {
    static const unsigned char code[] = {0x55,             /*  0 push %rbp       */
                                         0x48, 0x89, 0xe5, /*  1 mov  %rsp, %rbp */
                                         0x31, 0xc0,       /*  4 xor  %eax, %eax */
                                         0x48, 0x01, 0xf8, /*  6 add  %rdi, %rax */
                                         0x48, 0xd1, 0xc8, /*  9 ror  %rax       */
                                         0x48, 0xff, 0xcf, /* 12 dec  %rdi       */
                                         0x75, 0xf5,       /* 15 jne  6          */
                                         0x5d,             /* 17 pop  %rbp       */
                                         0xc3};            /* 18 ret             */
    memcpy(out, code, sizeof code);
    return sizeof code;
}

static size_t chain_write_cie(unsigned char *out) {
    /* Version 1, "zR", code alignment 1, data alignment -8, return address 16, pointers are 4 bytes and relative;
     * CFA is %rsp + 8. */
    static const unsigned char cie[] = {20,   0, 0, 0,    0,    0,    0, 0, 1,    'z', 'R', 0,
                                        1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1,   0,   0};
    memcpy(out, cie, sizeof cie);
    return sizeof cie;
}

/* Writes the FDE of a function that begins with push %rbp and, if `with_frame_pointer`, mov %rsp, %rbp, and ends with
 * pop %rbp; ret. */
static size_t chain_write_fde_of(unsigned char *out, const unsigned char *cie, const unsigned char *function, size_t size,
                                 int with_frame_pointer) {
    unsigned char fde[36] = {32, 0};
    unsigned char enter[] = {0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6};
    static const unsigned char leave[] = {0x0c, 7, 8, 0xc6};
    int32_t to_cie = (int32_t)(out + 4 - cie), start = (int32_t)(function - (out + 8)), length = (int32_t)size;
    memcpy(fde + 4, &to_cie, 4);
    memcpy(fde + 8, &start, 4);
    memcpy(fde + 12, &length, 4);
    if (!with_frame_pointer) enter[6] = enter[7] = 0; /* DW_CFA_nop */
    memcpy(fde + 17, enter, sizeof enter);
    fde[25] = (unsigned char)(0x40 | (size - 1 - 4));
    memcpy(fde + 26, leave, sizeof leave);
    memcpy(out, fde, sizeof fde);
    return sizeof fde;
}

static size_t chain_write_fde(unsigned char *out, const unsigned char *cie, const unsigned char *function, size_t size) {
    return chain_write_fde_of(out, cie, function, size, 1);
}

#else

/* Writes a function that calls target and then changes the result, so that the call is not a tail call. */
static size_t chain_write_caller(unsigned char *out, const unsigned char *target) {
    uint32_t code[] = {0xa9bf7bfd,  /*  0 stp x29, x30, [sp, #-16]! */
                       0x910003fd,  /*  4 mov x29, sp               */
                       0x94000000,  /*  8 bl  target                */
                       0x91000400,  /* 12 add x0, x0, #1            */
                       0xa8c17bfd,  /* 16 ldp x29, x30, [sp], #16   */
                       0xd65f03c0}; /* 20 ret                       */
    code[2] |= (uint32_t)((target - (out + 8)) / 4) & 0x03ffffff;
    memcpy(out, code, sizeof code);
    return sizeof code;
}

/* Offsets of the loop and of the epilogue in the function with the loop. */
enum { CHAIN_LOOP_AT = 12, CHAIN_LEAVE_AT = 32 };

/* Writes a function that loops as many times as its argument, at least once. */
static size_t chain_write_loop(unsigned char *out) {
    static const uint32_t code[] = {0xa9bf7bfd,  /*  0 stp  x29, x30, [sp, #-16]! */
                                    0x910003fd,  /*  4 mov  x29, sp               */
                                    0xd2800001,  /*  8 mov  x1, #0                */
                                    0x8b000021,  /* 12 add  x1, x1, x0            */
                                    0x93c10421,  /* 16 ror  x1, x1, #1            */
                                    0xf1000400,  /* 20 subs x0, x0, #1            */
                                    0x54ffffa1,  /* 24 b.ne 12                    */
                                    0xaa0103e0,  /* 28 mov  x0, x1                */
                                    0xa8c17bfd,  /* 32 ldp  x29, x30, [sp], #16   */
                                    0xd65f03c0}; /* 36 ret                        */
    memcpy(out, code, sizeof code);
    return sizeof code;
}

static size_t chain_write_cie(unsigned char *out) {
    /* Version 1, "zR", code alignment 4, data alignment -8, return address 30, pointers are 4 bytes and relative;
     * CFA is sp + 0. */
    static const unsigned char cie[] = {20,   0, 0, 0,    0,    0,    0,  0, 1, 'z', 'R', 0,
                                        4, 0x78, 30, 1, 0x1b, 0x0c, 31, 0, 0, 0,   0,   0};
    memcpy(out, cie, sizeof cie);
    return sizeof cie;
}

/* Writes the FDE of a function that begins with stp x29, x30, [sp, #-16]!; mov x29, sp and ends with ldp x29, x30,
 * [sp], #16; ret. */
static size_t chain_write_fde(unsigned char *out, const unsigned char *cie, const unsigned char *function, size_t size) {
    unsigned char fde[36] = {32, 0};
    static const unsigned char enter[] = {0x41, 0x0e, 16, 0x80 | 29, 2, 0x80 | 30, 1, 0x41, 0x0d, 29};
    static const unsigned char leave[] = {0x0c, 31, 0, 0xc0 | 29, 0xc0 | 30};
    int32_t to_cie = (int32_t)(out + 4 - cie), start = (int32_t)(function - (out + 8)), length = (int32_t)size;
    memcpy(fde + 4, &to_cie, 4);
    memcpy(fde + 8, &start, 4);
    memcpy(fde + 12, &length, 4);
    memcpy(fde + 17, enter, sizeof enter);
    fde[27] = (unsigned char)(0x40 | (size - 4 - 8) / 4);
    memcpy(fde + 28, leave, sizeof leave);
    memcpy(out, fde, sizeof fde);
    return sizeof fde;
}

#endif

/* Maps and writes the code and its tables; memory is NULL if the system refuses the mapping. Without frame_pointers, beta
 * uses the frame pointer's register for something else (x86-64 only). */
static struct chain_code chain_make(int frame_pointers) {
    struct chain_code chain;
    unsigned char *out, *cie;
    void *memory = mmap(NULL, 3 * CHAIN_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(&chain, 0, sizeof chain);
    if (memory == MAP_FAILED) return chain;
    chain.memory = (unsigned char *)memory + CHAIN_PAGE;
    chain.alpha_size = chain_write_caller(chain.memory + CHAIN_ALPHA, chain.memory + CHAIN_BETA);
    chain.beta_size = chain_write_caller(chain.memory + CHAIN_BETA, chain.memory + CHAIN_GAMMA);
#ifdef __x86_64__
    if (!frame_pointers)
        chain.beta_size = chain_write_frameless_caller(chain.memory + CHAIN_BETA, chain.memory + CHAIN_GAMMA);
#else
    (void)frame_pointers;
#endif
    chain.gamma_size = chain_write_loop(chain.memory + CHAIN_GAMMA);
    cie = out = chain.memory + CHAIN_PAGE;
    chain.eh_frame = out;
    out += chain_write_cie(out);
    out += chain_write_fde(out, cie, chain.memory + CHAIN_ALPHA, chain.alpha_size);
#ifdef __x86_64__
    out += chain_write_fde_of(out, cie, chain.memory + CHAIN_BETA, chain.beta_size, frame_pointers);
#else
    out += chain_write_fde(out, cie, chain.memory + CHAIN_BETA, chain.beta_size);
#endif
    out += chain_write_fde(out, cie, chain.memory + CHAIN_GAMMA, chain.gamma_size);
    chain.eh_frame_size = (size_t)(out - chain.eh_frame);
    __builtin___clear_cache((char *)chain.memory, (char *)chain.memory + CHAIN_PAGE);
    if (mprotect(chain.memory, CHAIN_PAGE, PROT_READ | PROT_EXEC) != 0 ||
        mprotect(chain.memory + CHAIN_PAGE, CHAIN_PAGE, PROT_READ) != 0) {
        munmap(memory, 3 * CHAIN_PAGE);
        chain.memory = NULL;
    }
    return chain;
}

static void chain_free(struct chain_code *chain) {
    munmap(chain->memory - CHAIN_PAGE, 3 * CHAIN_PAGE);
    chain->memory = NULL;
}

static unsigned long chain_run(const struct chain_code *chain, unsigned long rounds) {
    chain_function alpha;
    const unsigned char *code = chain->memory + CHAIN_ALPHA;
    memcpy(&alpha, &code, sizeof alpha);
    return alpha(rounds);
}

#endif
