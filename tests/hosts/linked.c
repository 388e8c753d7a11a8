/* A program that is linked with libjitlisten, opens it, and lets the LLVM inside llvmlite compile two functions.
 *
 *     linked LIBLLVMLITE
 *
 * Prints what they return, and what jitlisten_open() and then jitlisten_get_statistics() have said. */
#include "llvmlite.h"
#include <jitlisten.h>
#include <string.h>

static int64_t compiled(void *library, const char *name) {
    char source[256];
    snprintf(source, sizeof source, "define i64 @%s(i64 %%a) {\n %%b = add i64 %%a, 1\n ret i64 %%b\n}\n", name);
    return ((int64_t(*)(int64_t))(uintptr_t)llvmlite_compile(library, source, name))(1);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    void *library = llvmlite_open(argv[1], RTLD_NOW);
    printf("%d\n", (int)compiled(library, "before_open"));
    jitlisten_status opened = jitlisten_open();
    printf("%d\n", (int)compiled(library, "after_open"));
    struct jitlisten_statistics statistics;
    memset(&statistics, 0, sizeof statistics);
    statistics.size = sizeof statistics;
    jitlisten_status counted = jitlisten_get_statistics(&statistics);
    printf("open %d, statistics %d, %d objects\n", (int)opened, (int)counted, (int)statistics.objects_finalized);
    return 0;
}
