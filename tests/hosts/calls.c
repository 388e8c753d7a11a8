/* A program that calls the library, if it is there, and does what programs do: calls SCENARIO [WORD...]
 *
 * The library is preloaded or not; its code is a few bytes that it writes itself. */
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

static unsigned char *pages(size_t count) {
    unsigned char *made = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) exit(2);
    for (size_t i = 0; i < count; i++) memcpy(made + i * PAGE, LOOP, sizeof LOOP);
    if (mprotect(made, count * PAGE, PROT_READ | PROT_EXEC)) exit(2);
    return made;
}

/* One function at `place`. Number 0 without the library. */
static jitlisten_object load(unsigned char *place, const char *name) {
    struct jitlisten_function function = {(uintptr_t)place, sizeof LOOP, name};
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
    unsigned char *place = pages((size_t)count);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "inherited_%d", i);
        load(place + (size_t)i * PAGE, name);
    }
}

/* Of the processor, in this process. */
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void wait_for_line(void) {
    printf("ready\n");
    fflush(stdout);
    (void)!getchar();
}

/* The processor time of a child before its fork returns, the best of five; and their numbers. */
static int forks(int count) {
    double best = 1e9;
    pid_t child = 0;
    load_many(count);
    for (int i = 0; i < 5; i++) {
        int ends[2];
        double took;
        if (pipe(ends)) return 2;
        child = fork();
        if (child == 0) {
            took = milliseconds();
            if (write(ends[1], &took, sizeof took) != sizeof took) _exit(2);
            _exit(0);
        }
        if (read(ends[0], &took, sizeof took) != sizeof took) return 2;
        waitpid(child, NULL, 0);
        close(ends[0]), close(ends[1]);
        best = took < best ? took : best;
        printf("child %d\n", child);
    }
    printf("milliseconds %.2f\n", best);
    return 0;
}

/* A child that runs what it has inherited, compiles, or asks for its map. */
static int child(const char *what) {
    unsigned char *place = pages(2);
    load(place, "inherited");
    pid_t number = fork();
    if (number == 0) {
        if (!strcmp(what, "compiles")) load(place + PAGE, "of_child");
        if (!strcmp(what, "asks") && jitlisten_enable) jitlisten_enable("perfmap");
        if (!strcmp(what, "runs"))
            for (clock_t end = clock() + CLOCKS_PER_SEC; clock() < end;)
                ((void (*)(long))(uintptr_t)place)(10 * 1000 * 1000);
        _exit(0);
    }
    waitpid(number, NULL, 0);
    printf("child %d\n", number);
    return 0;
}

/* Compiles, waits, and lets new code take the place of old. */
static int neighbour(const char *name) {
    char text[64];
    unsigned char *place = pages(3);
    snprintf(text, sizeof text, "%s_first", name);
    load(place, text);
    snprintf(text, sizeof text, "%s_old", name);
    jitlisten_object old = load(place + PAGE, text);
    wait_for_line();
    unload(old);
    snprintf(text, sizeof text, "%s_new", name);
    load(place + PAGE, text);
    printf("done\n");
    wait_for_line();
    return 0;
}

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(2);
    fclose(file);
    return pages * (PAGE / 1024);
}

/* Loads and frees; prints how many kilobytes more are resident after the second half than after the first. */
static int turns(int count) {
    unsigned char *place = pages(1);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < count / 2; i++) unload(load(place, "passing"));
        printf("resident %ld\n", resident());
    }
    return 0;
}

