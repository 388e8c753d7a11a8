/* An allocator that a program brings along, and that asks for memory under a lock of its own: linked into a host with an LLVM. Small
 * pieces of all sizes come from chunks; large ones are mapped, and unmapped when they are freed. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEADER = 64, CHUNK = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *chunk;
static size_t left;

static void *map(size_t size) {
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* In front of each piece: its size, and where its mapping begins, if it has one of its own. */
static void *piece(size_t alignment, size_t size) {
    size_t whole = (size + HEADER + alignment + 63) & ~(size_t)63;
    char *start = NULL, *mapping = NULL;
    pthread_mutex_lock(&lock);
    if (whole > CHUNK / 4) {
        start = mapping = map(whole);
    } else {
        if (left < whole && (chunk = map(CHUNK))) left = CHUNK;
        if (chunk && left >= whole) start = chunk, chunk += whole, left -= whole;
    }
    pthread_mutex_unlock(&lock);
    if (!start) return NULL;
    uintptr_t at = ((uintptr_t)start + HEADER + alignment - 1) & ~(uintptr_t)(alignment - 1);
    size_t *header = (size_t *)(at - 32);
    header[0] = size, header[1] = (size_t)mapping, header[2] = whole;
    return (void *)at;
}

void *malloc(size_t size) { return piece(64, size); }
void *memalign(size_t alignment, size_t size) { return piece(alignment < 64 ? 64 : alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    *result = memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}

void *calloc(size_t count, size_t size) {
    void *zeroed = malloc(count * size);
    return zeroed ? memset(zeroed, 0, count * size) : NULL;
}

void free(void *old) {
    if (!old) return;
    size_t *header = (size_t *)((char *)old - 32);
    if (!header[1]) return;
    pthread_mutex_lock(&lock);
    munmap((void *)header[1], header[2]);
    pthread_mutex_unlock(&lock);
}

void *realloc(void *old, size_t size) {
    void *grown = malloc(size);
    if (!old || !grown) return grown;
    size_t before = ((size_t *)((char *)old - 32))[0];
    memcpy(grown, old, before < size ? before : size);
    free(old);
    return grown;
}
