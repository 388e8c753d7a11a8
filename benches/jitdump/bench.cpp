// Cost of a jitdump: compares LLVM's own listener with ours, on the same objects in one run.
//
//   bench DIRECTORY COUNT OBJECT.o...
//
// RuntimeDyld loads and relocates every object file COUNT times and passes it to both listeners in alternating order.
// The measured calls are LLVM's notifyObjectLoaded, and our *loaded* and *finalized* with all their work. *loaded*
// copies and parses the object and formats its names, for all sinks. *finalized* writes the jitdump, with lines and
// unwind tables, and checks functions for frame pointers. Both listeners write to a file in DIRECTORY. The debug object
// that we receive is made outside of the measured time, because LLVM's GDB listener, which MCJIT always has, needs one
// anyway. Its cost is printed separately, and included in the last column.
//
// Every tenth object also goes to ORC's perf plugin: see orc.cpp. It needs another linker, so its order does not
// alternate.
//
// Numbers are medians. Means are of the middle 90 %, because medians hide costs that do not occur each time, and a
// write is slowest when the file needs a new page. A/A compares alternate pairs of samples of one listener; if another
// ratio deviates less from 1, the deviation is noise.

#include "orc.h"

#include "llvm/ExecutionEngine/JITEventListener.h"
#include "llvm/ExecutionEngine/RuntimeDyld.h"
#include "llvm/Object/ELFObjectFile.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <vector>

extern "C" {
void ours_open(const char *directory);
void ours_loaded(const uint8_t *object, size_t size);
void ours_finalized();
uint64_t ours_bytes_written();
}

namespace {

using Clock = std::chrono::steady_clock;

double elapsed_us(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Memory manager with one large mapping. Separate mappings would exceed vm.max_map_count before 50,000 objects.
class Arena : public llvm::RuntimeDyld::MemoryManager {
    uint8_t *next = nullptr, *end = nullptr;
    std::vector<std::pair<uint8_t *, size_t>> code;

    uint8_t *allocate(uintptr_t size, unsigned alignment) {
        if (next == nullptr || size_t(end - next) < size + alignment) {
            size_t block = 1 << 26;
            int all = PROT_READ | PROT_WRITE | PROT_EXEC;
            void *mapped = mmap(nullptr, block, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (mapped == MAP_FAILED)
                abort();
            next = static_cast<uint8_t *>(mapped);
            end = next + block;
        }
        uintptr_t mask = alignment ? alignment - 1 : 15;
        uint8_t *address = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(next) + mask) & ~mask);
        next = address + size;
        return address;
    }

public:
    // Starts a new page for each object, like the memory managers of JITs.
    void align_to_page() { next = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(next) + 4095) & ~uintptr_t(4095)); }
    uint8_t *allocateCodeSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef) override {
        if (!pages_become_final)
            return allocate(size, alignment);
        align_to_page();
        uint8_t *address = allocate(size, 4096);
        align_to_page();
        code.emplace_back(address, next - address);
        return address;
    }
    // The image sink replaces pages that are no longer writable, so code needs separate pages.
    const bool pages_become_final = getenv("JITLISTEN") && strstr(getenv("JITLISTEN"), "image");
    void make_executable() {
        for (auto [start, size] : code)
            if (mprotect(start, size, PROT_READ | PROT_EXEC) != 0)
                abort();
        code.clear();
    }
    uint8_t *allocateDataSection(uintptr_t size, unsigned alignment, unsigned, llvm::StringRef, bool) override {
        return allocate(size, alignment);
    }
    void registerEHFrames(uint8_t *, uint64_t, size_t) override {}
    void deregisterEHFrames() override {}
    bool finalizeMemory(std::string *) override { return false; }
};

// Resolves every symbol to a dummy address.
class DummyResolver : public llvm::JITSymbolResolver {
    void lookup(const LookupSet &symbols, OnResolvedFunction resolved) override {
        LookupResult result;
        for (llvm::StringRef symbol : symbols)
            result[symbol] = llvm::JITEvaluatedSymbol(0x1000, llvm::JITSymbolFlags::Exported);
        resolved(std::move(result));
    }
    llvm::Expected<LookupSet> getResponsibilitySet(const LookupSet &) override { return LookupSet(); }
};

struct Samples {
    std::vector<double> values;

