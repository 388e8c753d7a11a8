/* A host that links objects with ORC's LLJIT, which takes JITLink by itself from LLVM 16 on, and registers nothing with debuggers.
 *
 *     orc_objects LIBLLVM COUNT [WORD...]
 *
 *     LIBLLVM    the library, opened with dlopen
 *     deepbind   opens it with RTLD_DEEPBIND
 *     threads    links half of the objects in a second thread
 *     frees      disposes of every engine but the last before it goes on
 *     again      closes the library when done, opens it again, and starts over once
 *     nested     links all with one engine, each while the one before is linked
 *     loops      calls the last chainN for ever, having printed "running"
 *
 * Compiles COUNT modules, each in an engine of its own. Module N has chainN, which calls middleN, which calls leafN, each in a
 * section of its own; twinN and sameN, which are equal; and an internal function that nothing calls. With `nested`, also linkedN, which
 * calls tinyN, in a module of its own, which calls the next linkedN, and jumpN, which is equal to tinyN but for what it calls. Prints the sum of what
 * chainN and twinN and sameN return, and "running"; waits for a line on standard input. Writes the addresses of all these
 * to the file `addresses`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __aarch64__
#define TARGET "AArch64"
#else
#define TARGET "X86"
#endif

static void *llvm;

static void *function(const char *name) {
    void *found = dlsym(llvm, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(type, name, ...) ((type (*)())function(name))(__VA_ARGS__)

static void check(void *error, const char *what) {
    if (!error) return;
    fprintf(stderr, "%s: %s\n", what, CALL(char *, "LLVMGetErrorMessage", error));
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

/* What is linked while another module is. The last has none. */
static const char *next_one =
    "define i64 @linked%1$d(i64 %%n) uwtable \"frame-pointer\"=\"all\" section \".text.linked\" {\n"
    "  %%r = call i64 @chain%1$d(i64 %%n)\n  %%s = call i64 @tiny%1$d(i64 %%r)\n  %%t = xor i64 %%r, %%s\n  ret i64 %%t\n}\n"
    "define i64 @jump%1$d(i64 %%n) nounwind section \".text.jump\" {\n"
    "  %%r = tail call i64 @chain%1$d(i64 %%n)\n  ret i64 %%r\n}\n"
    "declare i64 @tiny%1$d(i64)\n";
static const char *last_one = "define i64 @linked%1$d(i64 %%n) uwtable section \".text.linked\" {\n  ret i64 %%n\n}\n";
static const char *tiny_one =
    "define i64 @tiny%1$d(i64 %%n) nounwind section \".text.tiny\" {\n"
    "  %%r = tail call i64 @linked%2$d(i64 %%n)\n  ret i64 %%r\n}\ndeclare i64 @linked%2$d(i64)\n";

/* The object of one module, as a memory buffer of LLVM's. */
static void *object(const char *text, const char *further, int number) {
    size_t size = strlen(text) + strlen(further) + 1024;
    char *ir = malloc(size), *error = NULL;
    int written = snprintf(ir, size, further, number, number + 1);
    snprintf(ir + written, size - written, text, number, number + 1);
    void *context = CALL(void *, "LLVMContextCreate"), *module = NULL, *buffer = NULL, *target = NULL;
    void *source = CALL(void *, "LLVMCreateMemoryBufferWithMemoryRangeCopy", ir, strlen(ir), "host");
    char *triple = CALL(char *, "LLVMGetDefaultTargetTriple");
    if (CALL(int, "LLVMParseIRInContext", context, source, &module, &error) ||
        CALL(int, "LLVMGetTargetFromTriple", triple, &target, &error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    /* Optimized, position independent, the default code model of JITs. */
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

/* The last chainN. */
static long (*last)(long);

static FILE *addresses;

static long (*look_up(void *engine, const char *name, int number))(long) {
    char full[32];
    uint64_t address = 0;
    snprintf(full, sizeof full, "%s%d", name, number);
    check(CALL(void *, "LLVMOrcLLJITLookup", engine, &address, full), full);
    fprintf(addresses, "%s %lx\n", full, (long)address);
    fflush(addresses);
    if (!strcmp(name, "chain")) last = (long (*)(long))address;
    return (long (*)(long))address;
}

static void *make_engine(void) {
    void *engine = NULL;
    check(CALL(void *, "LLVMOrcCreateLLJIT", &engine, NULL), "LLJIT");
    return engine;
}

static long call_all(void *engine, int number) {
    look_up(engine, "middle", number);
    look_up(engine, "leaf", number);
    return look_up(engine, "chain", number)(3) + look_up(engine, "twin", number)(3) + look_up(engine, "same", number)(3);
}

static long link_one(void *engine, int number) {
    void *library = CALL(void *, "LLVMOrcLLJITGetMainJITDylib", engine);
    check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, object(text, "", number)), "add");
    return call_all(engine, number);
}

static void link_nested(int count) {
    void *engine = make_engine(), *library = CALL(void *, "LLVMOrcLLJITGetMainJITDylib", engine);
    for (int number = 0; number < count; number++) {
        void *one = object(text, number + 1 < count ? next_one : last_one, number);
        check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, one), "add");
        if (number + 1 == count) break;
        check(CALL(void *, "LLVMOrcLLJITAddObjectFile", engine, library, object("", tiny_one, number)), "add");
    }
    long sum = look_up(engine, "linked", 0)(3);
    for (int number = 0; number < count; number++) {
        sum += call_all(engine, number);
        look_up(engine, "linked", number);
        if (number + 1 == count) break;
        look_up(engine, "tiny", number);
        look_up(engine, "jump", number);
    }
    printf("%ld\n", sum);
}

struct share {
    int first, last, frees, frees_last;
    long sum;
};

static void *link_share(void *argument) {
    struct share *share = argument;
    for (int number = share->first; number < share->last; number++) {
        void *engine = make_engine();
        share->sum += link_one(engine, number);
        if (share->frees_last || (share->frees && number + 1 < share->last))
            check(CALL(void *, "LLVMOrcDisposeLLJIT", engine), "dispose");
    }
    return NULL;
}

static void run(const char *path, int flags, int count, int threads, int frees, int frees_last, int nested) {
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
    struct share first = {0, half, frees, frees_last, 0}, second = {half, count, frees, frees_last, 0};
    pthread_t thread;
    if (threads && pthread_create(&thread, NULL, link_share, &first)) exit(1);
    link_share(&second);
    if (threads) pthread_join(thread, NULL);
    printf("%ld\n", first.sum + second.sum);
}

int main(int count_of_words, char **words) {
    if (count_of_words < 3) return 2;
    int flags = RTLD_NOW, threads = 0, frees = 0, again = 0, nested = 0, loops = 0;
    for (int word = 3; word < count_of_words; word++) {
        if (!strcmp(words[word], "deepbind")) flags |= RTLD_DEEPBIND;
        threads |= !strcmp(words[word], "threads");
        frees |= !strcmp(words[word], "frees");
        again |= !strcmp(words[word], "again");
        nested |= !strcmp(words[word], "nested");
        loops |= !strcmp(words[word], "loops");
    }
    addresses = fopen("addresses", "w");
    if (!addresses) return 1;
    if (again) {
        run(words[1], flags, atoi(words[2]), threads, 1, 1, 0);
        dlclose(llvm);
    }
    run(words[1], flags, atoi(words[2]), threads, frees, 0, nested);
    puts("running");
    fflush(stdout);
    for (long sum = 0; loops;) sum += last(sum);
    getchar();
    return 0;
}
