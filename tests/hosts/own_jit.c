/* A program with a JIT of its own that registers with debuggers, in the very way LLVM does: own_jit LIBLLVMLITE CHAIN.LL OBJECT.o
 *
 * Its __jit_debug_descriptor and __jit_debug_register_code are exported. It lists OBJECT.o, an
 * object that was not placed anywhere, and bytes that are no object; takes the first out again; and lets the LLVM inside
 * llvmlite compile the chain in between. Its list must stay as it made it, and its __jit_debug_register_code must have been called. */
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
static int called;

/* More than a return: it must not be written over. */
__attribute__((visibility("default"), noinline)) void __jit_debug_register_code(void) { called++; }
#else
static const int called = 3;

__attribute__((visibility("default"), noinline)) void __jit_debug_register_code(void) { __asm__ volatile(""); }
#endif

static void list(struct jit_code_entry *entry, uint32_t action) {
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
    char *source = contents(argv[2], &size);
    char *object = contents(argv[3], &size);
    struct jit_code_entry real = {NULL, NULL, object, size};
    struct jit_code_entry nonsense = {NULL, NULL, "no object at all", 17};
    list(&real, 1);
    void *library = llvmlite_open(argv[1], RTLD_NOW);
    list(&nonsense, 1);
    double (*alpha)(int64_t, double) = (double (*)(int64_t, double))(uintptr_t)llvmlite_compile(library, source, "alpha");
    printf("%.17g\n", alpha(10, 1.0));
    list(&real, 2);
    printf("%d, %s\n", called, __jit_debug_descriptor.first_entry == &nonsense && nonsense.next == NULL ? "whole" : "torn");
    return 0;
}
