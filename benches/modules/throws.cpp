// Cost of images in the module lists: exceptions through compiled frames, and iteration over the lists.
//
//     throws LIBLLVMLITE FUNCTIONS THROWS
//
// Compiles FUNCTIONS functions, each in a separate object, that call back into this program, which throws; catches
// THROWS exceptions. Prints the sum of the caught values, and the processor time per call of:
//   * a throw, in microseconds: the mean, and that of the quickest of twenty parts (other work uses the caches)
//   * dl_iterate_phdr over all modules, in microseconds, with the number of records
//   * a stack walk by libunwind.so.8 from each function, in microseconds, with the number of frames: the first walk,
//     before libunwind has seen any function, and the second
//   * dladdr of compiled code, in nanoseconds
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <dlfcn.h>
#include <link.h>
#include <vector>

extern "C" void *compiler_open(const char *path);
extern "C" uint64_t compiler_compile(void *compiler, const char *text, const char *function);

static int64_t next_value;
/// libunwind's `unw_backtrace`; set once all exceptions have been thrown.
static int (*unw_backtrace)(void **, int);
static int walked_frames;

extern "C" void throw_or_walk() {
    if (!unw_backtrace) throw next_value;
    void *addresses[64];
    walked_frames = unw_backtrace(addresses, 64);
}

static int count_module(dl_phdr_info *, size_t, void *count) {
    ++*static_cast<int *>(count);
    return 0;
}

/// Processor time of this thread in nanoseconds.
static double thread_time_ns() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

template <typename Work> static double measure_each(int times, Work work) {
    double started = thread_time_ns();
    for (int index = 0; index < times; index++) work(index);
    return (thread_time_ns() - started) / times;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    void *compiler = compiler_open(argv[1]);
    int functions = atoi(argv[2]), times = atoi(argv[3]);
    std::vector<void (*)()> compiled;
    for (int number = 0; number < functions; number++) {
        char text[256], name[32];
        snprintf(name, sizeof name, "f%d", number);
        snprintf(text, sizeof text, "define void @%s() uwtable { call void inttoptr (i64 %" PRIuPTR " to ptr)() ret void }",
                 name, reinterpret_cast<uintptr_t>(throw_or_walk));
        compiled.push_back(reinterpret_cast<void (*)()>(compiler_compile(compiler, text, name)));
    }
    int64_t sum = 0;
    auto throw_and_catch = [&](int index) {
        next_value = index;
        try {
            compiled[index % compiled.size()]();
        } catch (int64_t value) {
            sum += value;
        }
    };
    measure_each(functions, throw_and_catch);
    sum = 0;
    double throw_us = 0, quietest_us = 1e9;
    for (int part = 0; part < 20; part++) {
        double elapsed = measure_each(times / 20, [&](int index) { throw_and_catch(part * (times / 20) + index); }) / 1e3;
        throw_us += elapsed / 20;
        quietest_us = std::min(quietest_us, elapsed);
    }
    int records = 0;
    double iterate_us = measure_each(1000, [&](int) { records = 0; dl_iterate_phdr(count_module, &records); }) / 1e3;
    double walk_us[2] = {};
    if (void *libunwind = dlopen("libunwind.so.8", RTLD_NOW))
        unw_backtrace = reinterpret_cast<int (*)(void **, int)>(dlsym(libunwind, "unw_backtrace"));
    for (double &elapsed : walk_us)
        if (unw_backtrace) elapsed = measure_each(functions, [&](int index) { compiled[index](); }) / 1e3;
    Dl_info info;
    int named_count = 0;
    double dladdr_ns = measure_each(100000, [&](int index) {
        named_count += dladdr(reinterpret_cast<void *>(compiled[index % compiled.size()]), &info) && info.dli_sname;
    });
    printf("sum %" PRId64 " throw %.3f us, quietest %.3f us, iterate %.2f us of %d records walk %.2f us, again %.2f us of %d frames dladdr %.0f ns, %d named\n",
           sum, throw_us, quietest_us, iterate_us, records, walk_us[0], walk_us[1], walked_frames, dladdr_ns, named_count);
}
