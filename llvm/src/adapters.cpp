/* C wrappers of the C++ adapters in jitlisten_llvm.hpp, declared in lib.rs. They use LLVM's conversions between the
 * references of its C API and its classes. Compiled by build.rs, which renames the C functions to those in verbs.rs. */
#include <jitlisten_llvm.hpp>

#include <llvm-c/ExecutionEngine.h>
#include <llvm-c/Orc.h>

namespace {

/* LLVM defines this conversion only in its own sources. */
llvm::orc::ObjectLayer &unwrap(LLVMOrcObjectLayerRef layer) {
  return *reinterpret_cast<llvm::orc::ObjectLayer *>(layer);
}

}  // namespace

extern "C" {

void jitlisten_crate_make_unwindable(LLVMModuleRef module, bool frame_pointers) {
  using jitlisten::FramePointers;
  jitlisten::setUnwindable(*llvm::unwrap(module), frame_pointers ? FramePointers::All : FramePointers::Untouched);
}

LLVMMCJITMemoryManagerRef jitlisten_crate_memory_manager() {
  return llvm::wrap(static_cast<llvm::RTDyldMemoryManager *>(new jitlisten::ListeningMemoryManager<>));
}

void jitlisten_crate_listen_to_engine(LLVMExecutionEngineRef engine) { jitlisten::listenTo(*llvm::unwrap(engine)); }

void jitlisten_crate_engine_finalized(LLVMExecutionEngineRef engine) { jitlisten::finalized(*llvm::unwrap(engine)); }

bool jitlisten_crate_listen_to_layer(LLVMOrcObjectLayerRef layer) {
  llvm::orc::ObjectLayer &object_layer = unwrap(layer);
  if (auto *jitlink = llvm::dyn_cast<llvm::orc::ObjectLinkingLayer>(&object_layer)) {
    jitlisten::listenTo(*jitlink);
    return true;
  }
  if (auto *rtdyld = llvm::dyn_cast<llvm::orc::RTDyldObjectLinkingLayer>(&object_layer)) {
    jitlisten::listenTo(*rtdyld);
    return true;
  }
  return false;
}

/* Memory manager of an engine, for inkwell, which requires one that Rust can call. */

llvm::SectionMemoryManager *jitlisten_crate_memory_new() { return new llvm::SectionMemoryManager; }

uint8_t *jitlisten_crate_memory_code(llvm::SectionMemoryManager *memory, uintptr_t size, unsigned alignment,
                                     unsigned section) {
  return memory->allocateCodeSection(size, alignment, section, "");
}

uint8_t *jitlisten_crate_memory_data(llvm::SectionMemoryManager *memory, uintptr_t size, unsigned alignment,
                                     unsigned section, bool is_read_only) {
  return memory->allocateDataSection(size, alignment, section, "", is_read_only);
}

/* Returns true on failure, like LLVM. */
bool jitlisten_crate_memory_finalize(llvm::SectionMemoryManager *memory) { return memory->finalizeMemory(nullptr); }

void jitlisten_crate_memory_delete(llvm::SectionMemoryManager *memory) { delete memory; }

}
