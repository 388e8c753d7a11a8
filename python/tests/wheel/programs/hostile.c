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

/* Imitates the facts that the library publishes for doctor (shim/src/doctor/facts.rs). */
struct { uint64_t magic, layout, capacity, sequence, length, totals[8], counts[16][4]; char text[1 << 20]; } jitlisten_facts;

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

/* Writes malformed facts: either endless brackets, or an LLVM entry with an invalid slot and an endless file name. */
static void write_facts(int is_nested)
{
    const char *llvm = "{\"llvms\": [{\"slot\": 18446744073709551615, \"start\": 4096, \"file\": \"/dev/zero\", \"version\": null, "
                       "\"heard_by\": [], \"missing\": []}], \"unheard\": [], \"left_out\": 18446744073709551615}";
    memcpy(&jitlisten_facts.magic, "JLFACTS", 8);
    jitlisten_facts.layout = 1;
    jitlisten_facts.capacity = sizeof jitlisten_facts.text;
    jitlisten_facts.length = is_nested ? sizeof jitlisten_facts.text : strlen(llvm);
    memset(jitlisten_facts.totals, 0xff, sizeof jitlisten_facts.totals);
    memset(jitlisten_facts.text, '[', sizeof jitlisten_facts.text);
    if (!is_nested) strcpy(jitlisten_facts.text, llvm);
}

int main(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "serve") != 0) return append_mark("executed"), 0;
    behaviour = argv[2];
    if (strcmp(behaviour, "endless") == 0) fill_list(3000000, 1);
    if (strcmp(behaviour, "giant") == 0) fill_list(100000, 200 << 20);
    if (strcmp(behaviour, "wild") == 0) __jit_debug_descriptor.first = (struct entry *)0x5a5a5a5a5a5a5a5a;
    if (strcmp(behaviour, "ignores") == 0) signal(SIGSEGV, SIG_IGN);
    if (strcmp(behaviour, "nested") == 0) write_facts(1);
    if (strcmp(behaviour, "facts") == 0) write_facts(0);
    signal(SIGRTMIN, count_signal);
    puts("ready");
    for (;;) {
        printf("alive %d\n", (int)received);
        fflush(stdout);
        usleep(50000);
    }
}
