/* A host with its own LLVM linked in, which does not belong to an installed package. The tests build it as a program or
 * as a library, with static LLVM libraries or a shared one, stripped or not.
 *
 *     embedded ENGINE COUNT [WORD...]
 *
 *     ENGINE     mcjit, or orc (LLJIT, which uses RuntimeDyld before LLVM 16 and JITLink from LLVM 16 on)
 *     threads    four threads compile COUNT modules each
 *     listen     opens the library $EMBEDDED_OPENS after a quarter of the modules, and calls its jitlisten_open if it has one
 *     kept       prints "running" and waits for a line on standard input before it ends
 *     loops      prints "running" and calls outerN of the last module forever
 *
 * Each module N has its own engine. It contains outerN, which calls innerN; neither requests frame pointers or unwind
 * tables. ghcN passes an argument in the frame-pointer register, and meanwhile keeps the register's old value on the
 * stack. Prints the sum of the results of outerN and ghcN. */
#define _GNU_SOURCE
#include "llvm_c.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { THREADS = 4 };

typedef struct LLVMOpaqueError *LLVMErrorRef;
LLVMErrorRef LLVMOrcCreateLLJIT(void **, void *);
void *LLVMOrcLLJITGetMainJITDylib(void *);
LLVMErrorRef LLVMOrcLLJITAddLLVMIRModule(void *, void *, void *);
LLVMErrorRef LLVMOrcLLJITLookup(void *, uint64_t *, const char *);
void *LLVMOrcCreateNewThreadSafeModule(void *, void *);
char *LLVMGetErrorMessage(LLVMErrorRef);
void LLVMLinkInMCJIT(void);
#ifdef OLD_CONTEXTS
void *LLVMOrcCreateNewThreadSafeContext(void);
LLVMContextRef LLVMOrcThreadSafeContextGetContext(void *);
#else
void *LLVMOrcCreateNewThreadSafeContextFromLLVMContext(LLVMContextRef);
#endif

static const char *text =
    "define i64 @outer%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call i64 @inner%1$d(i64 %%n)\n  %%b = add i64 %%a, %2$d\n  ret i64 %%b\n}\n"
    "define i64 @inner%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = mul i64 %%n, 3\n  %%b = xor i64 %%a, %2$d\n  ret i64 %%b\n}\n"
    "define ghccc i64 @hidden%1$d(i64 %%base, i64 %%stack) nounwind noinline {\n"
    "  %%a = mul i64 %%base, %%stack\n  %%b = add i64 %%a, 5\n  ret i64 %%b\n}\n"
    "define i64 @ghc%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call ghccc i64 @hidden%1$d(i64 %%n, i64 %2$d)\n  %%b = xor i64 %%a, %%n\n  ret i64 %%b\n}\n";

static void fail(const char *message) {
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void check(LLVMErrorRef error) {
    if (error) fail(LLVMGetErrorMessage(error));
}

/* outerN of the most recent module. */
static _Atomic(long (*)(long)) last;

static long run(unsigned long outer, unsigned long ghc) {
    atomic_store(&last, (long (*)(long))outer);
    return ((long (*)(long))outer)(7) + ((long (*)(long))ghc)(3);
}

static long orc(const char *ir, const char *outer, const char *ghc) {
    void *engine = NULL, *context;
    LLVMModuleRef module;
    char *error = NULL;
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "host");
#ifdef OLD_CONTEXTS
    context = LLVMOrcCreateNewThreadSafeContext();
    LLVMContextRef llvm_context = LLVMOrcThreadSafeContextGetContext(context);
#else
    LLVMContextRef llvm_context = LLVMContextCreate();
    context = LLVMOrcCreateNewThreadSafeContextFromLLVMContext(llvm_context);
#endif
    if (LLVMParseIRInContext(llvm_context, buffer, &module, &error)) fail(error);
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    void *library = LLVMOrcLLJITGetMainJITDylib(engine);
    check(LLVMOrcLLJITAddLLVMIRModule(engine, library, LLVMOrcCreateNewThreadSafeModule(module, context)));
    uint64_t outer_address = 0, ghc_address = 0;
    check(LLVMOrcLLJITLookup(engine, &outer_address, outer));
    check(LLVMOrcLLJITLookup(engine, &ghc_address, ghc));
    return run(outer_address, ghc_address);
}

static long mcjit(const char *ir, const char *outer, const char *ghc) {
    struct compiled compiled_function = compile_text(ir, outer);
    return run(compiled_function.address, LLVMGetFunctionAddress(compiled_function.engine, ghc));
}

static int is_orc, modules_per_thread, is_listening;
static atomic_int compiled_count;
static long sums_by_thread[THREADS];

static void *work(void *argument) {
    long thread = (long)argument;
    char ir[1024], outer[32], ghc[32];
    for (int number = (int)thread * modules_per_thread; number < ((int)thread + 1) * modules_per_thread; number++) {
        snprintf(ir, sizeof ir, text, number, number + 1000);
        snprintf(outer, sizeof outer, "outer%d", number);
        snprintf(ghc, sizeof ghc, "ghc%d", number);
        sums_by_thread[thread] += is_orc ? orc(ir, outer, ghc) : mcjit(ir, outer, ghc);
        /* libjitlisten is opened while all threads are compiling, and every thread compiles at least one more module
         * afterwards. */
        atomic_fetch_add(&compiled_count, 1);
        while (is_listening && number % modules_per_thread == modules_per_thread - 2 && atomic_load(&compiled_count) >= 0) usleep(1000);
    }
    return NULL;
}

int embedded(int argc, char **argv) {
    if (argc < 3) return 2;
    int threads = 1, waits_for_input = 0, loops = 0;
    is_orc = !strcmp(argv[1], "orc");
    modules_per_thread = atoi(argv[2]);
    for (int word = 3; word < argc; word++) {
        if (!strcmp(argv[word], "threads")) threads = THREADS;
        is_listening |= !strcmp(argv[word], "listen");
        waits_for_input |= !strcmp(argv[word], "kept");
        loops |= !strcmp(argv[word], "loops");
    }
    initialize_llvm();
    LLVMLinkInMCJIT();
    pthread_t thread_handles[THREADS];
    for (long thread = 0; thread < threads; thread++)
        if (pthread_create(&thread_handles[thread], NULL, work, (void *)thread)) return 1;
    if (is_listening) {
        while (atomic_load(&compiled_count) < threads * modules_per_thread / 4) usleep(100);
        void *library = dlopen(getenv("EMBEDDED_OPENS"), RTLD_NOW);
        if (!library) fail(dlerror());
        int (*open_session)(void *) = (int (*)(void *))dlsym(library, "jitlisten_open");
        if (open_session && open_session(NULL)) fail("jitlisten_open");
        atomic_store(&compiled_count, -1000000);
    }
    long sum = 0;
    for (int thread = 0; thread < threads; thread++) {
        pthread_join(thread_handles[thread], NULL);
        sum += sums_by_thread[thread];
        sums_by_thread[thread] = 0;
    }
    printf("%s %ld\n", argv[1], sum);
    if (waits_for_input || loops) puts("running");
    fflush(stdout);
    while (loops) sum += atomic_load(&last)(sum);
    if (waits_for_input) getchar();
    return 0;
}

#ifndef AS_LIBRARY
int main(int argc, char **argv) { return embedded(argc, argv); }
#endif
