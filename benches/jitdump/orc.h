// Times ORC's perf plugin: see orc.cpp.
#pragma once

#include "llvm/Support/MemoryBuffer.h"

#include <memory>

class OrcPlugin {
public:
    OrcPlugin();
    ~OrcPlugin();
    // Links the object with JITLink. Returns the time in microseconds that the plugin took to create and write its records.
    double link(llvm::MemoryBufferRef object);

private:
    struct State;
    std::unique_ptr<State> state;
};
