// A host that destroys its engines and keeps their code, as llvmpipe does: the engine's memory manager only passes on
// to another one, which outlives it.
//
//     keeps_code COUNT   compiles COUNT functions, each in an engine of its own that is destroyed at once; prints "running",
//                        calls them all until a line comes on standard input, frees the code, prints "freed" and
//                        waits for another line.
#include <llvm/ExecutionEngine/ExecutionEngine.h>
#include <llvm/ExecutionEngine/MCJIT.h>
#include <llvm/ExecutionEngine/RTDyldMemoryManager.h>
#include <llvm/ExecutionEngine/SectionMemoryManager.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/IRReader/IRReader.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using namespace llvm;

// Passes everything on; what it passes on to is not destroyed with it.
class Borrowed final : public RTDyldMemoryManager {
    SectionMemoryManager &real;

public:
    explicit Borrowed(SectionMemoryManager &real) : real(real) {}
    uint8_t *allocateCodeSection(uintptr_t size, unsigned alignment, unsigned id, StringRef name) override {
        return real.allocateCodeSection(size, alignment, id, name);
    }
    uint8_t *allocateDataSection(uintptr_t size, unsigned alignment, unsigned id, StringRef name, bool constant) override {
        return real.allocateDataSection(size, alignment, id, name, constant);
    }
    void registerEHFrames(uint8_t *, uint64_t, size_t) override {}
    void deregisterEHFrames() override {}
    bool finalizeMemory(std::string *error) override { return real.finalizeMemory(error); }
};

using Kept = int (*)(int);

static Kept compile(SectionMemoryManager &memory, int number) {
    std::string text = "define i32 @kept" + std::to_string(number) + "(i32 %x) uwtable \"frame-pointer\"=\"all\" {\n" +
                       "  %y = add i32 %x, " + std::to_string(number) + "\n  ret i32 %y\n}\n";
    LLVMContext context;
    SMDiagnostic diagnostic;
    std::unique_ptr<Module> module = parseIR(MemoryBufferRef(text, "keeps_code"), diagnostic, context);
    std::unique_ptr<ExecutionEngine> engine(
        EngineBuilder(std::move(module)).setMCJITMemoryManager(std::make_unique<Borrowed>(memory)).create());
    if (!engine)
        exit(1);
    return reinterpret_cast<Kept>(engine->getFunctionAddress("kept" + std::to_string(number)));
}

int main(int, char **arguments) {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
    int count = atoi(arguments[1]);
    std::vector<std::unique_ptr<SectionMemoryManager>> memories;
    std::vector<Kept> functions;
    for (int number = 0; number < count; number++) {
        memories.push_back(std::make_unique<SectionMemoryManager>());
        functions.push_back(compile(*memories.back(), number));
    }
    long sum = 0;
    for (Kept function : functions)
        sum += function(1);
    printf("%ld\nrunning\n", sum);
    fflush(stdout);
    getchar();
    memories.clear();
    printf("freed\n");
    fflush(stdout);
    getchar();
    return 0;
}
