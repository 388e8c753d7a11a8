/* Host that links only LLVM libunwind. It writes the chain alpha -> beta -> gamma into memory, registers it through
 * examples/llvm_unwinder.rs, and walks the stack. It prints one line per step and exits with 0 if all steps pass. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

extern const void *_Unwind_Find_FDE(const void *pc, void *bases);

static unsigned char *page;
static int frame_counts[3], outer_frames;

static _Unwind_Reason_Code count_frame(struct _Unwind_Context *context, void *unused) {
    uintptr_t offset = _Unwind_GetIP(context) - 1 - (uintptr_t)page;
    (void)unused;
    if (offset < 96)
        frame_counts[offset / 32] += 1;
    else if (frame_counts[0])
        outer_frames += 1;
    return _URC_NO_REASON;
}

static void callback(void) { _Unwind_Backtrace(count_frame, NULL); }

/* Writes the function `sub rsp, size; call ...; add rsp, size; ret` and its FDE; returns the size of the FDE. */
static size_t write_function(int index, unsigned char *fde, uint32_t cie_distance) {
    unsigned char *code = page + index * 32, size = index == 2 ? 8 : 24, *start = code;
    memcpy(code, (unsigned char[]){0x48, 0x83, 0xec, size}, 4), code += 4;
    if (index == 2) {
        *code++ = 0xff, *code++ = 0xd7;
    } else {
        int32_t next = (int32_t)(start + 32 - (code + 5));
        *code++ = 0xe8, memcpy(code, &next, 4), code += 4;
    }
    memcpy(code, (unsigned char[]){0x48, 0x83, 0xc4, size, 0xc3}, 5), code += 5;
    uint32_t length = 36;
    uint64_t begin = (uint64_t)start, range = (uint64_t)(code - start);
    memcpy(fde, &length, 4), memcpy(fde + 4, &cie_distance, 4), memcpy(fde + 8, &begin, 8), memcpy(fde + 16, &range, 8);
    memset(fde + 24, 0, 16);
    unsigned char rules[] = {0, 0x44, 0x0e, (unsigned char)(size + 8), (unsigned char)(0x40 | (range - 5)), 0x0e, 8};
    memcpy(fde + 24, rules, sizeof rules);
    return 40;
}

static int walk(void) {
    memset(frame_counts, 0, sizeof frame_counts), outer_frames = 0;
    ((void (*)(void (*)(void)))page)(callback);
    return frame_counts[0] == 1 && frame_counts[1] == 1 && frame_counts[2] == 1 && outer_frames > 0;
}

#define STEP(name, condition) do { int ok = (condition); printf("%s %s\n", name, ok ? "ok" : "WRONG"); if (!ok) return 1; } while (0)

int main(int argc, char **argv) {
    void *example = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!example)
        return printf("%s\n", dlerror()), 2;
    size_t (*rescan)(void) = (size_t (*)(void))dlsym(example, "example_rescan");
    void *(*reg)(const void *, size_t) = (void *(*)(const void *, size_t))dlsym(example, "example_register");
    void (*drop)(void *) = (void (*)(void *))dlsym(example, "example_drop");
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static unsigned char eh_frame[256] __attribute__((aligned(8)));
    unsigned char cie[24] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1};
    memcpy(eh_frame, cie, 24);
    size_t length = 24;
    for (int i = 0; i < 3; i++)
        length += write_function(i, eh_frame + length, (uint32_t)length + 4);
    length += 4;

    STEP("stock", !walk());
    STEP("rescan", rescan() >= 1);
    void *first = reg(eh_frame, length);
    STEP("register", first != NULL);
    STEP("walk", walk());
    drop(first);
    STEP("dropped", !walk());
    for (int i = 0; i < 2000; i++)
        drop(reg(eh_frame, length));
    first = reg(eh_frame, length);
    void *second = reg(eh_frame, length); /* already registered, so this call must not register it again */
    drop(second);
    STEP("twice", walk());
    drop(first);
    STEP("end", !walk());
    return 0;
}
