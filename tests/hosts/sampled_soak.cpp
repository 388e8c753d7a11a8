/* Starts and stops a recording every tenth of a second, while threads do things that a recorder must not disturb.
 *
 *   sampled_soak SECONDS DIRECTORY
 *
 * Each thread in turn compiles and frees code, forks, execs, throws and catches, walks its stack, raises signals
 * (handled on its own stack and on an alternate one), starts and ends threads, and loads and unloads a library. Every
 * recording is checked. Prints the number of recordings and samples, and the resident memory (KiB) and open descriptors
 * after the first fifth and at the end. A lost wake-up, a wrong result or a damaged file ends the program early. */
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "jitlisten.h"
extern "C" {
#include "llvm_c.h"
}

#define KEPT __attribute__((noinline, noclone))
#define CHECK(condition)                                                                                                  \
    do {                                                                                                                  \
        if (!(condition)) {                                                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                       \
            _exit(4);                                                                                                     \
        }                                                                                                                 \
    } while (0)

static std::atomic<bool> done;
static volatile double sink;

static double now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

KEPT static void burn(double seconds) {
    for (double deadline = now(CLOCK_THREAD_CPUTIME_ID) + seconds; now(CLOCK_THREAD_CPUTIME_ID) < deadline;)
        for (int i = 0; i < 1000; i++) sink = sink * 0.999 + 1.0 / (sink * sink + 1.0);
}

/* Compiles a function, calls it 1,000 times, and frees it while other threads are sampled. */
static void compile(long turn) {
    char name[64];
    snprintf(name, sizeof name, "soaked_%ld", turn % 16);
    compiled function = compile_named(name, name, turn);
    for (int i = 0; i < 1000; i++) CHECK(returns_expected(function, turn));
    dispose(function);
}

KEPT static int throw_from(int depth) {
    std::string destroyed_string(40, 'x');
    if (depth == 0) throw std::runtime_error(destroyed_string);
    return throw_from(depth - 1) + static_cast<int>(destroyed_string.size());
}

static void raise_and_catch() {
    for (int i = 0; i < 20; i++) {
        bool caught = false;
        try {
            sink = throw_from(20);
        } catch (const std::runtime_error &error) {
            caught = strlen(error.what()) == 40;
        }
        CHECK(caught);
    }
}

static void walk_the_stack() {
    void *frames[64];
    for (int i = 0; i < 20; i++) CHECK(backtrace(frames, 64) > 2);
}

static void burn_in_handler(int) { burn(0.001); }

static void raise_signals() {
    static thread_local char memory[65536];
    stack_t alternate_stack = {}, previous_stack;
    alternate_stack.ss_sp = memory;
    alternate_stack.ss_size = sizeof memory;
    CHECK(sigaltstack(&alternate_stack, &previous_stack) == 0);
    for (int i = 0; i < 10; i++) raise(i % 2 ? SIGUSR1 : SIGUSR2);
    CHECK(sigaltstack(&previous_stack, nullptr) == 0);
}

static void fork_and_exec(long turn) {
    int status = 1;
    pid_t child;
    if (turn % 3 == 0) {
        char *words[] = {const_cast<char *>("true"), nullptr};
        CHECK(posix_spawn(&child, "/bin/true", nullptr, nullptr, words, environ) == 0);
    } else if (turn % 3 == 1) {
        child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", nullptr);
            _exit(9);
        }
    } else {
        child = fork();
        if (child == 0) {
            burn(0.002);
            _exit(0);
        }
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void *burn_with_blocked_signals(void *) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    burn(0.002);
    return nullptr;
}

static void run_short_thread() {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, burn_with_blocked_signals, nullptr) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
}

static void load_and_unload() {
    void *library = dlopen("libz.so.1", RTLD_NOW);
    if (!library) return;
    auto crc = reinterpret_cast<unsigned long (*)(unsigned long, const void *, unsigned)>(dlsym(library, "crc32"));
    static const char bytes[1 << 16] = {};
    for (int i = 0; i < 20; i++) sink = static_cast<double>(crc(0, bytes, sizeof bytes));
    dlclose(library);
}

