/* A program that is not Python opens llvmlite's library and compiles the chain through its LLVMPY_* functions.
 *
 *     opens_llvmlite LIBLLVMLITE CHAIN.LL (lazy|now) SECONDS
 *
 * RTLD_LAZY leaves the library's relocation slots unresolved until each first call; RTLD_NOW fills them all inside dlopen,
 * after the loader's rendezvous. A tool that patches slots must survive both. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOP 2000000

typedef double (*chain_function)(int64_t, double);

static void *library;

static void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

static char *contents(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (file == NULL || fread(text, 1, sizeof text - 1, file) == 0)
        exit(1);
    fclose(file);
    return text;
}

static void *checked(void *value, const char *what, const char *message)
{
    if (value == NULL) {
        fprintf(stderr, "%s: %s\n", what, message ? message : "no message");
        exit(1);
    }
    return value;
}

static chain_function compile(const char *path)
{
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
    void *module = checked(parse(context_create(), contents(path), &message), "parse", message);
    default_triple(&triple);
    void *target = checked(target_of(triple, &message), "target", message);
    void *machine =
        checked(machine_of(target, triple, "", "", 2, "default", "jitdefault", 0, 1, ""), "machine", NULL);
    void *engine = checked(engine_of(module, machine, false, &message), "engine", message);
    finalize(engine);
    return (chain_function)(uintptr_t)address_of(engine, "alpha");
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    library = dlopen(argv[1], strcmp(argv[3], "now") == 0 ? RTLD_NOW : RTLD_LAZY);
    checked(library, "dlopen", dlerror());
    chain_function alpha = compile(argv[2]);
    printf("%.17g\nrunning\n", alpha(10, 1.0));
    fflush(stdout);
    /* Of the processor, so that a busy machine has as many samples. */
    clock_t until = clock() + atoi(argv[4]) * CLOCKS_PER_SEC;
    double result;
    do
        result = alpha(LOOP, 1.0);
    while (clock() < until);
    printf("%.17g\n", result);
    return 0;
}
