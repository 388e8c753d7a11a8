/* Eight threads compile simultaneously, each with its own LLVM contexts and engines: compiles_in_threads
 *
 * Thread N compiles `worker_N`, whose debug information refers to `/sources/worker_N.c` from line 100 N + 1 on. It does
 * so 50 times under different names, so that loading and finalizing overlap. Uses LLVM's C API. */

#include <llvm-c/Core.h>
#include <llvm-c/ExecutionEngine.h>
#include <llvm-c/IRReader.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 50 };

static const char *const text =
    "define i64 @worker_%1$d_%2$d(i64 %%n) !dbg !4 {\n"
    "  %%a = mul i64 %%n, 3, !dbg !7\n"
    "  %%b = sdiv i64 %%a, %3$d, !dbg !8\n"
    "  %%c = xor i64 %%b, %%n, !dbg !9\n"
    "  ret i64 %%c, !dbg !9\n"
    "}\n"
    "!llvm.dbg.cu = !{!0}\n"
    "!llvm.module.flags = !{!2, !3}\n"
    "!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, emissionKind: FullDebug)\n"
    "!1 = !DIFile(filename: \"worker_%1$d.c\", directory: \"/sources\")\n"
    "!2 = !{i32 2, !\"Dwarf Version\", i32 4}\n"
    "!3 = !{i32 2, !\"Debug Info Version\", i32 3}\n"
    "!4 = distinct !DISubprogram(name: \"worker_%1$d_%2$d\", file: !1, line: %3$d, type: !5, unit: !0,\n"
    "       spFlags: DISPFlagDefinition)\n"
    "!5 = !DISubroutineType(types: !6)\n"
    "!6 = !{null}\n"
    "!7 = !DILocation(line: %4$d, scope: !4)\n"
    "!8 = !DILocation(line: %5$d, scope: !4)\n"
    "!9 = !DILocation(line: %6$d, scope: !4)\n";

static pthread_barrier_t barrier;

static void compile(int worker, int round) {
    char ir[4096];
    int line = 100 * worker + 1;
    snprintf(ir, sizeof ir, text, worker, round, line, line + 1, line + 2, line + 3);
    LLVMContextRef context = LLVMContextCreate();
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "worker");
    LLVMModuleRef module;
    LLVMExecutionEngineRef engine;
    char *error = NULL;
    struct LLVMMCJITCompilerOptions options;
    LLVMInitializeMCJITCompilerOptions(&options, sizeof options);
    if (LLVMParseIRInContext(context, buffer, &module, &error) ||
        LLVMCreateMCJITCompilerForModule(&engine, module, &options, sizeof options, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    char name[64];
    snprintf(name, sizeof name, "worker_%d_%d", worker, round);
    long (*function)(long) = (long (*)(long))LLVMGetFunctionAddress(engine, name);
    if (function == NULL || function(5) != (15 / line ^ 5))
        exit(1);
    /* Keep the engine and the context, so that addresses are not reused. */
}

static void *work(void *argument) {
    int worker = (int)(long)argument;
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < ROUNDS; round++)
        compile(worker, round);
    return NULL;
}

int main(void) {
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
