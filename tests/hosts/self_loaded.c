/* A host that lets LLVM compile objects to memory (LLVMTargetMachineEmitToMemoryBuffer), and loads them itself.
 *
 *     self_loaded MODE COUNT [loops]
 *
 *     protect     copies the sections to memory, relocates them, and makes them executable with mprotect
 *     writable    copies them to memory that is writable and executable all the time
 *     reused      the same, but each object overwrites its predecessor
 *     equal       as protect, but also compiles the same code under other names each time, without loading it
 *     doubtful    as equal, but in memory as for writable
 *     linked      passes the objects to LLJIT, which links them with RuntimeDyld or JITLink, depending on the LLVM release
 *     bpf         the same, but first passes LLJIT the same code for another architecture (BPF) each time
 *     file        writes the objects to /dev/null and loads none
 *     assembly    compiles to assembly instead of objects, and loads nothing
 *     other       compiles for another architecture (BPF), and loads nothing
 *
 * Compiles COUNT modules. Module N contains outerN, which calls innerN, and ghcN, which passes hiddenN an argument in
 * the frame-pointer register. No function requests frame pointers or unwind tables. Prints the sum of the results, or
 * of the sizes of the assembly or BPF objects, and "running"; waits for a line on standard input; compiles another
 * module, prints "one more", and waits for a line. Then unmaps the first half, prints "unmapped", and waits again. With
 * loops, it prints "running" and calls the last outerN forever. */
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

static const char *functions_ir =
    "define i64 @outer%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call i64 @inner%1$d(i64 %%n)\n  %%b = add i64 %%a, %2$d\n  ret i64 %%b\n}\n"
    "define i64 @inner%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = mul i64 %%n, 3\n  %%b = xor i64 %%a, %2$d\n  ret i64 %%b\n}\n";

static const char *ghc_functions_ir =
    "define ghccc i64 @hidden%1$d(i64 %%base, i64 %%stack) nounwind noinline {\n"
    "  %%a = mul i64 %%base, %%stack\n  %%b = add i64 %%a, 5\n  ret i64 %%b\n}\n"
    "define i64 @ghc%1$d(i64 %%n) nounwind noinline {\n"
    "  %%a = call ghccc i64 @hidden%1$d(i64 %%n, i64 %2$d)\n  %%b = xor i64 %%a, %%n\n  ret i64 %%b\n}\n";

static const char *mode;

static int is_mode(const char *name) { return strcmp(mode, name) == 0; }

static int is_equal(void) { return is_mode("equal") || is_mode("doubtful"); }

static int is_writable(void) { return is_mode("writable") || is_mode("reused") || is_mode("doubtful"); }

static void fail(const char *message) {
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void check(LLVMErrorRef error) {
    if (error) fail(LLVMGetErrorMessage(error));
}

static LLVMMemoryBufferRef compile_object(int number, int is_bpf) {
    char ir[1024], *error = NULL, *triple = is_bpf ? "bpfel" : LLVMGetDefaultTargetTriple();
    int constant = is_equal() ? 1000 + number / 2 : 1000 + number;
    int length = snprintf(ir, sizeof ir, functions_ir, number, constant);
    if (!is_bpf) snprintf(ir + length, sizeof ir - length, ghc_functions_ir, number, constant);
    LLVMContextRef context = LLVMContextCreate();
    LLVMModuleRef module;
    LLVMTargetRef target;
    LLVMMemoryBufferRef object, source = LLVMCreateMemoryBufferWithMemoryRangeCopy(ir, strlen(ir), "host");
    if (LLVMParseIRInContext(context, source, &module, &error) || LLVMGetTargetFromTriple(triple, &target, &error))
        fail(error);
    /* The numeric arguments are CodeGenLevelDefault, PIC and CodeModelDefault. */
    LLVMTargetMachineRef machine = LLVMCreateTargetMachine(target, triple, "", "", 2, 2, 0);
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, !is_mode("assembly"), &error, &object)) fail(error);
    LLVMDisposeTargetMachine(machine);
    LLVMDisposeModule(module);
    LLVMContextDispose(context);
    return object;
}

/* Copies an object's sections to memory, one after another, and returns the memory. Sets the addresses of outerN and
 * ghcN. */
