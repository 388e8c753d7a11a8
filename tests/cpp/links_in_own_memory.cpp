/* A host that links with JITLink in its own memory. That memory is always executable, or becomes executable through a
 * direct system call, which no hook sees.
 *
 *     links_in_own_memory MODE COUNT [WORD...]
 *
 *     writable    one mapping for all objects, both writable and executable
 *     shared      shared memory with two mappings: one for writing, one for execution
 *     unheard     separate memory per object; a direct system call makes its code executable
 *     tables      registers unwind tables
 *     copied      also copies the code to other executable memory, where nothing calls it
 *
 * Links COUNT objects with one engine. Object N contains chainN, which calls middleN, which calls leafN, and twinN and
 * sameN, whose code is identical. Each function has its own section. Writes the address of each function to the file
 * `addresses`. Prints the sum of the results of chainN, twinN and sameN, then "running", and waits for a line on
 * standard input. Links one more object, prints "one more", and waits. Destroys the engine, unmaps all memory, prints
 * "unmapped", and waits again. */
#include <llvm/ExecutionEngine/JITLink/EHFrameSupport.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IRReader/IRReader.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using namespace llvm;

constexpr size_t page_size = 4096, region_size = 4 << 20, max_object_size = 64 << 10;

std::string mode;
bool register_tables, copy_code;

bool mode_is(const char *other) { return mode == other; }

void require(bool condition, const char *message) {
  if (condition) return;
  fprintf(stderr, "%s\n", message);
  exit(1);
}

char *map(size_t size, int protection, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1) {
  void *mapping = mmap(nullptr, size, protection, flags, fd, 0);
  require(mapping != MAP_FAILED, "mmap");
  return static_cast<char *>(mapping);
}

/* Addresses of the same memory, for writing and for execution. */
struct CodeMemory {
  char *writable, *executable;
};

