/* Calls libjitlisten, if it is loaded, in various situations of a process: calls SCENARIO [WORD...]
 *
 * The library may be preloaded. The code to report is a few bytes that the program writes itself. */
#define _GNU_SOURCE
#include "jitlisten.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#pragma weak jitlisten_code_loaded
#pragma weak jitlisten_finalized
#pragma weak jitlisten_freeing
#pragma weak jitlisten_enable
#pragma weak jitlisten_get_statistics

#define PAGE 4096

#ifdef __aarch64__
/* 1: subs x0, x0, #1; b.ne 1b; ret */
static const unsigned char LOOP[] = {0x00, 0x04, 0x00, 0xf1, 0xe1, 0xff, 0xff, 0x54, 0xc0, 0x03, 0x5f, 0xd6};
#else
/* push rbp; mov rbp, rsp; 1: dec rdi; jnz 1b; pop rbp; ret */
static const unsigned char LOOP[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};
#endif

static unsigned char *map_loops(size_t count) {
    unsigned char *mapped = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) exit(2);
    for (size_t i = 0; i < count; i++) memcpy(mapped + i * PAGE, LOOP, sizeof LOOP);
    if (mprotect(mapped, count * PAGE, PROT_READ | PROT_EXEC)) exit(2);
    return mapped;
}

/* Reports one function at `address`. Without the library, returns object number 0. */
static jitlisten_object load(unsigned char *address, const char *name) {
    struct jitlisten_function function = {(uintptr_t)address, sizeof LOOP, name};
    struct jitlisten_code code = {.size = sizeof code, .functions = &function, .function_count = 1};
    jitlisten_object object = {0};
    if (!jitlisten_code_loaded) return object;
    if (jitlisten_code_loaded(&code, &object) || jitlisten_finalized(object)) exit(3);
    return object;
}

static void unload(jitlisten_object object) {
    if (object.number && jitlisten_freeing(object)) exit(3);
}

static void load_many(int count) {
    unsigned char *address = map_loops((size_t)count);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "inherited_%d", i);
        load(address + (size_t)i * PAGE, name);
    }
}

/* CPU time of this process, in ms. */
static double cpu_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void print_ready_and_wait(void) {
    printf("ready\n");
    fflush(stdout);
    (void)!getchar();
}

/* Forks five children. Prints their process IDs and the minimum CPU time of a child until fork has returned, in ms. */
static int measure_forks(int count) {
    double minimum = 1e9;
    pid_t run_in_child = 0;
    load_many(count);
    for (int attempt = 0; attempt < 5; attempt++) {
        int pipe_ends[2];
        double milliseconds_in_child;
        if (pipe(pipe_ends)) return 2;
        run_in_child = fork();
        if (run_in_child == 0) {
            milliseconds_in_child = cpu_milliseconds();
            if (write(pipe_ends[1], &milliseconds_in_child, sizeof milliseconds_in_child) != sizeof milliseconds_in_child) _exit(2);
            _exit(0);
        }
        if (read(pipe_ends[0], &milliseconds_in_child, sizeof milliseconds_in_child) != sizeof milliseconds_in_child) return 2;
        waitpid(run_in_child, NULL, 0);
        close(pipe_ends[0]), close(pipe_ends[1]);
        minimum = milliseconds_in_child < minimum ? milliseconds_in_child : minimum;
        printf("child %d\n", run_in_child);
    }
    printf("milliseconds %.2f\n", minimum);
    return 0;
}

/* Forks a child that runs inherited code, compiles, or enables its own perf map. */
static int run_in_child(const char *action) {
    unsigned char *address = map_loops(2);
    load(address, "inherited");
    pid_t pid = fork();
    if (pid == 0) {
        if (!strcmp(action, "compiles")) load(address + PAGE, "of_child");
        if (!strcmp(action, "asks") && jitlisten_enable) jitlisten_enable("perfmap");
        if (!strcmp(action, "runs"))
            for (clock_t end = clock() + CLOCKS_PER_SEC; clock() < end;)
                ((void (*)(long))(uintptr_t)address)(10 * 1000 * 1000);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    printf("child %d\n", pid);
    return 0;
}

/* Compiles, waits, and replaces a function by new code at the same address. */
static int replace_function(const char *name) {
    char text[64];
    unsigned char *address = map_loops(3);
    snprintf(text, sizeof text, "%s_first", name);
    load(address, text);
    snprintf(text, sizeof text, "%s_old", name);
    jitlisten_object old = load(address + PAGE, text);
    print_ready_and_wait();
    unload(old);
    snprintf(text, sizeof text, "%s_new", name);
    load(address + PAGE, text);
    printf("done\n");
    print_ready_and_wait();
    return 0;
}

/* Resident memory in kB, without file-backed pages, because the kernel evicts and reloads those at any time. */
static long resident_kb(void) {
    long pages = 0, file_backed = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld %ld", &pages, &file_backed) != 2) exit(2);
    fclose(file);
    return (pages - file_backed) * (PAGE / 1024);
}

/* Loads and frees objects, and prints the resident memory after each half. */
static int load_and_free_repeatedly(int count) {
    unsigned char *address = map_loops(1);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < count / 2; i++) unload(load(address, "passing"));
        printf("resident %ld\n", resident_kb());
    }
    return 0;
}

