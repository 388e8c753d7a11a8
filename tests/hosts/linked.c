/* A program linked to libjitlisten. It compiles one function with llvmlite's LLVM before it calls jitlisten_open, and
 * one after.
 *
 *     linked LIBLLVMLITE
 *
 * Prints both results, the results of jitlisten_open() and jitlisten_get_statistics(), and the observed copies of LLVM. */
#include "llvmlite.h"
#include <jitlisten.h>
#include <string.h>

static int64_t compile_and_call(void *library, const char *name) {
    char source[256];
    snprintf(source, sizeof source, "define i64 @%s(i64 %%a) {\n %%b = add i64 %%a, 1\n ret i64 %%b\n}\n", name);
    return ((int64_t(*)(int64_t))(uintptr_t)llvmlite_compile(library, source, name))(1);
}

static void print_llvm(void *unused, const struct jitlisten_llvm *llvm) {
    (void)unused;
    const char *name = strrchr(llvm->path, '/');
    printf("%s, version %s, discovered by %d, heard by %d, %d linked, %d listed, %d missing\n", name ? name + 1 : llvm->path,
           llvm->version ? llvm->version : "unknown", (int)llvm->discovered_by, (int)llvm->heard_by, (int)llvm->linked,
           (int)llvm->objects, (int)llvm->missing_count);
    for (size_t i = 0; i < llvm->missing_count; i++) printf("missing %s\n", llvm->missing[i]);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    void *library = llvmlite_open(argv[1], RTLD_NOW);
    printf("%d\n", (int)compile_and_call(library, "before_open"));
    jitlisten_status open_status = jitlisten_open();
    printf("%d\n", (int)compile_and_call(library, "after_open"));
    struct jitlisten_statistics statistics;
    memset(&statistics, 0, sizeof statistics);
    statistics.size = sizeof statistics;
    jitlisten_status statistics_status = jitlisten_get_statistics(&statistics);
    printf("open %d, statistics %d, %d objects\n", (int)open_status, (int)statistics_status, (int)statistics.objects_finalized);
    jitlisten_llvms(print_llvm, NULL);
    return 0;
}
