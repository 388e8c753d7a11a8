/* A JIT without LLVM whose threads put their functions on common pages, and report them through the C API.
 *
 *     shared_pages COUNT WORD...
 *
 *     inside      reports a function under the JIT's lock; otherwise outside, when other threads may write to the page
 *     process     a session that observes the process; otherwise one that only uses calls
 *     switching   another thread switches the image sink on and off in a loop
 *     alone       one thread; otherwise four
 *     owned       each function has a page of its own, and says so
 *     frees       each function is freed after its call, and its page changes then
 *     writable    pages that may be written and executed all the time
 *     memory      pages that are written through /proc/self/mem
 *     shared      pages that are written through another mapping, both shared
 *     private     the same, the executable one private
 *
 * Otherwise pages are made writable and executable for each function, and executable again. Prints how many calls had wrong
 * results, how many functions have lost their bytes at the end, and how many images there were and were refused. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jitlisten.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOT = 64, PAGE = 4096, CODE = PROT_READ | PROT_EXEC, OPEN = CODE | PROT_WRITE };

static char **words;
static int count, next, wrong, ended, memory, slot;
static unsigned char *code, *written;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all_are_done;

static int is(const char *word) {
    for (char **at = words; *at; at++)
        if (strcmp(*at, word) == 0) return 1;
    return 0;
}

static void fail(const char *what) {
    fprintf(stderr, "shared_pages: %s: %s\n", what, jitlisten_last_error());
    exit(1);
}

static void *map(int protection, int flags, int file) {
    void *mapped = mmap(NULL, (size_t)count * slot, protection, flags, file, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    return mapped;
}

static void protect(int number, int protection) {
    unsigned char *at = code + (size_t)number * slot;
    if (mprotect((void *)((unsigned long)at & -(unsigned long)PAGE), PAGE, protection)) fail("mprotect");
}

/* mov eax, NUMBER; ret */
static void function(int number, unsigned char *bytes) {
    bytes[0] = 0xb8;
    memcpy(bytes + 1, &number, 4);
    bytes[5] = 0xc3;
}

static void write_function(int number) {
    size_t at = (size_t)number * slot;
    int toggles = !is("writable") && !is("memory") && !written;
    if (is("memory")) {
        unsigned char bytes[6];
        function(number, bytes);
        if (pwrite(memory, bytes, 6, (off_t)(unsigned long)(code + at)) != 6) fail("pwrite");
        return;
    }
    if (toggles) protect(number, OPEN);
    function(number, (written ? written : code) + at);
    if (toggles) protect(number, CODE);
}

static jitlisten_object report(int number) {
    struct jitlisten_function one = {(unsigned long)(code + (size_t)number * slot), 6, "shared"};
    struct jitlisten_code reported = {sizeof reported, &one, 1, NULL, 0, NULL, 0};
    jitlisten_object object;
    if (jitlisten_code_loaded(&reported, &object)) fail("loaded");
    if (is("owned") && jitlisten_owns_pages(object)) fail("owns_pages");
    if (jitlisten_finalized(object)) fail("finalized");
    return object;
}

static void *compile(void *unused) {
    for (;;) {
        jitlisten_object object;
        pthread_mutex_lock(&lock);
        int number = next++;
        if (number >= count) break;
        write_function(number);
        if (is("inside")) object = report(number);
        pthread_mutex_unlock(&lock);
        if (!is("inside")) object = report(number);
        int (*call)(void) = (int (*)(void))(unsigned long)(code + (size_t)number * slot);
        if (call() != number) __sync_fetch_and_add(&wrong, 1);
        if (!is("frees")) continue;
        if (jitlisten_freeing(object)) fail("freeing");
        pthread_mutex_lock(&lock);
        write_function(number);
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_unlock(&lock);
    /* The last one must not be alone. */
    pthread_barrier_wait(&all_are_done);
    return unused;
}

static void *switches(void *unused) {
    while (!__sync_fetch_and_add(&ended, 0))
        if (jitlisten_enable("image") || jitlisten_disable("image")) fail("enable");
    if (jitlisten_enable("image")) fail("enable");
    return unused;
}

int main(int argc, char **argv) {
    (void)argc;
    count = atoi(argv[1]), words = argv + 2, slot = is("owned") ? PAGE : SLOT;
    struct jitlisten_options options = {.size = sizeof options, .sinks = "image"};
    options.listen = is("process") ? JITLISTEN_LISTEN_PROCESS : JITLISTEN_LISTEN_CALLS;
    if (jitlisten_open_with(&options)) fail("open");
    if (is("shared") || is("private")) {
        int file = memfd_create("code", MFD_CLOEXEC);
        if (ftruncate(file, (off_t)count * slot)) fail("ftruncate");
        written = map(PROT_READ | PROT_WRITE, MAP_SHARED, file);
        code = map(CODE, is("shared") ? MAP_SHARED : MAP_PRIVATE, file);
    } else {
        code = map(is("writable") ? OPEN : CODE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    }
    if (is("memory")) memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    pthread_t switching, threads[3];
    int others = is("alone") ? 0 : 3;
    pthread_barrier_init(&all_are_done, NULL, (unsigned)others + 1);
    if (is("switching") && pthread_create(&switching, NULL, switches, NULL)) return 1;
    for (int i = 0; i < others; i++)
        if (pthread_create(&threads[i], NULL, compile, NULL)) return 1;
    compile(NULL);
    for (int i = 0; i < others; i++) pthread_join(threads[i], NULL);
    ended = 1;
    if (is("switching")) pthread_join(switching, NULL);
    int lost = 0;
    for (int i = 0; i < count; i++) {
        unsigned char bytes[6];
        function(i, bytes);
        lost += memcmp(code + (size_t)i * slot, bytes, 6) != 0;
    }
    struct jitlisten_statistics counted = {.size = sizeof counted};
    if (jitlisten_get_statistics(&counted)) fail("statistics");
    printf("wrong %d lost %d images %lu refused %lu withdrawn %lu\n", wrong, lost, counted.images_written, counted.images_refused,
           counted.images_withdrawn);
    return 0;
}
