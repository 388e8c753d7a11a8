/* A host that LLVM is linked into, and that no package shows: built by the tests as a program or as a library, with LLVM's static
 * libraries, with one that is shared, stripped or not.
 *
 *     embedded ENGINE COUNT [WORD...]
 *
 *     ENGINE     mcjit, or orc (LLJIT, which takes RuntimeDyld before LLVM 16 and JITLink since)
 *     threads    four threads compile COUNT modules each
 *     listen     opens the library that $EMBEDDED_OPENS names when the threads have compiled a quarter, and lets it listen if it can
 *     kept       waits for a line on standard input before it ends, having printed "running"
 *     loops      calls outerN of the last module for ever, having printed "running"
 *
 * Each module N has an engine of its own, and outerN, which calls innerN. Nothing in them asks for frame
 * pointers or unwind tables. ghcN passes an argument in the register of the frame pointer, and needs one of its own, which waits on the
 * stack, when the call returns. Prints the sum of what outerN and ghcN return. */
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

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check(LLVMErrorRef error) {
    if (error) fail(LLVMGetErrorMessage(error));
}

/* outerN of the last module. */
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
    LLVMContextRef inner = LLVMOrcThreadSafeContextGetContext(context);
#else
    LLVMContextRef inner = LLVMContextCreate();
    context = LLVMOrcCreateNewThreadSafeContextFromLLVMContext(inner);
#endif
    if (LLVMParseIRInContext(inner, buffer, &module, &error)) fail(error);
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    void *library = LLVMOrcLLJITGetMainJITDylib(engine);
    check(LLVMOrcLLJITAddLLVMIRModule(engine, library, LLVMOrcCreateNewThreadSafeModule(module, context)));
    uint64_t address = 0, further = 0;
    check(LLVMOrcLLJITLookup(engine, &address, outer));
    check(LLVMOrcLLJITLookup(engine, &further, ghc));
    return run(address, further);
}

static long mcjit(const char *ir, const char *outer, const char *ghc) {
    struct compiled compiled = compile_text(ir, outer);
    return run(compiled.address, LLVMGetFunctionAddress(compiled.engine, ghc));
}

static int is_orc, each, is_listening;
static atomic_int compiled;
static long sums[THREADS];

static void *work(void *argument) {
    long thread = (long)argument;
    char ir[1024], outer[32], ghc[32];
    for (int number = (int)thread * each; number < ((int)thread + 1) * each; number++) {
        snprintf(ir, sizeof ir, text, number, number + 1000);
        snprintf(outer, sizeof outer, "outer%d", number);
        snprintf(ghc, sizeof ghc, "ghc%d", number);
        sums[thread] += is_orc ? orc(ir, outer, ghc) : mcjit(ir, outer, ghc);
        /* The library is opened while all threads compile, and all threads compile afterwards. */
        atomic_fetch_add(&compiled, 1);
        while (is_listening && number % each == each - 2 && atomic_load(&compiled) >= 0) usleep(1000);
    }
    return NULL;
}

int embedded(int count_of_words, char **words) {
    if (count_of_words < 3) return 2;
    int threads = 1, kept = 0, loops = 0;
    is_orc = !strcmp(words[1], "orc");
    each = atoi(words[2]);
    for (int word = 3; word < count_of_words; word++) {
        if (!strcmp(words[word], "threads")) threads = THREADS;
        is_listening |= !strcmp(words[word], "listen");
        kept |= !strcmp(words[word], "kept");
        loops |= !strcmp(words[word], "loops");
    }
    llvm_begin();
    LLVMLinkInMCJIT();
    pthread_t made[THREADS];
    for (long thread = 0; thread < threads; thread++)
        if (pthread_create(&made[thread], NULL, work, (void *)thread)) return 1;
    if (is_listening) {
        while (atomic_load(&compiled) < threads * each / 4) usleep(100);
        void *library = dlopen(getenv("EMBEDDED_OPENS"), RTLD_NOW);
        if (!library) fail(dlerror());
        int (*begin)(void *) = (int (*)(void *))dlsym(library, "jitlisten_open");
        if (begin && begin(NULL)) fail("jitlisten_open");
        atomic_store(&compiled, -1000000);
    }
    long sum = 0;
    for (int thread = 0; thread < threads; thread++) {
        pthread_join(made[thread], NULL);
        sum += sums[thread];
        sums[thread] = 0;
    }
    printf("%s %ld\n", words[1], sum);
    if (kept || loops) puts("running");
    fflush(stdout);
    while (loops) sum += atomic_load(&last)(sum);
    if (kept) getchar();
    return 0;
}

#ifndef AS_LIBRARY
int main(int count_of_words, char **words) { return embedded(count_of_words, words); }
#endif