class OwnMemory final : public jitlink::JITLinkMemoryManager {
 public:
  OwnMemory() {
    constexpr int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (mode_is("writable")) region_.writable = region_.executable = map(region_size, all);
    if (mode_is("shared")) {
      const int fd = memfd_create("code", MFD_CLOEXEC);
      require(fd >= 0 && ftruncate(fd, region_size) == 0, "memfd_create");
      region_.writable = map(region_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
      region_.executable = map(region_size, PROT_READ | PROT_EXEC, MAP_SHARED, fd);
      close(fd);
    }
    if (copy_code) copy_region_ = map(region_size, all);
  }

  ~OwnMemory() override {
    if (region_.writable != nullptr) munmap(region_.writable, region_size);
    if (region_.executable != region_.writable) munmap(region_.executable, region_size);
    for (char *memory : object_regions_) munmap(memory, max_object_size);
    if (copy_code) munmap(copy_region_, region_size);
  }

  void allocate(const jitlink::JITLinkDylib *, jitlink::LinkGraph &graph, OnAllocatedFunction done) override {
    jitlink::BasicLayout layout(graph);
    const CodeMemory memory = takeMemory();
    auto allocation = std::make_unique<Allocation>(graph, *this);
    size_t offset = 0;
    for (auto &[group, segment] : layout.segments()) {
      offset = alignTo(offset, mode_is("unheard") ? page_size : segment.Alignment.value());
      segment.WorkingMem = memory.writable + offset;
      segment.Addr = orc::ExecutorAddr::fromPtr(memory.executable + offset);
      const size_t size = segment.ContentSize + segment.ZeroFillSize;
      if ((group.getMemProt() & orc::MemProt::Exec) != orc::MemProt::None) {
        allocation->code = {segment.WorkingMem, memory.executable + offset};
        allocation->size = size;
      }
      offset += size;
      require(offset <= max_object_size, "a large object");
    }
    if (Error error = layout.apply()) return done(std::move(error));
    done(std::move(allocation));
  }

  void deallocate(std::vector<FinalizedAlloc> allocations, OnDeallocatedFunction done) override {
    for (auto &allocation : allocations) {
      auto *actions = allocation.release().toPtr<std::vector<orc::shared::WrapperFunctionCall> *>();
      cantFail(orc::shared::runDeallocActions(*actions));
      delete actions;
    }
    done(Error::success());
  }

 private:
  /* An allocation that needs no copying: its working memory is its final memory. */
  class Allocation final : public InFlightAlloc {
   public:
    Allocation(jitlink::LinkGraph &graph, OwnMemory &memory) : graph_(graph), memory_(memory) {}

    void finalize(OnFinalizedFunction done) override {
      if (mode_is("unheard")) {
        require(syscall(SYS_mprotect, code.executable, alignTo(size, page_size), PROT_READ | PROT_EXEC) == 0, "mprotect");
      }
      if (copy_code) memory_.copyCode(code.writable, size);
      auto actions = orc::shared::runFinalizeActions(graph_.allocActions());
      if (!actions) return done(actions.takeError());
      auto *dealloc_actions = new std::vector<orc::shared::WrapperFunctionCall>(std::move(*actions));
      done(FinalizedAlloc(orc::ExecutorAddr::fromPtr(dealloc_actions)));
    }

    void abandon(OnAbandonedFunction done) override { done(Error::success()); }

    CodeMemory code{};
    size_t size = 0;

   private:
    jitlink::LinkGraph &graph_;
    OwnMemory &memory_;
  };

  CodeMemory takeMemory() {
    if (mode_is("unheard")) {
      object_regions_.push_back(map(max_object_size, PROT_READ | PROT_WRITE));
      return {object_regions_.back(), object_regions_.back()};
    }
    const CodeMemory memory = {region_.writable + used_bytes_, region_.executable + used_bytes_};
    used_bytes_ += 4096 + 16 * 7;
    require(used_bytes_ + max_object_size <= region_size, "too many objects");
    return memory;
  }

  void copyCode(const char *code, size_t size) {
    memcpy(copy_region_ + copied_bytes_, code, size);
    copied_bytes_ = alignTo(copied_bytes_ + size, 64);
  }

  CodeMemory region_{};
  std::vector<char *> object_regions_;
  char *copy_region_ = nullptr;
  size_t used_bytes_ = 0, copied_bytes_ = 0;
};

std::unique_ptr<orc::LLJIT> createEngine(OwnMemory &memory) {
  auto machine = cantFail(orc::JITTargetMachineBuilder::detectHost());
  machine.setRelocationModel(Reloc::PIC_);
  machine.setCodeModel(CodeModel::Small);
  orc::LLJITBuilder builder;
  builder.setJITTargetMachineBuilder(std::move(machine));
  builder.setObjectLinkingLayerCreator([&memory](orc::ExecutionSession &session, const Triple &) {
    auto layer = std::make_unique<orc::ObjectLinkingLayer>(session, memory);
    if (register_tables) {
      layer->addPlugin(std::make_unique<orc::EHFrameRegistrationPlugin>(
          session, std::make_unique<jitlink::InProcessEHFrameRegistrar>()));
    }
    return Expected<std::unique_ptr<orc::ObjectLayer>>(std::move(layer));
  });
  return cantFail(builder.create());
}

const char *module_template =
    "define i64 @chain%1$d(i64 %%n) #0 section \".text.chain\" {\n"
    "  %%r = call i64 @middle%1$d(i64 %%n)\n  %%s = add i64 %%r, 1\n  ret i64 %%s\n}\n"
    "define i64 @middle%1$d(i64 %%n) #0 section \".text.middle\" {\n"
    "  %%r = call i64 @leaf%1$d(i64 %%n)\n  %%k = load i64, ptr @seven%1$d\n  %%s = mul i64 %%r, %%k\n  ret i64 %%s\n}\n"
    "define i64 @leaf%1$d(i64 %%n) #0 section \".text.leaf\" {\n"
    "  %%r = mul i64 %%n, 5\n  %%s = xor i64 %%r, %2$d\n  ret i64 %%s\n}\n"
    "define i64 @twin%1$d(i64 %%n) #0 section \".text.twin\" {\n"
    "  %%r = mul i64 %%n, 11\n  %%s = xor i64 %%r, 12345\n  ret i64 %%s\n}\n"
    "define i64 @same%1$d(i64 %%n) #0 section \".text.same\" {\n"
    "  %%r = mul i64 %%n, 11\n  %%s = xor i64 %%r, 12345\n  ret i64 %%s\n}\n"
    "@seven%1$d = constant i64 7\n"
    "attributes #0 = { noinline nounwind uwtable \"frame-pointer\"=\"all\" }\n";

long linkObject(orc::LLJIT &jit, FILE *addresses, int number) {
  char ir[4096];
  snprintf(ir, sizeof ir, module_template, number, 1000 + number);
  auto context = std::make_unique<LLVMContext>();
  SMDiagnostic diagnostic;
  auto module = parseIR(MemoryBufferRef(ir, "host"), diagnostic, *context);
  require(module != nullptr, "no module");
  cantFail(jit.addIRModule({std::move(module), std::move(context)}));
  long sum = 0;
  for (const char *name : {"chain", "middle", "leaf", "twin", "same"}) {
    const std::string full_name = name + std::to_string(number);
    const auto address = cantFail(jit.lookup(full_name));
    fprintf(addresses, "%s %llx\n", full_name.c_str(), static_cast<unsigned long long>(address.getValue()));
    if (strcmp(name, "middle") && strcmp(name, "leaf")) sum += address.toPtr<long (*)(long)>()(3);
  }
  fflush(addresses);
  return sum;
}

void printAndWait(const char *line) {
  puts(line);
  fflush(stdout);
  getchar();
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  mode = argv[1];
  const int count = atoi(argv[2]);
  for (int i = 3; i < argc; i++) {
    register_tables |= !strcmp(argv[i], "tables");
    copy_code |= !strcmp(argv[i], "copied");
  }
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  FILE *addresses = fopen("addresses", "w");
  require(addresses != nullptr, "addresses");
  {
    OwnMemory memory;
    auto jit = createEngine(memory);
    long sum = 0;
    for (int number = 0; number < count; number++) sum += linkObject(*jit, addresses, number);
    printf("%ld\n", sum);
    printAndWait("running");
    printf("%ld\n", linkObject(*jit, addresses, count));
    printAndWait("one more");
    jit.reset();
  }
  printAndWait("unmapped");
}
