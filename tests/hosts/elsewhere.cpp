// A host that links code for a place where it is not written yet, as Julia does: the place may run all the time, and nothing is called
// when code comes there.
//
//     elsewhere MODE COUNT
//
//     mem       LLVM writes to a buffer, the same for each object; what is linked goes to its place through /proc/self/mem
//     shared    the place is mapped twice, and LLVM writes through the second mapping
//     equal     as mem, but all functions are equal, and all objects are loaded before the first is linked
//
// Compiles COUNT functions elsewhere0, elsewhere1, ..., each in an engine of its own, prints the sum of what they return and "running", waits for a
// line on standard input, and prints the address of each. Built for the LLVM whose headers are there.
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

const size_t SIZE = 1 << 20;
bool is_shared, is_equal;

// Code in the first half, unwind tables and other data in the second. Both may run: data does no harm there.
struct Place {
    uint8_t *runs, *written;
    size_t code = 0, data = SIZE / 2;

    Place() {
        if (is_shared) {
            int file = memfd_create("elsewhere", 0);
            if (ftruncate(file, SIZE)) exit(1);
            runs = map(file, MAP_SHARED);
            written = map(file, MAP_SHARED);
        } else {
            runs = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
            written = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
        }
        if (mprotect(runs, SIZE, PROT_READ | PROT_EXEC)) exit(1);
    }

    static uint8_t *map(int file, int flags) {
        void *mapped = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, flags, file, 0);
        if (mapped == MAP_FAILED) exit(1);
        return static_cast<uint8_t *>(mapped);
    }
};

Place *place;

struct Part {
    uint8_t *written, *runs;
    size_t size;
};

class Manager : public llvm::RTDyldMemoryManager {
    std::vector<Part> parts;
    std::vector<uint64_t> tables;
    // Of the buffer, which each object has for itself: the next one is written over it.
    size_t used = 0;

    uint8_t *take(size_t &next, size_t size, size_t alignment) {
        next = (next + alignment - 1) & ~(alignment - 1);
        used = (used + alignment - 1) & ~(alignment - 1);
        // Of equal objects that are loaded at once, none is written over another.
        uint8_t *written = place->written + (is_shared || is_equal ? next : used);
        parts.push_back({written, place->runs + next, size});
        next += size, used += size;
        if (next > SIZE || used > SIZE) exit(1);
        return written;
    }

public:
    uint8_t *allocateCodeSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef) override {
        return take(place->code, size, alignment ? alignment : 16);
    }

    uint8_t *allocateDataSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef, bool) override {
        return take(place->data, size, alignment ? alignment : 16);
    }

    void notifyObjectLoaded(llvm::ExecutionEngine *engine, const llvm::object::ObjectFile &) override {
        for (auto &part : parts) engine->mapSectionAddress(part.written, reinterpret_cast<uint64_t>(part.runs));
    }

    void registerEHFrames(uint8_t *, uint64_t address, size_t) override { tables.push_back(address); }
    void deregisterEHFrames() override {}

    bool finalizeMemory(std::string *) override {
        int file = is_shared ? -1 : open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        for (auto &part : parts) {
            auto size = static_cast<ssize_t>(part.size);
            auto at = static_cast<off_t>(reinterpret_cast<uint64_t>(part.runs));
            if (!is_shared && pwrite(file, part.written, part.size, at) != size) exit(1);
        }
        if (file >= 0) close(file);
        for (uint64_t table : tables) __register_frame(reinterpret_cast<const void *>(table));
        parts.clear(), tables.clear();
        return false;
    }
};

struct Engine {
    std::unique_ptr<llvm::ExecutionEngine> engine;
    llvm::Module *module;
};

Engine engine_of(llvm::LLVMContext &context, int number) {
    std::string name = "elsewhere" + std::to_string(number);
    std::string text = "define i64 @" + name + "(i64 %n) uwtable \"frame-pointer\"=\"all\" {\n  %a = mul i64 %n, 3\n  %b = add i64 %a, " +
                       std::to_string(is_equal ? 7 : 1000 + number) + "\n  %c = xor i64 %b, %n\n  ret i64 %c\n}\n";
    llvm::SMDiagnostic error;
    auto module = llvm::parseAssemblyString(text, error, context);
    if (!module) exit(1);
    Engine made = {nullptr, module.get()};
    llvm::EngineBuilder builder(std::move(module));
    builder.setMCJITMemoryManager(std::make_unique<Manager>());
    made.engine.reset(builder.create());
    if (!made.engine) exit(1);
    return made;
}

} // namespace

int main(int count_of_words, char **words) {
    if (count_of_words < 3) return 2;
    is_shared = !strcmp(words[1], "shared");
    is_equal = !strcmp(words[1], "equal");
    int count = atoi(words[2]);
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    static Place whole;
    place = &whole;
    llvm::LLVMContext context;
    std::vector<Engine> engines;
    std::vector<uint64_t> addresses;
    long sum = 0;
    if (is_equal)
        for (int number = 0; number < count; number++) {
            engines.push_back(engine_of(context, number));
            engines.back().engine->generateCodeForModule(engines.back().module);
        }
    for (int number = 0; number < count; number++) {
        if (!is_equal) engines.push_back(engine_of(context, number));
        addresses.push_back(engines[number].engine->getFunctionAddress("elsewhere" + std::to_string(number)));
        sum += reinterpret_cast<long (*)(long)>(addresses.back())(5);
    }
    printf("%ld\n", sum);
    puts("running");
    fflush(stdout);
    getchar();
    for (int number = 0; number < count; number++) printf("elsewhere%d %lx\n", number, static_cast<unsigned long>(addresses[number]));
}
