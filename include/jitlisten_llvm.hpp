/* jitlisten_llvm.hpp - report code from inside LLVM's own engines, for programs that embed LLVM 14 to 22.
 *
 * Header-only, C++17, compiled against your LLVM and linked with libjitlisten (jitlisten.h). Works with and without
 * RTTI and exceptions, whichever your LLVM was built with. Add one line for each engine, according to its kind:
 *
 *     #include <jitlisten_llvm.hpp>
 *
 *     jitlisten::open();                                 // once, before anything is compiled: a session that
 *                                                        // uses calls only, and changes nothing in the process
 *     jitlisten::setUnwindable(*module);                 // before a module is handed to any engine
 *
 *     // MCJIT
 *     engineBuilder.setMCJITMemoryManager(std::make_unique<jitlisten::ListeningMemoryManager<>>());
 *
 *     // MCJIT, for an engine that already has a memory manager
 *     jitlisten::listenTo(*engine);                      // before it compiles
 *     engine->finalizeObject();
 *     jitlisten::finalized(*engine);                     // after everything that finalizes: finalizeObject(),
 *                                                        // getFunctionAddress(), getGlobalValueAddress()
 *
 *     // ORC: either kind of layer, or an LLJIT, whose layer is detected
 *     jitlisten::listenTo(rtdyldObjectLinkingLayer);
 *     jitlisten::listenTo(objectLinkingLayer);
 *     jitlisten::listenTo(*lljit);
 *
 *     // ORC: every module on its way to the compiler; this replaces an earlier transform, so call that one, too
 *     lljit->getIRTransformLayer().setTransform([](auto module, auto &) {
 *       module.withModuleDo([](llvm::Module &m) { jitlisten::setUnwindable(m); });
 *       return llvm::Expected<llvm::orc::ThreadSafeModule>(std::move(module));
 *     });
 *
 * Classes
 *     LlvmListener               an llvm::JITEventListener, for MCJIT and RTDyldObjectLinkingLayer
 *     ListeningMemoryManager<B>  a B (llvm::SectionMemoryManager) that attaches an LlvmListener to its MCJIT engine and
 *                                knows when memory is final
 *     LlvmLinkPlugin             an llvm::orc::ObjectLinkingLayer::Plugin, for JITLink
 *
 * When code is final
 *   An object is reported twice: when it has addresses, and when its bytes are relocated and executable. MCJIT notifies
 *   its listeners only the first time; its memory manager reports the second (or you do, with finalized()). Tools do
 *   not see objects that are never finalized. RTDyldObjectLinkingLayer notifies its listeners when memory is final,
 *   after the symbols were published: a thread that looks one up immediately may run it before its name is known.
 *   JITLink notifies its plugins when memory is final, before symbols are published.
 *
 * When code is freed
 *   Every engine reports it in time, and a destroyed engine reports all its code. Three exceptions: a listener that you
 *   unregister or a plugin that you remove; an ORC resource tracker that another thread removes during the last step of
 *   a link; an error of another JITLink plugin in that step. The old names then stay until other code takes their
 *   place.
 *
 * Registration with gdb
 *   LLVM does it, or the "gdb" sink if it is enabled. MCJIT does it itself. For RTDyldObjectLinkingLayer call
 *   layer.registerJITEventListener(*llvm::JITEventListener::createGDBRegistrationListener()). For JITLink call
 *   llvm::orc::enableDebuggerSupport(lljit) from LLVM 19 on; earlier, llvm::orc::DebugObjectManagerPlugin omits code
 *   without debug information, which the sink registers.
 *
 * Registration with the C++ runtime (libgcc)
 *   MCJIT and RTDyldObjectLinkingLayer do it themselves. With JITLink, one of LLVM's plugins does it; LLJIT adds it.
 *   The "unwind" sink registers code with libunwind in each case.
 *
 * Pages
 *   Images need pages that hold no other code (jitlisten_owns_pages). LLVM's memory managers give whole pages to what
 *   they finalize together. If your own memory manager adds code to the same pages later, define
 *   JITLISTEN_LLVM_SHARES_PAGES before you include this header.
 *
 * Lifetimes
 *   Do not destroy listeners or plugins. A listener lives as long as the process or its memory manager, a plugin as
 *   long as its layer. Engines may be destroyed at any time, also during exit().
 *
 * Threads
 *   Every function may be called from any thread. finalized(engine) finalizes all that the engine has loaded: if
 *   several threads share one engine, use ListeningMemoryManager.
 *
 * Known limitations
 *   Only ELF code in this process is supported. A LinkGraph that was never an object file (ORC's stubs) has no names.
 */
