/* llvmlite's own C functions (LLVMPY_*, from 0.36 to 0.50 the same), looked up in its library, and one function: compile a
 * piece of LLVM assembly, in a context and an MCJIT engine of its own. Ends the program when something is missing. */
#ifndef HOSTS_LLVMLITE_H
#define HOSTS_LLVMLITE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void *llvmlite_checked(void *value, const char *what, const char *message) {
    if (value == NULL) {
        fprintf(stderr, "%s: %s\n", what, message != NULL ? message : "no message");
        exit(1);
    }
    return value;
}

static inline void *llvmlite_open(const char *path, int mode) {
    void *library = dlopen(path, mode);
    return llvmlite_checked(library, path, library != NULL ? NULL : dlerror());
}

/* The address of a function of the text. */
static inline uint64_t llvmlite_compile(void *library, const char *text, const char *function) {
#define ENTRY(name) llvmlite_checked(dlsym(library, name), name, "not there")
    void (*initialize)(void) = ENTRY("LLVMPY_InitializeNativeTarget");
    void (*initialize_printer)(void) = ENTRY("LLVMPY_InitializeNativeAsmPrinter");
    void *(*context_create)(void) = ENTRY("LLVMPY_ContextCreate");
    void *(*parse)(void *, const char *, char **) = ENTRY("LLVMPY_ParseAssembly");
    void (*default_triple)(char **) = ENTRY("LLVMPY_GetDefaultTargetTriple");
    void *(*target_of)(const char *, char **) = ENTRY("LLVMPY_GetTargetFromTriple");
    void *(*machine_of)(void *, const char *, const char *, const char *, int, const char *, const char *, int, int,
                        const char *) = ENTRY("LLVMPY_CreateTargetMachine");
    void *(*engine_of)(void *, void *, bool, char **) = ENTRY("LLVMPY_CreateMCJITCompiler");
    void (*finalize)(void *) = ENTRY("LLVMPY_FinalizeObject");
    uint64_t (*address_of)(void *, const char *) = ENTRY("LLVMPY_GetFunctionAddress");
#undef ENTRY
    char *message = NULL, *triple = NULL;
    initialize();
    initialize_printer();
    void *module = llvmlite_checked(parse(context_create(), text, &message), "parse", message);
    default_triple(&triple);
    void *target = llvmlite_checked(target_of(triple, &message), "target", message);
    void *machine =
        llvmlite_checked(machine_of(target, triple, "", "", 2, "default", "jitdefault", 0, 1, ""), "machine", NULL);
    void *engine = llvmlite_checked(engine_of(module, machine, false, &message), "engine", message);
    finalize(engine);
    return address_of(engine, function);
}

/* What is in a file of text. The caller frees it. */
static inline char *contents(const char *path, size_t *size) {
    enum { LIMIT = 1 << 16 };
    char *text = calloc(1, LIMIT);
    FILE *file = fopen(path, "r");
    if (text == NULL || file == NULL || (*size = fread(text, 1, LIMIT - 1, file)) == 0)
        exit(1);
    fclose(file);
    return text;
}

#endif
