/* A program that embeds LLVM and is linked with libjitlisten: compiles a chain of functions and spends its time in gamma.
 *
 *     host ENGINE FILE.ll SECONDS [WORD...]
 *
 *     ENGINE      mcjit, mcjit-said, orc-rtdyld, orc-jitlink; see engines.hpp
 *     FILE.ll     hosts/chain.ll or split.ll: alpha calls beta calls gamma, none with a frame pointer or an unwind table
 *     as-is       compiles the module as it is
 *     tables      adds unwind tables, but no frame pointers
 *     libunwind, libgcc
 *                 walks its own stack from a signal handler meanwhile (walker.c)
 *     threads     does nothing of that: four threads make engines, run what they compile, and destroy them
 *
 * Prints a result, `running` when it goes on to work for SECONDS of processor time, and at the end the result again.
 * Then the engine is destroyed. To standard error: the walks taken in gamma, those that reached the start of the
 * program, and how many frames of the first of these are of the chain; how many objects were loaded, finalized, freed
 * and refused. */
#include "engines.hpp"

#include <llvm/IR/LLVMContext.h>
#include <llvm/IRReader/IRReader.h>
#include <llvm/Support/SourceMgr.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

extern "C" int walk_start(int walker, const uintptr_t *ranges, int count);
extern "C" int walk_stop(void);
extern "C" int walk_complete(void);
extern "C" int walk_stack(uintptr_t *frames, int most);

namespace {

constexpr int64_t loop = 2000000;
constexpr const char *chain[] = {"gamma", "beta", "alpha"};
/* gamma's code is shorter, and what follows it is of the chain, too. */
constexpr uintptr_t most_code = 96;
constexpr int threads = 4, engines = 12;

using Function = double (*)(int64_t, double);

struct Arguments {
  std::vector<std::string> words;

  bool have(const char *word) const { return std::find(words.begin(), words.end(), word) != words.end(); }
};

bool addChain(Engine &engine, const Arguments &arguments) {
  auto context = std::make_unique<llvm::LLVMContext>();
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseIRFile(arguments.words[2], diagnostic, *context);
  if (module == nullptr) return false;
  const auto frame_pointers =
      arguments.have("tables") ? jitlisten::FramePointers::Untouched : jitlisten::FramePointers::All;
  if (!arguments.have("as-is")) jitlisten::setUnwindable(*module, frame_pointers);
  engine.add(std::move(module), std::move(context));
  return true;
}

/* Volatile ends keep the calls where they are. Seconds are those of the processor, as a profiler counts them. */
__attribute__((noinline)) double work(Function alpha, int seconds) {
  volatile double start = 1.0;
  volatile double result = 0.0;
  const clock_t until = clock() + seconds * CLOCKS_PER_SEC;
  do {
    result = alpha(loop, start);
  } while (clock() < until);
  return result;
}

/* How many frames of a walk are of the chain, without one left out. */
int framesOfChain(Engine &engine) {
  uintptr_t frames[64];
  const int count = walk_stack(frames, 64);
  int found = 0;
  while (found < count && found < 3) {
    const uintptr_t code = engine.find(chain[found]);
    if (frames[found] < code || frames[found] >= code + most_code) break;
    found++;
  }
  return found;
}

void workWatched(Engine &engine, const Arguments &arguments, int seconds) {
  const auto alpha = reinterpret_cast<Function>(engine.find("alpha"));
  const uintptr_t gamma = engine.find("gamma");
  const uintptr_t range[] = {gamma, gamma + most_code};
  const bool walks = arguments.have("libunwind") || arguments.have("libgcc");
  printf("%.17g\nrunning\n", alpha(10, 1.0));
  fflush(stdout);
  if (walks) walk_start(arguments.have("libgcc") ? 1 : 0, range, 1);
  const double result = work(alpha, seconds);
  if (walks) {
    const int taken = walk_stop();
    fprintf(stderr, "%d walks, %d complete, %d frames\n", taken, walk_complete(), framesOfChain(engine));
  }
  printf("%.17g\n", result);
}

/* A module that needs a function that does not exist, for the engines that return an error. */
void addBroken(Engine &engine) {
  auto context = std::make_unique<llvm::LLVMContext>();
  llvm::SMDiagnostic diagnostic;
  const auto text = llvm::MemoryBuffer::getMemBuffer(
      "declare void @nowhere()\ndefine void @broken() {\n call void @nowhere()\n ret void\n}\n");
  auto module = llvm::parseIR(*text, diagnostic, *context);
  engine.add(std::move(module), std::move(context));
  if (engine.find("broken") != 0) abort();
}

void makeEngines(const Arguments &arguments) {
  for (int count = 0; count < engines; count++) {
    const auto engine = makeEngine(arguments.words[1]);
    addChain(*engine, arguments);
    const auto alpha = reinterpret_cast<Function>(engine->find("alpha"));
    if (alpha == nullptr || alpha(10, 1.0) > 0.0) abort();
    if (count % 2 == 0) engine->remove();
    if (arguments.words[1].compare(0, 3, "orc") == 0) addBroken(*engine);
    engine->close();
  }
}

/* A function that gets an argument in the register of the frame pointer, and its caller, whose own waits on the stack meanwhile. */
void checkConvention(const Arguments &arguments) {
  auto context = std::make_unique<llvm::LLVMContext>();
  llvm::SMDiagnostic diagnostic;
  const auto text = llvm::MemoryBuffer::getMemBuffer(
      "define ghccc i64 @product(i64 %a, i64 %b) noinline nounwind {\n %c = mul i64 %a, %b\n ret i64 %c\n}\n"
      "define i64 @caller(i64 %n) nounwind {\n %a = call ghccc i64 @product(i64 %n, i64 1000)\n"
      " %b = xor i64 %a, %n\n ret i64 %b\n}\n");
  auto module = llvm::parseIR(*text, diagnostic, *context);
  jitlisten::setUnwindable(*module);
  const auto engine = makeEngine(arguments.words[1]);
  engine->add(std::move(module), std::move(context));
  const auto caller = reinterpret_cast<int64_t (*)(int64_t)>(engine->find("caller"));
  if (caller == nullptr || caller(3) != (3000 ^ 3)) abort();
  engine->close();
}

void makeEnginesInThreads(const Arguments &arguments) {
  std::vector<std::thread> running;
  for (int count = 0; count < threads; count++) running.emplace_back([&] { makeEngines(arguments); });
  for (std::thread &thread : running) thread.join();
}

void countObjects() {
  jitlisten_statistics counted{};
  counted.size = sizeof counted;
  jitlisten_get_statistics(&counted);
  fprintf(stderr, "%d loaded, %d finalized, %d freed, %d refused\n", static_cast<int>(counted.objects_loaded),
          static_cast<int>(counted.objects_finalized), static_cast<int>(counted.objects_freed),
          static_cast<int>(counted.objects_refused));
  const bool has_failed = jitlisten::firstFailure() != JITLISTEN_OK;
  if (counted.objects_loaded != 0 && has_failed != (counted.objects_refused != 0)) abort();
}

}  // namespace

int main(int argc, char **argv) {
  const Arguments arguments{{argv, argv + argc}};
  if (argc < 4) return 2;
  jitlisten::open();
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  if (arguments.have("threads")) {
    makeEnginesInThreads(arguments);
  } else {
    const auto engine = makeEngine(arguments.words[1]);
    if (engine == nullptr || !addChain(*engine, arguments)) return 2;
    workWatched(*engine, arguments, atoi(argv[3]));
    engine->close();
  }
  countObjects();
  if (arguments.have("threads")) checkConvention(arguments);
  return 0;
}
