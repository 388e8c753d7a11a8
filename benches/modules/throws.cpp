// What images in the lists of modules cost a program: exceptions through compiled frames, and the lists themselves.
//
//     throws LIBLLVMLITE FUNCTIONS THROWS
//
// Compiles FUNCTIONS functions, each an object of its own, that call back into this program, which throws; catches
// THROWS of them. Prints the sum of what was caught, and, of processor time, per call: microseconds of a throw, in all
// and in the quietest twentieth of them (a machine that does other work, too, has fewer caches to give), microseconds
// of a dl_iterate_phdr over everything, its records, microseconds of a walk by libunwind.so.8 from each function (the
// first, when it has met none of them, and the second) and its frames, and nanoseconds of a dladdr of compiled code.
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

static int64_t next;
/// libunwind's `unw_backtrace`, once there is nothing more to throw.
static int (*walk)(void **, int);
static int frames;

extern "C" void throws() {
    if (!walk) throw next;
    void *found[64];
    frames = walk(found, 64);
}

static int counts(dl_phdr_info *, size_t, void *records) {
    ++*static_cast<int *>(records);
    return 0;
}

/// Nanoseconds of this thread on a processor.
static double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

template <typename Work> static double each(int times, Work work) {
    double begin = now();
    for (int at = 0; at < times; at++) work(at);
    return (now() - begin) / times;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    void *library = compiler_open(argv[1]);
    int functions = atoi(argv[2]), times = atoi(argv[3]);
    std::vector<void (*)()> compiled;
    for (int number = 0; number < functions; number++) {
        char text[256], name[32];
        snprintf(name, sizeof name, "f%d", number);
        snprintf(text, sizeof text, "define void @%s() uwtable { call void inttoptr (i64 %" PRIuPTR " to ptr)() ret void }",
                 name, reinterpret_cast<uintptr_t>(throws));
        compiled.push_back(reinterpret_cast<void (*)()>(compiler_compile(library, text, name)));
    }
    int64_t sum = 0;
    auto caught = [&](int at) {
        next = at;
        try {
            compiled[at % compiled.size()]();
        } catch (int64_t value) {
            sum += value;
        }
    };
    each(functions, caught);
    sum = 0;
    double thrown = 0, quietest = 1e9;
    for (int part = 0; part < 20; part++) {
        double took = each(times / 20, [&](int at) { caught(part * (times / 20) + at); }) / 1e3;
        thrown += took / 20;
        quietest = std::min(quietest, took);
    }
    int records = 0;
    double iterated = each(1000, [&](int) { records = 0; dl_iterate_phdr(counts, &records); }) / 1e3;
    double walked[2] = {};
    if (void *libunwind = dlopen("libunwind.so.8", RTLD_NOW))
        walk = reinterpret_cast<int (*)(void **, int)>(dlsym(libunwind, "unw_backtrace"));
    for (double &took : walked)
        if (walk) took = each(functions, [&](int at) { compiled[at](); }) / 1e3;
    Dl_info info;
    int named = 0;
    double asked = each(100000, [&](int at) {
        named += dladdr(reinterpret_cast<void *>(compiled[at % compiled.size()]), &info) && info.dli_sname;
    });
    printf("sum %" PRId64 " throw %.3f us, quietest %.3f us, iterate %.2f us of %d records walk %.2f us, again %.2f us of %d frames dladdr %.0f ns, %d named\n",
           sum, thrown, quietest, iterated, records, walked[0], walked[1], frames, asked, named);
}
