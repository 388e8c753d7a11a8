/* A library to preload behind the one under test, whose constructor then runs later: takes the function that the loader calls at each change
 * of its list, as a debugger does that has started the program. It is still empty, and none that may be redirected. */
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((constructor)) static void take(void)
{
    static const unsigned char nop_and_return[] = {0x90, 0xc3};
    uintptr_t at = _r_debug.r_brk, start = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    size_t size = at + sizeof nop_and_return - start;
    if (mprotect((void *)start, size, PROT_READ | PROT_WRITE | PROT_EXEC))
        abort();
    memcpy((void *)at, nop_and_return, sizeof nop_and_return);
    if (mprotect((void *)start, size, PROT_READ | PROT_EXEC))
        abort();
}