static void *disturb(void *number) {
    for (long turn = reinterpret_cast<long>(number); !done; turn++) switch (turn % 8) {
            case 0: compile(turn); break;
            case 1: raise_and_catch(); break;
            case 2: raise_signals(); break;
            case 3: fork_and_exec(turn / 8); break;
            case 4: run_short_thread(); break;
            case 5: load_and_unload(); break;
            case 6: walk_the_stack(); break;
            default: burn(0.005);
        }
    return nullptr;
}

/* Checks that the records end at the position in the file's header, and that none is malformed. Returns the number of
 * samples. */
static long count_samples(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    CHECK(bytes.size() > 248 && memcmp(bytes.data(), "PERFILE2", 8) == 0);
    auto read_u64 = [&](size_t offset) {
        uint64_t value;
        memcpy(&value, &bytes[offset], 8);
        return value;
    };
    uint64_t offset = read_u64(40), end = offset + read_u64(48);
    CHECK(end <= bytes.size());
    long samples = 0;
    while (offset < end) {
        uint64_t header_word = read_u64(offset);
        uint32_t kind = static_cast<uint32_t>(header_word);
        uint64_t size = header_word >> 48;
        CHECK(kind != 0 && size >= 8 && size % 8 == 0);
        samples += kind == 9;
        offset += size;
    }
    CHECK(offset == end);
    return samples;
}

static long resident_kib() {
    std::ifstream file("/proc/self/status");
    std::string word;
    while (file >> word)
        if (word == "VmRSS:") break;
    long resident = 0;
    file >> resident;
    return resident;
}

static long open_descriptors() {
    long count = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() || true;
    return count;
}

template <typename Function> static Function find_in_library(const char *name) {
    auto address = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    CHECK(address);
    return address;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    double seconds = atof(argv[1]);
    std::string directory = argv[2];
    auto start = find_in_library<decltype(&jitlisten_record_start)>("jitlisten_record_start");
    auto stop = find_in_library<decltype(&jitlisten_record_stop)>("jitlisten_record_stop");
    struct sigaction on_own_stack = {}, on_alternate_stack = {};
    on_own_stack.sa_handler = on_alternate_stack.sa_handler = burn_in_handler;
    on_alternate_stack.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &on_own_stack, nullptr);
    sigaction(SIGUSR2, &on_alternate_stack, nullptr);
    initialize_llvm();
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], nullptr, disturb, reinterpret_cast<void *>(i * 2)) == 0);
    double started = now(CLOCK_MONOTONIC);
    long recordings = 0, samples = 0, early_memory_kib = 0, early_descriptors = 0;
    for (; now(CLOCK_MONOTONIC) < started + seconds; recordings++) {
        std::string path = directory + "/soak-" + std::to_string(recordings % 8) + ".data";
        jitlisten_record_options options = {};
        options.size = sizeof options;
        options.flags = recordings % 10 == 9 ? JITLISTEN_RECORD_WALL : 0;
        CHECK(start(path.c_str(), &options) == JITLISTEN_OK);
        usleep(100000);
        CHECK(stop() == JITLISTEN_OK);
        samples += count_samples(path);
        std::filesystem::remove_all(path + ".images");
        if (!early_memory_kib && now(CLOCK_MONOTONIC) > started + seconds / 5) early_memory_kib = resident_kib(), early_descriptors = open_descriptors();
    }
    printf("recordings %ld samples %ld memory %ld %ld", recordings, samples, early_memory_kib, resident_kib());
    done = true;
    for (pthread_t thread : threads) CHECK(pthread_join(thread, nullptr) == 0);
    printf(" descriptors %ld %ld\n", early_descriptors, open_descriptors());
    return 0;
}
