// ORC's perf plugin, given an object: see orc.cpp.
#pragma once

#include "llvm/Support/MemoryBuffer.h"

#include <memory>

class OrcPlugin {
public:
    OrcPlugin();
    ~OrcPlugin();
    // Links the object with JITLink. The time the plugin took, in microseconds: making its records, and writing them.
    double link(llvm::MemoryBufferRef object);

private:
    struct State;
    std::unique_ptr<State> state;
};
