/* A program with a JIT of its own that tells debuggers, in the very way LLVM does: own_jit LIBLLVMLITE CHAIN.LL OBJECT.o
 *
 * Its descriptor and its rendezvous have the names that the interface prescribes, and are exported. It lists OBJECT.o, an
 * object that nobody has placed anywhere, and bytes that are no object; takes the first out again; and lets the LLVM inside
 * llvmlite compile the chain in between. Its list must be what it made of it, and its rendezvous must have been called. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* More than a return: nobody may write over it. */
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

static char *contents(const char *path, size_t *size) {
    static char text[2][1 << 16];
    static int next;
    char *into = text[next++];
    FILE *file = fopen(path, "r");
    if (file == NULL || (*size = fread(into, 1, sizeof text[0] - 1, file)) == 0)
        exit(1);
    fclose(file);
    return into;
}

static void *library;

static void *entry(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL)
        exit(1);
    return found;
}

static double chain(const char *source) {
    void (*initialize)(void) = entry("LLVMPY_InitializeNativeTarget");
    void (*initialize_printer)(void) = entry("LLVMPY_InitializeNativeAsmPrinter");
    void *(*context_create)(void) = entry("LLVMPY_ContextCreate");
    void *(*parse)(void *, const char *, char **) = entry("LLVMPY_ParseAssembly");
    void (*default_triple)(char **) = entry("LLVMPY_GetDefaultTargetTriple");
    void *(*target_of)(const char *, char **) = entry("LLVMPY_GetTargetFromTriple");
    void *(*machine_of)(void *, const char *, const char *, const char *, int, const char *, const char *, int, int,
                        const char *) = entry("LLVMPY_CreateTargetMachine");
    void *(*engine_of)(void *, void *, bool, char **) = entry("LLVMPY_CreateMCJITCompiler");
    void (*finalize)(void *) = entry("LLVMPY_FinalizeObject");
    uint64_t (*address_of)(void *, const char *) = entry("LLVMPY_GetFunctionAddress");
    char *message = NULL, *triple = NULL;
    initialize();
    initialize_printer();
    void *module = parse(context_create(), source, &message);
    default_triple(&triple);
    void *machine =
        machine_of(target_of(triple, &message), triple, "", "", 2, "default", "jitdefault", 0, 1, "");
    void *engine = engine_of(module, machine, false, &message);
    finalize(engine);
    return ((double (*)(int64_t, double))(uintptr_t)address_of(engine, "alpha"))(10, 1.0);
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
    library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL)
        return 1;
    list(&nonsense, 1);
    printf("%.17g\n", chain(source));
    list(&real, 2);
    printf("%d, %s\n", called, __jit_debug_descriptor.first_entry == &nonsense && nonsense.next == NULL ? "whole" : "torn");
    return 0;
}
