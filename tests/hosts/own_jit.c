/* A program whose own JIT registers with debuggers exactly like LLVM: own_jit LIBLLVMLITE CHAIN.LL OBJECT.o
 *
 * Exports __jit_debug_descriptor and __jit_debug_register_code. Lists OBJECT.o, which was never loaded, and malformed
 * bytes; later unlists OBJECT.o. In between, the LLVM inside llvmlite compiles the chain. The program's list must stay
 * as it is, and its __jit_debug_register_code must be called. */
#include "llvmlite.h"

struct jit_code_entry {
    struct jit_code_entry *next, *prev;
    const char *symfile_addr;
    uint64_t symfile_size;
};

struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};

__attribute__((visibility("default"))) struct jit_descriptor __jit_debug_descriptor = {1, 0, NULL, NULL};

#ifdef COUNTS
static int calls;

/* This function is longer than a single return instruction, so the library must not overwrite it. */
__attribute__((visibility("default"), noinline)) void __jit_debug_register_code(void) { calls++; }
#else
static const int calls = 3;

__attribute__((visibility("default"), noinline)) void __jit_debug_register_code(void) { __asm__ volatile(""); }
#endif

static void update_list(struct jit_code_entry *entry, uint32_t action) {
    if (action == 1) {
        entry->next = __jit_debug_descriptor.first_entry;
        if (entry->next != NULL)
            entry->next->prev = entry;
        __jit_debug_descriptor.first_entry = entry;
    } else {
        if (entry->prev != NULL)
            entry->prev->next = entry->next;
        else
            __jit_debug_descriptor.first_entry = entry->next;
        if (entry->next != NULL)
            entry->next->prev = entry->prev;
    }
    __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t size;
    char *source = read_text_file(argv[2], &size);
    char *object = read_text_file(argv[3], &size);
    struct jit_code_entry valid = {NULL, NULL, object, size};
    struct jit_code_entry malformed = {NULL, NULL, "no object at all", 17};
    update_list(&valid, 1);
    void *library = llvmlite_open(argv[1], RTLD_NOW);
    update_list(&malformed, 1);
    double (*alpha)(int64_t, double) = (double (*)(int64_t, double))(uintptr_t)llvmlite_compile(library, source, "alpha");
    printf("%.17g\n", alpha(10, 1.0));
    update_list(&valid, 2);
    printf("%d, %s\n", calls, __jit_debug_descriptor.first_entry == &malformed && malformed.next == NULL ? "whole" : "torn");
    return 0;
}
