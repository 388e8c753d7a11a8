/* Engines of LLVM 14 to 22. Each engine reports its objects to jitlisten, and to gdb through LLVM's own code. An engine
 * compiles a module and returns the address of a function. This file hides the differences between LLVM's versions. */
#ifndef ENGINES_HPP
#define ENGINES_HPP

#include <jitlisten_llvm.hpp>

#include <llvm/ExecutionEngine/MCJIT.h>
#include <llvm/Support/TargetSelect.h>

#if LLVM_VERSION_MAJOR >= 19
#include <llvm/ExecutionEngine/Orc/Debugging/DebuggerSupport.h>
#else
#include <llvm/ExecutionEngine/JITLink/EHFrameSupport.h>
#include <llvm/ExecutionEngine/Orc/DebugObjectManagerPlugin.h>
#include <llvm/ExecutionEngine/Orc/EPCDebugObjectRegistrar.h>
#endif

class Engine {
 public:
  virtual ~Engine() = default;
  virtual void add(std::unique_ptr<llvm::Module> module, std::unique_ptr<llvm::LLVMContext> context) = 0;
  /* Returns 0 if the linker fails. */
  virtual uint64_t find(const char *function) = 0;
  /* Frees the module, if the engine can. ORC first transfers it to another resource tracker. */
  virtual void remove() {}
  /* Destroys the engine and all its code. */
  virtual void close() = 0;
};

/* MCJIT with our memory manager, or with its own memory manager and a host that reports when code is finalized. MCJIT
 * itself registers its objects with gdb. */
class Mcjit final : public Engine {
 public:
  enum class Memory { Listening, Own };

  explicit Mcjit(Memory memory) : memory_(memory) {}

  ~Mcjit() override { engine_.reset(); }

  void add(std::unique_ptr<llvm::Module> module, std::unique_ptr<llvm::LLVMContext> context) override {
    contexts_.push_back(std::move(context));
    if (engine_ != nullptr) return engine_->addModule(std::move(module));
    llvm::EngineBuilder builder(std::move(module));
    builder.setEngineKind(llvm::EngineKind::JIT);
    if (memory_ == Memory::Listening) {
      builder.setMCJITMemoryManager(std::make_unique<jitlisten::ListeningMemoryManager<>>());
    }
    engine_.reset(builder.create());
    if (memory_ == Memory::Own) jitlisten::listenTo(*engine_);
  }

  uint64_t find(const char *function) override {
    const uint64_t address = engine_->getFunctionAddress(function);
    if (memory_ == Memory::Own) jitlisten::finalized(*engine_);
    return address;
  }

  void close() override { engine_.reset(); }

 private:
  const Memory memory_;
  std::vector<std::unique_ptr<llvm::LLVMContext>> contexts_;
  std::unique_ptr<llvm::ExecutionEngine> engine_;
};

class Orc final : public Engine {
 public:
  enum class Linker { RuntimeDyld, JitLink };

  explicit Orc(Linker linker) {
    llvm::orc::LLJITBuilder builder;
    builder.setJITTargetMachineBuilder(machine(linker));
    if (linker == Linker::RuntimeDyld) {
      builder.setObjectLinkingLayerCreator([](llvm::orc::ExecutionSession &session, auto &&...) {
        return llvm::Expected<std::unique_ptr<llvm::orc::ObjectLayer>>(withRuntimeDyld(session));
      });
    } else {
      selectJitLink(builder);
    }
    jit_ = llvm::cantFail(builder.create());
    jit_->getExecutionSession().setErrorReporter([](llvm::Error error) { llvm::consumeError(std::move(error)); });
    if (linker == Linker::JitLink) enableGdb(*jit_);
    jitlisten::listenTo(*jit_);
  }

  void add(std::unique_ptr<llvm::Module> module, std::unique_ptr<llvm::LLVMContext> context) override {
    tracker_ = jit_->getMainJITDylib().createResourceTracker();
    llvm::cantFail(jit_->addIRModule(tracker_, {std::move(module), std::move(context)}));
  }

  uint64_t find(const char *function) override {
    auto symbol = jit_->lookup(function);
    if (symbol) return addressOf(*symbol);
    llvm::consumeError(symbol.takeError());
    return 0;
  }

  void remove() override {
    const auto new_tracker = jit_->getMainJITDylib().createResourceTracker();
    tracker_->transferTo(*new_tracker);
    llvm::cantFail(new_tracker->remove());
  }

  void close() override {
    tracker_.reset();
    jit_.reset();
  }

 private:
  static llvm::orc::JITTargetMachineBuilder machine(Linker linker) {
    auto machine = llvm::cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
    if (linker == Linker::JitLink) {
      machine.setRelocationModel(llvm::Reloc::PIC_);
      machine.setCodeModel(llvm::CodeModel::Small);
    }
    return machine;
  }

  static std::unique_ptr<llvm::orc::ObjectLayer> withRuntimeDyld(llvm::orc::ExecutionSession &session) {
    auto layer = std::make_unique<llvm::orc::RTDyldObjectLinkingLayer>(
        session, [](auto &&...) { return std::make_unique<llvm::SectionMemoryManager>(); });
    layer->registerJITEventListener(*llvm::JITEventListener::createGDBRegistrationListener());
    return layer;
  }

#if LLVM_VERSION_MAJOR >= 15
  static uint64_t addressOf(llvm::orc::ExecutorAddr address) { return address.getValue(); }
#else
  static uint64_t addressOf(const llvm::JITEvaluatedSymbol &symbol) { return symbol.getAddress(); }
#endif

#if LLVM_VERSION_MAJOR >= 19
  /* LLJIT selects JITLink by default on x86-64. */
  static void selectJitLink(llvm::orc::LLJITBuilder &) {}
  static void enableGdb(llvm::orc::LLJIT &jit) { llvm::cantFail(llvm::orc::enableDebuggerSupport(jit)); }
#else
  static void selectJitLink(llvm::orc::LLJITBuilder &builder) {
    builder.setObjectLinkingLayerCreator([](llvm::orc::ExecutionSession &session, const llvm::Triple &) {
      auto layer = std::make_unique<llvm::orc::ObjectLinkingLayer>(session);
      layer->addPlugin(std::make_unique<llvm::orc::EHFrameRegistrationPlugin>(
          session, std::make_unique<llvm::jitlink::InProcessEHFrameRegistrar>()));
      return llvm::Expected<std::unique_ptr<llvm::orc::ObjectLayer>>(std::move(layer));
    });
  }

  static void enableGdb(llvm::orc::LLJIT &jit) {
    auto &layer = static_cast<llvm::orc::ObjectLinkingLayer &>(jit.getObjLinkingLayer());
    auto registrar = llvm::cantFail(llvm::orc::createJITLoaderGDBRegistrar(jit.getExecutionSession()));
    layer.addPlugin(std::make_unique<llvm::orc::DebugObjectManagerPlugin>(jit.getExecutionSession(), std::move(registrar)));
  }
#endif

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  llvm::orc::ResourceTrackerSP tracker_;
};

inline std::unique_ptr<Engine> makeEngine(llvm::StringRef mode) {
  if (mode == "mcjit") return std::make_unique<Mcjit>(Mcjit::Memory::Listening);
  if (mode == "mcjit-said") return std::make_unique<Mcjit>(Mcjit::Memory::Own);
  if (mode == "orc-rtdyld") return std::make_unique<Orc>(Orc::Linker::RuntimeDyld);
  if (mode == "orc-jitlink") return std::make_unique<Orc>(Orc::Linker::JitLink);
  return nullptr;
}

#endif
