/* Calls every function of libjitlisten that may read the loader's list of libraries, each time while another thread is
 * inside dlopen: locks_loader LIBJITLISTEN LIBRARY RECORDING
 *
 * While a callback of dl_iterate_phdr runs, its thread holds one of the loader's two locks. The other thread then holds
 * the second one, and waits for the first. A callback that calls dlopen, dlsym or dladdr never returns. */
#define _GNU_SOURCE
#include "jitlisten.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*visitor)(struct dl_phdr_info *, size_t, void *);

static const char *library_path;
static sem_t may_open, has_opened;
static atomic_int opening_thread, opening_count;
static atomic_bool is_armed;

static void *open_on_request(void *unused) {
    opening_thread = (int)syscall(SYS_gettid);
    for (;;) {
        sem_wait(&may_open);
        void *library = dlopen(library_path, RTLD_NOW);
        if (!library) exit(3);
        dlclose(library);
        sem_post(&has_opened);
    }
    return unused;
}

static int waits_for_a_lock(int thread) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(text, sizeof text, file)) exit(4);
    fclose(file);
    return atoi(text) == SYS_futex;
}

struct iteration {
    visitor visit;
    void *data;
    int has_begun;
};

static int visit_during_dlopen(struct dl_phdr_info *info, size_t size, void *data) {
    struct iteration *iteration = data;
    if (!iteration->has_begun && is_armed && syscall(SYS_gettid) != opening_thread) {
        opening_count++;
        sem_post(&may_open);
        for (int count = 0; count < 20; usleep(500)) count = waits_for_a_lock(opening_thread) ? count + 1 : 0;
    }
    iteration->has_begun = 1;
    return iteration->visit(info, size, iteration->data);
}

/* Interposes libc's function for all libraries. */
int dl_iterate_phdr(visitor visit, void *data) {
    static int (*_Atomic next)(visitor, void *);
    if (!next) next = (int (*)(visitor, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    struct iteration iteration = {visit, data, 0};
    return next(visit_during_dlopen, &iteration);
}

#define CALL(name, ...) ((__typeof__(&jitlisten_##name))dlsym(jitlisten, "jitlisten_" #name))(__VA_ARGS__)

static void ignore_function(void *unused, const struct jitlisten_live_function *function) { (void)unused, (void)function; }

static void ignore_llvm(void *unused, const struct jitlisten_llvm *llvm) { (void)unused, (void)llvm; }

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    void *jitlisten = dlopen(argv[1], RTLD_NOW);
    library_path = argv[2];
    pthread_t thread;
    if (!jitlisten || pthread_create(&thread, NULL, open_on_request, NULL)) return 2;
    while (!opening_thread) usleep(100);
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(code, 0xc3, 64);
    struct jitlisten_function function = {(uintptr_t)code, 64, "returns"};
    struct jitlisten_code description = {.size = sizeof description, .functions = &function, .function_count = 1};
    jitlisten_object object = {0};
    static const char *const sinks[] = {"modules", "unwind", "image", "perfmap", "jitdump", "gdb"};
    alarm(60);
    for (int step = 0;; step++) {
        jitlisten_status status = 0;
        is_armed = 1;
        if (step == 0)
            status = CALL(open);
        else if (step < 7)
            status = CALL(enable, sinks[step - 1]);
        else if (step == 7)
            status = CALL(code_loaded, &description, &object);
        else if (step == 8)
            status = CALL(finalized, object);
        else if (step == 9)
            status = CALL(functions, ignore_function, NULL);
        else if (step == 10)
            status = CALL(llvms, ignore_llvm, NULL);
        else if (step == 11)
            status = CALL(record_start, argv[3], NULL);
        else if (step == 12)
            status = CALL(record_stop);
        else if (step == 13)
            status = CALL(freeing, object);
        else if (step == 14)
            status = CALL(close);
        else
            break;
        is_armed = 0;
        if (status) return printf("step %d: status %d\n", step, status), 1;
        for (; opening_count > 0; opening_count--) {
            sem_wait(&has_opened);
            printf("step %d\n", step);
        }
    }
    return 0;
}
