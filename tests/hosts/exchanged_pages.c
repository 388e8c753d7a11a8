/* A JIT without LLVM whose threads run and replace code while the image sink exchanges its pages.
 *
 *     exchanged_pages EXCHANGES
 *
 * One thread toggles the image sink until EXCHANGES pages have been exchanged (images written and withdrawn). Meanwhile
 * one thread calls functions that stay, one compiles, calls and frees functions that own their page, and one does so on
 * pages that functions share. All pages are neighbours: an owned page lies between two that other threads protect.
 * Prints the numbers of wrong results, of functions with damaged code, and of exchanges. */
#define _GNU_SOURCE
#include <jitlisten.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A function for each kind of page, side by side. */
enum kind { STAYS, REPLACED, SHARED, KINDS };
enum { PAGE = 4096, SETS = 256, SLOTS = 16, FUNCTION_BYTES = 18, CODE_PROTECTION = PROT_READ | PROT_EXEC };

static unsigned char *code;
static atomic_int is_done, wrong_results;
static int damaged[KINDS];

static void exit_with_error(const char *what) {
    fprintf(stderr, "exchanged_pages: %s: %s\n", what, jitlisten_last_error());
    exit(1);
}

static unsigned char *page(int set, enum kind kind) { return code + ((size_t)set * KINDS + kind) * PAGE; }

/* mov ecx, 200; xor eax, eax; 1: add eax, NUMBER; dec ecx; jnz 1b; ret */
static void assemble(unsigned number, unsigned char *bytes) {
    static const unsigned char instructions[] = {0xb9, 200, 0, 0, 0, 0x31, 0xc0, 0x05, 0, 0, 0, 0, 0xff, 0xc9, 0x75, 0xf7, 0xc3, 0xcc};
    memcpy(bytes, instructions, FUNCTION_BYTES);
    memcpy(bytes + 8, &number, 4);
}

static void write_function(unsigned char *at, unsigned number) {
    unsigned char *start = (unsigned char *)((unsigned long)at & -(unsigned long)PAGE);
    if (mprotect(start, PAGE, CODE_PROTECTION | PROT_WRITE)) exit_with_error("mprotect");
    assemble(number, at);
    if (mprotect(start, PAGE, CODE_PROTECTION)) exit_with_error("mprotect");
}

static jitlisten_object report(unsigned char *at, int owns_page) {
    struct jitlisten_function function = {(unsigned long)at, FUNCTION_BYTES, "exchanged"};
    struct jitlisten_code description = {sizeof description, &function, 1, NULL, 0, NULL, 0};
    jitlisten_object object;
    if (jitlisten_code_loaded(&description, &object)) exit_with_error("loaded");
    if (owns_page && jitlisten_owns_pages(object)) exit_with_error("owns_pages");
    if (jitlisten_finalized(object)) exit_with_error("finalized");
    return object;
}

static void call(unsigned char *at, unsigned number) {
    if (((unsigned (*)(void))(unsigned long)at)() != 200 * number) atomic_fetch_add(&wrong_results, 1);
}

/* Reads code as the processor does when it executes it: unseen by ThreadSanitizer, to which the exchange of a page is an
 * unsynchronized write. memcmp would be seen. */
__attribute__((no_sanitize_thread)) static int is_damaged(const unsigned char *at, unsigned number) {
    unsigned char bytes[FUNCTION_BYTES];
    assemble(number, bytes);
    int differences = 0;
    for (int i = 0; i < FUNCTION_BYTES; i++) differences += at[i] != bytes[i];
    return differences != 0;
}

static void *run_those_that_stay(void *unused) {
    while (!is_done)
        for (int set = 0; set < SETS; set++) call(page(set, STAYS), (unsigned)set);
    for (int set = 0; set < SETS; set++) damaged[STAYS] += is_damaged(page(set, STAYS), (unsigned)set);
    return unused;
}

static void *replace_owned(void *unused) {
    for (unsigned number = 0; !is_done; number++) {
        unsigned char *at = page((int)(number % SETS), REPLACED);
        write_function(at, number);
        jitlisten_object object = report(at, 1);
        for (int i = 0; i < 10; i++) call(at, number);
        damaged[REPLACED] += is_damaged(at, number);
        if (jitlisten_freeing(object)) exit_with_error("freeing");
    }
    return unused;
}

/* Each function is called once more after all others of its page were written. */
static void *replace_shared(void *unused) {
    for (unsigned number = 0; !is_done; number++) {
        unsigned char *start = page((int)(number % SETS), SHARED);
        jitlisten_object objects[SLOTS];
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            write_function(start + slot * 64, number + slot);
            objects[slot] = report(start + slot * 64, 0);
            call(start + slot * 64, number + slot);
        }
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            call(start + slot * 64, number + slot);
            damaged[SHARED] += is_damaged(start + slot * 64, number + slot);
            if (jitlisten_freeing(objects[slot])) exit_with_error("freeing");
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    unsigned long wanted = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    struct jitlisten_options options = {.size = sizeof options, .sinks = "image", .listen = JITLISTEN_LISTEN_CALLS};
    if (jitlisten_open_with(&options)) exit_with_error("open");
    code = mmap(NULL, (size_t)SETS * KINDS * PAGE, CODE_PROTECTION, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) exit_with_error("mmap");
    for (int set = 0; set < SETS; set++) {
        write_function(page(set, STAYS), (unsigned)set);
        report(page(set, STAYS), 1);
    }
    void *(*const bodies[KINDS])(void *) = {run_those_that_stay, replace_owned, replace_shared};
    pthread_t threads[KINDS];
    for (int i = 0; i < KINDS; i++)
        if (pthread_create(&threads[i], NULL, bodies[i], NULL)) return 1;
    struct jitlisten_statistics statistics = {.size = sizeof statistics};
    do {
        if (jitlisten_disable("image") || jitlisten_enable("image")) exit_with_error("enable");
        if (jitlisten_get_statistics(&statistics)) exit_with_error("statistics");
    } while (statistics.images_written + statistics.images_withdrawn < wanted);
    is_done = 1;
    for (int i = 0; i < KINDS; i++) pthread_join(threads[i], NULL);
    printf("wrong %d damaged %d %d %d exchanges %lu\n", wrong_results, damaged[STAYS], damaged[REPLACED], damaged[SHARED],
           statistics.images_written + statistics.images_withdrawn);
    return 0;
}
