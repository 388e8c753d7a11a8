// Classes that have the names of LLVM's linkers and the same number of virtual functions, but are not LLVM's.
//
//     impostor MODE OBJECT
//
//     null        loads nothing
//     late        loads nothing the first time, and later reports sections at unmapped addresses
//     stranger    returns an object that belongs to another linker
//     heap        returns an object whose vtable is on the heap
//     none        returns an object without a vtable
//     data        returns an object whose vtable points to data
//     others      returns an object whose vtable points to functions of another library
//     never       loads nothing; called twenty times
//     elsewhere   reports sections at addresses that contain other bytes
//     no-file     is called with an object whose vtable is all zeros
//     no-class    is called with an object whose vtable points to data
//     foreign     as `loads`, with an object whose class is defined in another library
//     lies        reports sections at unmapped addresses
//     wild        is called with an object at an unreadable address
//     text        is called with text instead of an object file
//     emits-text, emits-wild, emits-other     the same for JITLink; emits-other passes an object for another architecture
//     loads       is a real linker: loads OBJECT, and prints the result of `listed` for 5
//     waits       the same, with more than a second between the first and the second load
//     waits-listed    instead adds OBJECT to the GDB JIT list, three times, with the same wait
//
// With -DIN_REGISTER, loadObject returns its result in a register, as in a library built with libc++'s ABI version 2.
// With -DANOTHER_RELEASE, the vtable is larger than in any known release, and the GDB JIT symbols are exported. With
// -DSAYS="VERSION", the program contains the version string of that release.
//
// Calls loadObject or emit three times (unless noted) and prints the results. Then, unless the mode loads or emits,
// adds OBJECT, a relocatable file with a function `listed`, to the GDB JIT list (through the program's own GDB JIT
// symbols, which are not exported), and prints the result of `listed` for 5.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

// Padding, so that the program's code is at least as large as LLVM's.
asm(".pushsection .text.padding, \"ax\"\n.skip 5000000, 0xcc\n.popsection");

#ifdef ANOTHER_RELEASE
#define VISIBLE "default"
#define HIDDEN_DIRECTIVE
#else
#define VISIBLE "hidden"
#define HIDDEN_DIRECTIVE ".hidden __jit_debug_register_code\n"
#endif

#ifdef SAYS
// An empty string precedes the identification, because the linker merges strings.
extern "C" __attribute__((used)) const char identification[] = "\0LLVM" SAYS;
#endif

extern "C" {
struct jit_code_entry {
    jit_code_entry *next, *previous;
    const char *object;
    uint64_t size;
};
struct jit_descriptor {
    uint32_t version, action;
    jit_code_entry *relevant, *first;
};
__attribute__((visibility(VISIBLE))) jit_descriptor __jit_debug_descriptor = {1, 0, nullptr, nullptr};
__attribute__((visibility(VISIBLE))) void __jit_debug_register_code();
}

// An empty function followed by padding, because compilers align functions.
asm(".pushsection .text.register_code, \"ax\"\n.p2align 4\n" HIDDEN_DIRECTIVE ".globl __jit_debug_register_code\n"
    ".type __jit_debug_register_code, @function\n__jit_debug_register_code:\n  ret\n"
    ".size __jit_debug_register_code, 1\n.p2align 4, 0xcc\n.popsection");

static std::string mode;
static int call_count;

struct TextSection {
    const Elf64_Shdr *section;
    void *code;
};
static TextSection loaded;
static void *vtable_of_data[6] = {&loaded, &loaded, &loaded, &loaded, &loaded, &loaded};
static void *foreign_vtable[6];

static bool loads_object() { return mode == "loads" || mode == "waits" || mode == "foreign"; }

struct Info {
    virtual ~Info() {}
    virtual uint64_t address(const Elf64_Shdr *const *section) const {
        if (mode == "elsewhere") return *section == loaded.section ? reinterpret_cast<uint64_t>(loaded.code) + 2048 : 0;
        if (loads_object()) return *section == loaded.section ? reinterpret_cast<uint64_t>(loaded.code) : 0;
        return mode == "lies" || mode == "late" ? 0x1230 : 0;
    }
    virtual void a() {}
    virtual void b() {}
    virtual void c() {}
    void *linker;
    explicit Info(void *linker) : linker(linker) {}
};

#ifdef IN_REGISTER
using LoadResult = Info *;
#else
using LoadResult = std::unique_ptr<Info>;
#endif

namespace llvm {
struct __attribute__((visibility("default"))) RuntimeDyldELF {
    virtual void f0();
    virtual void f1() {}
    virtual void f2() {}
    virtual void f3() {}
    virtual void f4() {}
    virtual void f5() {}
    virtual void f6() {}
    virtual void f7() {}
    virtual void f8() {}
    virtual void f9() {}
#ifdef ANOTHER_RELEASE
    virtual void f10() {}
    virtual void f11() {}
#endif
    virtual ~RuntimeDyldELF() {}
    virtual LoadResult loadObject(const void *) {
        if (mode == "null" || mode == "never" || (mode == "late" && call_count++ == 0)) return LoadResult(nullptr);
        Info *info = new Info(mode == "stranger" ? static_cast<void *>(&mode) : this);
        if (mode == "heap") {
            void *vtable = calloc(16, 8);
            memcpy(vtable, *reinterpret_cast<void **>(info), 48);
            memcpy(static_cast<void *>(info), &vtable, 8);
        }
        void *vtable = mode == "data" ? vtable_of_data : foreign_vtable;
        if (mode == "data" || mode == "others") memcpy(static_cast<void *>(info), &vtable, 8);
        if (mode == "none") memset(static_cast<void *>(info), 0, 8);
        return LoadResult(info);
    }
    virtual int isCompatibleFile() { return 1; }
    virtual void registerEHFrames() {}
    virtual void finalizeLoad() {}
};
void RuntimeDyldELF::f0() {}

namespace orc {
struct First {
    virtual ~First() {}
    virtual void f2() {}
    virtual void f3() {}
    virtual void f4() {}
    virtual void f5() {}
};
struct Second {
    virtual ~Second() {}
    virtual void g2() {}
    virtual void g3() {}
};
struct __attribute__((visibility("default"))) ObjectLinkingLayer : First, Second {
    virtual void emit(std::unique_ptr<std::string> responsible, std::unique_ptr<std::vector<char>> buffer);
    virtual void f7() {}
    virtual void f8() {}
};
void ObjectLinkingLayer::emit(std::unique_ptr<std::string> responsible, std::unique_ptr<std::vector<char>> buffer) {
    printf("%s %d\n", responsible->c_str(), buffer != nullptr);
    buffer.release();
}
} // namespace orc
} // namespace llvm

