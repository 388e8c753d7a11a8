/* Objects of many functions, linked with JITLink: for benches/instructions.py.
 *
 *     linked OBJECTS FUNCTIONS [chain] [debug]
 *
 * Compiles OBJECTS modules with LLJIT (LLVM 16 and newer link with JITLink), each with FUNCTIONS functions in sections
 * of their own. The functions differ in a constant; each calls the one before it. With `chain`, the first of each
 * module calls the last of the next one, so that all objects are being linked at the same time. With `debug`, LLJIT
 * lists each object for debuggers (LLVM 18 and newer). Prints the sum of what the modules' last functions return. */
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

static char *text(int module, int functions, int is_last) {
    char *text = malloc((size_t)functions * 256 + 512), *end = text;
    if (!is_last) end += sprintf(end, "declare i64 @f%d_%d(i64)\n", module + 1, functions - 1);
    for (int at = 0; at < functions; at++) {
        end += sprintf(end, "define i64 @f%d_%d(i64 %%n) nounwind noinline uwtable \"frame-pointer\"=\"all\" section \".text.f%d_%d\" {\n",
                       module, at, module, at);
        if (at > 0) end += sprintf(end, "  %%a = call i64 @f%d_%d(i64 %%n)\n", module, at - 1);
        else if (!is_last) end += sprintf(end, "  %%a = call i64 @f%d_%d(i64 %%n)\n", module + 1, functions - 1);
        else end += sprintf(end, "  %%a = mul i64 %%n, 3\n");
        end += sprintf(end, "  %%b = xor i64 %%a, %d\n  ret i64 %%b\n}\n", module * functions + at + 1000);
    }
    return text;
}

static void add(void *engine, char *ir) {
    char *error = NULL;
    void *context;
    LLVMModuleRef module;
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "linked");
#ifdef OLD_CONTEXTS
    context = LLVMOrcCreateNewThreadSafeContext();
    LLVMContextRef inner = LLVMOrcThreadSafeContextGetContext(context);
#else
    LLVMContextRef inner = LLVMContextCreate();
    context = LLVMOrcCreateNewThreadSafeContextFromLLVMContext(inner);
#endif
    if (LLVMParseIRInContext(inner, buffer, &module, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    void *library = LLVMOrcLLJITGetMainJITDylib(engine);
    check(LLVMOrcLLJITAddLLVMIRModule(engine, library, LLVMOrcCreateNewThreadSafeModule(module, context)));
    free(ir);
}

static long call(void *engine, int module, int functions) {
    char name[32];
    uint64_t address = 0;
    snprintf(name, sizeof name, "f%d_%d", module, functions - 1);
    check(LLVMOrcLLJITLookup(engine, &address, name));
    return ((long (*)(long))address)(7);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    int objects = atoi(words[1]), functions = atoi(words[2]), is_chain = 0, is_listed = 0;
    for (int at = 3; at < count; at++) {
        is_chain |= !strcmp(words[at], "chain");
        is_listed |= !strcmp(words[at], "debug");
    }
    void *engine = NULL;
    LLVMInitializeX86TargetInfo(), LLVMInitializeX86Target(), LLVMInitializeX86TargetMC(), LLVMInitializeX86AsmPrinter();
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    if (is_listed) check(LLVMOrcLLJITEnableDebugSupport(engine));
    long sum = 0;
    for (int module = 0; module < objects; module++) {
        add(engine, text(module, functions, !is_chain || module + 1 == objects));
        if (!is_chain) sum += call(engine, module, functions);
    }
    printf("%ld\n", is_chain ? call(engine, 0, functions) : sum);
    return 0;
}