#ifndef JITLISTEN_LLVM_HPP
#define JITLISTEN_LLVM_HPP

#include <jitlisten.h>

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/ExecutionEngine.h>
#include <llvm/ExecutionEngine/JITEventListener.h>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/RTDyldObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/SectionMemoryManager.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/InstrTypes.h>
#include <llvm/IR/Module.h>
#include <llvm/Object/ObjectFile.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#if LLVM_VERSION_MAJOR < 14
#error "jitlisten_llvm.hpp needs LLVM 14 or later"
#endif

namespace jitlisten {

/* Opens the session of this process for reported objects only, with the options of the environment (see the README). If
 * a session is open already, for example through LD_PRELOAD, it is used unchanged. */
inline jitlisten_status open() {
  jitlisten_options options{};
  options.size = sizeof options;
  options.listen = JITLISTEN_LISTEN_CALLS;
  return jitlisten_open_with(&options);
}

enum class FramePointers {
  All,       /* every function keeps one, as `perf record -g` needs */
  Untouched  /* no change; unwind tables alone have no cost at run time */
};

namespace detail {

/* Differences between LLVM versions. ------------------------------------------------------------------------------- */

#if LLVM_VERSION_MAJOR >= 15
inline void addUnwindTable(llvm::Function &function) { function.setUWTableKind(llvm::UWTableKind::Async); }
#else
inline void addUnwindTable(llvm::Function &function) { function.addFnAttr(llvm::Attribute::UWTable); }
#endif

/* True for calling conventions that pass an argument in the frame-pointer register: GHC's, HiPE's and HHVM's two. */
inline bool takesFrameRegister(llvm::CallingConv::ID convention) {
  return convention == 10 || convention == 11 || convention == 81 || convention == 82;
}

/* True for functions with such a convention, and for their callers. With a frame pointer, a caller would lose track of
 * its stack frame after the call, or fail to compile. */
inline bool needsFrameRegister(const llvm::Function &function) {
  if (takesFrameRegister(function.getCallingConv())) return true;
  for (const llvm::BasicBlock &block : function) {
    for (const llvm::Instruction &instruction : block) {
      const auto *call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      if (call != nullptr && takesFrameRegister(call->getCallingConv())) return true;
    }
  }
  return false;
}

/* Base class of a plugin whose resource callbacks are the same in every LLVM version. */
class VersionIndependentPlugin : public llvm::orc::ObjectLinkingLayer::Plugin {
 public:
  virtual void removing(llvm::orc::ResourceKey key) = 0;
  virtual void transferring(llvm::orc::ResourceKey to, llvm::orc::ResourceKey from) = 0;

#if LLVM_VERSION_MAJOR >= 16
  llvm::Error notifyRemovingResources(llvm::orc::JITDylib &, llvm::orc::ResourceKey key) final {
    removing(key);
    return llvm::Error::success();
  }
  void notifyTransferringResources(llvm::orc::JITDylib &, llvm::orc::ResourceKey to,
                                   llvm::orc::ResourceKey from) final {
    transferring(to, from);
  }
#else
  llvm::Error notifyRemovingResources(llvm::orc::ResourceKey key) final {
    removing(key);
    return llvm::Error::success();
  }
  void notifyTransferringResources(llvm::orc::ResourceKey to, llvm::orc::ResourceKey from) final {
    transferring(to, from);
  }
#endif
};

/* ------------------------------------------------------------------------------------------------------------------ */

inline std::atomic<jitlisten_status> first_failure{JITLISTEN_OK};

/* Reports an object as *loaded*. On a failure the object is ignored, and first_failure keeps the status. */
inline jitlisten_status loaded(llvm::StringRef elf, jitlisten_object &object) {
  const jitlisten_status status = jitlisten_object_loaded(elf.data(), elf.size(), nullptr, 0, &object);
#ifndef JITLISTEN_LLVM_SHARES_PAGES
  if (status == JITLISTEN_OK) jitlisten_owns_pages(object);
#endif
  jitlisten_status none = JITLISTEN_OK;
  first_failure.compare_exchange_strong(none, status);
  return status;
}

/* Section table of an ELF file in memory, used to set the load addresses of sections. */
class SectionTable {
 public:
  /* Empty if the file is not a 64-bit little-endian ELF file, or its section table lies outside the file. */
  explicit SectionTable(llvm::StringRef elf) : elf_(elf) {
    llvm::ELF::Elf64_Ehdr header;
    if (elf.size() < sizeof header) return;
    std::memcpy(&header, elf.data(), sizeof header);
    const unsigned char *ident = header.e_ident;
    if (std::memcmp(ident, llvm::ELF::ElfMagic, 4) != 0 || ident[llvm::ELF::EI_CLASS] != llvm::ELF::ELFCLASS64 ||
        ident[llvm::ELF::EI_DATA] != llvm::ELF::ELFDATA2LSB || header.e_shentsize != sizeof(Section)) {
      return;
    }
    start_ = header.e_shoff;
    /* If the number of entries does not fit the header, the first entry contains it. */
    const bool is_long = header.e_shnum == 0 && fits(1);
    const uint64_t count = is_long ? at(0).sh_size : header.e_shnum;
    if (fits(count)) count_ = count;
  }

