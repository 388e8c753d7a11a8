/* Tour of all of jitlisten.h, as a program that compiles code at run time. ci/tour.sh compiles it as C11 and as C++17,
 * and runs it alone, under the sanitizers and under valgrind.
 *
 * Correct use comes first. Then comes misuse, which must result in errors, not in crashes. */
#define _GNU_SOURCE 1
#include "chain_code.h"
#include <errno.h>
#include <jitlisten.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Requires that a call returns this status. */
#define EXPECT(status, call) expect(status, call, #call, __LINE__)

static void expect(jitlisten_status expected, jitlisten_status actual, const char *call, int line) {
    if (actual == expected) return;
    fprintf(stderr, "tour.c:%d: %s: %s (%s), not: %s\n", line, call, jitlisten_status_text(actual), jitlisten_last_error(),
            jitlisten_status_text(expected));
    exit(1);
}

static void require(int condition, const char *statement) {
    if (condition) return;
    fprintf(stderr, "tour.c: not so: %s\n", statement);
    exit(1);
}

/* Returns a handle for an object that does not exist. */
static jitlisten_object object_number(uint64_t number) {
    jitlisten_object object;
    object.number = number;
    return object;
}

static jitlisten_unwind unwind_number(uint64_t number) {
    jitlisten_unwind registration;
    registration.number = number;
    return registration;
}

/* Checks that header and library have the same version, as text and as a number. */
static void check_version(void) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", JITLISTEN_VERSION_MAJOR, JITLISTEN_VERSION_MINOR, JITLISTEN_VERSION_PATCH);
    require(strcmp(text, JITLISTEN_VERSION) == 0, "the macros of the version agree");
    require(strcmp(jitlisten_version(), JITLISTEN_VERSION) == 0, "the library has the header's version");
#if JITLISTEN_VERSION_NUMBER < JITLISTEN_VERSION_OF(0, 1, 0) || JITLISTEN_VERSION_OF(1, 0, 0) <= JITLISTEN_VERSION_OF(0, 999, 999)
#error "versions can be compared by the preprocessor"
#endif
}

/* Lock that the log callback holds while it runs. */
static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

/* Log callback that counts messages. The library holds no lock during the callback, so the callback may call the
 * library. */
static void on_message(void *user, int32_t level, const char *message) {
    int *messages = (int *)user;
    struct jitlisten_statistics statistics;
    statistics.size = sizeof statistics;
    require(pthread_mutex_trylock(&message_lock) == 0, "messages come one at a time");
    require(level >= 1 && level <= 4 && message[0] != 0, "a message has a level and a text");
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&statistics));
    ++*messages;
    pthread_mutex_unlock(&message_lock);
}

/* Returns true if the perf map of this process contains a function with this name and address. */
static int map_names(const char *name, uint64_t address) {
    char path[64], line[512], start[32], name_in_map[400];
    int is_named = 0;
    FILE *map;
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    snprintf(start, sizeof start, "%llx ", (unsigned long long)address);
    map = fopen(path, "r");
    while (map && fgets(line, sizeof line, map)) {
        if (strncmp(line, start, strlen(start)) != 0) continue;
        is_named |= sscanf(line, "%*s %*s %399s", name_in_map) == 1 && strcmp(name_in_map, name) == 0;
    }
    if (map) fclose(map);
    return is_named;
}

static void remove_map(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    unlink(path);
}

static struct jitlisten_code describe(const struct chain_code *chain, struct jitlisten_function functions[3],
                                      struct jitlisten_line lines[2]) {
    uint64_t base = (uint64_t)(uintptr_t)chain->memory;
    struct jitlisten_code code;
    memset(&code, 0, sizeof code);
    functions[0].address = base + CHAIN_ALPHA, functions[0].size = chain->alpha_size, functions[0].name = "alpha";
    functions[1].address = base + CHAIN_BETA, functions[1].size = chain->beta_size, functions[1].name = "beta";
    functions[2].address = base + CHAIN_GAMMA, functions[2].size = chain->gamma_size, functions[2].name = "gamma";
    lines[0].address = base + CHAIN_ALPHA, lines[0].file = "/source/chain.raw", lines[0].line = 1, lines[0].column = 0;
    lines[1].address = base + CHAIN_GAMMA, lines[1].file = "/source/chain.raw", lines[1].line = 7, lines[1].column = 3;
    code.size = sizeof code;
    code.functions = functions, code.function_count = 3;
    code.lines = lines, code.line_count = 2;
    code.eh_frame = chain->eh_frame, code.eh_frame_size = chain->eh_frame_size;
    return code;
}

