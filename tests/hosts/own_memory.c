/* A host with its own memory manager, through LLVM's C API. Only the program calls mprotect, never LLVM.
 *
 *     own_memory MODE COUNT [loops]
 *
 *     protect     maps memory, and makes it executable with mprotect
 *     pkey        the same with pkey_mprotect
 *     unheard     the same with a raw system call, which no hook can see
 *     writable    maps memory that is writable and executable all the time
 *     early       the same, mapped by a raw system call
 *     copied      links in heap memory, and copies the code to executable memory
 *     twins       as copied, but in pairs, after both are linked; the two differ only in the names of their functions
 *     same        as twins, but the names are identical, too
 *     disposed    links in memory that it frees after the code is copied, before the engine ends; no function has an unwind
 *                 table, so LLVM has no reason to access that memory again
 *     moved       links in memory that is moved (mremap) before it becomes executable
 *     never       links, but makes nothing executable
 *     fails       uses LLVM's own memory, and links code with an undefined function: every link fails
 *
 * Compiles COUNT functions own0, own1, ..., each in its own engine, and prints the sum of their results and "running".
 * Waits for a line on standard input, compiles and calls another function, and waits for a line. Then unmaps the code
 * of the first half, prints "unmapped", and waits. With never and fails, compiles COUNT more, prints "more", and waits.
 * With loops, it prints "running" and calls the last function forever. */
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

enum { PAGE_BYTES = 4096, HALF_BYTES = 4 * PAGE_BYTES };

/* Memory for one engine: code in the first half, data in the second. */
struct memory {
    uint8_t *start;
    size_t code, data;
};

static const char *mode;

static int is_mode(const char *name) { return strcmp(mode, name) == 0; }

/* Returns true if the mode links in heap memory and copies the code. */
static int is_copied(void) { return is_mode("copied") || is_mode("twins") || is_mode("same"); }

static uint8_t *map(int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *mapped;
    if (is_mode("early"))
        mapped = (void *)syscall(SYS_mmap, NULL, 2 * HALF_BYTES, protection, flags, -1, 0);
    else
        mapped = mmap(NULL, 2 * HALF_BYTES, protection, flags, -1, 0);
    if (mapped == MAP_FAILED) exit(1);
    return mapped;
}

static void allocate_memory(struct memory *memory) {
    int extra_protection = is_mode("writable") || is_mode("early") ? PROT_EXEC : 0;
    memory->code = memory->data = 0;
    if (is_copied()) {
        memory->start = aligned_alloc(PAGE_BYTES, 2 * HALF_BYTES);
        memset(memory->start, 0, 2 * HALF_BYTES);
    } else {
        memory->start = map(PROT_READ | PROT_WRITE | extra_protection);
    }
}

static uint8_t *allocate(size_t *used, uint8_t *start, size_t size, size_t alignment) {
    *used = (*used + alignment - 1) & ~(alignment - 1);
    uint8_t *result = start + *used;
    *used += size;
    if (*used > HALF_BYTES) exit(1);
    return result;
}

static uint8_t *allocate_code_section(void *memory, uintptr_t size, unsigned alignment, unsigned id, const char *name) {
    (void)id, (void)name;
    struct memory *engine_memory = memory;
    return allocate(&engine_memory->code, engine_memory->start, size, alignment ? alignment : 16);
}

static uint8_t *allocate_data_section(void *memory, uintptr_t size, unsigned alignment, unsigned id, const char *name, int fixed) {
    (void)id, (void)name, (void)fixed;
    struct memory *engine_memory = memory;
    return allocate(&engine_memory->data, engine_memory->start + HALF_BYTES, size, alignment ? alignment : 16);
}

static void make_executable(uint8_t *code) {
    int protection = PROT_READ | PROT_EXEC, failed = 0;
    if (is_mode("pkey"))
        failed = pkey_mprotect(code, HALF_BYTES, protection, -1);
    else if (is_mode("unheard"))
        failed = syscall(SYS_mprotect, code, HALF_BYTES, protection) != 0;
    else if (!is_mode("writable") && !is_mode("early") && !is_mode("never"))
        failed = mprotect(code, HALF_BYTES, protection);
    if (failed) exit(1);
}

static int finalize(void *memory, char **error) {
    (void)error;
    struct memory *engine_memory = memory;
    if (!is_copied() && !is_mode("moved") && !is_mode("disposed")) make_executable(engine_memory->start);
    return 0;
}