  using Section = llvm::ELF::Elf64_Shdr;

  size_t size() const { return count_; }

  Section at(size_t index) const {
    Section section;
    std::memcpy(&section, elf_.data() + entryOffset(index), sizeof section);
    return section;
  }

  /* File offset of the entry. */
  size_t entryOffset(size_t index) const { return start_ + index * sizeof(Section); }

 private:
  bool fits(uint64_t count) const {
    return start_ != 0 && start_ <= elf_.size() && count <= (elf_.size() - start_) / sizeof(Section);
  }

  llvm::StringRef elf_;
  uint64_t start_ = 0;
  size_t count_ = 0;
};

}  // namespace detail

/* Reason why the first ignored object of any engine was ignored: JITLISTEN_NOT_OPEN before open(),
 * JITLISTEN_SWITCHED_OFF with JITLISTEN=off, ...; JITLISTEN_OK if none was. The log has the details. */
inline jitlisten_status firstFailure() { return detail::first_failure; }

/* Makes every defined function unwindable: adds an unwind table that is correct at every instruction, and a frame
 * pointer. LLVM omits both from functions that it knows not to throw; then no tool can unwind past them, gdb included.
 * Functions that receive an argument in the frame-pointer register (GHC's convention), and their callers, get no frame
 * pointer. */
inline void setUnwindable(llvm::Module &module, FramePointers frame_pointers = FramePointers::All) {
  for (llvm::Function &function : module) {
    if (function.isDeclaration()) continue;
    detail::addUnwindTable(function);
    if (frame_pointers == FramePointers::All && !detail::needsFrameRegister(function)) {
      function.addFnAttr("frame-pointer", "all");
    }
  }
}

/* Reports objects of MCJIT or of ORC's RTDyldObjectLinkingLayer. Only listenTo() and ListeningMemoryManager create it,
 * because LLVM keeps a raw pointer to it. */
class LlvmListener final : public llvm::JITEventListener {
 public:
  LlvmListener(const LlvmListener &) = delete;
  LlvmListener &operator=(const LlvmListener &) = delete;

  /* Reports the remaining objects; their memory is still mapped. */
  ~LlvmListener() override {
    for (const auto &[key, object] : objects_) jitlisten_freeing(object);
  }

  void notifyObjectLoaded(ObjectKey key, const llvm::object::ObjectFile &file,
                          const llvm::RuntimeDyld::LoadedObjectInfo &info) override {
    if (finalization_ == Finalization::Immediate) {
      /* Keys are addresses of live objects, so an earlier object with this key was freed without a report. */
      notifyFreeingObject(key);
    } else if (knows(key)) {
      return; /* the listener was registered twice */
    }
    const auto debug_object = info.getObjectForDebug(file);
    if (debug_object.getBinary() == nullptr) return;
    jitlisten_object object;
    if (detail::loaded(debug_object.getBinary()->getData(), object) != JITLISTEN_OK) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[key] = object;
    if (finalization_ == Finalization::Immediate) {
      jitlisten_finalized(object);
    } else {
      pending_.push_back(key);
    }
  }

