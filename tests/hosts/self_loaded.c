/* A host that has LLVM compile objects to memory (LLVMTargetMachineEmitToMemoryBuffer), and loads them by itself.
 *
 *     self_loaded MODE COUNT [loops]
 *
 *     protect     copies the sections to memory, relocates them, and lets them run with mprotect
 *     writable    copies them to memory that may be written and executed all the time
 *     reused      the same, and each one where the one before it was
 *     equal       as protect, and compiles the same code under other names each time, which it does not load
 *     doubtful    the same, as writable
 *     linked      gives the objects to LLJIT, which links them with RuntimeDyld or JITLink, whatever this LLVM takes
 *     bpf         the same, and gives LLJIT the same code for another machine (BPF) before each
 *     file        writes the objects to /dev/null, and loads none
 *     assembly    has assembly made of them, and loads none
 *     other       compiles for another machine (BPF), and loads none
 *
 * Compiles COUNT modules. Module N has outerN, which calls innerN, and ghcN, which passes hiddenN an argument in the register of the frame
 * pointer. Nothing in them asks for frame pointers or unwind tables. Prints the sum of what they return, or of the sizes of assembly and of
 * objects for another machine, and "running"; waits for a line on standard input; compiles one more, prints "one more", and waits for another line. Then unmaps
 * the first half, prints "unmapped", and waits again. With loops, it calls the last outerN for ever when it has printed "running". */
#define _GNU_SOURCE
#include "llvm_c.h"

#include <elf.h>
#include <stdint.h>
#include <sys/mman.h>

typedef struct LLVMOpaqueTargetMachine *LLVMTargetMachineRef;
typedef struct LLVMTarget *LLVMTargetRef;
typedef struct LLVMOpaqueError *LLVMErrorRef;
char *LLVMGetDefaultTargetTriple(void);
int LLVMGetTargetFromTriple(const char *, LLVMTargetRef *, char **);
LLVMTargetMachineRef LLVMCreateTargetMachine(LLVMTargetRef, const char *, const char *, const char *, int, int, int);
int LLVMTargetMachineEmitToMemoryBuffer(LLVMTargetMachineRef, LLVMModuleRef, int, char **, LLVMMemoryBufferRef *);
void LLVMDisposeTargetMachine(LLVMTargetMachineRef);
void LLVMDisposeModule(LLVMModuleRef);
const char *LLVMGetBufferStart(LLVMMemoryBufferRef);
size_t LLVMGetBufferSize(LLVMMemoryBufferRef);
void LLVMDisposeMemoryBuffer(LLVMMemoryBufferRef);
void LLVMInitializeBPFTargetInfo(void);
void LLVMInitializeBPFTarget(void);
void LLVMInitializeBPFTargetMC(void);
void LLVMInitializeBPFAsmPrinter(void);
LLVMErrorRef LLVMOrcCreateLLJIT(void **, void *);
void *LLVMOrcLLJITGetMainJITDylib(void *);
LLVMErrorRef LLVMOrcLLJITAddObjectFile(void *, void *, LLVMMemoryBufferRef);
LLVMErrorRef LLVMOrcLLJITLookup(void *, uint64_t *, const char *);
char *LLVMGetErrorMessage(LLVMErrorRef);

enum { SIZE = 16 * 4096 };

static const char *text =
    "define i64 @outer%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call i64 @inner%1$d(i64 %%n)\n  %%b = add i64 %%a, %2$d\n  ret i64 %%b\n}\n"
    "define i64 @inner%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = mul i64 %%n, 3\n  %%b = xor i64 %%a, %2$d\n  ret i64 %%b\n}\n";

static const char *conventions =
    "define ghccc i64 @hidden%1$d(i64 %%base, i64 %%stack) nounwind noinline {\n"
    "  %%a = mul i64 %%base, %%stack\n  %%b = add i64 %%a, 5\n  ret i64 %%b\n}\n"
    "define i64 @ghc%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call ghccc i64 @hidden%1$d(i64 %%n, i64 %2$d)\n  %%b = xor i64 %%a, %%n\n  ret i64 %%b\n}\n";