/* Loads one object of `count` functions. Without lines, they have gaps between them and a section each; with lines,
 * they are adjacent in one section.
 */
static int load_many_sections(size_t count, int with_lines) {
    const size_t stride = with_lines ? sizeof LOOP : 64;
    unsigned char *address = mmap(NULL, count * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct jitlisten_function *functions = calloc(count, sizeof *functions);
    struct jitlisten_line *lines = calloc(count, sizeof *lines);
    char(*names)[32] = calloc(count, sizeof *names);
    struct jitlisten_code code = {.size = sizeof code, .functions = functions, .function_count = count};
    jitlisten_object object = {0};
    if (address == MAP_FAILED || !functions || !lines || !names) return 2;
    for (size_t i = 0; i < count; i++) {
        memcpy(address + i * stride, LOOP, sizeof LOOP);
        snprintf(names[i], sizeof names[i], "function_%zu", i);
        functions[i] = (struct jitlisten_function){(uintptr_t)address + i * stride, sizeof LOOP, names[i]};
        lines[i] = (struct jitlisten_line){(uintptr_t)address + i * stride, names[i], (uint32_t)i + 1, 0};
    }
    if (with_lines) code.lines = lines, code.line_count = count;
    if (mprotect(address, count * stride, PROT_READ | PROT_EXEC)) return 2;
    if (jitlisten_code_loaded && (jitlisten_code_loaded(&code, &object) || jitlisten_finalized(object))) return 3;
    return 0;
}

/* Prints the lines of /proc/self/status that begin with `prefix`. */
static void print_status(const char *prefix) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) exit(2);
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!strncmp(line, prefix, strlen(prefix)) && colon) *colon = ' ', fputs(line, stdout);
    }
    fclose(file);
}

static int print_peak_address_space(void) {
    load(map_loops(1), "first");
    print_status("VmPeak");
    return 0;
}

static void print_signals(void) {
    print_status("SigBlk"), print_status("SigIgn"), print_status("SigCgt");
}

/* Prints the signal state at startup, with a signal blocked, and after an object has been loaded and freed. */
static int print_signals_over_life(void) {
    sigset_t set;
    print_signals();
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return 2;
    print_signals();
    unload(load(map_loops(1), "first"));
    print_signals();
    return 0;
}

/* Compiles as root, changes to another user, and compiles more. With `worker`, a forked child does so. */
static int compile_as_other_user(const char *process, int user) {
    unsigned char *address = map_loops(2);
    load(address, "of_root");
    if (!strcmp(process, "worker")) {
        pid_t pid = fork();
        if (pid) {
            waitpid(pid, NULL, 0);
            printf("child %d\n", pid);
            return 0;
        }
    }
    if (setgid((gid_t)user) || setuid((uid_t)user)) return 2;
    load(address + PAGE, "of_user");
    if (!strcmp(process, "worker")) _exit(0);
    return 0;
}

/* Exercises the sinks: load, free, load again, fork. */
static int exercise_sinks(void) {
    unsigned char *address = map_loops(3);
    unload(load(address, "first"));
    load(address, "second");
    load(address + PAGE, "third");
    pid_t pid = fork();
    if (pid == 0) {
        load(address + 2 * PAGE, "of_child");
        exit(0);
    }
    waitpid(pid, NULL, 0);
    printf("child %d\n", pid);
    return 0;
}

/* Prints "lost some" if log lines were lost because the log cannot be opened, otherwise "lost none". */
static int print_lost_lines(void) {
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    load(map_loops(1), "first");
    if (jitlisten_get_statistics && jitlisten_get_statistics(&statistics)) return 3;
    printf("lost %s\n", statistics.log_lines_lost ? "some" : "none");
    return 0;
}

int main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "", *word = argc > 2 ? argv[2] : "";
    if (!strcmp(scenario, "forks")) return measure_forks(atoi(word));
    if (!strcmp(scenario, "child")) return run_in_child(word);
    if (!strcmp(scenario, "neighbour")) return replace_function(word);
    if (!strcmp(scenario, "turns")) return load_and_free_repeatedly(atoi(word));
    if (!strcmp(scenario, "becomes")) return compile_as_other_user(word, atoi(argv[3]));
    if (!strcmp(scenario, "everything")) return exercise_sinks();
    if (!strcmp(scenario, "sections")) return load_many_sections(strtoul(word, NULL, 10), argc > 3);
    if (!strcmp(scenario, "address-space")) return print_peak_address_space();
    if (!strcmp(scenario, "signals")) return print_signals_over_life();
    if (!strcmp(scenario, "lost-lines")) return print_lost_lines();
    return 1;
}
