/* A program that is linked with libjitlisten, opens it, and lets the LLVM inside llvmlite compile two functions.
 *
 *     linked LIBLLVMLITE
 *
 * Prints what they answer, and what jitlisten_open() and then jitlisten_statistics() have said. */
#include <dlfcn.h>
#include <jitlisten.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

static void *entry(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL)
        exit(1);
    return found;
}

static int64_t compiled(const char *name) {
    void *(*context_create)(void) = entry("LLVMPY_ContextCreate");
    void *(*parse)(void *, const char *, char **) = entry("LLVMPY_ParseAssembly");
    void (*default_triple)(char **) = entry("LLVMPY_GetDefaultTargetTriple");
    void *(*target_of)(const char *, char **) = entry("LLVMPY_GetTargetFromTriple");
    void *(*machine_of)(void *, const char *, const char *, const char *, int, const char *, const char *, int, int,
                        const char *) = entry("LLVMPY_CreateTargetMachine");
    void *(*engine_of)(void *, void *, bool, char **) = entry("LLVMPY_CreateMCJITCompiler");
    void (*finalize)(void *) = entry("LLVMPY_FinalizeObject");
    uint64_t (*address_of)(void *, const char *) = entry("LLVMPY_GetFunctionAddress");
    char source[256], *message = NULL, *triple = NULL;
    snprintf(source, sizeof source, "define i64 @%s(i64 %%a) {\n %%b = add i64 %%a, 1\n ret i64 %%b\n}\n", name);
    void *module = parse(context_create(), source, &message);
    default_triple(&triple);
    void *machine =
        machine_of(target_of(triple, &message), triple, "", "", 2, "default", "jitdefault", 0, 1, "");
    void *engine = engine_of(module, machine, false, &message);
    finalize(engine);
    return ((int64_t(*)(int64_t))(uintptr_t)address_of(engine, name))(1);
}

int main(int argc, char **argv) {
    if (argc != 2 || (library = dlopen(argv[1], RTLD_NOW)) == NULL)
        return 1;
    void (*initialize)(void) = entry("LLVMPY_InitializeNativeTarget");
    void (*initialize_printer)(void) = entry("LLVMPY_InitializeNativeAsmPrinter");
    initialize();
    initialize_printer();
    printf("%d\n", (int)compiled("before_open"));
    jitlisten_status opened = jitlisten_open();
    printf("%d\n", (int)compiled("after_open"));
    struct jitlisten_statistics statistics;
    memset(&statistics, 0, sizeof statistics);
    statistics.size = sizeof statistics;
    jitlisten_status counted = jitlisten_statistics(&statistics);
    printf("open %d, statistics %d, %d objects\n", (int)opened, (int)counted, (int)statistics.objects_finalized);
    return 0;
}