static const char *mode;

static int is(const char *other) { return strcmp(mode, other) == 0; }

static int is_equal(void) { return is("equal") || is("doubtful"); }

static int is_writable(void) { return is("writable") || is("reused") || is("doubtful"); }

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check(LLVMErrorRef error) {
    if (error) fail(LLVMGetErrorMessage(error));
}

static LLVMMemoryBufferRef object(int number, int is_bpf) {
    char ir[1024], *error = NULL, *triple = is_bpf ? "bpfel" : LLVMGetDefaultTargetTriple();
    int constant = is_equal() ? 1000 + number / 2 : 1000 + number;
    int length = snprintf(ir, sizeof ir, text, number, constant);
    if (!is_bpf) snprintf(ir + length, sizeof ir - length, conventions, number, constant);
    LLVMContextRef context = LLVMContextCreate();
    LLVMModuleRef module;
    LLVMTargetRef target;
    LLVMMemoryBufferRef made, source = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "host");
    if (LLVMParseIRInContext(context, source, &module, &error) || LLVMGetTargetFromTriple(triple, &target, &error))
        fail(error);
    /* Optimized, position independent, the default code model. */
    LLVMTargetMachineRef machine = LLVMCreateTargetMachine(target, triple, "", "", 2, 2, 0);
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, !is("assembly"), &error, &made)) fail(error);
    LLVMDisposeTargetMachine(machine);
    LLVMDisposeModule(module);
    LLVMContextDispose(context);
    return made;
}

/* Copies the sections of an object to memory, one behind the other. Returns where it has put outerN, and ghcN. */
static uint8_t *load(const char *bytes, uint64_t *outer, uint64_t *ghc) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
    int protection = PROT_READ | PROT_WRITE | (is_writable() ? PROT_EXEC : 0);
    static uint8_t *pool;
    uint8_t *memory = pool ? pool : mmap(NULL, SIZE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    if (is("reused")) pool = memory;
    size_t used = 0;
    uint64_t *addresses = calloc(header->e_shnum, sizeof *addresses);
    for (int at = 0; at < header->e_shnum; at++) {
        if (!(sections[at].sh_flags & SHF_ALLOC) || sections[at].sh_type == SHT_NOBITS) continue;
        used = (used + 63) & ~(size_t)63;
        addresses[at] = (uint64_t)memory + used;
        if (used + sections[at].sh_size > SIZE) fail("too large");
        memcpy(memory + used, bytes + sections[at].sh_offset, sections[at].sh_size);
        used += sections[at].sh_size;
    }
    for (int at = 0; at < header->e_shnum; at++) {
        if (sections[at].sh_type == SHT_SYMTAB) {
            const char *names = bytes + sections[sections[at].sh_link].sh_offset;
            const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[at].sh_offset);
            for (size_t symbol = 0; symbol < sections[at].sh_size / sizeof *symbols; symbol++) {
                uint64_t address = symbols[symbol].st_value;
                if (symbols[symbol].st_shndx < header->e_shnum) address += addresses[symbols[symbol].st_shndx];
                if (!strncmp(names + symbols[symbol].st_name, "outer", 5)) *outer = address;
                if (!strncmp(names + symbols[symbol].st_name, "ghc", 3)) *ghc = address;
            }
        }
        if (sections[at].sh_type != SHT_RELA || !addresses[sections[at].sh_info]) continue;
        const Elf64_Rela *relocations = (const Elf64_Rela *)(bytes + sections[at].sh_offset);
        const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[sections[at].sh_link].sh_offset);
        for (size_t one = 0; one < sections[at].sh_size / sizeof *relocations; one++) {
            const Elf64_Sym *symbol = &symbols[ELF64_R_SYM(relocations[one].r_info)];
            uint64_t place = addresses[sections[at].sh_info] + relocations[one].r_offset;
            uint64_t value = addresses[symbol->st_shndx] + symbol->st_value + relocations[one].r_addend;
            uint32_t type = ELF64_R_TYPE(relocations[one].r_info), relative = (uint32_t)(value - place);
            if (type == R_X86_64_PC32 || type == R_X86_64_PLT32)
                memcpy((void *)place, &relative, sizeof relative);
            else if (type == R_X86_64_64)
                memcpy((void *)place, &value, sizeof value);
            else
                fail("a relocation that is not known");
        }
    }
    free(addresses);
    if (!is_writable() && mprotect(memory, SIZE, PROT_READ | PROT_EXEC)) fail("mprotect");
    return memory;
}