static uint8_t *load(const char *bytes, uint64_t *outer, uint64_t *ghc) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
    int protection = PROT_READ | PROT_WRITE | (is_writable() ? PROT_EXEC : 0);
    static uint8_t *reused_memory;
    uint8_t *memory = reused_memory ? reused_memory : mmap(NULL, SIZE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    if (is_mode("reused")) reused_memory = memory;
    size_t used = 0;
    uint64_t *addresses = calloc(header->e_shnum, sizeof *addresses);
    for (int i = 0; i < header->e_shnum; i++) {
        if (!(sections[i].sh_flags & SHF_ALLOC) || sections[i].sh_type == SHT_NOBITS) continue;
        used = (used + 63) & ~(size_t)63;
        addresses[i] = (uint64_t)memory + used;
        if (used + sections[i].sh_size > SIZE) fail("too large");
        memcpy(memory + used, bytes + sections[i].sh_offset, sections[i].sh_size);
        used += sections[i].sh_size;
    }
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB) {
            const char *names = bytes + sections[sections[i].sh_link].sh_offset;
            const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[i].sh_offset);
            for (size_t symbol = 0; symbol < sections[i].sh_size / sizeof *symbols; symbol++) {
                uint64_t address = symbols[symbol].st_value;
                if (symbols[symbol].st_shndx < header->e_shnum) address += addresses[symbols[symbol].st_shndx];
                if (!strncmp(names + symbols[symbol].st_name, "outer", 5)) *outer = address;
                if (!strncmp(names + symbols[symbol].st_name, "ghc", 3)) *ghc = address;
            }
        }
        if (sections[i].sh_type != SHT_RELA || !addresses[sections[i].sh_info]) continue;
        const Elf64_Rela *relocations = (const Elf64_Rela *)(bytes + sections[i].sh_offset);
        const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes + sections[sections[i].sh_link].sh_offset);
        for (size_t relocation = 0; relocation < sections[i].sh_size / sizeof *relocations; relocation++) {
            const Elf64_Sym *symbol = &symbols[ELF64_R_SYM(relocations[relocation].r_info)];
            uint64_t patch_address = addresses[sections[i].sh_info] + relocations[relocation].r_offset;
            uint64_t value = addresses[symbol->st_shndx] + symbol->st_value + relocations[relocation].r_addend;
            uint32_t type = ELF64_R_TYPE(relocations[relocation].r_info), relative = (uint32_t)(value - patch_address);
            if (type == R_X86_64_PC32 || type == R_X86_64_PLT32)
                memcpy((void *)patch_address, &relative, sizeof relative);
            else if (type == R_X86_64_64)
                memcpy((void *)patch_address, &value, sizeof value);
            else
                fail("a relocation that is not known");
        }
    }
    free(addresses);
    if (!is_writable() && mprotect(memory, SIZE, PROT_READ | PROT_EXEC)) fail("mprotect");
    return memory;
}

static uint8_t *link_with_llvm(LLVMMemoryBufferRef object, int number, uint64_t *outer, uint64_t *ghc) {
    void *engine = NULL;
    char name[32];
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    check(LLVMOrcLLJITAddObjectFile(engine, LLVMOrcLLJITGetMainJITDylib(engine), object));
    snprintf(name, sizeof name, "outer%d", number);
    check(LLVMOrcLLJITLookup(engine, outer, name));
    snprintf(name, sizeof name, "ghc%d", number);
    check(LLVMOrcLLJITLookup(engine, ghc, name));
    return NULL;
}

/* Passes LLJIT a BPF object, which JITLink rejects. */
static void link_bpf_with_llvm(LLVMMemoryBufferRef object, int number) {
    void *engine = NULL;
    uint64_t outer;
    char name[32];
    check(LLVMOrcCreateLLJIT(&engine, NULL));
    check(LLVMOrcLLJITAddObjectFile(engine, LLVMOrcLLJITGetMainJITDylib(engine), object));
    snprintf(name, sizeof name, "outer%d", number);
    LLVMErrorRef error = LLVMOrcLLJITLookup(engine, &outer, name);
    if (error) LLVMGetErrorMessage(error);
}

/* Address of outerN in the most recent module. */
static long (*last_outer)(long);

/* Compiles module `number`, and stores the address of its memory in `memory`. Returns the sum of its functions'
 * results, or a size. */
static long compile(int number, uint8_t **memory) {
    uint64_t outer = 0, ghc = 0;
    if (is_equal()) LLVMDisposeMemoryBuffer(compile_object(number ^ 1, 0));
    if (is_mode("bpf")) link_bpf_with_llvm(compile_object(number, 1), number);
    LLVMMemoryBufferRef object = compile_object(number, is_mode("other"));
    long size = (long)LLVMGetBufferSize(object);
    if (is_mode("file") || is_mode("assembly") || is_mode("other")) {
        FILE *file = fopen("/dev/null", "w");
        size_t written = fwrite(LLVMGetBufferStart(object), 1, size, file);
        fclose(file);
        LLVMDisposeMemoryBuffer(object);
        return is_mode("file") ? written > 0 : size;
    }
    if (is_mode("linked") || is_mode("bpf")) {
        *memory = link_with_llvm(object, number, &outer, &ghc);
    } else {
        uint8_t *loaded = load(LLVMGetBufferStart(object), &outer, &ghc);
        if (!is_mode("reused")) *memory = loaded;
        LLVMDisposeMemoryBuffer(object);
    }
    last_outer = (long (*)(long))outer;
    return last_outer(7) + ((long (*)(long))ghc)(3);
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
    uint8_t **memories = calloc(count + 1, sizeof *memories);
    long sum = 0;
    initialize_llvm();
    LLVMInitializeBPFTargetInfo();
    LLVMInitializeBPFTarget();
    LLVMInitializeBPFTargetMC();
    LLVMInitializeBPFAsmPrinter();
    for (int number = 0; number < count; number++) sum += compile(number, &memories[number]);
    printf("%ld\n", sum);
    if (argc > 3) {
        puts("running");
        fflush(stdout);
        for (;;) sum = last_outer(sum);
    }
    print_and_wait("running");
    printf("%ld\n", compile(count, &memories[count]));
    print_and_wait("one more");
    for (int number = 0; number < count / 2; number++)
        if (memories[number]) munmap(memories[number], SIZE);
    print_and_wait("unmapped");
    return 0;
}
