// A host that destroys its engines and keeps their code, as llvmpipe does. Each engine's memory manager only forwards
// to another memory manager, which outlives the engine.
//
//     keeps_code COUNT   compiles COUNT functions, each in its own engine, which it destroys immediately; prints
//                        "running", calls all functions and waits for a line on standard input; frees the code, prints
//                        "freed" and waits for another line.
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

// Memory manager that forwards to another one without owning it.
class ForwardingMemoryManager final : public RTDyldMemoryManager {
    SectionMemoryManager &target;

public:
    explicit ForwardingMemoryManager(SectionMemoryManager &target) : target(target) {}
    uint8_t *allocateCodeSection(uintptr_t size, unsigned alignment, unsigned id, StringRef name) override {
        return target.allocateCodeSection(size, alignment, id, name);
    }
    uint8_t *allocateDataSection(uintptr_t size, unsigned alignment, unsigned id, StringRef name, bool constant) override {
        return target.allocateDataSection(size, alignment, id, name, constant);
    }
    void registerEHFrames(uint8_t *, uint64_t, size_t) override {}
    void deregisterEHFrames() override {}
    bool finalizeMemory(std::string *error) override { return target.finalizeMemory(error); }
};

using KeptFunction = int (*)(int);

static KeptFunction compile(SectionMemoryManager &memory, int number) {
    std::string text = "define i32 @kept" + std::to_string(number) + "(i32 %x) uwtable \"frame-pointer\"=\"all\" {\n" +
                       "  %y = add i32 %x, " + std::to_string(number) + "\n  ret i32 %y\n}\n";
    LLVMContext context;
    SMDiagnostic diagnostic;
    std::unique_ptr<Module> module = parseIR(MemoryBufferRef(text, "keeps_code"), diagnostic, context);
    std::unique_ptr<ExecutionEngine> engine(
        EngineBuilder(std::move(module))
            .setMCJITMemoryManager(std::make_unique<ForwardingMemoryManager>(memory))
            .create());
    if (!engine)
        exit(1);
    return reinterpret_cast<KeptFunction>(engine->getFunctionAddress("kept" + std::to_string(number)));
}

int main(int, char **arguments) {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
    int count = atoi(arguments[1]);
    std::vector<std::unique_ptr<SectionMemoryManager>> memories;
    std::vector<KeptFunction> functions;
    for (int number = 0; number < count; number++) {
        memories.push_back(std::make_unique<SectionMemoryManager>());
        functions.push_back(compile(*memories.back(), number));
    }
    long sum = 0;
    for (KeptFunction function : functions)
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