static std::vector<char> read_file(const char *path) {
    std::vector<char> bytes;
    FILE *file = fopen(path, "rb");
    if (!file) return bytes;
    for (int byte; (byte = fgetc(file)) != EOF;) bytes.push_back(static_cast<char>(byte));
    fclose(file);
    return bytes;
}

// Copies the text section of an object to writable memory.
static TextSection load(std::vector<char> &object) {
    auto *header = reinterpret_cast<Elf64_Ehdr *>(object.data());
    auto *sections = reinterpret_cast<Elf64_Shdr *>(object.data() + header->e_shoff);
    for (int index = 0; index < header->e_shnum; index++) {
        Elf64_Shdr &section = sections[index];
        if (!(section.sh_flags & SHF_EXECINSTR) || !section.sh_size) continue;
        void *code = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(code, object.data() + section.sh_offset, section.sh_size);
        return {&section, code};
    }
    return {nullptr, nullptr};
}

static void make_executable_and_call(TextSection text) {
    mprotect(text.code, 4096, PROT_READ | PROT_EXEC);
    printf("%ld\n", reinterpret_cast<long (*)(long)>(text.code)(5));
}

static void add_to_debugger_list(std::vector<char> &object) {
    TextSection text = load(object);
    const_cast<Elf64_Shdr *>(text.section)->sh_addr = reinterpret_cast<uint64_t>(text.code);
    auto *entry = new jit_code_entry{nullptr, nullptr, object.data(), object.size()};
    __jit_debug_descriptor = {1, 1, entry, entry};
    mprotect(text.code, 4096, PROT_READ | PROT_EXEC);
    __jit_debug_register_code();
    make_executable_and_call(text);
}

static int emit_objects(std::vector<char> bytes) {
    if (mode == "emits-other") reinterpret_cast<Elf64_Ehdr *>(bytes.data())->e_machine = EM_S390;
    // Layout of llvm::MemoryBuffer: vtable pointer, start and end of its bytes.
    const void *buffer[3] = {nullptr, bytes.data(), bytes.data() + bytes.size()};
    if (mode == "emits-wild") buffer[1] = reinterpret_cast<void *>(0x1000);
    llvm::orc::ObjectLinkingLayer *volatile layer = new llvm::orc::ObjectLinkingLayer;
    for (int turn = 0; turn < 3; turn++)
        layer->emit(std::make_unique<std::string>("emitted"),
                    std::unique_ptr<std::vector<char>>(reinterpret_cast<std::vector<char> *>(buffer)));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    mode = argv[1];
    std::vector<char> object = read_file(argv[2]);
    std::string text(4096, 'x');
    // Layout of llvm::object::Binary: vtable pointer, type ID, start and size of its bytes.
    struct {
        void *functions;
        uint64_t kind;
        const void *data;
        size_t size;
    } binary = {*reinterpret_cast<void **>(new Info(nullptr)), 0, object.data(), object.size()};
    if (mode == "wild") binary.data = reinterpret_cast<void *>(0x1000);
    if (mode == "text") binary.data = text.data(), binary.size = text.size();
    if (mode.rfind("emits-", 0) == 0) return emit_objects(mode == "emits-text" ? std::vector<char>(text.begin(), text.end()) : object);
    std::fill(foreign_vtable, foreign_vtable + 6, reinterpret_cast<void *>(&puts));
    std::runtime_error foreign("");
    if (mode == "foreign") binary.functions = *reinterpret_cast<void **>(&foreign);
    if (mode == "no-file") binary.functions = calloc(16, 8);
    if (mode == "no-class") binary.functions = vtable_of_data;
    bool uses_debugger_list = mode == "waits-listed";
    int turns = mode == "never" ? 20 : 3;
    llvm::RuntimeDyldELF *volatile linker = new llvm::RuntimeDyldELF;
    for (int turn = 0; turn < turns; turn++) {
        if (uses_debugger_list) add_to_debugger_list(object);
        if (loads_object() || mode == "elsewhere") loaded = load(object);
        if (mode == "elsewhere") memset(static_cast<char *>(loaded.code) + 2048, 0xcc, 1024);
        LoadResult info = linker->loadObject(mode == "wild" && turn == 1 ? reinterpret_cast<const void *>(8) : &binary);
        printf("%d %d\n", turn, info != nullptr);
        if (loads_object()) make_executable_and_call(loaded);
        new LoadResult(std::move(info));
        if (mode.rfind("waits", 0) == 0 && turn == 0) usleep(1100000);
    }
    if (!loads_object() && !uses_debugger_list) add_to_debugger_list(object);
    return 0;
}