  void notifyFreeingObject(ObjectKey key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = objects_.find(key);
    if (entry == objects_.end()) return;
    jitlisten_freeing(entry->second);
    objects_.erase(entry);
  }

  /* For MCJIT: reports that all objects loaded so far are relocated and may run. */
  void finalized() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const ObjectKey key : pending_) {
      const auto entry = objects_.find(key);
      if (entry != objects_.end()) jitlisten_finalized(entry->second);
    }
    pending_.clear();
  }

 private:
  enum class Finalization { Immediate, Explicit };

  explicit LlvmListener(Finalization finalization) : finalization_(finalization) {}

  bool knows(ObjectKey key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return objects_.count(key) != 0;
  }

  /* The listener shared by all ORC layers: their keys are addresses of live memory managers, so they do not collide.
   * Never destroyed. */
  static LlvmListener &orcListener() {
    static LlvmListener &listener = *new LlvmListener(Finalization::Immediate);
    return listener;
  }

  /* Finds the listener of an MCJIT engine by the engine's address, because finalized() applies to one engine. Null if
   * it does not exist and `make` is false. Never destroyed, because the destruction of an engine is not reported. */
  static LlvmListener *mcjitListener(const llvm::ExecutionEngine &engine, bool make) {
    static std::mutex &mutex = *new std::mutex;
    static auto &listeners = *new std::map<const llvm::ExecutionEngine *, LlvmListener *>;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto entry = listeners.find(&engine);
    if (entry != listeners.end()) return entry->second;
    return make ? listeners[&engine] = new LlvmListener(Finalization::Explicit) : nullptr;
  }

  template <class Base>
  friend class ListeningMemoryManager;
  friend void listenTo(llvm::orc::RTDyldObjectLinkingLayer &layer);
  friend void listenTo(llvm::ExecutionEngine &engine);
  friend void finalized(llvm::ExecutionEngine &engine);

  const Finalization finalization_;
  std::mutex mutex_;
  std::map<ObjectKey, jitlisten_object> objects_;
  std::vector<ObjectKey> pending_;
};

/* Memory manager for EngineBuilder::setMCJITMemoryManager(). It registers a listener when the engine loads its first
 * object, and reports *finalized* when the memory is final. */
template <class Base = llvm::SectionMemoryManager>
class ListeningMemoryManager : public Base {
 public:
  using Base::Base;
  using Base::notifyObjectLoaded;

  /* MCJIT notifies its memory manager immediately before its listeners. */
  void notifyObjectLoaded(llvm::ExecutionEngine *engine, const llvm::object::ObjectFile &file) override {
    Base::notifyObjectLoaded(engine, file);
    if (is_registered_) return;
    engine->RegisterJITEventListener(&listener_);
    is_registered_ = true;
  }

  bool finalizeMemory(std::string *error = nullptr) override {
    const bool has_failed = Base::finalizeMemory(error);
    if (!has_failed) listener_.finalized();
    return has_failed;
  }

 private:
  LlvmListener listener_{LlvmListener::Finalization::Explicit};
  bool is_registered_ = false;
};

/* Reports objects of ORC's ObjectLinkingLayer, that is, of JITLink.
 *
 * JITLink splits an object into blocks, removes unreferenced blocks, and places the others. Its `.eh_frame` then has
 * only the records of the remaining functions, followed by a terminator. The plugin therefore copies the object file,
 * and sets the addresses of the blocks, and the new size of `.eh_frame`, in the section table of the copy.
 *
 * The plugin also corrects the alignment of the records. Each record keeps the alignment that it had in the file, so a
 * removed record may leave four zero bytes, which look like the terminator. No unwinder, libgcc included, would find
 * the records after them. */
