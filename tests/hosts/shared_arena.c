/* Threads with engines of LLVM's own, and one memory manager that puts the code of all on common pages: LLVM's C API lets a
 * program do so. The pages are writable, and executable all the same, only while one is linked.
 *
 *     shared_arena COUNT
 *
 * Under LD_PRELOAD another thread switches the image sink on and off in a loop. Compiles COUNT functions arena0, arena1, ...
 * in four threads, calls each when it is compiled and once more at the end, and prints how many results were wrong. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SLOW
/* A library of its own, as another tool's: a thread that has called mprotect is interrupted before the kernel has it. */
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

enum { SIZE = 1 << 22, PAGE = 4096, CODE = PROT_READ | PROT_EXEC };

static uint8_t *code, *data;
static size_t code_used, data_used;
static int count, next, wrong, ended;
static long (**functions)(long);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The pages of the function that is being linked. */
static uint8_t *first;
static size_t size_of_pages;

static uint8_t *take(uint8_t *start, size_t *used, size_t size, size_t alignment) {
    alignment = alignment ? alignment : 16;
    *used = (*used + alignment - 1) & ~(alignment - 1);
    uint8_t *taken = start + *used;
    *used += size;
    if (*used > SIZE) exit(1);
    return taken;
}

static uint8_t *take_code(void *unused, uintptr_t size, unsigned alignment, unsigned id, const char *name) {
    (void)unused, (void)id, (void)name;
    uint8_t *taken = take(code, &code_used, size, alignment);
    first = (uint8_t *)((uintptr_t)taken & -(uintptr_t)PAGE);
    size_of_pages = (size_t)(taken + size - first);
    if (mprotect(first, size_of_pages, CODE | PROT_WRITE)) exit(1);
    return taken;
}

static uint8_t *take_data(void *unused, uintptr_t size, unsigned alignment, unsigned id, const char *name, int fixed) {
    (void)unused, (void)id, (void)name, (void)fixed;
    return take(data, &data_used, size, alignment);
}

static int finalize(void *unused, char **error) {
    (void)unused, (void)error;
    return mprotect(first, size_of_pages, CODE) != 0;
}

static void destroy(void *unused) { (void)unused; }

static void *manager(void *unused) {
    return LLVMCreateSimpleMCJITMemoryManager(unused, take_code, take_data, finalize, destroy);
}

static void check(int number) {
    if (functions[number](5) != 15 + number) __sync_fetch_and_add(&wrong, 1);
}

static void *compile(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        int number = next++;
        if (number >= count) break;
        char name[32];
        snprintf(name, sizeof name, "arena%d", number);
        functions[number] = (long (*)(long))compile_named(name, name, number).address;
        pthread_mutex_unlock(&lock);
        check(number);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void *switches(void *unused) {
    int32_t (*enable)(const char *) = (int32_t (*)(const char *))dlsym(RTLD_DEFAULT, "jitlisten_enable");
    int32_t (*disable)(const char *) = (int32_t (*)(const char *))dlsym(RTLD_DEFAULT, "jitlisten_disable");
    while (enable && disable && !__sync_fetch_and_add(&ended, 0))
        if (enable("image") || disable("image")) exit(1);
    return unused;
}

int main(int argc, char **words) {
    if (argc < 2) return 2;
    count = atoi(words[1]), functions = calloc((size_t)count, sizeof *functions);
    code = mmap(NULL, SIZE, CODE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || data == MAP_FAILED) return 1;
    llvm_begin();
    make_manager = manager;
    pthread_t threads[4];
    if (pthread_create(&threads[0], NULL, switches, NULL)) return 1;
    for (int i = 1; i < 4; i++)
        if (pthread_create(&threads[i], NULL, compile, NULL)) return 1;
    compile(NULL);
    for (int i = 1; i < 4; i++) pthread_join(threads[i], NULL);
    ended = 1;
    pthread_join(threads[0], NULL);
    for (int number = 0; number < count; number++) check(number);
    printf("wrong %d\n", wrong);
    return 0;
}
#endif