/* Returns 1 if the thread's last error contains the number of the object. */
static int names_object(jitlisten_object object) {
    char name[32];
    snprintf(name, sizeof name, "object %llu ", (unsigned long long)object.number);
    return strstr(jitlisten_last_error(), name) != NULL;
}

/* Reports code as a JIT without LLVM does: load, run, free. */
static void report_raw_code(void) {
    struct chain_code chain = chain_make(1);
    struct jitlisten_function functions[3];
    struct jitlisten_line lines[2];
    struct jitlisten_code code;
    jitlisten_object object = {0}, again = {0};
    uint64_t gamma = (uint64_t)(uintptr_t)chain.memory + CHAIN_GAMMA;

    require(chain.memory != NULL, "there is executable memory");
    code = describe(&chain, functions, lines);
    EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&code, &object));
    require(object.number != 0, "an object is not 0");
    /* The pages contain only this code, and nothing changes them until the code is freed. */
    EXPECT(JITLISTEN_OK, jitlisten_owns_pages(object));
    EXPECT(JITLISTEN_OK, jitlisten_owns_padding(object, CHAIN_PAGE));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_owns_padding(object, 0));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_owns_padding(object, CHAIN_PAGE / 2));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_owns_padding(object, UINT64_MAX & -(uint64_t)CHAIN_PAGE));
    EXPECT(JITLISTEN_OK, jitlisten_finalized(object));
    EXPECT(JITLISTEN_WRONG_ORDER, jitlisten_owns_padding(object, CHAIN_PAGE));
    require(map_names("gamma", gamma), "the perf map names gamma");
    require(chain_run(&chain, 10) == chain_run(&chain, 10), "code runs as before");

    /* The same code at the same address is the same object. */
    EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&code, &again));
    require(again.number == object.number, "one object, one number");
    EXPECT(JITLISTEN_OK, jitlisten_finalized(again));
    EXPECT(JITLISTEN_WRONG_ORDER, jitlisten_finalized(object));
    EXPECT(JITLISTEN_WRONG_ORDER, jitlisten_owns_pages(object));
    require(names_object(object), "the error names the object as the program does");

    /* Each report is freed. */
    EXPECT(JITLISTEN_OK, jitlisten_freeing(object));
    require(map_names("gamma", gamma), "the other report keeps the code");
    EXPECT(JITLISTEN_OK, jitlisten_freeing(again));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_freeing(object));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_finalized(object));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_owns_pages(object));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_owns_padding(object, CHAIN_PAGE));
    require(names_object(object), "the error says more");

    /* An unwind table for other code is ignored, and the code keeps its names. */
    code.eh_frame = (const unsigned char *)malloc(chain.eh_frame_size);
    require(code.eh_frame != NULL, "there is memory");
    memset((void *)(uintptr_t)code.eh_frame, 0x55, chain.eh_frame_size);
    EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&code, &object));
    EXPECT(JITLISTEN_NOT_UNDERSTOOD, jitlisten_finalized(object));
    require(names_object(object) && map_names("gamma", gamma), "only the table is ignored");
    EXPECT(JITLISTEN_OK, jitlisten_freeing(object));
    free((void *)(uintptr_t)code.eh_frame);
    chain_free(&chain);
}

/* Reports an object as a JIT that produces ELF objects does, with the addresses of the sections. This program stands
 * in for the object; it is ELF, but not relocatable. */
