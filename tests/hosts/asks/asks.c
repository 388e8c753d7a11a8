/* What a tool inside the process sees of the frames that called it.
 *
 *     ask(x)   called by compiled code, returns x; to standard error, a line for each frame and each way to ask:
 *
 *       phdr COUNT ADDS SUBS             dl_iterate_phdr: records, and the counts of the last one; "torn" if they differ
 *       mapped FILE OFFSET               the record that has the frame; "WRONG" if /proc/self/maps says otherwise
 *       dladdr NAME FILE                 dladdr
 *       symbol NAME VALUE                dladdr1, RTLD_DL_SYMENT: its st_value + l_addr is the address that dladdr says
 *       find FILE                        _dl_find_object, where there is one
 *       symbols TEXT, symbols_fd TEXT    backtrace_symbols, backtrace_symbols_fd
 *       libunwind NAME                   unw_get_proc_name, for every frame
 *
 *     ask_when_it_crashes()   from now on SIGSEGV is the line "crashed", the same questions from the signal's handler, and the end
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <execinfo.h>
#include <libunwind.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 };

struct asked {
    uintptr_t address;
    unsigned long long adds, subs;
    int count, torn;
    char file[4096];
    uintptr_t start, bias;
};

static int record(struct dl_phdr_info *info, size_t size, void *data) {
    struct asked *asked = data;
    (void)size;
    asked->torn |= asked->count > 0 && (asked->adds != info->dlpi_adds || asked->subs != info->dlpi_subs);
    asked->adds = info->dlpi_adds, asked->subs = info->dlpi_subs;
    asked->count++;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[at];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && asked->address - start < header->p_memsz) {
            snprintf(asked->file, sizeof asked->file, "%s", info->dlpi_name);
            asked->start = start - header->p_offset;
            asked->bias = info->dlpi_addr;
        }
    }
    return 0;
}

/* Whether the mapping of an address is of this file, with byte 0 of it at `start` if all were mapped. */
static int is_mapped(uintptr_t address, const char *file, uintptr_t start) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[8192], path[4096];
    unsigned long low, high, offset;
    int is = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095[^\n]", &low, &high, &offset, path) >= 3 && address >= low &&
            address < high)
            is = low - offset == start && (!*file || strcmp(path, file) == 0);
    }
    if (maps) fclose(maps);
    return is;
}

static void ask_of(void *frame) {
    struct asked asked = {.address = (uintptr_t)frame};
    dl_iterate_phdr(record, &asked);
    if (strstr(asked.file, "/object-"))
        fprintf(stderr, "mapped %s %#lx%s\n", asked.file, (long)(asked.address - asked.bias),
                is_mapped(asked.address, asked.file, asked.start) ? "" : " WRONG");
    Dl_info info, again;
    if (dladdr(frame, &info) && info.dli_sname) fprintf(stderr, "dladdr %s %s\n", info.dli_sname, info.dli_fname);
    ElfW(Sym) *symbol = NULL;
    struct link_map *map = NULL;
    if (dladdr1(frame, &info, (void **)&symbol, RTLD_DL_SYMENT) && dladdr1(frame, &again, (void **)&map, RTLD_DL_LINKMAP) &&
        symbol && map)
        fprintf(stderr, "symbol %s %d\n", info.dli_sname, symbol->st_value + map->l_addr == (uintptr_t)info.dli_saddr);
#if __GLIBC_PREREQ(2, 35)
    struct dl_find_object found;
    if (_dl_find_object(frame, &found) == 0)
        fprintf(stderr, "find %s %d\n", found.dlfo_link_map->l_name, *(unsigned char *)found.dlfo_eh_frame);
#endif
}

static void ask_libunwind(void) {
    unw_context_t context;
    unw_cursor_t cursor;
    unw_word_t offset;
    char name[512];
    unw_getcontext(&context);
    unw_init_local(&cursor, &context);
    int more;
    do {
        int result = unw_get_proc_name(&cursor, name, sizeof name, &offset);
        fprintf(stderr, "libunwind %s\n", result == 0 ? name : "?");
        /* A buffer that is too small gets what fits. For other frames, releases of libunwind differ in what they return. */
        char small[4];
        if (result == 0 && strstr(name, "__main__") && unw_get_proc_name(&cursor, small, sizeof small, &offset) != -UNW_ENOMEM && strlen(name) > 3)
            fprintf(stderr, "libunwind WRONG\n");
        more = unw_step(&cursor);
    } while (more > 0);
    fprintf(stderr, "libunwind end %d\n", more);
}

double ask(double x) {
    struct asked asked = {0};
    dl_iterate_phdr(record, &asked);
    fprintf(stderr, "phdr %d %llu %llu%s\n", asked.count, asked.adds, asked.subs, asked.torn ? " torn" : "");
    void *frames[MOST];
    int count = backtrace(frames, MOST);
    for (int at = 0; at < count; at++) ask_of(frames[at]);
    char **symbols = backtrace_symbols(frames, count);
    for (int at = 0; at < count; at++) fprintf(stderr, "symbols %s\n", symbols[at]);
    free(symbols);
    for (int at = 0; at < count; at++) {
        fprintf(stderr, "symbols_fd ");
        backtrace_symbols_fd(&frames[at], 1, 2);
    }
    ask_libunwind();
    return x;
}

static void crashed(int number) {
    (void)number;
    fputs("crashed\n", stderr);
    ask(0.0);
    _exit(0);
}

void ask_when_it_crashes(void) {
    struct sigaction action = {.sa_handler = crashed};
    sigaction(SIGSEGV, &action, NULL);
}