static uint8_t *link_with_llvm(LLVMMemoryBufferRef made, int number, uint64_t *outer, uint64_t *ghc) {
    void *engine = NULL;
    char name[32];
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    check(LLVMOrcLLJITAddObjectFile(engine, LLVMOrcLLJITGetMainJITDylib(engine), made));
    snprintf(name, sizeof name, "outer%d", number);
    check(LLVMOrcLLJITLookup(engine, outer, name));
    snprintf(name, sizeof name, "ghc%d", number);
    check(LLVMOrcLLJITLookup(engine, ghc, name));
    return NULL;
}

/* JITLink refuses it. */
static void link_bpf_with_llvm(LLVMMemoryBufferRef made, int number) {
    void *engine = NULL;
    uint64_t outer;
    char name[32];
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    check(LLVMOrcLLJITAddObjectFile(engine, LLVMOrcLLJITGetMainJITDylib(engine), made));
    snprintf(name, sizeof name, "outer%d", number);
    LLVMErrorRef error = LLVMOrcLLJITLookup(engine, &outer, name);
    if (error) LLVMGetErrorMessage(error);
}

/* The last outerN. */
static long (*last)(long);

/* What was mapped for it is put to `memory`. */
static long compile(int number, uint8_t **memory) {
    uint64_t outer = 0, ghc = 0;
    if (is_equal()) LLVMDisposeMemoryBuffer(object(number ^ 1, 0));
    if (is("bpf")) link_bpf_with_llvm(object(number, 1), number);
    LLVMMemoryBufferRef made = object(number, is("other"));
    long size = (long)LLVMGetBufferSize(made);
    if (is("file") || is("assembly") || is("other")) {
        FILE *file = fopen("/dev/null", "w");
        size_t written = fwrite(LLVMGetBufferStart(made), 1, size, file);
        fclose(file);
        LLVMDisposeMemoryBuffer(made);
        return is("file") ? written > 0 : size;
    }
    if (is("linked") || is("bpf")) {
        *memory = link_with_llvm(made, number, &outer, &ghc);
    } else {
        uint8_t *loaded = load(LLVMGetBufferStart(made), &outer, &ghc);
        if (!is("reused")) *memory = loaded;
        LLVMDisposeMemoryBuffer(made);
    }
    last = (long (*)(long))outer;
    return last(7) + ((long (*)(long))ghc)(3);
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
    uint8_t **memories = calloc(count + 1, sizeof *memories);
    long sum = 0;
    llvm_begin();
    LLVMInitializeBPFTargetInfo();
    LLVMInitializeBPFTarget();
    LLVMInitializeBPFTargetMC();
    LLVMInitializeBPFAsmPrinter();
    for (int number = 0; number < count; number++) sum += compile(number, &memories[number]);
    printf("%ld\n", sum);
    if (count_of_words > 3) {
        puts("running");
        fflush(stdout);
        for (;;) sum = last(sum);
    }
    say("running");
    printf("%ld\n", compile(count, &memories[count]));
    say("one more");
    for (int number = 0; number < count / 2; number++)
        if (memories[number]) munmap(memories[number], SIZE);
    say("unmapped");
    return 0;
}
