/* Pretends to be a Python process with LLVM: `python3.14-llvm serve BEHAVIOUR`. Running this program in any other way,
 * or calling one of its functions, appends a line with the effective user to MARK. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct entry { struct entry *next, *prev; const char *address; uint64_t size; };
struct { uint32_t version, action; struct entry *relevant, *first; } __jit_debug_descriptor = {1, 0, 0, 0};
void __jit_debug_register_code(void) {}

/* Imitates the facts that the library publishes for doctor (wire/src/facts/mod.rs). */
struct { uint64_t magic, version, size, sequence, length, omitted, totals[8], counts[16][4], list[4096]; } jitlisten_facts;

static const char *behaviour = "";
static volatile sig_atomic_t received;

static void count_signal(int signal) { received += signal == SIGRTMIN; }

static void append_mark(const char *event)
{
    char line[64];
    int file = open(MARK, O_WRONLY | O_CREAT | O_APPEND, 0666);
    int length = snprintf(line, sizeof line, "%s by user %d\n", event, (int)geteuid());
    if (file < 0 || write(file, line, length) != length) _exit(9);
    close(file);
}

int Py_AddPendingCall(void *function, void *argument)
{
    (void)function, (void)argument;
    append_mark("called");
    if (strcmp(behaviour, "hangs") == 0) for (;;) pause();
    if (strcmp(behaviour, "crashes") == 0) *(volatile int *)8 = 1;
    if (strcmp(behaviour, "raises") == 0) raise(SIGSTOP);
    if (strcmp(behaviour, "exits") == 0) _exit(0);
    /* A return value of 0 promises a call that never happens. */
    return strcmp(behaviour, "accepts") == 0 ? 0 : -1;
}

int PyRun_SimpleString(const char *text) { return text != 0; }
void PyEval_EvalCode(void) {}

/* Fills the GDB JIT list with `count` entries that claim objects of `size` bytes or more. */
static void fill_list(size_t count, uint64_t size)
{
    struct entry *entries = calloc(count, sizeof *entries);
    char *object = mmap(0, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < count; i++)
        entries[i] = (struct entry){i + 1 < count ? entries + i + 1 : entries, i ? entries + i - 1 : 0, object, size + i};
    __jit_debug_descriptor.first = entries;
}

/* Writes malformed facts: an LLVM entry with an invalid slot and an endless file. If `is_endless`, its list of channels
 * is endless, too. */
static void write_facts(int is_endless)
{
    char *list = (char *)jitlisten_facts.list;
    memcpy(list, (uint64_t[]){1, UINT64_MAX, 4096, 9}, 32);
    memcpy(list + 32, "/dev/zero", 9);
    memcpy(list + 41, (uint64_t[]){0, is_endless ? UINT64_MAX : 0, 0}, 24);
    memcpy(&jitlisten_facts.magic, "JLFACTS", 8);
    jitlisten_facts.version = 2;
    jitlisten_facts.size = sizeof jitlisten_facts;
    jitlisten_facts.length = is_endless ? sizeof jitlisten_facts.list : 65;
    jitlisten_facts.omitted = UINT64_MAX;
    memset(jitlisten_facts.totals, 0xff, sizeof jitlisten_facts.totals);
}

int main(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "serve") != 0) return append_mark("executed"), 0;
    behaviour = argv[2];
    if (strcmp(behaviour, "endless") == 0) fill_list(3000000, 1);
    if (strcmp(behaviour, "giant") == 0) fill_list(100000, 200 << 20);
    if (strcmp(behaviour, "wild") == 0) __jit_debug_descriptor.first = (struct entry *)0x5a5a5a5a5a5a5a5a;
    if (strcmp(behaviour, "ignores") == 0) signal(SIGSEGV, SIG_IGN);
    if (strcmp(behaviour, "countless") == 0) write_facts(1);
    if (strcmp(behaviour, "facts") == 0) write_facts(0);
    signal(SIGRTMIN, count_signal);
    puts("ready");
    for (;;) {
        printf("alive %d\n", (int)received);
        fflush(stdout);
        usleep(50000);
    }
}
