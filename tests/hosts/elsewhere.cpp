// A host that, like Julia, links code for an address and writes the code there only later. That memory may be
// executable all the time, and no function call announces the write.
//
//     elsewhere MODE COUNT
//
//     mem       LLVM writes to a buffer that all objects reuse; the linked code is copied through /proc/self/mem
//     shared    the memory is mapped twice, and LLVM writes through the second mapping
//     equal     as mem, but all functions are equal, and all objects are loaded before the first is linked
//
// Compiles COUNT functions elsewhere0, elsewhere1, ..., each in its own engine, and prints the sum of their results and
// "running". Then waits for a line on standard input, and prints the address of each function. Must be compiled with
// the headers of the LLVM it links to.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <llvm/AsmParser/Parser.h>
#include <llvm/ExecutionEngine/ExecutionEngine.h>
#include <llvm/ExecutionEngine/MCJIT.h>
#include <llvm/ExecutionEngine/RTDyldMemoryManager.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>

extern "C" void __register_frame(const void *);

namespace {

const size_t ARENA_BYTES = 1 << 20;
bool is_shared, is_equal;

// Memory for linked code: code in the first half, unwind tables and other data in the second. Both halves are
// executable.
struct Arena {
    uint8_t *executable_view, *write_view;
    size_t code = 0, data = ARENA_BYTES / 2;

    Arena() {
        if (is_shared) {
            int file = memfd_create("elsewhere", 0);
            if (ftruncate(file, ARENA_BYTES)) exit(1);
            executable_view = map(file, MAP_SHARED);
            write_view = map(file, MAP_SHARED);
        } else {
            executable_view = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
            write_view = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
        }
        if (mprotect(executable_view, ARENA_BYTES, PROT_READ | PROT_EXEC)) exit(1);
    }

    static uint8_t *map(int file, int flags) {
        void *mapped = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
        if (mapped == MAP_FAILED) exit(1);
        return static_cast<uint8_t *>(mapped);
    }
};

Arena *arena;

struct Section {
    uint8_t *write_address, *executable_address;
    size_t size;
};

class Manager : public llvm::RTDyldMemoryManager {
    std::vector<Section> sections;
    std::vector<uint64_t> unwind_tables;
    // Bytes of the buffer in use. Each object starts at offset 0 and overwrites its predecessor.
    size_t buffer_used = 0;

    uint8_t *allocate(size_t &arena_used, size_t size, size_t alignment) {
        arena_used = (arena_used + alignment - 1) & ~(alignment - 1);
        buffer_used = (buffer_used + alignment - 1) & ~(alignment - 1);
        // With `equal`, all objects are loaded before the first is linked, so they must not overwrite each other.
        uint8_t *write_address = arena->write_view + (is_shared || is_equal ? arena_used : buffer_used);
        sections.push_back({write_address, arena->executable_view + arena_used, size});
        arena_used += size, buffer_used += size;
        if (arena_used > ARENA_BYTES || buffer_used > ARENA_BYTES) exit(1);
        return write_address;
    }

public:
    uint8_t *allocateCodeSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef) override {
        return allocate(arena->code, size, alignment ? alignment : 16);
    }

    uint8_t *allocateDataSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef, bool) override {
        return allocate(arena->data, size, alignment ? alignment : 16);
    }

    void notifyObjectLoaded(llvm::ExecutionEngine *engine, const llvm::object::ObjectFile &) override {
        for (auto &section : sections) engine->mapSectionAddress(section.write_address, reinterpret_cast<uint64_t>(section.executable_address));
    }

    void registerEHFrames(uint8_t *, uint64_t address, size_t) override { unwind_tables.push_back(address); }
    void deregisterEHFrames() override {}

    bool finalizeMemory(std::string *) override {
        int file = is_shared ? -1 : open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        for (auto &section : sections) {
            auto size = static_cast<ssize_t>(section.size);
            auto address = static_cast<off_t>(reinterpret_cast<uint64_t>(section.executable_address));
            if (!is_shared && pwrite(file, section.write_address, section.size, address) != size) exit(1);
        }
        if (file >= 0) close(file);
        for (uint64_t table : unwind_tables) __register_frame(reinterpret_cast<const void *>(table));
        sections.clear(), unwind_tables.clear();
        return false;
    }
};

struct Engine {
    std::unique_ptr<llvm::ExecutionEngine> engine;
    llvm::Module *module;
};

Engine create_engine(llvm::LLVMContext &context, int number) {
    std::string name = "elsewhere" + std::to_string(number);
    std::string text = "define i64 @" + name + "(i64 %n) uwtable \"frame-pointer\"=\"all\" {\n  %a = mul i64 %n, 3\n  %b = add i64 %a, " +
                       std::to_string(is_equal ? 7 : 1000 + number) + "\n  %c = xor i64 %b, %n\n  ret i64 %c\n}\n";
    llvm::SMDiagnostic error;
    auto module = llvm::parseAssemblyString(text, error, context);
    if (!module) exit(1);
    Engine result = {nullptr, module.get()};
    llvm::EngineBuilder builder(std::move(module));
    builder.setMCJITMemoryManager(std::make_unique<Manager>());
    result.engine.reset(builder.create());
    if (!result.engine) exit(1);
    return result;
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    is_shared = !strcmp(argv[1], "shared");
    is_equal = !strcmp(argv[1], "equal");
    int count = atoi(argv[2]);
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    static Arena static_arena;
    arena = &static_arena;
    llvm::LLVMContext context;
    std::vector<Engine> engines;
    std::vector<uint64_t> addresses;
    long sum = 0;
    if (is_equal)
        for (int number = 0; number < count; number++) {
            engines.push_back(create_engine(context, number));
            engines.back().engine->generateCodeForModule(engines.back().module);
        }
    for (int number = 0; number < count; number++) {
        if (!is_equal) engines.push_back(create_engine(context, number));
        addresses.push_back(engines[number].engine->getFunctionAddress("elsewhere" + std::to_string(number)));
        sum += reinterpret_cast<long (*)(long)>(addresses.back())(5);
    }
    printf("%ld\n", sum);
    puts("running");
    fflush(stdout);
    getchar();
    for (int number = 0; number < count; number++) printf("elsewhere%d %lx\n", number, static_cast<unsigned long>(addresses[number]));
}
