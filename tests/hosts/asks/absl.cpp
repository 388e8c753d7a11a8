// absl's symbolizer, used by its failure handler and its checks. It reads the files listed in /proc/self/maps.
#include <absl/debugging/failure_signal_handler.h>
#include <absl/debugging/symbolize.h>
#include <cstdio>
#include <execinfo.h>

extern "C" double ask(double x) {
    absl::InitializeSymbolizer("asks");
    void *frames[64];
    int count = backtrace(frames, 64);
    char name[256];
    for (int i = 0; i < count; i++) {
        bool is_found = absl::Symbolize(static_cast<char *>(frames[i]) - 1, name, sizeof name);
        fprintf(stderr, "absl %s\n", is_found ? name : "?");
    }
    return x;
}

extern "C" void ask_when_it_crashes() {
    absl::InitializeSymbolizer("asks");
    absl::InstallFailureSignalHandler({});
}
