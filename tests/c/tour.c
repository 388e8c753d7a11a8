/* A tour of jitlisten.h, for a program that embeds LLVM. Compiled as C11 and as C++17, and run, by ci/exports.sh. */
#include <jitlisten.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what, jitlisten_status status) {
    fprintf(stderr, "%s: %s\n", what, jitlisten_status_text(status));
    return 1;
}

int main(void) {
    struct jitlisten_statistics statistics;
    jitlisten_status status;

    /* Before the session is open, everything says so. */
    memset(&statistics, 0, sizeof statistics);
    statistics.size = sizeof statistics;
    status = jitlisten_statistics(&statistics);
    if (status != JITLISTEN_NOT_OPEN) return failed("statistics before open", status);

    /* From here on, every object that an LLVM of this process compiles is told to the sinks. */
    status = jitlisten_open();
    if (status != JITLISTEN_OK) return failed("open", status);
    status = jitlisten_open();
    if (status != JITLISTEN_OK) return failed("open again", status);

    /* Sinks can be switched at run time. */
    status = jitlisten_disable("perfmap");
    if (status != JITLISTEN_OK) return failed("disable", status);
    status = jitlisten_enable("perfmap");
    if (status != JITLISTEN_OK) return failed("enable", status);

    /* Mistakes are answered, not punished. */
    status = jitlisten_enable("no such sink");
    if (status != JITLISTEN_UNKNOWN_SINK) return failed("enable nonsense", status);
    status = jitlisten_enable(NULL);
    if (status != JITLISTEN_INVALID_ARGUMENT) return failed("enable NULL", status);
    status = jitlisten_statistics(NULL);
    if (status != JITLISTEN_INVALID_ARGUMENT) return failed("statistics NULL", status);

    status = jitlisten_statistics(&statistics);
    if (status != JITLISTEN_OK) return failed("statistics", status);
    printf("jitlisten %s: %llu objects loaded, %llu finalized, %llu freed\n", jitlisten_version(),
           (unsigned long long)statistics.objects_loaded, (unsigned long long)statistics.objects_finalized,
           (unsigned long long)statistics.objects_freed);

    status = jitlisten_close();
    if (status != JITLISTEN_OK) return failed("close", status);
    return 0;
}
