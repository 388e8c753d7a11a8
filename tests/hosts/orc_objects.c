/* Links objects with ORC's LLJIT, which from LLVM 16 on uses JITLink by default and registers nothing with debuggers.
 *
 *     orc_objects LIBLLVM COUNT [WORD...]
 *
 *     LIBLLVM    LLVM's library, opened with dlopen
 *     deepbind   opens it with RTLD_DEEPBIND
 *     threads    links half of the objects in a second thread
 *     frees      disposes of each engine except the last before continuing
 *     again      closes LLVM's library when done, opens it again, and repeats everything once
 *     nested     links all objects in one engine, each during the link of its predecessor
 *     loops      prints "running" and calls the last chainN forever
 *     second     calls the last chainN for a second of processor time, and exits without waiting
 *
 * Compiles COUNT modules, each in its own engine. Module N contains chainN, which calls middleN, which calls leafN,
 * each in a separate section; twinN and sameN, which are identical; and an unused internal function. With `nested`, it
 * also contains linkedN, which calls tinyN. tinyN is a separate module and calls the next linkedN. jumpN differs from
 * tinyN only in its callee. Prints the sum of the results of chainN, twinN and sameN, and "running"; waits for a line
 * on standard input. Writes the addresses of all these functions to the file `addresses`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __aarch64__
#define TARGET "AArch64"
#else
#define TARGET "X86"
#endif

static void *llvm;

static void *find_function(const char *name) {
    void *address = dlsym(llvm, name);
    if (!address) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return address;
}

#define CALL(type, name, ...) ((type (*)())find_function(name))(__VA_ARGS__)

static void check(void *error, const char *operation) {
    if (!error) return;
    fprintf(stderr, "%s: %s\n", operation, CALL(char *, "LLVMGetErrorMessage", error));
    exit(1);
}

static const char *text =
    "define i64 @chain%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.chain\" !dbg !4 {\n"
    "  %%r = call i64 @middle%1$d(i64 %%n), !dbg !6\n  %%s = add i64 %%r, 1, !dbg !6\n  ret i64 %%s, !dbg !6\n}\n"
    "define i64 @middle%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.middle\" {\n"
    "  %%r = call i64 @leaf%1$d(i64 %%n)\n  %%k = load i64, ptr @seven%1$d\n  %%s = mul i64 %%r, %%k\n  ret i64 %%s\n}\n"
    "define i64 @leaf%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.leaf\" {\n"
    "  %%r = mul i64 %%n, 5\n  %%s = xor i64 %%r, %1$d\n  ret i64 %%s\n}\n"
    "define i64 @twin%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.twin\" {\n"
    "  %%r = mul i64 %%n, 11\n  %%s = xor i64 %%r, 12345\n  ret i64 %%s\n}\n"
    "define i64 @same%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.same\" {\n"
    "  %%r = mul i64 %%n, 11\n  %%s = xor i64 %%r, 12345\n  ret i64 %%s\n}\n"
    "define internal i64 @unused%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.unused\" {\n"
    "  %%r = mul i64 %%n, 77\n  %%s = xor i64 %%r, 777777\n  ret i64 %%s\n}\n"
    "@seven%1$d = constant i64 7\n"
    "!llvm.dbg.cu = !{!0}\n!llvm.module.flags = !{!2, !3}\n"
    "!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: \"host\", emissionKind: FullDebug)\n"
    "!1 = !DIFile(filename: \"source%1$d.x\", directory: \"/tmp\")\n"
    "!2 = !{i32 2, !\"Dwarf Version\", i32 4}\n!3 = !{i32 2, !\"Debug Info Version\", i32 3}\n"
    "!4 = distinct !DISubprogram(name: \"chain%1$d\", file: !1, line: 40, type: !5, unit: !0, spFlags: DISPFlagDefinition)\n"
    "!5 = !DISubroutineType(types: !{})\n!6 = !DILocation(line: 42, column: 3, scope: !4)\n";

/* Functions that trigger another link when they are linked. The last module has `last_module` instead. */
static const char *nested_module =
    "define i64 @linked%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.linked\" {\n"
    "  %%r = call i64 @chain%1$d(i64 %%n)\n  %%s = call i64 @tiny%1$d(i64 %%r)\n  %%t = xor i64 %%r, %%s\n  ret i64 %%t\n}\n"
    "define i64 @jump%1$d(i64 %%n) nounwind section \".text.jump\" {\n"
    "  %%r = tail call i64 @chain%1$d(i64 %%n)\n  ret i64 %%r\n}\n"
    "declare i64 @tiny%1$d(i64)\n";
static const char *last_module = "define i64 @linked%1$d(i64 %%n) uwtable section \".text.linked\" {\n  ret i64 %%n\n}\n";
static const char *tiny_module =
    "define i64 @tiny%1$d(i64 %%n) nounwind section \".text.tiny\" {\n"
    "  %%r = tail call i64 @linked%2$d(i64 %%n)\n  ret i64 %%r\n}\ndeclare i64 @linked%2$d(i64)\n";