static void destroy(void *memory) { (void)memory; }

static void move_code(struct memory *memory) {
    uint8_t *target = map(PROT_READ | PROT_WRITE);
    if (is_mode("disposed")) {
        memcpy(target, memory->start, 2 * HALF_BYTES);
        make_executable(target);
        munmap(memory->start, 2 * HALF_BYTES);
        memory->start = target;
        return;
    }
    if (is_copied()) {
        memcpy(target, memory->start, 2 * HALF_BYTES);
        free(memory->start);
    } else if (mremap(memory->start, 2 * HALF_BYTES, 2 * HALF_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, target) != target) {
        exit(1);
    }
    memory->start = target;
    make_executable(target);
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

/* Links code with an undefined function: the linker frees its memory on that error. */
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
    LLVMErrorRef error_result = LLVMOrcLLJITLookup(engine, &address, name);
    if (!error_result) exit(1);
    LLVMConsumeError(error_result);
    LLVMOrcDisposeLLJIT(engine);
    return 1;
}

/* Address of the most recent function. */
static long (*last_function)(long);

static __attribute__((noinline)) long call_last(long n) { return last_function(n) + 1; }

/* Moves the code and returns how far it was moved. */
static long move_and_get_distance(struct memory *memory) {
    uint8_t *before = memory->start;
    move_code(memory);
    return memory->start - before;
}

static long compile(struct memory *memory, int number) {
    static long first_of_pair;
    if (is_mode("fails")) return fail_to_link(number);
    char text[256], name[16];
    const char *attributes = is_mode("disposed") ? "nounwind" : "uwtable \"frame-pointer\"=\"all\"";
    int in_pairs = is_mode("twins") || is_mode("same");
    snprintf(name, sizeof name, "own%d", is_mode("same") ? number / 2 : number);
    snprintf(text, sizeof text,
             "define i64 @%s(i64 %%n) %s {\n"
             "  %%a = mul i64 %%n, 3\n  %%b = add i64 %%a, %d\n  %%c = xor i64 %%b, %%n\n  ret i64 %%c\n}\n",
             name, attributes, 1000 + (in_pairs ? number / 2 : number));
    allocate_memory(memory);
    struct compiled compiled = compile_with(text, name, memory);
    if (is_mode("never")) return 0;
    long distance = 0;
    if (in_pairs) {
        if (number % 2 == 0) {
            first_of_pair = compiled.address;
            return 0;
        }
        long (*first_function)(long) = (long (*)(long))(first_of_pair + move_and_get_distance(memory - 1));
        return first_function(5) + ((long (*)(long))(compiled.address + move_and_get_distance(memory)))(5);
    }
    if (is_mode("copied") || is_mode("moved") || is_mode("disposed")) distance = move_and_get_distance(memory);
    if (is_mode("disposed")) LLVMDisposeExecutionEngine(compiled.engine);
    last_function = (long (*)(long))(compiled.address + distance);
    return last_function(5);
}

static void *create_manager(void *memory) {
    return LLVMCreateSimpleMCJITMemoryManager(memory, allocate_code_section, allocate_data_section, finalize, destroy);
}

static void print_and_wait(const char *line) {
    puts(line);
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    mode = argv[1];
    int count = atoi(argv[2]);
    struct memory *memories = calloc(count + 1, sizeof *memories);
    long sum = 0;
    /* Keep malloc from mapping memory, which could reuse an unmapped address. */
    mallopt(M_MMAP_MAX, 0);
    initialize_llvm();
    make_manager = create_manager;
    for (int number = 0; number < count; number++) sum += compile(&memories[number], number);
    printf("%ld\n", sum);
    if (argc > 3) {
        puts("running");
        fflush(stdout);
        for (;;) sum = call_last(sum);
    }
    print_and_wait("running");
    printf("%ld\n", compile(&memories[count], count));
    print_and_wait("one more");
    for (int number = 0; number < count / 2; number++)
        if (!is_mode("fails")) munmap(memories[number].start, 2 * HALF_BYTES);
    print_and_wait("unmapped");
    if (!is_mode("never") && !is_mode("fails")) return 0;
    struct memory *more_memories = calloc(count, sizeof *more_memories);
    for (int number = 0; number < count; number++) compile(&more_memories[number], 1000 + number);
    print_and_wait("more");
    return 0;
}