class LlvmLinkPlugin final : public detail::VersionIndependentPlugin {
 public:
  void notifyMaterializing(llvm::orc::MaterializationResponsibility &responsibility, llvm::jitlink::LinkGraph &,
                           llvm::jitlink::JITLinkContext &, llvm::MemoryBufferRef file) override {
    if (file.getBufferSize() == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    links_[&responsibility].file = file.getBuffer();
  }

  void modifyPassConfig(llvm::orc::MaterializationResponsibility &responsibility, llvm::jitlink::LinkGraph &,
                        llvm::jitlink::PassConfiguration &passes) override {
    const auto *link_of = &responsibility;
    /* In this pass, blocks still point into the file, and dead blocks have been removed. */
    passes.PostPrunePasses.push_back([this, link_of](llvm::jitlink::LinkGraph &graph) {
      closeGaps(graph);
      withLink(link_of, [&](Link &link) { link.origins = origins(graph, link.file); });
      return llvm::Error::success();
    });
    passes.PostAllocationPasses.push_back([this, link_of](llvm::jitlink::LinkGraph &graph) {
      withLink(link_of, [&](Link &link) { link.placed = placed(graph, link); });
      return llvm::Error::success();
    });
  }

  /* The memory is final, and the file still exists: the link context owns both. */
  llvm::Error notifyEmitted(llvm::orc::MaterializationResponsibility &responsibility) override {
    const std::string file = takeLinked(&responsibility);
    jitlisten_object object;
    if (file.empty() || detail::loaded(file, object) != JITLISTEN_OK) return llvm::Error::success();
    jitlisten_finalized(object);
    auto error = responsibility.withResourceKeyDo([&](llvm::orc::ResourceKey key) {
      const std::lock_guard<std::mutex> lock(mutex_);
      objects_[key].push_back(object);
    });
    if (error) {
      /* The resource tracker was removed concurrently; the layer will notice that next, and free the memory. */
      llvm::consumeError(std::move(error));
      jitlisten_freeing(object);
    }
    return llvm::Error::success();
  }

  llvm::Error notifyFailed(llvm::orc::MaterializationResponsibility &responsibility) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    links_.erase(&responsibility);
    return llvm::Error::success();
  }

  void removing(llvm::orc::ResourceKey key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = objects_.find(key);
    if (entry == objects_.end()) return;
    for (const jitlisten_object object : entry->second) jitlisten_freeing(object);
    objects_.erase(entry);
  }