/* Compiles one module and returns its object as an LLVM memory buffer. */
static void *compile_object(const char *text_suffix, const char *text_prefix, int number) {
    size_t size = strlen(text_suffix) + strlen(text_prefix) + 1024;
    char *ir = malloc(size), *error = NULL;
    int written = snprintf(ir, size, text_prefix, number, number + 1);
    snprintf(ir + written, size - written, text_suffix, number, number + 1);
    void *context = CALL(void *, "LLVMContextCreate"), *module = NULL, *buffer = NULL, *target = NULL;
    void *source = CALL(void *, "LLVMCreateMemoryBufferWithMemoryRangeCopy", ir, strlen(ir), "host");
    char *triple = CALL(char *, "LLVMGetDefaultTargetTriple");
    if (CALL(int, "LLVMParseIRInContext", context, source, &module, &error) ||
        CALL(int, "LLVMGetTargetFromTriple", triple, &target, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    /* The numeric arguments are CodeGenLevelDefault, PIC and CodeModelJITDefault. */
    void *machine = CALL(void *, "LLVMCreateTargetMachine", target, triple, "", "", 2, 2, 1);
    if (CALL(int, "LLVMTargetMachineEmitToMemoryBuffer", machine, module, 1, &error, &buffer)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    free(ir);
    CALL(void, "LLVMDisposeMessage", triple);
    CALL(void, "LLVMDisposeTargetMachine", machine);
    CALL(void, "LLVMDisposeModule", module);
    CALL(void, "LLVMContextDispose", context);
    return buffer;
}

/* Address of chainN in the most recent module. */
static long (*last_chain)(long);

static FILE *addresses;

static long (*look_up_and_record(void *engine, const char *name, int number))(long) {
    char full_name[32];
    uint64_t address = 0;
    snprintf(full_name, sizeof full_name, "%s%d", name, number);
    check(CALL(void *, "LLVMOrcLLJITLookup", engine, &address, full_name), full_name);
    fprintf(addresses, "%s %lx\n", full_name, (long)address);
    fflush(addresses);
    if (!strcmp(name, "chain")) last_chain = (long (*)(long))address;
    return (long (*)(long))address;
}

static void *make_engine(void) {
    void *engine = NULL;
    check(CALL(void *, "LLVMOrcCreateLLJIT", &engine, NULL), "LLJIT");
    return engine;
}

static long call_all(void *engine, int number) {
    look_up_and_record(engine, "middle", number);
    look_up_and_record(engine, "leaf", number);
    return look_up_and_record(engine, "chain", number)(3) + look_up_and_record(engine, "twin", number)(3) + look_up_and_record(engine, "same", number)(3);
}

static long link_module(void *engine, int number) {
    void *library = CALL(void *, "LLVMOrcLLJITGetMainJITDylib", engine);
    check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, compile_object(text, "", number)), "add");
    return call_all(engine, number);
}

static void link_nested(int count) {
    void *engine = make_engine(), *library = CALL(void *, "LLVMOrcLLJITGetMainJITDylib", engine);
    for (int number = 0; number < count; number++) {
        void *nested_object = compile_object(text, number + 1 < count ? nested_module : last_module, number);
        check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, nested_object), "add");
        if (number + 1 == count) break;
        check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, compile_object("", tiny_module, number)), "add");
    }
    long sum = look_up_and_record(engine, "linked", 0)(3);
    for (int number = 0; number < count; number++) {
        sum += call_all(engine, number);
        look_up_and_record(engine, "linked", number);
        if (number + 1 == count) break;
        look_up_and_record(engine, "tiny", number);
        look_up_and_record(engine, "jump", number);
    }
    printf("%ld\n", sum);
}

struct work_share {
    int begin, end, disposes_engines, disposes_last;
    long sum;
};

static void *link_share(void *argument) {
    struct work_share *work_share = argument;
    for (int number = work_share->begin; number < work_share->end; number++) {
        void *engine = make_engine();
        work_share->sum += link_module(engine, number);
        if (work_share->disposes_last || (work_share->disposes_engines && number + 1 < work_share->end))
            check(CALL(void *, "LLVMOrcDisposeLLJIT", engine), "dispose");
    }
    return NULL;
}

static void run(const char *path, int flags, int count, int threads, int disposes_engines, int disposes_last, int nested) {
    llvm = dlopen(path, flags);
    if (!llvm) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    CALL(void, "LLVMInitialize" TARGET "TargetInfo");
    CALL(void, "LLVMInitialize" TARGET "Target");
    CALL(void, "LLVMInitialize" TARGET "TargetMC");
    CALL(void, "LLVMInitialize" TARGET "AsmPrinter");
    if (nested) {
        link_nested(count);
        return;
    }
    int half = threads ? count / 2 : 0;
    struct work_share first = {0, half, disposes_engines, disposes_last, 0}, second = {half, count, disposes_engines, disposes_last, 0};
    pthread_t thread;
    if (threads && pthread_create(&thread, NULL, link_share, &first)) exit(1);
    link_share(&second);
    if (threads) pthread_join(thread, NULL);
    printf("%ld\n", first.sum + second.sum);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int flags = RTLD_NOW, threads = 0, disposes_engines = 0, repeats = 0, nested = 0, loops = 0, second = 0;
    for (int word = 3; word < argc; word++) {
        if (!strcmp(argv[word], "deepbind")) flags |= RTLD_DEEPBIND;
        threads |= !strcmp(argv[word], "threads");
        disposes_engines |= !strcmp(argv[word], "frees");
        repeats |= !strcmp(argv[word], "again");
        nested |= !strcmp(argv[word], "nested");
        loops |= !strcmp(argv[word], "loops");
        second |= !strcmp(argv[word], "second");
    }
    addresses = fopen("addresses", "w");
    if (!addresses) return 1;
    if (repeats) {
        run(argv[1], flags, atoi(argv[2]), threads, 1, 1, 0);
        dlclose(llvm);
    }
    run(argv[1], flags, atoi(argv[2]), threads, disposes_engines, 0, nested);
    puts("running");
    fflush(stdout);
    for (long sum = 0; loops || (second && clock() < CLOCKS_PER_SEC);)
        for (int call = 0; call < 100000; call++) sum += last_chain(sum);
    if (!second) getchar();
    return 0;
}
