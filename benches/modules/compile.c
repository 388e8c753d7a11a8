/* Compiles tests/hosts/llvmlite.h as C, for use in a C++ program. */
#include "../../tests/hosts/llvmlite.h"

void *compiler_open(const char *path) { return llvmlite_open(path, RTLD_NOW); }

uint64_t compiler_compile(void *compiler, const char *text, const char *function) {
    return llvmlite_compile(compiler, text, function);
}
