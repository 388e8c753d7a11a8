/* A library to preload after the library under test, so that its constructor runs later. Like a debugger that started
 * the program, it occupies the function that the loader calls on each change of its list. The function still does
 * nothing, but it can no longer be patched. */
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((constructor)) static void occupy(void)
{
    static const unsigned char nop_and_return[] = {0x90, 0xc3};
    uintptr_t address = _r_debug.r_brk, start = address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    size_t size = address + sizeof nop_and_return - start;
    if (mprotect((void *)start, size, PROT_READ | PROT_WRITE | PROT_EXEC))
        abort();
    memcpy((void *)address, nop_and_return, sizeof nop_and_return);
    if (mprotect((void *)start, size, PROT_READ | PROT_EXEC))
        abort();
}
