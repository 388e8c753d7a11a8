/* The part of LLVM's C API (llvm-c/ of any release) that the C hosts use, declared here so that the hosts need no LLVM
 * headers. compile_text() compiles LLVM assembly in a new context and MCJIT engine. */
#ifndef HOSTS_LLVM_C_H
#define HOSTS_LLVM_C_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct LLVMOpaqueContext *LLVMContextRef;
typedef struct LLVMOpaqueModule *LLVMModuleRef;
typedef struct LLVMOpaqueMemoryBuffer *LLVMMemoryBufferRef;
typedef struct LLVMOpaqueExecutionEngine *LLVMExecutionEngineRef;
struct LLVMMCJITCompilerOptions {
    unsigned OptLevel;
    int CodeModel, NoFramePointerElim, EnableFastISel;
    void *MCJMM;
};

LLVMContextRef LLVMContextCreate(void);
void LLVMContextDispose(LLVMContextRef);
LLVMMemoryBufferRef LLVMCreateMemoryBufferWithMemoryRangeCopy(const char *, size_t, const char *);
int LLVMParseIRInContext(LLVMContextRef, LLVMMemoryBufferRef, LLVMModuleRef *, char **);
void LLVMInitializeMCJITCompilerOptions(struct LLVMMCJITCompilerOptions *, size_t);
int LLVMCreateMCJITCompilerForModule(LLVMExecutionEngineRef *, LLVMModuleRef, struct LLVMMCJITCompilerOptions *, size_t,
                                     char **);
unsigned long LLVMGetFunctionAddress(LLVMExecutionEngineRef, const char *);
void LLVMDisposeExecutionEngine(LLVMExecutionEngineRef);

#ifdef __aarch64__
#define TARGET(part) LLVMInitializeAArch64##part
#else
#define TARGET(part) LLVMInitializeX86##part
#endif
void TARGET(TargetInfo)(void);
void TARGET(Target)(void);
void TARGET(TargetMC)(void);
void TARGET(AsmPrinter)(void);

static inline void initialize_llvm(void) {
    TARGET(TargetInfo)();
    TARGET(Target)();
    TARGET(TargetMC)();
    TARGET(AsmPrinter)();
}

struct compiled {
    LLVMContextRef context;
    LLVMExecutionEngineRef engine;
    unsigned long address;
};

/* Creates the memory manager of the next engine; NULL for LLVM's default. Set by hosts with their own manager. */
static void *(*make_manager)(void *);

/* Compiles the text with a memory manager made from `memory`. Ends the program if LLVM reports an error. */
static inline struct compiled compile_with(const char *text, const char *function, void *memory) {
    struct compiled compiled;
    struct LLVMMCJITCompilerOptions options;
    LLVMModuleRef module;
    char *error = NULL;
    compiled.context = LLVMContextCreate();
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(text, strlen(text), "host");
    LLVMInitializeMCJITCompilerOptions(&options, sizeof options);
    if (make_manager) options.MCJMM = make_manager(memory);
    if (LLVMParseIRInContext(compiled.context, buffer, &module, &error) ||
        LLVMCreateMCJITCompilerForModule(&compiled.engine, module, &options, sizeof options, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    compiled.address = LLVMGetFunctionAddress(compiled.engine, function);
    return compiled;
}

static inline struct compiled compile_text(const char *text, const char *function) {
    return compile_with(text, function, NULL);
}

/* Compiles `i64 NAME(i64 n)`, which returns 3 n + NUMBER. `name` is the function's name as in quoted LLVM assembly,
 * `symbol` its plain symbol name. */
static inline struct compiled compile_named(const char *name, const char *symbol, long addend) {
    size_t size = strlen(name) + 256;
    char *text = (char *)malloc(size);
    snprintf(text, size,
             "define i64 @\"%s\"(i64 %%n) uwtable \"frame-pointer\"=\"all\" {\n"
             "  %%a = mul i64 %%n, 3\n  %%b = add i64 %%a, %ld\n  ret i64 %%b\n}\n",
             name, addend);
    struct compiled compiled = compile_text(text, symbol);
    free(text);
    return compiled;
}

static inline int returns_expected(struct compiled compiled, long addend) {
    return compiled.address != 0 && ((long (*)(long))compiled.address)(5) == 15 + addend;
}

static inline void dispose(struct compiled compiled) {
    LLVMDisposeExecutionEngine(compiled.engine);
    LLVMContextDispose(compiled.context);
}

#endif
