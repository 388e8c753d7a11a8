// Measures the time that ORC's PerfSupportPlugin takes for an object: its pass over the linked graph (a pass before it
// starts the timer, a pass after it stops the timer), and the function that writes the records once the memory is
// final. Linking itself is not counted. All features of the plugin are enabled: line tables and unwind records.

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
Clock::time_point started;
double elapsed_us;

void start_timer() { started = Clock::now(); }
void stop_timer() { elapsed_us += std::chrono::duration<double, std::micro>(Clock::now() - started).count(); }

shared::CWrapperFunctionBuffer timed_write(const char *data, size_t size) {
    start_timer();
    auto result = llvm_orc_registerJITLoaderPerfImpl(data, size);
    stop_timer();
    return result;
}

// JITLink plugin that calls a function at its position in the plugin order.
class CallbackPlugin : public ObjectLinkingLayer::Plugin {
    void (*function)();

public:
    CallbackPlugin(void (*function)()) : function(function) {}
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

// Defines every requested symbol with a dummy address.
class DummyDefinitions : public DefinitionGenerator {
    Error tryToGenerate(LookupState &, LookupKind, JITDylib &dylib, JITDylibLookupFlags,
                        const SymbolLookupSet &symbols) override {
        SymbolMap definitions;
        for (auto &symbol : symbols)
            definitions[symbol.first] = {ExecutorAddr(0x1000), JITSymbolFlags::Exported};
        return dylib.define(absoluteSymbols(std::move(definitions)));
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
        layer.addPlugin(std::make_shared<CallbackPlugin>(start_timer));
        layer.addPlugin(std::make_shared<PerfSupportPlugin>(
            session.getExecutorProcessControl(), address(llvm_orc_registerJITLoaderPerfStart),
            address(llvm_orc_registerJITLoaderPerfEnd), address(timed_write), true, true));
        layer.addPlugin(std::make_shared<CallbackPlugin>(stop_timer));
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
    dylib.addGenerator(std::make_unique<DummyDefinitions>());
    elapsed_us = 0;
    cantFail(state->layer.add(dylib, MemoryBuffer::getMemBufferCopy(object.getBuffer())));
    cantFail(state->session.lookup({&dylib}, state->session.intern(function)));
    double result = elapsed_us;
    cantFail(state->session.removeJITDylib(dylib));
    return result;
}