    static double median(std::vector<double> values) {
        if (values.empty())
            return 0;
        auto middle = values.begin() + values.size() / 2;
        std::nth_element(values.begin(), middle, values.end());
        return *middle;
    }
    double median() const { return median(values); }
    double mean() const {
        auto sorted = values;
        std::sort(sorted.begin(), sorted.end());
        size_t trimmed = sorted.size() / 20;
        double sum = std::accumulate(sorted.begin() + trimmed, sorted.end() - trimmed, 0.0);
        return sorted.empty() ? 0 : sum / double(sorted.size() - 2 * trimmed);
    }
    double median(size_t from, size_t to) const { return median({values.begin() + from, values.begin() + to}); }
    double a_a() const {
        std::vector<double> halves[2];
        // Compare pairs of samples, because the order of the two listeners alternates as well.
        for (size_t i = 0; i < values.size(); i++)
            halves[i / 2 % 2].push_back(values[i]);
        return median(halves[0]) / median(halves[1]);
    }
};

struct Bench {
    llvm::JITEventListener *llvm_listener = llvm::JITEventListener::createPerfJITEventListener();
    Arena arena;
    DummyResolver resolver;
    Samples theirs, ours, finalized, debug_object, load, orc;

    void measure(llvm::MemoryBufferRef buffer, uint64_t key, bool ours_first) {
        auto file = llvm::cantFail(llvm::object::ObjectFile::createELFObjectFile(buffer));
        arena.align_to_page();
        llvm::RuntimeDyld linker(arena, resolver);
        auto start = Clock::now();
        auto info = linker.loadObject(*file);
        linker.resolveRelocations();
        load.values.push_back(elapsed_us(start));
        arena.make_executable();
        if (linker.hasError()) {
            fprintf(stderr, "%s\n", linker.getErrorString().str().c_str());
            exit(1);
        }
        start = Clock::now();
        auto debug = info->getObjectForDebug(*file);
        debug_object.values.push_back(elapsed_us(start));
        llvm::StringRef bytes = debug.getBinary()->getData();
        if (ours_first)
            notify_ours(bytes);
        start = Clock::now();
        llvm_listener->notifyObjectLoaded(key, *file, *info);
        theirs.values.push_back(elapsed_us(start));
        if (!ours_first)
            notify_ours(bytes);
    }

    void notify_ours(llvm::StringRef bytes) {
        auto start = Clock::now();
        ours_loaded(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
        double loaded = elapsed_us(start);
        ours_finalized();
        ours.values.push_back(elapsed_us(start));
        finalized.values.push_back(ours.values.back() - loaded);
    }

    void report(const char *name) {
        double a = theirs.median(), b = ours.median(), debug = debug_object.median(), plugin = orc.median();
        const char *base = strrchr(name, '/');
        double write = finalized.median();
        printf("| %s | %zu | %.1f | %.1f | **%.3f** | %.3f | %.3f, %.3f | %.1f | %.3f | %.1f | %.1f | %.3f | %.1f | %.3f |\n",
               base ? base + 1 : name, theirs.values.size(), a, b, b / a, ours.mean() / theirs.mean(), theirs.a_a(),
               ours.a_a(), write, write / a, load.median(), debug, (b + debug) / a, plugin, b / plugin);
    }

    void report_growth() {
        size_t count = ours.values.size(), window = std::max<size_t>(count / 50, 50);
        printf("\n| objects so far | LLVM, us | ours, us |\n| --- | --- | --- |\n");
        for (size_t at = 100; at <= count; at = at < count && at * 10 > count ? count : at * 10) {
            size_t from = at > window ? at - window : 0;
            printf("| %zu | %.1f | %.1f |\n", at, theirs.median(from, at), ours.median(from, at));
            if (at == count)
                break;
        }
    }
};

} // namespace

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s DIRECTORY COUNT OBJECT.o...\n", argv[0]);
        return 2;
    }
    setenv("JITDUMPDIR", argv[1], 1);
    ours_open(argv[1]);
    size_t count = strtoul(argv[2], nullptr, 10);
    printf("| object | times | LLVM's listener, us | ours, us | ratio | of means | A/A | of that *finalized*, us | its ratio "
           "| load, us | debug object, us | ratio with it | ORC's plugin, us | ours to it |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    uint64_t key = 0;
    OrcPlugin plugin;
    std::vector<Bench> benches(argc - 3);
    for (int argument = 3; argument < argc; argument++) {
        auto buffer = llvm::MemoryBuffer::getFile(argv[argument]);
        Bench &bench = benches[argument - 3];
        if (!buffer || bench.llvm_listener == nullptr) {
            fprintf(stderr, "%s cannot be read, or this LLVM has no perf listener\n", argv[argument]);
            return 1;
        }
        for (size_t i = 0; i < count; i++) {
            bench.measure((*buffer)->getMemBufferRef(), ++key, i % 2 != 0);
            if (i % 10 == 0)
                bench.orc.values.push_back(plugin.link((*buffer)->getMemBufferRef()));
        }
        bench.report(argv[argument]);
    }
    for (Bench &bench : benches)
        bench.report_growth();
    printf("\nours: %llu bytes written\n", (unsigned long long)ours_bytes_written());
    return ours_bytes_written() == 0;
}
