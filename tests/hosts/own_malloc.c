/* A program's own allocator, which requests memory while it holds its own lock; linked into a host that embeds LLVM.
 * Small allocations come from chunks. Large ones are mapped, and unmapped when freed. */
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
static size_t chunk_bytes_left;

static void *map(size_t size) {
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* The header before each allocation holds its size, its own mapping or NULL, and the mapping's size. */
static void *allocate(size_t alignment, size_t size) {
    size_t total_bytes = (size + HEADER + alignment + 63) & ~(size_t)63;
    char *start = NULL, *mapping = NULL;
    pthread_mutex_lock(&lock);
    if (total_bytes > CHUNK / 4) {
        start = mapping = map(total_bytes);
    } else {
        if (chunk_bytes_left < total_bytes && (chunk = map(CHUNK))) chunk_bytes_left = CHUNK;
        if (chunk && chunk_bytes_left >= total_bytes) start = chunk, chunk += total_bytes, chunk_bytes_left -= total_bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!start) return NULL;
    uintptr_t address = ((uintptr_t)start + HEADER + alignment - 1) & ~(uintptr_t)(alignment - 1);
    size_t *header = (size_t *)(address - 32);
    header[0] = size, header[1] = (size_t)mapping, header[2] = total_bytes;
    return (void *)address;
}

void *malloc(size_t size) { return allocate(64, size); }
void *memalign(size_t alignment, size_t size) { return allocate(alignment < 64 ? 64 : alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    *result = memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}

void *calloc(size_t count, size_t size) {
    void *zeroed = malloc(count * size);
    return zeroed ? memset(zeroed, 0, count * size) : NULL;
}

void free(void *allocation) {
    if (!allocation) return;
    size_t *header = (size_t *)((char *)allocation - 32);
    if (!header[1]) return;
    pthread_mutex_lock(&lock);
    munmap((void *)header[1], header[2]);
    pthread_mutex_unlock(&lock);
}

void *realloc(void *allocation, size_t size) {
    void *new_allocation = malloc(size);
    if (!allocation || !new_allocation) return new_allocation;
    size_t old_bytes = ((size_t *)((char *)allocation - 32))[0];
    memcpy(new_allocation, allocation, old_bytes < size ? old_bytes : size);
    free(allocation);
    return new_allocation;
}