static void report_elf_object(void) {
    FILE *program = fopen("/proc/self/exe", "rb");
    struct jitlisten_section sections[1] = {{".text", 0}};
    size_t size = 0, capacity = 64u << 20;
    unsigned char *elf = (unsigned char *)malloc(capacity);
    struct chain_code chain = chain_make(1);
    jitlisten_object object = {0};

    require(program != NULL && elf != NULL && chain.memory != NULL, "the program can be read");
    size = fread(elf, 1, capacity, program);
    fclose(program);
    sections[0].address = (uint64_t)(uintptr_t)chain.memory;
    EXPECT(JITLISTEN_OK, jitlisten_object_loaded(elf, size, sections, 1, &object));
    EXPECT(JITLISTEN_OK, jitlisten_freeing(object));

    /* Truncated files must be harmless, readable or not. */
    for (size_t length = 0; length < size && length < 4096; length += 61) {
        if (jitlisten_object_loaded(elf, length, sections, 1, &object) == JITLISTEN_OK) jitlisten_freeing(object);
    }
    memset(elf, 0xee, 4096);
    EXPECT(JITLISTEN_NOT_UNDERSTOOD, jitlisten_object_loaded(elf, size, NULL, 0, &object));
    free(elf);
    chain_free(&chain);
}

/* Reports gigabytes of code by mistake. There is neither memory nor disk space for them, and the report must have no
 * effect. */
static void report_too_much_code(void) {
    struct jitlisten_function function = {1u << 20, UINT32_MAX, "everything"};
    struct jitlisten_statistics statistics;
    struct jitlisten_code code;
    jitlisten_object object = {0};
    statistics.size = sizeof statistics;
    memset(&code, 0, sizeof code);
    code.size = sizeof code, code.functions = &function, code.function_count = 1;
    EXPECT(JITLISTEN_OK, jitlisten_enable("jitdump"));
    EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&code, &object));
    EXPECT(JITLISTEN_OK, jitlisten_finalized(object));
    EXPECT(JITLISTEN_OK, jitlisten_freeing(object));
    EXPECT(JITLISTEN_OK, jitlisten_disable("jitdump"));
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&statistics));
    require(statistics.jitdump_failures == 0 && statistics.jitdump_bytes_written < 1u << 20, "a jitdump leaves it out");

    /* Malformed code is counted like malformed objects. */
    function.size = 0;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, &object));
    uint64_t before = statistics.objects_refused;
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&statistics));
    require(statistics.objects_refused == before + 1, "what is refused is counted");
}

/* Registers unwind tables without an object. */
static void register_unwind_tables(void) {
    struct chain_code chain = chain_make(1);
    jitlisten_unwind registration = {0};
    unsigned char garbage[64];
    uint64_t text = (uint64_t)(uintptr_t)chain.memory;

    require(chain.memory != NULL, "there is executable memory");
    EXPECT(JITLISTEN_OK, jitlisten_unwind_register(chain.eh_frame, chain.eh_frame_size, text, CHAIN_PAGE, &registration));
    EXPECT(JITLISTEN_OK, jitlisten_unwind_deregister(registration));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_unwind_deregister(registration));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_unwind_deregister(unwind_number(0)));
    memset(garbage, 0x55, sizeof garbage);
    EXPECT(JITLISTEN_NOT_UNDERSTOOD, jitlisten_unwind_register(garbage, sizeof garbage, text, CHAIN_PAGE, &registration));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_unwind_register(NULL, 8, text, CHAIN_PAGE, &registration));
    EXPECT(JITLISTEN_INVALID_ARGUMENT,
           jitlisten_unwind_register(chain.eh_frame, chain.eh_frame_size, UINT64_MAX, CHAIN_PAGE, &registration));
    EXPECT(JITLISTEN_INVALID_ARGUMENT,
           jitlisten_unwind_register(chain.eh_frame, chain.eh_frame_size, text, CHAIN_PAGE, NULL));
    chain_free(&chain);
}

/* Simulates a program that is newer than the library: it sets a member that the library does not know, which is an
 * error. */
static void pass_newer_struct(struct jitlisten_code code) {
    struct {
        struct jitlisten_code known;
        uint64_t newer;
    } larger;
    jitlisten_object object = {0};
    larger.known = code, larger.known.size = sizeof larger, larger.newer = 1;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&larger.known, &object));
    larger.newer = 0;
    EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&larger.known, &object));
    EXPECT(JITLISTEN_OK, jitlisten_freeing(object));
    larger.known.size = 1u << 20;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&larger.known, &object));
}

