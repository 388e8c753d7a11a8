/* Program that links objects with many functions through JITLink, for benches/instructions.py.
 *
 *     linked OBJECTS FUNCTIONS [chain] [debug]
 *
 * Compiles OBJECTS modules with LLJIT (which uses JITLink from LLVM 16 on). Each module has FUNCTIONS functions in
 * separate sections; they differ in a constant, and each calls its predecessor. With `chain`, the first function of a
 * module calls the last one of the next module, so that all objects are linked at the same time. With `debug`, LLJIT
 * adds each object to the GDB JIT list (LLVM 18 and newer). Prints the sum of the results of the last functions. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct LLVMOpaqueError *LLVMErrorRef;
typedef struct LLVMOpaqueContext *LLVMContextRef;
typedef struct LLVMOpaqueModule *LLVMModuleRef;
typedef struct LLVMOpaqueMemoryBuffer *LLVMMemoryBufferRef;
LLVMErrorRef LLVMOrcCreateLLJIT(void **, void *);
void *LLVMOrcLLJITGetMainJITDylib(void *);
LLVMErrorRef LLVMOrcLLJITAddLLVMIRModule(void *, void *, void *);
LLVMErrorRef LLVMOrcLLJITEnableDebugSupport(void *);
LLVMErrorRef LLVMOrcLLJITLookup(void *, uint64_t *, const char *);
void *LLVMOrcCreateNewThreadSafeModule(LLVMModuleRef, void *);
char *LLVMGetErrorMessage(LLVMErrorRef);
int LLVMParseIRInContext(LLVMContextRef, LLVMMemoryBufferRef, LLVMModuleRef *, char **);
LLVMMemoryBufferRef LLVMCreateMemoryBufferWithMemoryRangeCopy(const char *, size_t, const char *);
void LLVMInitializeX86TargetInfo(void), LLVMInitializeX86Target(void), LLVMInitializeX86TargetMC(void);
void LLVMInitializeX86AsmPrinter(void);
#ifdef OLD_CONTEXTS
void *LLVMOrcCreateNewThreadSafeContext(void);
LLVMContextRef LLVMOrcThreadSafeContextGetContext(void *);
#else
LLVMContextRef LLVMContextCreate(void);
void *LLVMOrcCreateNewThreadSafeContextFromLLVMContext(LLVMContextRef);
#endif

static void check(LLVMErrorRef error) {
    if (!error) return;
    fprintf(stderr, "%s\n", LLVMGetErrorMessage(error));
    exit(1);
}

static char *make_ir(int module, int functions, int is_last) {
    char *text = malloc((size_t)functions * 256 + 512), *end = text;
    if (!is_last) end += sprintf(end, "declare i64 @f%d_%d(i64)\n", module + 1, functions - 1);
    for (int index = 0; index < functions; index++) {
        end += sprintf(end, "define i64 @f%d_%d(i64 %%n) nounwind noinline uwtable \"frame-pointer\"=\"all\" section \".text.f%d_%d\" {\n",
                       module, index, module, index);
        if (index > 0) end += sprintf(end, "  %%a = call i64 @f%d_%d(i64 %%n)\n", module, index - 1);
        else if (!is_last) end += sprintf(end, "  %%a = call i64 @f%d_%d(i64 %%n)\n", module + 1, functions - 1);
        else end += sprintf(end, "  %%a = mul i64 %%n, 3\n");
        end += sprintf(end, "  %%b = xor i64 %%a, %d\n  ret i64 %%b\n}\n", module * functions + index + 1000);
    }
    return text;
}

static void add_module(void *engine, char *ir) {
    char *error = NULL;
    void *context;
    LLVMModuleRef module;
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "linked");
#ifdef OLD_CONTEXTS
    context = LLVMOrcCreateNewThreadSafeContext();
    LLVMContextRef llvm_context = LLVMOrcThreadSafeContextGetContext(context);
#else
    LLVMContextRef llvm_context = LLVMContextCreate();
    context = LLVMOrcCreateNewThreadSafeContextFromLLVMContext(llvm_context);
#endif
    if (LLVMParseIRInContext(llvm_context, buffer, &module, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    void *dylib = LLVMOrcLLJITGetMainJITDylib(engine);
    check(LLVMOrcLLJITAddLLVMIRModule(engine, dylib, LLVMOrcCreateNewThreadSafeModule(module, context)));
    free(ir);
}

static long call_last_function(void *engine, int module, int functions) {
    char name[32];
    uint64_t address = 0;
    snprintf(name, sizeof name, "f%d_%d", module, functions - 1);
    check(LLVMOrcLLJITLookup(engine, &address, name));
    return ((long (*)(long))address)(7);
}

int main(int argument_count, char **arguments) {
    if (argument_count < 3) return 2;
    int objects = atoi(arguments[1]), functions = atoi(arguments[2]), is_chained = 0, is_listed = 0;
    for (int index = 3; index < argument_count; index++) {
        is_chained |= !strcmp(arguments[index], "chain");
        is_listed |= !strcmp(arguments[index], "debug");
    }
    void *engine = NULL;
    LLVMInitializeX86TargetInfo(), LLVMInitializeX86Target(), LLVMInitializeX86TargetMC(), LLVMInitializeX86AsmPrinter();
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    if (is_listed) check(LLVMOrcLLJITEnableDebugSupport(engine));
    long sum = 0;
    for (int module = 0; module < objects; module++) {
        add_module(engine, make_ir(module, functions, !is_chained || module + 1 == objects));
        if (!is_chained) sum += call_last_function(engine, module, functions);
    }
    printf("%ld\n", is_chained ? call_last_function(engine, 0, functions) : sum);
    return 0;
}
