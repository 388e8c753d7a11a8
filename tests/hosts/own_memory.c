/* A host with a memory manager of its own, through LLVM's C API: LLVM never calls mprotect, the program does.
 *
 *     own_memory MODE COUNT [loops]
 *
 *     protect     maps memory, and lets it run with mprotect
 *     pkey        the same with pkey_mprotect
 *     unheard     the same with a system call that no library makes
 *     writable    maps memory that may be written and executed all the time
 *     early       the same, mapped by a system call that no library makes
 *     copied      links in heap memory, and copies the code to memory of its own
 *     twins       the same two by two, once both are linked: they are equal but for their names
 *     same        the same, and equal with their names
 *     disposed    links in memory that it frees once the code is copied, before the engine ends; no function has an unwind table, so
 *                 LLVM has no reason to look there again
 *     moved       links in memory that is moved (mremap) before it may run
 *     never       links and lets nothing run
 *     fails       has LLVM's own memory, and links what calls a function that is nowhere: every link fails
 *
 * Compiles COUNT functions own0, own1, ..., each in an engine of its own, prints the sum of what they return and "running",
 * waits for a line on standard input, compiles one more and calls it, and waits for another line. Then unmaps the code of the
 * first half, prints "unmapped", and waits again; with never and fails, compiles COUNT more, prints "more", and waits again.
 * With loops, it calls the last function for ever when it has printed "running". */
#define _GNU_SOURCE
#include "llvm_c.h"

#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct LLVMOpaqueMCJITMemoryManager *LLVMMCJITMemoryManagerRef;
typedef uint8_t *(*allocate_code)(void *, uintptr_t, unsigned, unsigned, const char *);
typedef uint8_t *(*allocate_data)(void *, uintptr_t, unsigned, unsigned, const char *, int);
LLVMMCJITMemoryManagerRef LLVMCreateSimpleMCJITMemoryManager(void *, allocate_code, allocate_data,
                                                             int (*)(void *, char **), void (*)(void *));

enum { PAGE = 4096, HALF = 4 * PAGE };

/* Code in the first half, data in the second. */
struct memory {
    uint8_t *start;
    size_t code, data;
};

static const char *mode;

static int is(const char *other) { return strcmp(mode, other) == 0; }

/* Whether it links in heap memory. */
static int is_copied(void) { return is("copied") || is("twins") || is("same"); }

static uint8_t *map(int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *mapped;
    if (is("early"))
        mapped = (void *)syscall(SYS_mmap, NULL, 2 * HALF, protection, flags, -1, 0);
    else
        mapped = mmap(NULL, 2 * HALF, protection, flags, -1, 0);
    if (mapped == MAP_FAILED) exit(1);
    return mapped;
}

static void begin(struct memory *memory) {
    int writable = is("writable") || is("early") ? PROT_EXEC : 0;
    memory->code = memory->data = 0;
    if (is_copied()) {
        memory->start = aligned_alloc(PAGE, 2 * HALF);
        memset(memory->start, 0, 2 * HALF);
    } else {
        memory->start = map(PROT_READ | PROT_WRITE | writable);
    }
}

static uint8_t *take(size_t *used, uint8_t *start, size_t size, size_t alignment) {
    *used = (*used + alignment - 1) & ~(alignment - 1);
    uint8_t *taken = start + *used;
    *used += size;
    if (*used > HALF) exit(1);
    return taken;
}

static uint8_t *take_code(void *memory, uintptr_t size, unsigned alignment, unsigned id, const char *name) {
    (void)id, (void)name;
    struct memory *ours = memory;
    return take(&ours->code, ours->start, size, alignment ? alignment : 16);
}

static uint8_t *take_data(void *memory, uintptr_t size, unsigned alignment, unsigned id, const char *name, int fixed) {
    (void)id, (void)name, (void)fixed;
    struct memory *ours = memory;
    return take(&ours->data, ours->start + HALF, size, alignment ? alignment : 16);
}

static void let_run(uint8_t *code) {
    int protection = PROT_READ | PROT_EXEC, failed = 0;
    if (is("pkey"))
        failed = pkey_mprotect(code, HALF, protection, -1);
    else if (is("unheard"))
        failed = syscall(SYS_mprotect, code, HALF, protection) != 0;
    else if (!is("writable") && !is("early") && !is("never"))
        failed = mprotect(code, HALF, protection);
    if (failed) exit(1);
}

static int finalize(void *memory, char **error) {
    (void)error;
    struct memory *ours = memory;
    if (!is_copied() && !is("moved") && !is("disposed")) let_run(ours->start);
    return 0;
}

static void destroy(void *memory) { (void)memory; }