/* Makes calls with invalid arguments. */
static void make_invalid_calls(void) {
    struct chain_code chain = chain_make(1);
    const void *misaligned = (const char *)&chain + 1;
    struct jitlisten_function functions[3];
    struct jitlisten_line lines[2];
    struct jitlisten_code code = describe(&chain, functions, lines), bad;
    struct jitlisten_section section = {NULL, 0};
    struct jitlisten_statistics statistics;
    jitlisten_object object = {0};

    pass_newer_struct(code);
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_owns_pages(object_number(0)));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_owns_padding(object_number(0), CHAIN_PAGE));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_finalized(object_number(0)));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_freeing(object_number(0)));
    EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_freeing(object_number(UINT64_MAX)));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(NULL, &object));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded((const struct jitlisten_code *)misaligned, &object));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, NULL));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, (jitlisten_object *)((char *)&object + 1)));
    bad = code, bad.size = 3;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    bad = code, bad.functions = (const struct jitlisten_function *)misaligned;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    bad = code, bad.function_count = SIZE_MAX / 2;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    bad = code, bad.line_count = SIZE_MAX / sizeof(struct jitlisten_line) - 1;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    bad = code, bad.function_count = 0;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    bad = code, bad.eh_frame = NULL;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&bad, &object));
    functions[1].name = NULL;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, &object));
    functions[1].name = "beta", functions[1].size = UINT64_MAX;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, &object));
    functions[1].size = 0;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_code_loaded(&code, &object));
    require(object.number == 0, "an output is written only on success");

    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_object_loaded(NULL, 64, NULL, 0, &object));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_object_loaded(chain.memory, SIZE_MAX, NULL, 0, &object));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_object_loaded(chain.memory, 64, NULL, 1, &object));
    EXPECT(JITLISTEN_NOT_UNDERSTOOD, jitlisten_object_loaded(chain.memory, 64, &section, 1, &object));

    EXPECT(JITLISTEN_UNKNOWN_SINK, jitlisten_enable("no such sink"));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_enable(NULL));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_disable(NULL));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_get_statistics(NULL));
    statistics.size = 1;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_get_statistics(&statistics));
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_set_log(on_message, NULL, 0));
    require(jitlisten_status_text(12345)[0] != 0, "every number has a text");
    chain_free(&chain);
}

/* Statistics of different sizes: the library leaves unknown members alone, and omits members that the program does
 * not know. */
static void check_statistics_sizes(void) {
    struct {
        struct jitlisten_statistics known;
        uint64_t newer;
    } larger;
    struct jitlisten_statistics statistics;
    memset(&larger, 0xff, sizeof larger);
    larger.known.size = sizeof larger;
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&larger.known));
    require(larger.newer == UINT64_MAX && larger.known.size <= sizeof larger.known, "newer members are left alone");
    memset(&statistics, 0xff, sizeof statistics);
    statistics.size = offsetof(struct jitlisten_statistics, objects_finalized);
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&statistics));
    require(statistics.objects_loaded >= 2 && statistics.objects_finalized == UINT64_MAX, "an older program gets less");
    printf("jitlisten %s: %llu objects loaded, %llu finalized, %llu freed, %llu refused\n", jitlisten_version(),
           (unsigned long long)larger.known.objects_loaded, (unsigned long long)larger.known.objects_finalized,
           (unsigned long long)larger.known.objects_freed, (unsigned long long)larger.known.objects_refused);
}

static void *compile_repeatedly(void *unused) {
    for (int round = 0; round < 50; round++) {
        struct chain_code chain = chain_make(1);
        struct jitlisten_function functions[3];
        struct jitlisten_line lines[2];
        struct jitlisten_code code = describe(&chain, functions, lines);
        jitlisten_object object;
        EXPECT(JITLISTEN_OK, jitlisten_code_loaded(&code, &object));
        EXPECT(JITLISTEN_OK, jitlisten_finalized(object));
        EXPECT(JITLISTEN_OK, jitlisten_freeing(object));
        EXPECT(JITLISTEN_UNKNOWN_OBJECT, jitlisten_freeing(object));
        require(names_object(object), "each thread has its own last error");
        chain_free(&chain);
    }
    return unused;
}

