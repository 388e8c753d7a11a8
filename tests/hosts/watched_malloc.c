/* A `malloc` to preload, which stands for that of a heap profiler.
 *
 * WATCHED_MALLOC=counts: at exit, prints to standard error the allocations by libjitlisten.so, made directly ("direct")
 * or through functions of the C library. WATCHED_MALLOC=locks: each allocation by libjitlisten.so waits for a lock,
 * while another thread calls the loader under that lock all the time. An allocation under the loader's lock would
 * deadlock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

struct range {
    uintptr_t start, end;
};
static struct range jitlisten_range, system_libraries[8];
static int system_library_count, mode; /* 0: undetermined, 1: neither, 2: counts, 3: locks */
static long direct_calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { MAX_NAMES = 64 };
static struct library_function {
    char name[48];
    long calls;
} library_functions[MAX_NAMES];
static __thread int is_inside __attribute__((tls_model("initial-exec")));

static int is_in(struct range range, uintptr_t address) { return address - range.start < range.end - range.start; }

static int record_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    struct range range = {UINTPTR_MAX, 0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
        if (start < range.start) range.start = start;
        if (end > range.end) range.end = end;
    }
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    if (!strncmp(name, "libjitlisten", 12)) jitlisten_range = range;
    if (is_in(range, (uintptr_t)&mode) || !strncmp(name, "libc.so", 7) || !strncmp(name, "ld-linux", 8) || !strncmp(name, "libgcc_s", 8))
        if (system_library_count < 8) system_libraries[system_library_count++] = range;
    return 0;
}

static int is_system(uintptr_t address) {
    for (int i = 0; i < system_library_count; i++)
        if (is_in(system_libraries[i], address)) return 1;
    return 0;
}

/* State of a stack walk that leaves the C library and records which libc function was entered. */
struct walk {
    uintptr_t entered_function;
    int is_jitlisten;
};

static _Unwind_Reason_Code walk_step(struct _Unwind_Context *context, void *data) {
    struct walk *walk = data;
    uintptr_t address = _Unwind_GetIP(context);
    if (is_system(address)) {
        walk->entered_function = address;
        return _URC_NO_REASON;
    }
    walk->is_jitlisten = is_in(jitlisten_range, address);
    return _URC_END_OF_STACK;
}

static void count_library_call(uintptr_t entered_function) {
    Dl_info info = {0};
    const char *name = dladdr((void *)entered_function, &info) && info.dli_sname ? info.dli_sname : "?";
    for (int i = 0; i < MAX_NAMES; i++) {
        if (!library_functions[i].calls) snprintf(library_functions[i].name, sizeof library_functions[i].name, "%s", name);
        if (strcmp(library_functions[i].name, name)) continue;
        library_functions[i].calls++;
        return;
    }
}

static int ignore_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)info, (void)size, (void)data;
    return 0;
}

static void query_loader_under_lock(void) {
    Dl_info info;
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(ignore_library, NULL);
    dladdr(&lock, &info);
    pthread_mutex_unlock(&lock);
}

static void watch(uintptr_t caller) {
    if (is_inside) return;
    is_inside = 1;
    if (!mode) {
        const char *requested_mode = getenv("WATCHED_MALLOC");
        mode = 1;
        dl_iterate_phdr(record_library, NULL);
        if (jitlisten_range.end && requested_mode) mode = !strcmp(requested_mode, "counts") ? 2 : 3;
    }
    if (mode == 2 && is_in(jitlisten_range, caller)) {
        direct_calls++;
    } else if (mode == 2 && is_system(caller)) {
        struct walk walk = {0, 0};
        _Unwind_Backtrace(walk_step, &walk);
        if (walk.is_jitlisten) {
            pthread_mutex_lock(&lock);
            count_library_call(walk.entered_function);
            pthread_mutex_unlock(&lock);
        }
    } else if (mode == 3 && is_in(jitlisten_range, caller)) {
        query_loader_under_lock();
    }
    is_inside = 0;
}

#define WATCH() watch((uintptr_t)__builtin_return_address(0))
void *malloc(size_t size) { return WATCH(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return WATCH(), __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return WATCH(), __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { return WATCH(), __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return WATCH(), __libc_memalign(alignment, size); }
void free(void *old) { __libc_free(old); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    WATCH();
    *result = __libc_memalign(alignment, size);
    return *result ? 0 : 12;
}

static void *query_loader_forever(void *unused) {
    for (;;) query_loader_under_lock();
    return unused;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    free(malloc(1));
    if (mode == 3) pthread_create(&thread, NULL, query_loader_forever, NULL);
}

__attribute__((destructor)) static void end(void) {
    if (mode != 2) return;
    is_inside = 1;
    char line[4096];
    int length = snprintf(line, sizeof line, "direct %ld\n", direct_calls);
    for (int i = 0; i < MAX_NAMES && library_functions[i].calls; i++)
        length += snprintf(line + length, sizeof line - length, "through %s %ld\n", library_functions[i].name, library_functions[i].calls);
    if (write(2, line, length) < 0) _exit(9);
}
