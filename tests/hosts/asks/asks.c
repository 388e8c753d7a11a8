/* Examines the frames of its callers through the interfaces that in-process tools use.
 *
 *     ask(x)   called by compiled code; returns x. Prints one line per frame and interface to standard error:
 *
 *       phdr COUNT ADDS SUBS             dl_iterate_phdr: number of entries, and the counters of the last one; "torn" if the
 *                                        counters change between entries
 *       mapped FILE OFFSET               the entry that contains the frame; "WRONG" if /proc/self/maps disagrees
 *       dladdr NAME FILE                 dladdr
 *       symbol NAME VALUE                dladdr1, RTLD_DL_SYMENT: 1 if st_value + l_addr is the address that dladdr returns
 *       find FILE                        _dl_find_object, if glibc has it
 *       symbols TEXT, symbols_fd TEXT    backtrace_symbols, backtrace_symbols_fd
 *       libunwind NAME                   unw_get_proc_name, for every frame
 *
 *     ask_when_it_crashes()   installs a SIGSEGV handler that prints "crashed", asks the same questions and exits
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

enum { MAX_FRAMES = 64 };

struct query {
    uintptr_t address;
    unsigned long long adds, subs;
    int count, has_changed_counters;
    char file[4096];
    uintptr_t start, bias;
};

static int visit_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct query *query = data;
    (void)size;
    query->has_changed_counters |= query->count > 0 && (query->adds != info->dlpi_adds || query->subs != info->dlpi_subs);
    query->adds = info->dlpi_adds, query->subs = info->dlpi_subs;
    query->count++;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && query->address - start < header->p_memsz) {
            snprintf(query->file, sizeof query->file, "%s", info->dlpi_name);
            query->start = start - header->p_offset;
            query->bias = info->dlpi_addr;
        }
    }
    return 0;
}

/* True if /proc/self/maps maps the address from this file, with file offset 0 mapped at `start`. */
static int is_mapped(uintptr_t address, const char *file, uintptr_t start) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[8192], path[4096];
    unsigned long low, high, offset;
    int matches = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095[^\n]", &low, &high, &offset, path) >= 3 && address >= low &&
            address < high)
            matches = low - offset == start && (!*file || strcmp(path, file) == 0);
    }
    if (maps) fclose(maps);
    return matches;
}

static void query_frame(void *frame) {
    struct query query = {.address = (uintptr_t)frame};
    dl_iterate_phdr(visit_library, &query);
    if (strstr(query.file, "/object-"))
        fprintf(stderr, "mapped %s %#lx%s\n", query.file, (long)(query.address - query.bias),
                is_mapped(query.address, query.file, query.start) ? "" : " WRONG");
    Dl_info info, unused_info;
    if (dladdr(frame, &info) && info.dli_sname) fprintf(stderr, "dladdr %s %s\n", info.dli_sname, info.dli_fname);
    ElfW(Sym) *symbol = NULL;
    struct link_map *map = NULL;
    if (dladdr1(frame, &info, (void **)&symbol, RTLD_DL_SYMENT) && dladdr1(frame, &unused_info, (void **)&map, RTLD_DL_LINKMAP) &&
        symbol && map)
        fprintf(stderr, "symbol %s %d\n", info.dli_sname, symbol->st_value + map->l_addr == (uintptr_t)info.dli_saddr);
#if __GLIBC_PREREQ(2, 35)
    struct dl_find_object object;
    if (_dl_find_object(frame, &object) == 0)
        fprintf(stderr, "find %s %d\n", object.dlfo_link_map->l_name, *(unsigned char *)object.dlfo_eh_frame);
#endif
}

static void query_libunwind(void) {
    unw_context_t context;
    unw_cursor_t cursor;
    unw_word_t offset;
    char name[512];
    unw_getcontext(&context);
    unw_init_local(&cursor, &context);
    int step_result;
    do {
        int result = unw_get_proc_name(&cursor, name, sizeof name, &offset);
        fprintf(stderr, "libunwind %s\n", result == 0 ? name : "?");
        /* If the buffer is too small, libunwind truncates the name. For frames outside JIT code, libunwind releases
         * return different results. */
        char small_name[4];
        if (result == 0 && strstr(name, "__main__") && unw_get_proc_name(&cursor, small_name, sizeof small_name, &offset) != -UNW_ENOMEM && strlen(name) > 3)
            fprintf(stderr, "libunwind WRONG\n");
        step_result = unw_step(&cursor);
    } while (step_result > 0);
    fprintf(stderr, "libunwind end %d\n", step_result);
}

double ask(double x) {
    struct query query = {0};
    dl_iterate_phdr(visit_library, &query);
    fprintf(stderr, "phdr %d %llu %llu%s\n", query.count, query.adds, query.subs, query.has_changed_counters ? " torn" : "");
    void *frames[MAX_FRAMES];
    int count = backtrace(frames, MAX_FRAMES);
    for (int i = 0; i < count; i++) query_frame(frames[i]);
    char **symbols = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++) fprintf(stderr, "symbols %s\n", symbols[i]);
    free(symbols);
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "symbols_fd ");
        backtrace_symbols_fd(&frames[i], 1, 2);
    }
    query_libunwind();
    return x;
}

static void on_crash(int number) {
    (void)number;
    fputs("crashed\n", stderr);
    ask(0.0);
    _exit(0);
}

void ask_when_it_crashes(void) {
    struct sigaction action = {.sa_handler = on_crash};
    sigaction(SIGSEGV, &action, NULL);
}
