/* A host that links with JITLink in memory of its own, which may run all the time, or is let run by a system call that no library makes.
 *
 *     links_in_own_memory MODE COUNT [WORD...]
 *
 *     writable    one piece of memory for all objects, which may be written and executed
 *     shared      one piece of shared memory, mapped twice: it is written in one place and executed in the other
 *     unheard     memory for each object; its code is let run by a system call of the program's own
 *     tables      tables are registered with the unwinder
 *     copied      the code is also copied to other memory that may be executed, where nothing calls it
 *
 * Links COUNT objects with one engine. Object N has chainN, which calls middleN, which calls leafN, and twinN and
 * sameN, which are equal:
 * each in a section of its own. Writes the address of each to the file `addresses`, prints the sum of what chainN,
 * twinN and sameN return, and "running", and waits for a line on standard input; links one more, prints "one more", and
 * waits again; destroys the engine, gives all memory back, prints "unmapped", and waits once more. */
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

constexpr size_t page = 4096, whole = 4 << 20, most = 64 << 10;

std::string mode;
bool tables, copied;

bool is(const char *other) { return mode == other; }

void require(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

char *map(size_t size, int protection, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1) {
  void *mapped = mmap(nullptr, size, protection, flags, file, 0);
  require(mapped != MAP_FAILED, "mmap");
  return static_cast<char *>(mapped);
}

/* Where an object is written, and where it is executed. */
struct Memory {
  char *written, *executed;
};

class OwnMemory final : public jitlink::JITLinkMemoryManager {
 public:
  OwnMemory() {
    constexpr int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (is("writable")) whole_.written = whole_.executed = map(whole, all);
    if (is("shared")) {
      const int file = memfd_create("code", MFD_CLOEXEC);
      require(file >= 0 && ftruncate(file, whole) == 0, "memfd_create");
      whole_.written = map(whole, PROT_READ | PROT_WRITE, MAP_SHARED, file);
      whole_.executed = map(whole, PROT_READ | PROT_EXEC, MAP_SHARED, file);
      close(file);
    }
    if (copied) copies_ = map(whole, all);
  }

  ~OwnMemory() override {
    if (whole_.written != nullptr) munmap(whole_.written, whole);
    if (whole_.executed != whole_.written) munmap(whole_.executed, whole);
    for (char *memory : own_) munmap(memory, most);
    if (copied) munmap(copies_, whole);
  }

  void allocate(const jitlink::JITLinkDylib *, jitlink::LinkGraph &graph, OnAllocatedFunction done) override {
    jitlink::BasicLayout layout(graph);
    const Memory memory = take();
    auto allocated = std::make_unique<Allocated>(graph, *this);
    size_t used = 0;
    for (auto &[group, segment] : layout.segments()) {
      used = alignTo(used, is("unheard") ? page : segment.Alignment.value());
      segment.WorkingMem = memory.written + used;
      segment.Addr = orc::ExecutorAddr::fromPtr(memory.executed + used);
      const size_t size = segment.ContentSize + segment.ZeroFillSize;
      if ((group.getMemProt() & orc::MemProt::Exec) != orc::MemProt::None) {
        allocated->code = {segment.WorkingMem, memory.executed + used};
        allocated->size = size;
      }
      used += size;
      require(used <= most, "a large object");
    }
    if (Error error = layout.apply()) return done(std::move(error));
    done(std::move(allocated));
  }

  void deallocate(std::vector<FinalizedAlloc> all, OnDeallocatedFunction done) override {
    for (auto &one : all) {
      auto *actions = one.release().toPtr<std::vector<orc::shared::WrapperFunctionCall> *>();
      cantFail(orc::shared::runDeallocActions(*actions));
      delete actions;
    }
    done(Error::success());
  }

 private:
  /* What is written is where it belongs. */
  class Allocated final : public InFlightAlloc {
   public:
    Allocated(jitlink::LinkGraph &graph, OwnMemory &memory) : graph_(graph), memory_(memory) {}

    void finalize(OnFinalizedFunction done) override {
      if (is("unheard")) {
        require(syscall(SYS_mprotect, code.executed, alignTo(size, page), PROT_READ | PROT_EXEC) == 0, "mprotect");
      }
      if (copied) memory_.copy(code.written, size);
      auto actions = orc::shared::runFinalizeActions(graph_.allocActions());
      if (!actions) return done(actions.takeError());
      auto *kept = new std::vector<orc::shared::WrapperFunctionCall>(std::move(*actions));
      done(FinalizedAlloc(orc::ExecutorAddr::fromPtr(kept)));
    }

    void abandon(OnAbandonedFunction done) override { done(Error::success()); }

    Memory code{};
    size_t size = 0;

   private:
    jitlink::LinkGraph &graph_;
    OwnMemory &memory_;
  };

  Memory take() {
    if (is("unheard")) {
      own_.push_back(map(most, PROT_READ | PROT_WRITE));
      return {own_.back(), own_.back()};
    }
    const Memory taken = {whole_.written + used_, whole_.executed + used_};
    used_ += 4096 + 16 * 7;
    require(used_ + most <= whole, "too many objects");
    return taken;
  }

  void copy(const char *code, size_t size) {
    memcpy(copies_ + copied_, code, size);
    copied_ = alignTo(copied_ + size, 64);
  }

  Memory whole_{};
  std::vector<char *> own_;
  char *copies_ = nullptr;
  size_t used_ = 0, copied_ = 0;
};

std::unique_ptr<orc::LLJIT> engine(OwnMemory &memory) {
  auto machine = cantFail(orc::JITTargetMachineBuilder::detectHost());
  machine.setRelocationModel(Reloc::PIC_);
  machine.setCodeModel(CodeModel::Small);
  orc::LLJITBuilder builder;
  builder.setJITTargetMachineBuilder(std::move(machine));
  builder.setObjectLinkingLayerCreator([&memory](orc::ExecutionSession &session, const Triple &) {
    auto layer = std::make_unique<orc::ObjectLinkingLayer>(session, memory);
    if (tables) {
      layer->addPlugin(std::make_unique<orc::EHFrameRegistrationPlugin>(
          session, std::make_unique<jitlink::InProcessEHFrameRegistrar>()));
    }
    return Expected<std::unique_ptr<orc::ObjectLayer>>(std::move(layer));
  });
  return cantFail(builder.create());
}

const char *text =
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

long linkOne(orc::LLJIT &jit, FILE *addresses, int number) {
  char ir[4096];
  snprintf(ir, sizeof ir, text, number, 1000 + number);
  auto context = std::make_unique<LLVMContext>();
  SMDiagnostic diagnostic;
  auto module = parseIR(MemoryBufferRef(ir, "host"), diagnostic, *context);
  require(module != nullptr, "no module");
  cantFail(jit.addIRModule({std::move(module), std::move(context)}));
  long sum = 0;
  for (const char *name : {"chain", "middle", "leaf", "twin", "same"}) {
    const std::string full = name + std::to_string(number);
    const auto address = cantFail(jit.lookup(full));
    fprintf(addresses, "%s %llx\n", full.c_str(), static_cast<unsigned long long>(address.getValue()));
    if (strcmp(name, "middle") && strcmp(name, "leaf")) sum += address.toPtr<long (*)(long)>()(3);
  }
  fflush(addresses);
  return sum;
}

void say(const char *line) {
  puts(line);
  fflush(stdout);
  getchar();
}

}  // namespace

int main(int count_of_words, char **words) {
  if (count_of_words < 3) return 2;
  mode = words[1];
  const int count = atoi(words[2]);
  for (int word = 3; word < count_of_words; word++) {
    tables |= !strcmp(words[word], "tables");
    copied |= !strcmp(words[word], "copied");
  }
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  FILE *addresses = fopen("addresses", "w");
  require(addresses != nullptr, "addresses");
  {
    OwnMemory memory;
    auto jit = engine(memory);
    long sum = 0;
    for (int number = 0; number < count; number++) sum += linkOne(*jit, addresses, number);
    printf("%ld\n", sum);
    say("running");
    printf("%ld\n", linkOne(*jit, addresses, count));
    say("one more");
    jit.reset();
  }
  say("unmapped");
}
