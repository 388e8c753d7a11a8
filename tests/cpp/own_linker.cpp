// A program that makes ORC's JITLink layer itself, instead of letting LLJIT make it inside of LLVM's library.
//
//     own_linker default|plain|derived|overriding|unhooked
//
// The program includes the class's header, so that the linker copies the class's vtable into the program, and LLVM's
// library uses that copy. derived and overriding have vtables of their own. unhooked (LLVM 19 only) makes a vtable at run
// time with the function that dlsym finds, and compiles a second time after a line of input. Not built with jitlisten;
// needs -fno-rtti.
#include <cstdio>
#include <dlfcn.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>

using namespace llvm;

static const char source[] = R"(
define i64 @inner(i64 %n) noinline { %r = mul i64 %n, 3  ret i64 %r }
define i64 @outer(i64 %n) { %a = call i64 @inner(i64 %n)  %r = add i64 %a, 1  ret i64 %r }
)";

class Derived : public orc::ObjectLinkingLayer {
public:
  using ObjectLinkingLayer::ObjectLinkingLayer;
};

class Overriding : public orc::ObjectLinkingLayer {
public:
  using ObjectLinkingLayer::emit;
  using ObjectLinkingLayer::ObjectLinkingLayer;
  void emit(std::unique_ptr<orc::MaterializationResponsibility> responsibility,
            std::unique_ptr<MemoryBuffer> object) override {
    ObjectLinkingLayer::emit(std::move(responsibility), std::move(object));
  }
};

using EntryPoint = int64_t (*)(int64_t);

template <class Symbol> static EntryPoint function_at(Symbol symbol) {
#if LLVM_VERSION_MAJOR < 15
  return reinterpret_cast<EntryPoint>(symbol.getAddress());
#else
  return symbol.template toPtr<EntryPoint>();
#endif
}

// Replaces the layer's vtable by a copy whose emit is that of LLVM.
static void make_vtable(orc::ObjectLinkingLayer &layer) {
  enum { HEADER = 2, SLOTS = 9, EMIT = 6 };
  static void *words[HEADER + SLOTS];
  void **&vtable = *reinterpret_cast<void ***>(&layer);
  std::copy(vtable - HEADER, vtable + SLOTS, words);
  words[HEADER + EMIT] = dlsym(RTLD_DEFAULT, "_ZN4llvm3orc18ObjectLinkingLayer4emitESt10unique_ptrINS0_"
                                             "29MaterializationResponsibilityESt14default_deleteIS3_EES2_"
                                             "INS_12MemoryBufferES4_IS7_EE");
  vtable = words + HEADER;
}

static void compile(orc::LLJIT &jit, const std::string &function) {
  auto context = std::make_unique<LLVMContext>();
  SMDiagnostic problem;
  auto module = parseAssemblyString(source, problem, *context);
  for (auto &definition : *module)
    if (function != "outer") definition.setName(definition.getName() + "2");
  cantFail(jit.addIRModule(orc::ThreadSafeModule(std::move(module), std::move(context))));
  std::printf("%ld\n", (long)function_at(cantFail(jit.lookup(function)))(7));
  std::fflush(stdout);
}

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "default";
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  orc::LLJITBuilder builder;
  if (mode != "default") {
    builder.setObjectLinkingLayerCreator(
        [&mode](orc::ExecutionSession &session, auto &&...) -> Expected<std::unique_ptr<orc::ObjectLayer>> {
          auto memory = cantFail(jitlink::InProcessMemoryManager::Create());
          if (mode == "derived") return std::make_unique<Derived>(session, std::move(memory));
          if (mode == "overriding") return std::make_unique<Overriding>(session, std::move(memory));
          auto layer = std::make_unique<orc::ObjectLinkingLayer>(session, std::move(memory));
          if (mode == "unhooked") make_vtable(*layer);
          return layer;
        });
  }
  auto jit = cantFail(builder.create());
  compile(*jit, "outer");
  if (mode == "unhooked") {
    std::getchar();
    compile(*jit, "outer2");
  }
  return 0;
}
