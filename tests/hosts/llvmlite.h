/* Compiles LLVM assembly through llvmlite's C functions (LLVMPY_*, unchanged from 0.36 to 0.50), in a new context and
 * MCJIT engine. The functions are looked up in llvmlite's library; if one is missing, the program ends. */
#ifndef HOSTS_LLVMLITE_H
#define HOSTS_LLVMLITE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void *check_not_null(void *value, const char *operation, const char *message) {
    if (value == NULL) {
        fprintf(stderr, "%s: %s\n", operation, message != NULL ? message : "no message");
        exit(1);
    }
    return value;
}

static inline void *llvmlite_open(const char *path, int mode) {
    void *library = dlopen(path, mode);
    return check_not_null(library, path, library != NULL ? NULL : dlerror());
}

/* Compiles the text and returns the address of a function in it. */
static inline uint64_t llvmlite_compile(void *library, const char *text, const char *function) {
#define ENTRY(name) check_not_null(dlsym(library, name), name, "not there")
    void (*initialize)(void) = ENTRY("LLVMPY_InitializeNativeTarget");
    void (*initialize_printer)(void) = ENTRY("LLVMPY_InitializeNativeAsmPrinter");
    void *(*context_create)(void) = ENTRY("LLVMPY_ContextCreate");
    void *(*parse)(void *, const char *, char **) = ENTRY("LLVMPY_ParseAssembly");
    void (*default_triple)(char **) = ENTRY("LLVMPY_GetDefaultTargetTriple");
    void *(*find_target)(const char *, char **) = ENTRY("LLVMPY_GetTargetFromTriple");
    void *(*create_machine)(void *, const char *, const char *, const char *, int, const char *, const char *, int, int,
                        const char *) = ENTRY("LLVMPY_CreateTargetMachine");
    void *(*create_engine)(void *, void *, bool, char **) = ENTRY("LLVMPY_CreateMCJITCompiler");
    void (*finalize)(void *) = ENTRY("LLVMPY_FinalizeObject");
    uint64_t (*function_address)(void *, const char *) = ENTRY("LLVMPY_GetFunctionAddress");
#undef ENTRY
    char *message = NULL, *triple = NULL;
    initialize();
    initialize_printer();
    void *module = check_not_null(parse(context_create(), text, &message), "parse", message);
    default_triple(&triple);
    void *target = check_not_null(find_target(triple, &message), "target", message);
    void *machine =
        check_not_null(create_machine(target, triple, "", "", 2, "default", "jitdefault", 0, 1, ""), "machine", NULL);
    void *engine = check_not_null(create_engine(module, machine, false, &message), "engine", message);
    finalize(engine);
    return function_address(engine, function);
}

/* Reads a text file. The caller frees the result. */
static inline char *read_text_file(const char *path, size_t *size) {
    enum { MAX_BYTES = 1 << 16 };
    char *text = calloc(1, MAX_BYTES);
    FILE *file = fopen(path, "r");
    if (text == NULL || file == NULL || (*size = fread(text, 1, MAX_BYTES - 1, file)) == 0)
        exit(1);
    fclose(file);
    return text;
}

#endif
