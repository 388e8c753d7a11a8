/* Starts and stops a recording every tenth of a second, under threads that do what a recorder may not be in the way of.
 *
 *   sampled_soak SECONDS DIRECTORY
 *
 * Each thread compiles and frees, forks, execs, throws and catches through compiled code's caller, walks its stack, raises
 * signals (on the stack and on one of their own), begins and ends threads, loads and unloads a library, in turns. Every file that was
 * written is looked through. At the end: how many recordings and samples, and resident memory (KiB) and descriptors after the first
 * fifth and at the end; a lost wake-up, a wrong result or a damaged file ends the program before that. */
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
    for (double until = now(CLOCK_THREAD_CPUTIME_ID) + seconds; now(CLOCK_THREAD_CPUTIME_ID) < until;)
        for (int i = 0; i < 1000; i++) sink = sink * 0.999 + 1.0 / (sink * sink + 1.0);
}

/* Compiled once for each turn, called 1,000 times, and freed while other threads are sampled. */
static void compile(long turn) {
    char name[64];
    snprintf(name, sizeof name, "soaked_%ld", turn % 16);
    compiled made = compile_named(name, name, turn);
    for (int i = 0; i < 1000; i++) CHECK(is_right(made, turn));
    dispose(made);
}

KEPT static int throw_from(int depth) {
    std::string unwound(40, 'x');
    if (depth == 0) throw std::runtime_error(unwound);
    return throw_from(depth - 1) + static_cast<int>(unwound.size());
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

static void handler(int) { burn(0.001); }

static void raise_signals() {
    static thread_local char memory[65536];
    stack_t own = {}, before;
    own.ss_sp = memory;
    own.ss_size = sizeof memory;
    CHECK(sigaltstack(&own, &before) == 0);
    for (int i = 0; i < 10; i++) raise(i % 2 ? SIGUSR1 : SIGUSR2);
    CHECK(sigaltstack(&before, nullptr) == 0);
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

static void *blocked_and_short(void *) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    burn(0.002);
    return nullptr;
}

static void begin_a_thread() {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, blocked_and_short, nullptr) == 0);
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

static void *restless(void *number) {
    for (long turn = reinterpret_cast<long>(number); !done; turn++) switch (turn % 8) {
            case 0: compile(turn); break;
            case 1: raise_and_catch(); break;
            case 2: raise_signals(); break;
            case 3: fork_and_exec(turn / 8); break;
            case 4: begin_a_thread(); break;
            case 5: load_and_unload(); break;
            case 6: walk_the_stack(); break;
            default: burn(0.005);
        }
    return nullptr;
}

/* Whole: records end where the header says, and there are no others. Returns how many samples there are. */
static long samples_in(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    CHECK(bytes.size() > 248 && memcmp(bytes.data(), "PERFILE2", 8) == 0);
    auto word = [&](size_t at) {
        uint64_t value;
        memcpy(&value, &bytes[at], 8);
        return value;
    };
    uint64_t at = word(40), end = at + word(48);
    CHECK(end <= bytes.size());
    long samples = 0;
    while (at < end) {
        uint64_t head = word(at);
        uint32_t kind = static_cast<uint32_t>(head);
        uint64_t size = head >> 48;
        CHECK(kind != 0 && size >= 8 && size % 8 == 0);
        samples += kind == 9;
        at += size;
    }
    CHECK(at == end);
    return samples;
}

static long resident() {
    std::ifstream file("/proc/self/status");
    std::string word;
    while (file >> word)
        if (word == "VmRSS:") break;
    long kibibytes = 0;
    file >> kibibytes;
    return kibibytes;
}

static long descriptors() {
    long count = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() || true;
    return count;
}

template <typename Function> static Function of_library(const char *name) {
    auto found = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    CHECK(found);
    return found;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    double seconds = atof(argv[1]);
    std::string directory = argv[2];
    auto start = of_library<decltype(&jitlisten_record_start)>("jitlisten_record_start");
    auto stop = of_library<decltype(&jitlisten_record_stop)>("jitlisten_record_stop");
    struct sigaction plain = {}, other = {};
    plain.sa_handler = other.sa_handler = handler;
    other.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &plain, nullptr);
    sigaction(SIGUSR2, &other, nullptr);
    llvm_begin();
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], nullptr, restless, reinterpret_cast<void *>(i * 2)) == 0);
    double began = now(CLOCK_MONOTONIC);
    long recordings = 0, samples = 0, memory = 0, open_files = 0;
    for (; now(CLOCK_MONOTONIC) < began + seconds; recordings++) {
        std::string path = directory + "/soak-" + std::to_string(recordings % 8) + ".data";
        jitlisten_record_options options = {};
        options.size = sizeof options;
        options.flags = recordings % 10 == 9 ? JITLISTEN_RECORD_WALL : 0;
        CHECK(start(path.c_str(), &options) == JITLISTEN_OK);
        usleep(100000);
        CHECK(stop() == JITLISTEN_OK);
        samples += samples_in(path);
        std::filesystem::remove_all(path + ".images");
        if (!memory && now(CLOCK_MONOTONIC) > began + seconds / 5) memory = resident(), open_files = descriptors();
    }
    printf("recordings %ld samples %ld memory %ld %ld", recordings, samples, memory, resident());
    done = true;
    for (pthread_t thread : threads) CHECK(pthread_join(thread, nullptr) == 0);
    printf(" descriptors %ld %ld\n", open_files, descriptors());
    return 0;
}
