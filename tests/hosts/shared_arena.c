/* Threads with separate LLVM engines and a common memory manager, which puts the code of all threads on the same pages.
 * LLVM's C API permits that. Pages are writable only while a function is linked, and stay executable.
 *
 *     shared_arena COUNT
 *
 * Under LD_PRELOAD, another thread toggles the image sink in a loop. Four threads compile COUNT functions arena0,
 * arena1, ... Each is called after it is compiled and again at the end. Prints the number of wrong results. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SLOW
/* Built as a separate library, which stands for another tool's hook: it delays mprotect between the caller and the
 * kernel. */
int mprotect(void *start, size_t size, int protection) {
    usleep(300);
    return (int)syscall(SYS_mprotect, start, size, protection);
}
#else
#include "llvm_c.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

typedef struct LLVMOpaqueMCJITMemoryManager *LLVMMCJITMemoryManagerRef;
typedef uint8_t *(*allocate_code)(void *, uintptr_t, unsigned, unsigned, const char *);
typedef uint8_t *(*allocate_data)(void *, uintptr_t, unsigned, unsigned, const char *, int);
LLVMMCJITMemoryManagerRef LLVMCreateSimpleMCJITMemoryManager(void *, allocate_code, allocate_data,
                                                             int (*)(void *, char **), void (*)(void *));

enum { ARENA_BYTES = 1 << 22, PAGE = 4096, CODE_PROTECTION = PROT_READ | PROT_EXEC };

static uint8_t *code, *data;
static size_t code_used, data_used;
static int count, next_number, wrong_results, is_done;
static long (**functions)(long);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Address of the pages of the function that is being linked. */
static uint8_t *first_page;
static size_t page_bytes;

static uint8_t *allocate(uint8_t *start, size_t *used, size_t size, size_t alignment) {
    alignment = alignment ? alignment : 16;
    *used = (*used + alignment - 1) & ~(alignment - 1);
    uint8_t *result = start + *used;
    *used += size;
    if (*used > ARENA_BYTES) exit(1);
    return result;
}

static uint8_t *allocate_code_section(void *unused, uintptr_t size, unsigned alignment, unsigned id, const char *name) {
    (void)unused, (void)id, (void)name;
    uint8_t *result = allocate(code, &code_used, size, alignment);
    first_page = (uint8_t *)((uintptr_t)result & -(uintptr_t)PAGE);
    page_bytes = (size_t)(result + size - first_page);
    if (mprotect(first_page, page_bytes, CODE_PROTECTION | PROT_WRITE)) exit(1);
    return result;
}

static uint8_t *allocate_data_section(void *unused, uintptr_t size, unsigned alignment, unsigned id, const char *name, int fixed) {
    (void)unused, (void)id, (void)name, (void)fixed;
    return allocate(data, &data_used, size, alignment);
}

static int finalize(void *unused, char **error) {
    (void)unused, (void)error;
    return mprotect(first_page, page_bytes, CODE_PROTECTION) != 0;
}

static void destroy(void *unused) { (void)unused; }

static void *create_manager(void *unused) {
    return LLVMCreateSimpleMCJITMemoryManager(unused, allocate_code_section, allocate_data_section, finalize, destroy);
}

static void check_result(int number) {
    if (functions[number](5) != 15 + number) __sync_fetch_and_add(&wrong_results, 1);
}

static void *compile(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        int number = next_number++;
        if (number >= count) break;
        char name[32];
        snprintf(name, sizeof name, "arena%d", number);
        functions[number] = (long (*)(long))compile_named(name, name, number).address;
        pthread_mutex_unlock(&lock);
        check_result(number);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void *toggle_image_sink(void *unused) {
    int32_t (*enable)(const char *) = (int32_t (*)(const char *))dlsym(RTLD_DEFAULT, "jitlisten_enable");
    int32_t (*disable)(const char *) = (int32_t (*)(const char *))dlsym(RTLD_DEFAULT, "jitlisten_disable");
    while (enable && disable && !__sync_fetch_and_add(&is_done, 0))
        if (enable("image") || disable("image")) exit(1);
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    count = atoi(argv[1]), functions = calloc((size_t)count, sizeof *functions);
    code = mmap(NULL, ARENA_BYTES, CODE_PROTECTION, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || data == MAP_FAILED) return 1;
    initialize_llvm();
    make_manager = create_manager;
    pthread_t threads[4];
    if (pthread_create(&threads[0], NULL, toggle_image_sink, NULL)) return 1;
    for (int i = 1; i < 4; i++)
        if (pthread_create(&threads[i], NULL, compile, NULL)) return 1;
    compile(NULL);
    for (int i = 1; i < 4; i++) pthread_join(threads[i], NULL);
    is_done = 1;
    pthread_join(threads[0], NULL);
    for (int number = 0; number < count; number++) check_result(number);
    printf("wrong %d\n", wrong_results);
    return 0;
}
#endif