  void transferring(llvm::orc::ResourceKey to, llvm::orc::ResourceKey from) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = objects_.find(from);
    if (entry == objects_.end() || to == from) return;
    const std::vector<jitlisten_object> moved = std::move(entry->second);
    objects_.erase(entry);
    std::vector<jitlisten_object> &target_objects = objects_[to];
    target_objects.insert(target_objects.end(), moved.begin(), moved.end());
  }

 private:
  using Block = llvm::jitlink::Block;

  struct Origin {
    size_t section; /* index in the file's section table */
    uint64_t offset; /* offset in the section */
  };

  struct Placed {
    size_t section;
    uint64_t address;
    uint64_t size;
  };

  struct Link {
    llvm::StringRef file;
    std::map<const Block *, Origin> origins;
    std::vector<Placed> placed;
  };

  static constexpr const char *eh_frame_ = ".eh_frame";

  template <class Work>
  void withLink(const llvm::orc::MaterializationResponsibility *responsibility, Work work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = links_.find(responsibility);
    if (entry != links_.end()) work(entry->second);
  }

  static void closeGaps(llvm::jitlink::LinkGraph &graph) {
    llvm::jitlink::Section *records = graph.findSectionByName(eh_frame_);
    if (records == nullptr) return;
    constexpr uint64_t align = 4;
    for (Block *record : records->blocks()) {
      if (record->getAlignment() <= align || record->getSize() % align != 0) continue;
      record->setAlignmentOffset(0);
      record->setAlignment(align);
    }
  }

  /* Section and offset of each block in the file. */
  static std::map<const Block *, Origin> origins(llvm::jitlink::LinkGraph &graph, llvm::StringRef file) {
    const detail::SectionTable table(file);
    std::map<uint64_t, size_t> by_offset;
    for (size_t index = 0; index < table.size(); index++) {
      const auto section = table.at(index);
      const bool is_loaded = (section.sh_flags & llvm::ELF::SHF_ALLOC) != 0 && section.sh_size != 0;
      if (is_loaded && section.sh_type != llvm::ELF::SHT_NOBITS) by_offset[section.sh_offset] = index;
    }
    std::map<const Block *, Origin> origins;
    for (const Block *block : graph.blocks()) {
      if (block->isZeroFill()) continue;
      const auto content = reinterpret_cast<uintptr_t>(block->getContent().data());
      const auto begin = reinterpret_cast<uintptr_t>(file.data());
      if (content < begin || content - begin >= file.size()) continue;
      const uint64_t offset = content - begin;
      auto next = by_offset.upper_bound(offset);
      if (next == by_offset.begin()) continue;
      const size_t index = (--next)->second;
      const auto section = table.at(index);
      if (offset - section.sh_offset < section.sh_size) origins[block] = {index, offset - section.sh_offset};
    }
    return origins;
  }

  /* Load addresses of the file's sections. */
  static std::vector<Placed> placed(llvm::jitlink::LinkGraph &graph, const Link &link) {
    std::map<size_t, Placed> placed;
    for (llvm::jitlink::Section &part : graph.sections()) {
      const llvm::jitlink::SectionRange range(part);
      for (const Block *block : part.blocks()) {
        const auto origin = link.origins.find(block);
        if (origin == link.origins.end()) continue;
        const auto [section, offset] = origin->second;
        if (part.getName() == eh_frame_) {
          placed[section] = {section, range.getStart().getValue(), range.getSize()};
        } else {
          placed[section] = {section, block->getAddress().getValue() - offset, 0};
        }
      }
    }
    std::vector<Placed> result;
    for (const auto &[section, place] : placed) result.push_back(place);
    return result;
  }

  /* Returns a copy of the file with load addresses in its section table, and removes the link. */
  std::string takeLinked(const llvm::orc::MaterializationResponsibility *responsibility) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = links_.find(responsibility);
    if (entry == links_.end()) return {};
    const Link link = std::move(entry->second);
    links_.erase(entry);
    std::string copy = link.file.str();
    const detail::SectionTable table(link.file);
    for (const Placed &place : link.placed) {
      auto section = table.at(place.section);
      section.sh_addr = place.address;
      if (place.size != 0) section.sh_size = std::min<uint64_t>(place.size, section.sh_size);
      std::memcpy(&copy[table.entryOffset(place.section)], &section, sizeof section);
    }
    return copy;
  }

  std::mutex mutex_;
  std::map<const llvm::orc::MaterializationResponsibility *, Link> links_;
  std::map<llvm::orc::ResourceKey, std::vector<jitlisten_object>> objects_;
};

/* Reports the objects that the layer links. Call it once for each layer. */
inline void listenTo(llvm::orc::RTDyldObjectLinkingLayer &layer) {
  layer.registerJITEventListener(LlvmListener::orcListener());
}

/* Reports the objects that the layer links. Call it once for each layer. */
inline void listenTo(llvm::orc::ObjectLinkingLayer &layer) { layer.addPlugin(std::make_unique<LlvmLinkPlugin>()); }

/* Reports the objects of an LLJIT; returns false if its layer is neither of the two above. */
inline bool listenTo(llvm::orc::LLJIT &jit) {
  llvm::orc::ObjectLayer &layer = jit.getObjLinkingLayer();
  if (auto *jitlink = llvm::dyn_cast<llvm::orc::ObjectLinkingLayer>(&layer)) {
    listenTo(*jitlink);
    return true;
  }
  if (auto *rtdyld = llvm::dyn_cast<llvm::orc::RTDyldObjectLinkingLayer>(&layer)) {
    listenTo(*rtdyld);
    return true;
  }
  return false;
}

/* Reports the objects of an MCJIT engine whose memory manager is not a ListeningMemoryManager. Call finalized() when
 * its code is final. */
inline void listenTo(llvm::ExecutionEngine &engine) {
  LlvmListener &listener = *LlvmListener::mcjitListener(engine, true);
  engine.UnregisterJITEventListener(&listener); /* a second call has no effect */
  engine.RegisterJITEventListener(&listener);
}

/* Reports that everything the engine has loaded is relocated and may run. Call it after finalizeObject(). */
inline void finalized(llvm::ExecutionEngine &engine) {
  if (LlvmListener *listener = LlvmListener::mcjitListener(engine, false)) listener->finalized();
}

}  // namespace jitlisten

#endif