static void move(struct memory *memory) {
    uint8_t *to = map(PROT_READ | PROT_WRITE);
    if (is("disposed")) {
        memcpy(to, memory->start, 2 * HALF);
        let_run(to);
        munmap(memory->start, 2 * HALF);
        memory->start = to;
        return;
    }
    if (is_copied()) {
        memcpy(to, memory->start, 2 * HALF);
        free(memory->start);
    } else if (mremap(memory->start, 2 * HALF, 2 * HALF, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) {
        exit(1);
    }
    memory->start = to;
    let_run(to);
}

typedef struct LLVMOpaqueError *LLVMErrorRef;
LLVMErrorRef LLVMOrcCreateLLJIT(void **, void *);
LLVMErrorRef LLVMOrcDisposeLLJIT(void *);
void *LLVMOrcLLJITGetMainJITDylib(void *);
LLVMErrorRef LLVMOrcLLJITAddLLVMIRModule(void *, void *, void *);
LLVMErrorRef LLVMOrcLLJITLookup(void *, uint64_t *, const char *);
void *LLVMOrcCreateNewThreadSafeContext(void);
LLVMContextRef LLVMOrcThreadSafeContextGetContext(void *);
void *LLVMOrcCreateNewThreadSafeModule(void *, void *);
void LLVMConsumeError(LLVMErrorRef);

/* The linker gives its memory back when it does not find the function. */
static long fail_to_link(int number) {
    char text[256], name[16], *error = NULL;
    void *engine = NULL, *context = LLVMOrcCreateNewThreadSafeContext();
    LLVMModuleRef module;
    uint64_t address;
    snprintf(name, sizeof name, "own%d", number);
    snprintf(text, sizeof text,
             "declare i64 @nowhere%d(i64)\n"
             "define i64 @%s(i64 %%n) uwtable {\n  %%a = call i64 @nowhere%d(i64 %%n)\n  ret i64 %%a\n}\n",
             number, name, number);
    LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(text, strlen(text), "host");
    if (LLVMParseIRInContext(LLVMOrcThreadSafeContextGetContext(context), buffer, &module, &error)) exit(1);
    if (LLVMOrcCreateLLJIT(&engine, NULL)) exit(1);
    module = LLVMOrcCreateNewThreadSafeModule(module, context);
    if (LLVMOrcLLJITAddLLVMIRModule(engine, LLVMOrcLLJITGetMainJITDylib(engine), module)) exit(1);
    LLVMErrorRef failed = LLVMOrcLLJITLookup(engine, &address, name);
    if (!failed) exit(1);
    LLVMConsumeError(failed);
    LLVMOrcDisposeLLJIT(engine);
    return 1;
}

/* The last function. */
static long (*last)(long);

static __attribute__((noinline)) long call_last(long n) { return last(n) + 1; }

/* Returns by how much it was moved. */
static long move_and_return(struct memory *memory) {
    uint8_t *before = memory->start;
    move(memory);
    return memory->start - before;
}

static long compile(struct memory *memory, int number) {
    static long twin;
    if (is("fails")) return fail_to_link(number);
    char text[256], name[16];
    const char *attributes = is("disposed") ? "nounwind" : "uwtable \"frame-pointer\"=\"all\"";
    int two_by_two = is("twins") || is("same");
    snprintf(name, sizeof name, "own%d", is("same") ? number / 2 : number);
    snprintf(text, sizeof text,
             "define i64 @%s(i64 %%n) %s {\n"
             "  %%a = mul i64 %%n, 3\n  %%b = add i64 %%a, %d\n  %%c = xor i64 %%b, %%n\n  ret i64 %%c\n}\n",
             name, attributes, 1000 + (two_by_two ? number / 2 : number));
    begin(memory);
    struct compiled compiled = compile_with(text, name, memory);
    if (is("never")) return 0;
    long moved = 0;
    if (two_by_two) {
        if (number % 2 == 0) {
            twin = compiled.address;
            return 0;
        }
        long (*first)(long) = (long (*)(long))(twin + move_and_return(memory - 1));
        return first(5) + ((long (*)(long))(compiled.address + move_and_return(memory)))(5);
    }
    if (is("copied") || is("moved") || is("disposed")) moved = move_and_return(memory);
    if (is("disposed")) LLVMDisposeExecutionEngine(compiled.engine);
    last = (long (*)(long))(compiled.address + moved);
    return last(5);
}

static void *manager(void *memory) {
    return LLVMCreateSimpleMCJITMemoryManager(memory, take_code, take_data, finalize, destroy);
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
    getchar();
}

int main(int count_of_words, char **words) {
    if (count_of_words < 3) return 2;
    mode = words[1];
    int count = atoi(words[2]);
    struct memory *memories = calloc(count + 1, sizeof *memories);
    long sum = 0;
    /* What malloc maps may come where something was unmapped: all of it is on the heap. */
    mallopt(M_MMAP_MAX, 0);
    llvm_begin();
    make_manager = manager;
    for (int number = 0; number < count; number++) sum += compile(&memories[number], number);
    printf("%ld\n", sum);
    if (count_of_words > 3) {
        puts("running");
        fflush(stdout);
        for (;;) sum = call_last(sum);
    }
    say("running");
    printf("%ld\n", compile(&memories[count], count));
    say("one more");
    for (int number = 0; number < count / 2; number++)
        if (!is("fails")) munmap(memories[number].start, 2 * HALF);
    say("unmapped");
    if (!is("never") && !is("fails")) return 0;
    struct memory *further = calloc(count, sizeof *further);
    for (int number = 0; number < count; number++) compile(&further[number], 1000 + number);
    say("more");
    return 0;
}
