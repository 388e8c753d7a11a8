/* The engines of LLVM 14 to 22, each reporting to jitlisten, and to gdb by LLVM itself: compiles a module, returns
 * the address of a function. What differs between LLVM's versions is here. */
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
  /* 0 where the linker fails. */
  virtual uint64_t find(const char *function) = 0;
  /* Frees the module, where the engine can, by a detour over another owner. */
  virtual void remove() {}
  /* Destroys the engine, and with it all code. */
  virtual void close() = 0;
};

/* MCJIT with our memory manager, or with its own and a host that says *finalized*. It registers with gdb by itself. */
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
      createJitLink(builder);
    }
    jit_ = llvm::cantFail(builder.create());
    jit_->getExecutionSession().setErrorReporter([](llvm::Error error) { llvm::consumeError(std::move(error)); });
    if (linker == Linker::JitLink) tellGdb(*jit_);
    jitlisten::listenTo(*jit_);
  }

  void add(std::unique_ptr<llvm::Module> module, std::unique_ptr<llvm::LLVMContext> context) override {
    owner_ = jit_->getMainJITDylib().createResourceTracker();
    llvm::cantFail(jit_->addIRModule(owner_, {std::move(module), std::move(context)}));
  }

  uint64_t find(const char *function) override {
    auto found = jit_->lookup(function);
    if (found) return addressOf(*found);
    llvm::consumeError(found.takeError());
    return 0;
  }

  void remove() override {
    const auto other = jit_->getMainJITDylib().createResourceTracker();
    owner_->transferTo(*other);
    llvm::cantFail(other->remove());
  }

  void close() override {
    owner_.reset();
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
  static uint64_t addressOf(llvm::orc::ExecutorAddr found) { return found.getValue(); }
#else
  static uint64_t addressOf(const llvm::JITEvaluatedSymbol &found) { return found.getAddress(); }
#endif

#if LLVM_VERSION_MAJOR >= 19
  /* What LLJIT takes by itself on x86-64. */
  static void createJitLink(llvm::orc::LLJITBuilder &) {}
  static void tellGdb(llvm::orc::LLJIT &jit) { llvm::cantFail(llvm::orc::enableDebuggerSupport(jit)); }
#else
  static void createJitLink(llvm::orc::LLJITBuilder &builder) {
    builder.setObjectLinkingLayerCreator([](llvm::orc::ExecutionSession &session, const llvm::Triple &) {
      auto layer = std::make_unique<llvm::orc::ObjectLinkingLayer>(session);
      layer->addPlugin(std::make_unique<llvm::orc::EHFrameRegistrationPlugin>(
          session, std::make_unique<llvm::jitlink::InProcessEHFrameRegistrar>()));
      return llvm::Expected<std::unique_ptr<llvm::orc::ObjectLayer>>(std::move(layer));
    });
  }

  static void tellGdb(llvm::orc::LLJIT &jit) {
    auto &layer = static_cast<llvm::orc::ObjectLinkingLayer &>(jit.getObjLinkingLayer());
    auto registrar = llvm::cantFail(llvm::orc::createJITLoaderGDBRegistrar(jit.getExecutionSession()));
    layer.addPlugin(std::make_unique<llvm::orc::DebugObjectManagerPlugin>(jit.getExecutionSession(), std::move(registrar)));
  }
#endif

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  llvm::orc::ResourceTrackerSP owner_;
};

inline std::unique_ptr<Engine> makeEngine(llvm::StringRef mode) {
  if (mode == "mcjit") return std::make_unique<Mcjit>(Mcjit::Memory::Listening);
  if (mode == "mcjit-said") return std::make_unique<Mcjit>(Mcjit::Memory::Own);
  if (mode == "orc-rtdyld") return std::make_unique<Orc>(Orc::Linker::RuntimeDyld);
  if (mode == "orc-jitlink") return std::make_unique<Orc>(Orc::Linker::JitLink);
  return nullptr;
}

#endif
