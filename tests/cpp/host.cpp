/* A program that embeds LLVM and links to libjitlisten: compiles a chain of functions and spends its time in gamma.
 *
 *     host ENGINE FILE.ll SECONDS [WORD...]
 *
 *     ENGINE      mcjit, mcjit-said, orc-rtdyld, orc-jitlink; see engines.hpp
 *     FILE.ll     hosts/chain.ll or split.ll: alpha calls beta calls gamma, without frame pointers or unwind tables
 *     as-is       compiles the module unchanged
 *     tables      adds unwind tables, but no frame pointers
 *     libunwind, libgcc
 *                 meanwhile walks its own stack from a signal handler (walker.c)
 *     threads     instead, four threads create engines, run the compiled code, and destroy the engines
 *
 * Prints a result, `running` before it works for SECONDS of processor time, and the result again at the end. Then it
 * destroys the engine. Prints to standard error: the number of walks in gamma, the number of walks that reached the
 * start of the program, and the number of frames of the chain in the first walk; then the numbers of objects loaded,
 * finalized, freed and refused. */
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
extern "C" int walk_stack(uintptr_t *frames, int max_frames);

namespace {

constexpr int64_t iterations = 2000000;
constexpr const char *chain[] = {"gamma", "beta", "alpha"};
/* Upper limit of the size of gamma's code. gamma is shorter, but the code that follows belongs to the chain, too. */
constexpr uintptr_t max_gamma_bytes = 96;
constexpr int thread_count = 4, engines_per_thread = 12;

using Function = double (*)(int64_t, double);

struct Arguments {
  std::vector<std::string> words;

  bool contains(const char *word) const { return std::find(words.begin(), words.end(), word) != words.end(); }
};

bool addChain(Engine &engine, const Arguments &arguments) {
  auto context = std::make_unique<llvm::LLVMContext>();
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseIRFile(arguments.words[2], diagnostic, *context);
  if (module == nullptr) return false;
  const auto frame_pointers =
      arguments.contains("tables") ? jitlisten::FramePointers::Untouched : jitlisten::FramePointers::All;
  if (!arguments.contains("as-is")) jitlisten::setUnwindable(*module, frame_pointers);
  engine.add(std::move(module), std::move(context));
  return true;
}

/* The volatile variables keep the compiler from moving the calls. `seconds` is processor time, as in a profile. */
__attribute__((noinline)) double work(Function alpha, int seconds) {
  volatile double start = 1.0;
  volatile double result = 0.0;
  const clock_t deadline = clock() + seconds * CLOCKS_PER_SEC;
  do {
    result = alpha(iterations, start);
  } while (clock() < deadline);
  return result;
}

/* Returns the number of consecutive frames of the chain at the start of the walk. */
int countChainFrames(Engine &engine) {
  uintptr_t frames[64];
  const int frame_count = walk_stack(frames, 64);
  int matches = 0;
  while (matches < frame_count && matches < 3) {
    const uintptr_t code = engine.find(chain[matches]);
    if (frames[matches] < code || frames[matches] >= code + max_gamma_bytes) break;
    matches++;
  }
  return matches;
}

void workAndWalk(Engine &engine, const Arguments &arguments, int seconds) {
  const auto alpha = reinterpret_cast<Function>(engine.find("alpha"));
  const uintptr_t gamma = engine.find("gamma");
  const uintptr_t range[] = {gamma, gamma + max_gamma_bytes};
  const bool is_walking = arguments.contains("libunwind") || arguments.contains("libgcc");
  printf("%.17g\nrunning\n", alpha(10, 1.0));
  fflush(stdout);
  if (is_walking) walk_start(arguments.contains("libgcc") ? 1 : 0, range, 1);
  const double result = work(alpha, seconds);
  if (is_walking) {
    const int walk_count = walk_stop();
    fprintf(stderr, "%d walks, %d complete, %d frames\n", walk_count, walk_complete(), countChainFrames(engine));
  }
  printf("%.17g\n", result);
}

/* Adds a module that needs an undefined function; the engine must return an error. */
void addUndefined(Engine &engine) {
  auto context = std::make_unique<llvm::LLVMContext>();
  llvm::SMDiagnostic diagnostic;
  const auto text = llvm::MemoryBuffer::getMemBuffer(
      "declare void @nowhere()\ndefine void @broken() {\n call void @nowhere()\n ret void\n}\n");
  auto module = llvm::parseIR(*text, diagnostic, *context);
  engine.add(std::move(module), std::move(context));
  if (engine.find("broken") != 0) abort();
}

void runEngines(const Arguments &arguments) {
  for (int count = 0; count < engines_per_thread; count++) {
    const auto engine = makeEngine(arguments.words[1]);
    addChain(*engine, arguments);
    const auto alpha = reinterpret_cast<Function>(engine->find("alpha"));
    if (alpha == nullptr || alpha(10, 1.0) > 0.0) abort();
    if (count % 2 == 0) engine->remove();
    if (arguments.words[1].compare(0, 3, "orc") == 0) addUndefined(*engine);
    engine->close();
  }
}

/* Checks a calling convention that passes an argument in the frame pointer register, while the caller keeps its own
 * frame pointer on the stack. */
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

void runEnginesInThreads(const Arguments &arguments) {
  std::vector<std::thread> workers;
  for (int count = 0; count < thread_count; count++) workers.emplace_back([&] { runEngines(arguments); });
  for (std::thread &thread : workers) thread.join();
}

void printObjectCounts() {
  jitlisten_statistics statistics{};
  statistics.size = sizeof statistics;
  jitlisten_get_statistics(&statistics);
  fprintf(stderr, "%d loaded, %d finalized, %d freed, %d refused\n", static_cast<int>(statistics.objects_loaded),
          static_cast<int>(statistics.objects_finalized), static_cast<int>(statistics.objects_freed),
          static_cast<int>(statistics.objects_refused));
}

}  // namespace

int main(int argc, char **argv) {
  const Arguments arguments{{argv, argv + argc}};
  if (argc < 4) return 2;
  jitlisten::open();
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  if (arguments.contains("threads")) {
    runEnginesInThreads(arguments);
  } else {
    const auto engine = makeEngine(arguments.words[1]);
    if (engine == nullptr || !addChain(*engine, arguments)) return 2;
    workAndWalk(*engine, arguments, atoi(argv[3]));
    engine->close();
  }
  printObjectCounts();
  if (arguments.contains("threads")) checkConvention(arguments);
  return 0;
}