/* Forks while threads compile; the child reports code of its own. */
static void fork_between_threads(void) {
    pthread_t threads[3];
    int status = -1;
    pid_t child;
    for (int i = 0; i < 3; i++) require(pthread_create(&threads[i], NULL, compile_repeatedly, NULL) == 0, "threads start");
    child = fork();
    if (child == 0) {
        alarm(60);
        /* Another thread may have held the lock during the fork. */
        pthread_mutex_init(&message_lock, NULL);
#ifndef __SANITIZE_ADDRESS__
        /* gcc 12's AddressSanitizer does not release its allocator's locks in the child of a multi-threaded fork:
         * malloc may hang. */
        report_raw_code();
        remove_map();
#endif
        _exit(0);
    }
    require(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child of a fork reports code, too");
    for (int i = 0; i < 3; i++) require(pthread_join(threads[i], NULL) == 0, "threads end");
}

static void *switch_sinks(void *unused) {
    static const char *const sinks[] = {"perfmap", "jitdump", "image", "unwind", "gdb"};
    for (int round = 0; round < 60; round++) {
        const char *sink = sinks[round % 5];
        EXPECT(JITLISTEN_OK, jitlisten_enable(sink));
        if (round % 7 == 6) EXPECT(JITLISTEN_OK, jitlisten_close());
        EXPECT(JITLISTEN_OK, jitlisten_disable(sink));
        EXPECT(JITLISTEN_UNKNOWN_SINK, jitlisten_enable("no such sink"));
    }
    return unused;
}

static void *read_statistics(void *messages) {
    for (int round = 0; round < 100; round++) {
        struct jitlisten_statistics statistics;
        statistics.size = sizeof statistics;
        EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&statistics));
        require(statistics.objects_freed <= statistics.objects_loaded, "nothing is freed that was not loaded");
        EXPECT(JITLISTEN_OK, jitlisten_set_log(on_message, messages, 1 + round % 4));
    }
    return NULL;
}

static void *register_repeatedly(void *unused) {
    for (int round = 0; round < 20; round++) register_unwind_tables();
    return unused;
}

/* Shares one session between threads that compile, switch sinks, read statistics and register tables. */
static void share_between_threads(int *messages) {
    void *(*const thread_functions[])(void *) = {compile_repeatedly, compile_repeatedly, compile_repeatedly, switch_sinks,
                                                 switch_sinks,       read_statistics,    register_repeatedly};
    enum { THREADS = sizeof thread_functions / sizeof thread_functions[0] };
    struct jitlisten_statistics before, after;
    pthread_t threads[THREADS];
    before.size = after.size = sizeof before;
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&before));
    for (int i = 0; i < THREADS; i++) {
        require(pthread_create(&threads[i], NULL, thread_functions[i], messages) == 0, "threads start");
    }
    for (int i = 0; i < THREADS; i++) require(pthread_join(threads[i], NULL) == 0, "threads end");
    EXPECT(JITLISTEN_OK, jitlisten_get_statistics(&after));
    require(after.objects_loaded - before.objects_loaded == 3 * 50, "no object is lost or doubled");
    require(after.objects_finalized - before.objects_finalized == 3 * 50, "each was finalized");
    require(after.objects_freed - before.objects_freed == 3 * 50, "each has gone");
    require(after.perfmap_failures + after.jitdump_failures + after.unwind_failures + after.image_failures == 0,
            "no sink has failed");
    EXPECT(JITLISTEN_OK, jitlisten_set_log(on_message, messages, 4));
    EXPECT(JITLISTEN_OK, jitlisten_enable("perfmap"));
    EXPECT(JITLISTEN_OK, jitlisten_enable("unwind"));
}

