// Timing of ORC's perf plugin, implemented in orc.cpp.
#pragma once

#include "llvm/Support/MemoryBuffer.h"

#include <memory>

class OrcPlugin {
public:
    OrcPlugin();
    ~OrcPlugin();
    // Links the object with JITLink. Returns the microseconds that the plugin needed to create and write its records.
    double link(llvm::MemoryBufferRef object);

private:
    struct State;
    std::unique_ptr<State> state;
};
