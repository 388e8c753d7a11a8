/* A JIT without LLVM whose threads put their functions on common pages and report them through the C API.
 *
 *     shared_pages COUNT WORD...
 *
 *     inside      report a function while holding the JIT's lock; otherwise without it, so other threads may write the page
 *     process     use a session that observes the process; otherwise one that only uses API calls
 *     switching   another thread toggles the image sink in a loop
 *     alone       one thread; otherwise four
 *     owned       each function has its own page, and declares so
 *     frees       each function is freed after its call, and its page is rewritten then
 *     writable    pages are writable and executable all the time
 *     memory      pages are written through /proc/self/mem
 *     shared      pages are written through a second mapping; both are shared
 *     private     the same, but the executable mapping is private
 *
 * By default, a page is made writable and executable while a function is written, and only executable afterwards.
 * Prints the numbers of wrong results, functions with damaged code at the end, images written, and images refused and
 * withdrawn. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jitlisten.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOT_BYTES = 64, PAGE_BYTES = 4096, CODE_PROTECTION = PROT_READ | PROT_EXEC, WRITABLE_CODE_PROTECTION = CODE_PROTECTION | PROT_WRITE };

static char **words;
static int count, next_number, wrong_results, is_done, memory_file, slot_bytes;
static unsigned char *code, *write_view;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all_threads_done;

static int has_option(const char *option) {
    for (char **option_name = words; *option_name; option_name++)
        if (strcmp(*option_name, option) == 0) return 1;
    return 0;
}

static void exit_with_error(const char *what) {
    fprintf(stderr, "shared_pages: %s: %s\n", what, jitlisten_last_error());
    exit(1);
}

static void *map(int protection, int flags, int file) {
    void *mapped = mmap(NULL, (size_t)count * slot_bytes, protection, flags, file, 0);
    if (mapped == MAP_FAILED) exit_with_error("mmap");
    return mapped;
}

static void protect(int number, int protection) {
    unsigned char *at = code + (size_t)number * slot_bytes;
    if (mprotect((void *)((unsigned long)at & -(unsigned long)PAGE_BYTES), PAGE_BYTES, protection)) exit_with_error("mprotect");
}

/* Assembles mov eax, NUMBER; ret */
static void assemble_function(int number, unsigned char *bytes) {
    bytes[0] = 0xb8;
    memcpy(bytes + 1, &number, 4);
    bytes[5] = 0xc3;
}

static void write_function(int number) {
    size_t at = (size_t)number * slot_bytes;
    int toggles_protection = !has_option("writable") && !has_option("memory") && !write_view;
    if (has_option("memory")) {
        unsigned char bytes[6];
        assemble_function(number, bytes);
        if (pwrite(memory_file, bytes, 6, (off_t)(unsigned long)(code + at)) != 6) exit_with_error("pwrite");
        return;
    }
    if (toggles_protection) protect(number, WRITABLE_CODE_PROTECTION);
    assemble_function(number, (write_view ? write_view : code) + at);
    if (toggles_protection) protect(number, CODE_PROTECTION);
}

static jitlisten_object report(int number) {
    struct jitlisten_function function = {(unsigned long)(code + (size_t)number * slot_bytes), 6, "shared"};
    struct jitlisten_code code_description = {sizeof code_description, &function, 1, NULL, 0, NULL, 0};
    jitlisten_object object;
    if (jitlisten_code_loaded(&code_description, &object)) exit_with_error("loaded");
    if (has_option("owned") && jitlisten_owns_pages(object)) exit_with_error("owns_pages");
    if (jitlisten_finalized(object)) exit_with_error("finalized");
    return object;
}

static void *compile(void *unused) {
    for (;;) {
        jitlisten_object object;
        pthread_mutex_lock(&lock);
        int number = next_number++;
        if (number >= count) break;
        write_function(number);
        if (has_option("inside")) object = report(number);
        pthread_mutex_unlock(&lock);
        if (!has_option("inside")) object = report(number);
        int (*call)(void) = (int (*)(void))(unsigned long)(code + (size_t)number * slot_bytes);
        if (call() != number) __sync_fetch_and_add(&wrong_results, 1);
        if (!has_option("frees")) continue;
        if (jitlisten_freeing(object)) exit_with_error("freeing");
        pthread_mutex_lock(&lock);
        write_function(number);
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_unlock(&lock);
    /* Wait for the other threads, so that no thread is ever the only one in the process. */
    pthread_barrier_wait(&all_threads_done);
    return unused;
}

static void *toggle_image_sink(void *unused) {
    while (!__sync_fetch_and_add(&is_done, 0))
        if (jitlisten_enable("image") || jitlisten_disable("image")) exit_with_error("enable");
    if (jitlisten_enable("image")) exit_with_error("enable");
    return unused;
}

int main(int argc, char **argv) {
    (void)argc;
    count = atoi(argv[1]), words = argv + 2, slot_bytes = has_option("owned") ? PAGE_BYTES : SLOT_BYTES;
    struct jitlisten_options options = {.size = sizeof options, .sinks = "image"};
    options.listen = has_option("process") ? JITLISTEN_LISTEN_PROCESS : JITLISTEN_LISTEN_CALLS;
    if (jitlisten_open_with(&options)) exit_with_error("open");
    if (has_option("shared") || has_option("private")) {
        int file = memfd_create("code", MFD_CLOEXEC);
        if (ftruncate(file, (off_t)count * slot_bytes)) exit_with_error("ftruncate");
        write_view = map(PROT_READ | PROT_WRITE, MAP_SHARED, file);
        code = map(CODE_PROTECTION, has_option("shared") ? MAP_SHARED : MAP_PRIVATE, file);
    } else {
        code = map(has_option("writable") ? WRITABLE_CODE_PROTECTION : CODE_PROTECTION, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    }
    if (has_option("memory")) memory_file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    pthread_t switcher, threads[3];
    int other_threads = has_option("alone") ? 0 : 3;
    pthread_barrier_init(&all_threads_done, NULL, (unsigned)other_threads + 1);
    if (has_option("switching") && pthread_create(&switcher, NULL, toggle_image_sink, NULL)) return 1;
    for (int i = 0; i < other_threads; i++)
        if (pthread_create(&threads[i], NULL, compile, NULL)) return 1;
    compile(NULL);
    for (int i = 0; i < other_threads; i++) pthread_join(threads[i], NULL);
    is_done = 1;
    if (has_option("switching")) pthread_join(switcher, NULL);
    int damaged = 0;
    for (int i = 0; i < count; i++) {
        unsigned char bytes[6];
        assemble_function(i, bytes);
        damaged += memcmp(code + (size_t)i * slot_bytes, bytes, 6) != 0;
    }
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    if (jitlisten_get_statistics(&statistics)) exit_with_error("statistics");
    printf("wrong %d lost %d images %lu refused %lu withdrawn %lu\n", wrong_results, damaged, statistics.images_written, statistics.images_refused,
           statistics.images_withdrawn);
    return 0;
}