/* One recording at a time, into a file that can be written. (ThreadSanitizer's programs cannot be recorded.) */
static void record(void) {
#ifndef __SANITIZE_THREAD__
    char path[4096];
    const char *directory = getenv("JITLISTEN_DIR");

    snprintf(path, sizeof path, "%s/tour.%ld.data", directory ? directory : "/tmp", (long)getpid());
    EXPECT(JITLISTEN_NOT_RECORDING, jitlisten_record_stop());
    EXPECT(JITLISTEN_IO_ERROR, jitlisten_record_start("/no such directory/file", NULL));
    EXPECT(JITLISTEN_OK, jitlisten_record_start(path, NULL));
    EXPECT(JITLISTEN_ALREADY_RECORDING, jitlisten_record_start(path, NULL));
    EXPECT(JITLISTEN_OK, jitlisten_record_stop());
    require(remove(path) == 0, "the recording is a file");
#endif
}

int main(void) {
    struct jitlisten_options options;
    struct jitlisten_statistics statistics;
    int messages = 0;

    alarm(300);
    check_version();
    statistics.size = sizeof statistics;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;

    /* Without an open session, every function returns NOT_OPEN; only unwind registration needs no session. */
    EXPECT(JITLISTEN_NOT_OPEN, jitlisten_get_statistics(&statistics));
    EXPECT(JITLISTEN_NOT_OPEN, jitlisten_enable("perfmap"));
    EXPECT(JITLISTEN_NOT_OPEN, jitlisten_freeing(object_number(1)));
    EXPECT(JITLISTEN_NOT_OPEN, jitlisten_close());
    register_unwind_tables();
    EXPECT(JITLISTEN_OK, jitlisten_set_log(on_message, &messages, 4));

    /* Invalid options are rejected before the session opens. */
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_open_with(NULL));
    options.sinks = "perfmap,nonsense";
    EXPECT(JITLISTEN_UNKNOWN_SINK, jitlisten_open_with(&options));
    options.sinks = "perfmap,unwind", options.names = "funny";
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_open_with(&options));
    options.names = NULL, options.listen = 99;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_open_with(&options));
    options.listen = JITLISTEN_LISTEN_CALLS, options.reserved = 1;
    EXPECT(JITLISTEN_INVALID_ARGUMENT, jitlisten_open_with(&options));
    options.reserved = 0;
    EXPECT(JITLISTEN_NOT_OPEN, jitlisten_close());

    /* A session for reported code does not instrument the process; jitlisten_open() would find every LLVM in it. */
    options.listen = JITLISTEN_LISTEN_CALLS;
    errno = 77;
    EXPECT(JITLISTEN_OK, jitlisten_open_with(&options));
    require(errno == 77, "errno stays");
    EXPECT(JITLISTEN_ALREADY_OPEN, jitlisten_open());
    EXPECT(JITLISTEN_OK, jitlisten_open_with(&options));
    options.sinks = "perfmap";
    EXPECT(JITLISTEN_ALREADY_OPEN, jitlisten_open_with(&options));
    require(strstr(jitlisten_last_error(), "JITLISTEN") != NULL, "the error names the option");
    options.sinks = NULL;
    EXPECT(JITLISTEN_OK, jitlisten_open_with(&options));

    report_raw_code();
    report_elf_object();
    report_too_much_code();
    make_invalid_calls();
    register_unwind_tables();

    /* Sinks can be switched while code is live. */
    EXPECT(JITLISTEN_OK, jitlisten_disable("perfmap"));
    EXPECT(JITLISTEN_OK, jitlisten_enable("perfmap"));
    fork_between_threads();
    share_between_threads(&messages);
    check_statistics_sizes();
    record();

    require(messages > 0, "the log was handed over");
    EXPECT(JITLISTEN_OK, jitlisten_set_log(NULL, NULL, 0));
    messages = 0;
    report_raw_code();
    require(messages == 0, "and no more");
    EXPECT(JITLISTEN_OK, jitlisten_close());
    EXPECT(JITLISTEN_CLOSED, jitlisten_open_with(&options));
    EXPECT(JITLISTEN_OK, jitlisten_enable("unwind"));
    EXPECT(JITLISTEN_OK, jitlisten_open_with(&options));
    EXPECT(JITLISTEN_OK, jitlisten_close());
    remove_map();
    return 0;
}
