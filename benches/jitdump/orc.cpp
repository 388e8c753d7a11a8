// What ORC's PerfSupportPlugin takes for an object: its pass over the linked graph, from the pass before it to the pass
// behind it, and the function it registers to write the records when the memory is final. Linking itself is not
// counted. Everything the plugin offers is asked for, line tables and unwind records.

#include "orc.h"

#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/Core.h"
#include "llvm/ExecutionEngine/Orc/Debugging/DebugInfoSupport.h"
#include "llvm/ExecutionEngine/Orc/Debugging/PerfSupportPlugin.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/Orc/SelfExecutorProcessControl.h"
#include "llvm/ExecutionEngine/Orc/TargetProcess/JITLoaderPerf.h"
#include "llvm/Object/ELFObjectFile.h"

#include <chrono>

using namespace llvm;
using namespace llvm::orc;

namespace {

using Clock = std::chrono::steady_clock;
Clock::time_point began;
double spent;

void begin() { began = Clock::now(); }
void end() { spent += std::chrono::duration<double, std::micro>(Clock::now() - began).count(); }

shared::CWrapperFunctionBuffer timed_write(const char *data, size_t size) {
    begin();
    auto result = llvm_orc_registerJITLoaderPerfImpl(data, size);
    end();
    return result;
}

// Calls a function where, in the order of the plugins, the graph is at it.
class Mark : public ObjectLinkingLayer::Plugin {
    void (*function)();

public:
    Mark(void (*function)()) : function(function) {}
    void modifyPassConfig(MaterializationResponsibility &, jitlink::LinkGraph &,
                          jitlink::PassConfiguration &config) override {
        config.PostFixupPasses.push_back([this](jitlink::LinkGraph &) {
            function();
            return Error::success();
        });
    }
    Error notifyFailed(MaterializationResponsibility &) override { return Error::success(); }
    Error notifyRemovingResources(JITDylib &, ResourceKey) override { return Error::success(); }
    void notifyTransferringResources(JITDylib &, ResourceKey, ResourceKey) override {}
};

// Whatever an object wants is somewhere.
class Anything : public DefinitionGenerator {
    Error tryToGenerate(LookupState &, LookupKind, JITDylib &dylib, JITDylibLookupFlags,
                        const SymbolLookupSet &wanted) override {
        SymbolMap found;
        for (auto &symbol : wanted)
            found[symbol.first] = {ExecutorAddr(0x1000), JITSymbolFlags::Exported};
        return dylib.define(absoluteSymbols(std::move(found)));
    }
};

ExecutorAddr address(shared::CWrapperFunctionBuffer (*function)(const char *, size_t)) {
    return ExecutorAddr::fromPtr(function);
}

} // namespace

struct OrcPlugin::State {
    ExecutionSession session{cantFail(SelfExecutorProcessControl::Create())};
    ObjectLinkingLayer layer{session};
    unsigned count = 0;

    State() {
        layer.addPlugin(std::make_shared<DebugInfoPreservationPlugin>());
        layer.addPlugin(std::make_shared<Mark>(begin));
        layer.addPlugin(std::make_shared<PerfSupportPlugin>(
            session.getExecutorProcessControl(), address(llvm_orc_registerJITLoaderPerfStart),
            address(llvm_orc_registerJITLoaderPerfEnd), address(timed_write), true, true));
        layer.addPlugin(std::make_shared<Mark>(end));
    }
    ~State() { cantFail(session.endSession()); }
};

OrcPlugin::OrcPlugin() : state(std::make_unique<State>()) {}
OrcPlugin::~OrcPlugin() = default;

double OrcPlugin::link(MemoryBufferRef object) {
    auto file = cantFail(object::ObjectFile::createELFObjectFile(object));
    std::string function;
    for (const object::SymbolRef &symbol : file->symbols()) {
        uint32_t flags = cantFail(symbol.getFlags());
        bool exported = (flags & object::SymbolRef::SF_Global) && !(flags & object::SymbolRef::SF_Undefined);
        if (exported && cantFail(symbol.getType()) == object::SymbolRef::ST_Function)
            function = cantFail(symbol.getName()).str();
    }
    auto &dylib = state->session.createBareJITDylib("object " + std::to_string(state->count++));
    dylib.addGenerator(std::make_unique<Anything>());
    spent = 0;
    cantFail(state->layer.add(dylib, MemoryBuffer::getMemBufferCopy(object.getBuffer())));
    cantFail(state->session.lookup({&dylib}, state->session.intern(function)));
    double result = spent;
    cantFail(state->session.removeJITDylib(dylib));
    return result;
}