/* One object with `count` functions that do not touch: each has a section of its own. With lines, they touch: all have one. */
static int sections(size_t count, int with_lines) {
    const size_t apart = with_lines ? sizeof LOOP : 64;
    unsigned char *place = mmap(NULL, count * apart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct jitlisten_function *functions = calloc(count, sizeof *functions);
    struct jitlisten_line *lines = calloc(count, sizeof *lines);
    char(*names)[32] = calloc(count, sizeof *names);
    struct jitlisten_code code = {.size = sizeof code, .functions = functions, .function_count = count};
    jitlisten_object object = {0};
    if (place == MAP_FAILED || !functions || !lines || !names) return 2;
    for (size_t i = 0; i < count; i++) {
        memcpy(place + i * apart, LOOP, sizeof LOOP);
        snprintf(names[i], sizeof names[i], "function_%zu", i);
        functions[i] = (struct jitlisten_function){(uintptr_t)place + i * apart, sizeof LOOP, names[i]};
        lines[i] = (struct jitlisten_line){(uintptr_t)place + i * apart, names[i], (uint32_t)i + 1, 0};
    }
    if (with_lines) code.lines = lines, code.line_count = count;
    if (mprotect(place, count * apart, PROT_READ | PROT_EXEC)) return 2;
    if (jitlisten_code_loaded && (jitlisten_code_loaded(&code, &object) || jitlisten_finalized(object))) return 3;
    return 0;
}

/* Lines of /proc/self/status that begin with `word`. */
static void print_status(const char *word) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) exit(2);
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!strncmp(line, word, strlen(word)) && colon) *colon = ' ', fputs(line, stdout);
    }
    fclose(file);
}

static int address_space(void) {
    load(pages(1), "first");
    print_status("VmPeak");
    return 0;
}

static void print_signals(void) {
    print_status("SigBlk"), print_status("SigIgn"), print_status("SigCgt");
}

/* At the start, with a signal blocked, and after the life of an object. */
static int signals(void) {
    sigset_t set;
    print_signals();
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return 2;
    print_signals();
    unload(load(pages(1), "first"));
    print_signals();
    return 0;
}

/* Root compiles, becomes another user, and compiles more; `worker`: a child of it does. */
static int becomes(const char *who, int user) {
    unsigned char *place = pages(2);
    load(place, "of_root");
    if (!strcmp(who, "worker")) {
        pid_t number = fork();
        if (number) {
            waitpid(number, NULL, 0);
            printf("child %d\n", number);
            return 0;
        }
    }
    if (setgid((gid_t)user) || setuid((uid_t)user)) return 2;
    load(place + PAGE, "of_user");
    if (!strcmp(who, "worker")) _exit(0);
    return 0;
}

/* What sinks do in the life of an object, and at a fork. */
static int everything(void) {
    unsigned char *place = pages(3);
    unload(load(place, "first"));
    load(place, "second");
    load(place + PAGE, "third");
    pid_t number = fork();
    if (number == 0) {
        load(place + 2 * PAGE, "of_child");
        exit(0);
    }
    waitpid(number, NULL, 0);
    printf("child %d\n", number);
    return 0;
}

/* Without privileges a session does not open its log: what is lost is counted. */
static int lost_lines(void) {
    struct jitlisten_statistics counted = {.size = sizeof counted};
    load(pages(1), "first");
    if (jitlisten_get_statistics && jitlisten_get_statistics(&counted)) return 3;
    printf("lost %s\n", counted.log_lines_lost ? "some" : "none");
    return 0;
}

int main(int count, char **words) {
    const char *scenario = count > 1 ? words[1] : "", *word = count > 2 ? words[2] : "";
    if (!strcmp(scenario, "forks")) return forks(atoi(word));
    if (!strcmp(scenario, "child")) return child(word);
    if (!strcmp(scenario, "neighbour")) return neighbour(word);
    if (!strcmp(scenario, "turns")) return turns(atoi(word));
    if (!strcmp(scenario, "becomes")) return becomes(word, atoi(words[3]));
    if (!strcmp(scenario, "everything")) return everything();
    if (!strcmp(scenario, "sections")) return sections(strtoul(word, NULL, 10), count > 3);
    if (!strcmp(scenario, "address-space")) return address_space();
    if (!strcmp(scenario, "signals")) return signals();
    if (!strcmp(scenario, "lost-lines")) return lost_lines();
    return 1;
}
