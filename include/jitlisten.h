/* jitlisten.h - make code that is compiled at run time visible to profilers, debuggers and unwinders.
 *
 * What this is
 *   The C contract of libjitlisten. A process has one session. It learns of code that is compiled in the process, and notifies its
 *   sinks: the perf map, jitdump, images, the unwinders of the process (see the README). It learns in two ways:
 *
 *   by listening  to every LLVM in the process, as a debugger does. So it is under LD_PRELOAD=libjitlisten.so, where the
 *                 session opens by itself before the program starts, and after jitlisten_open(). Code that was compiled before
 *                 is found, too; but llvmlite's code gets no frame pointers from a library that comes late, because Python's
 *                 ctypes has looked the functions up already.
 *   by calls     of the three verbs below, from a producer. A session opened with JITLISTEN_LISTEN_CALLS learns of nothing
 *                 else, and touches nothing of the process.
 *
 * Ownership
 *   Strings that are returned live as long as the process (jitlisten_last_error: see there). What arguments point to is copied
 *   or used up when the call returns; the two exceptions, both about .eh_frame sections, are said where they are.
 *
 * Threads
 *   Every function may be called from any thread, at any time, in a child of a fork, too; but not from a signal handler. What
 *   more there is to know is said at each function in a line that begins with "Threads:". "Loader" there: the function may take
 *   the dynamic loader's lock, so do not call it while holding a lock that another thread waits for inside the loader (in a library's
 *   constructor, say).
 *
 * Errors
 *   A function that can fail returns a jitlisten_status, and says more in jitlisten_last_error(); outputs are written only on
 *   JITLISTEN_OK. Nothing here aborts, prints, changes errno or raises a C++ exception. A callback must return: an exception that
 *   leaves it ends the process, as with noexcept. A sink that cannot go on switches itself off and says so once in the log; the
 *   statistics count it for every sink that writes files or registers unwind tables.
 *
 * Pointers
 *   NULL and misaligned pointers are JITLISTEN_INVALID_ARGUMENT, except where NULL has a meaning; so are sizes that no memory
 *   can have. Apart from that, inputs are read and outputs written plainly: a pointer to nowhere ends the program, as it does in
 *   any C library.
 *
 * Versions
 *   Status numbers are never used again for something else. A structure that begins with its size may grow at its end: the
 *   options, jitlisten_code, the statistics, jitlisten_live_function and jitlisten_llvm. So an old program works with a new
 *   library, and the other way round: what a newer program sets and the library does not know has to be zero, else it is
 *   JITLISTEN_INVALID_ARGUMENT. Set every member to zero that you do not set otherwise (struct x y = {0}, x y{}), the reserved ones
 *   too. jitlisten_section, jitlisten_function and jitlisten_line stand in arrays and never grow. No structure has padding.
 *   Symbols of an installed library (make install) have the version JITLISTEN_0.1. The library exports one object that is not
 *   declared here, jitlisten_facts: what other processes (`jitlisten doctor`) read of this one. Its layout may change at any time.
 *
 * Two copies
 *   The shared library is one, however it came: linked, preloaded, opened. A second copy of it in one process, or a program that
 *   carries libjitlisten.a and runs with the shared library in LD_PRELOAD, cannot open a session while the first copy has one:
 *   JITLISTEN_SWITCHED_OFF.
 *
 * Example
 *   See tests/c/tour.c, which is compiled as C11 and as C++17 and run.
 */
#ifndef JITLISTEN_H
#define JITLISTEN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; jitlisten_version() is that of the library. */
#define JITLISTEN_VERSION_MAJOR 0
#define JITLISTEN_VERSION_MINOR 1
#define JITLISTEN_VERSION_PATCH 0
#define JITLISTEN_VERSION "0.1.0"
/* For #if: JITLISTEN_VERSION_NUMBER >= JITLISTEN_VERSION_OF(0, 1, 0) */
#define JITLISTEN_VERSION_OF(major, minor, patch) ((major) * 1000000 + (minor) * 1000 + (patch))
#define JITLISTEN_VERSION_NUMBER \
    JITLISTEN_VERSION_OF(JITLISTEN_VERSION_MAJOR, JITLISTEN_VERSION_MINOR, JITLISTEN_VERSION_PATCH)

typedef int32_t jitlisten_status;

enum {
    JITLISTEN_OK = 0,
    /* A pointer is NULL or misaligned, or a size or a word makes no sense. */
    JITLISTEN_INVALID_ARGUMENT = 1,
    /* Neither jitlisten_open() nor jitlisten_open_with() has been called in this process. */
    JITLISTEN_NOT_OPEN = 2,
    /* No sink has that name. */
    JITLISTEN_UNKNOWN_SINK = 3,
    /* JITLISTEN=off, or another copy of the library is at work: nothing is done in this process. */
    JITLISTEN_SWITCHED_OFF = 4,
    /* A defect of jitlisten; see the log. */
    JITLISTEN_INTERNAL = 5,
    /* Nothing has that number, or no more. */
    JITLISTEN_UNKNOWN_OBJECT = 6,
    /* The call comes a second time: jitlisten_finalized() for one object. */
    JITLISTEN_WRONG_ORDER = 7,
    /* An object, code or unwind table contradicts itself or is of a kind not known here. It is passed over; objects and code
     * are counted. */
    JITLISTEN_NOT_UNDERSTOOD = 8
};

/* The status in English, without a full stop. Never NULL. Threads: any. */
const char *jitlisten_status_text(jitlisten_status status);

/* The last failure of a function below in the calling thread, in words: what was wrong, with the value. Empty if there was none.
 * Never NULL; valid until this thread's next call. Threads: each has its own. */
const char *jitlisten_last_error(void);

/* The version of the library, such as "0.1.0". Threads: any. */
const char *jitlisten_version(void);

/* The session. --------------------------------------------------------------------------------------------------------- */

/* Opens the session of this process with the options of the environment, and observes the process. Once: further calls of this
 * or the next function return JITLISTEN_OK and change nothing, also when the session was opened by LD_PRELOAD.
 * Threads: loader. */
jitlisten_status jitlisten_open(void);

enum {
    /* Every LLVM in the process is found and observed, as under LD_PRELOAD; and calls. */
    JITLISTEN_LISTEN_PROCESS = 0,
    /* Only calls. Nothing in the process is changed. */
    JITLISTEN_LISTEN_CALLS = 1
};

/* What to open the session with. Each text is written as the value of an environment variable, and takes its place; NULL: as the
 * environment says. A process whose environment has JITLISTEN=off stays off. */
struct jitlisten_options {
    /* In: sizeof(struct jitlisten_options). */
    size_t size;
    /* JITLISTEN: "perfmap,unwind", "all", ... */
    const char *sinks;
    /* JITLISTEN_DIR: where files other than the perf map go. Must exist. */
    const char *directory;
    /* JITLISTEN_LOG: "[LEVEL:]PATH" or "[LEVEL:]stderr". */
    const char *log;
    /* JITLISTEN_FRAME_POINTERS: "1", "0" or "untouched". Of use with JITLISTEN_LISTEN_PROCESS, for llvmlite and every libLLVM.so. */
    const char *frame_pointers;
    /* JITLISTEN_NAMES: "readable" or "linkage". */
    const char *names;
    /* JITLISTEN_LISTEN_PROCESS or JITLISTEN_LISTEN_CALLS. */
    uint32_t listen;
    /* 0 */
    uint32_t reserved;
};

/* Opens the session with these options. A text that makes no sense is JITLISTEN_INVALID_ARGUMENT or JITLISTEN_UNKNOWN_SINK, and
 * nothing is opened. Threads: loader. */
jitlisten_status jitlisten_open_with(const struct jitlisten_options *options);

/* Switches every sink off; their files are closed and stay. The session goes on listening, so that sinks can be switched
 * on again. Threads: any. */
jitlisten_status jitlisten_close(void);

/* Switches a sink on by its name, as in JITLISTEN: "perfmap", "jitdump", "image", "unwind", "gdb", "modules". It is notified of all code
 * that is alive, so this takes effect for code that was compiled earlier. Nothing happens if it is on, except in the
 * child of a fork that has compiled nothing of its own: its perf map or jitdump is written now, with what it inherited.
 * Threads: any. */
jitlisten_status jitlisten_enable(const char *sink);

/* Switches a sink off. Nothing happens if it is off. Threads: any. */
jitlisten_status jitlisten_disable(const char *sink);

/* Whether a sink is on: switched on, and not off by itself since. 1 or 0. Threads: any. */
jitlisten_status jitlisten_is_enabled(const char *sink, int32_t *enabled);

/* Reporting objects. -------------------------------------------------------------------------------------------------
 *
 * For producers: three verbs. An object is *loaded* (its addresses are known), *finalized* (its
 * bytes are final and executable, and nothing of it has run), and *freeing* (its code is about to be freed and still
 * there).
 * *freeing* may come at any time after *loaded*, *finalized* once between the two.
 *
 * An object that is also discovered by listening, because it was compiled by an LLVM of the process, is one object:
 * reporting it here, too, does no harm in either order. Of two objects at one address the older is taken for gone. */

/* An object that was loaded. Number 0 is never one; numbers are not used again. Passed as a uint64_t is. */
typedef struct jitlisten_object {
    uint64_t number;
} jitlisten_object;

/* Where a section was loaded. */
struct jitlisten_section {
    const char *name;
    uint64_t address;
};

/* *loaded*, for a JIT that makes ELF objects: elf_size bytes of a relocatable 64-bit ELF file, whose loaded sections have their
 * address in sh_addr; addresses in sections (may be NULL if section_count is 0) override those by name. If several
 * sections of the object have one name, the first entry with that name is for the first of them, and so on. Entries for
 * other sections are passed over. Everything is copied, except the live .eh_frame: it is read where it was loaded. The
 * caller that loaded the object registers that with libgcc by __register_frame, as the engines of LLVM do. Threads:
 * any. */
jitlisten_status jitlisten_object_loaded(const void *elf, size_t elf_size, const struct jitlisten_section *sections,
                                         size_t section_count, jitlisten_object *object);

/* A function of a JIT that makes no ELF objects. */
struct jitlisten_function {
    uint64_t address;
    /* From 1 to UINT32_MAX bytes. */
    uint64_t size;
    /* Not empty. Mangled C++ and Numba names are shown readable. */
    const char *name;
};

/* The code from address on, up to the next row or the end of the function, comes from this line. */
struct jitlisten_line {
    uint64_t address;
    /* A full path. NULL or empty where it is not known. */
    const char *file;
    /* From 1; 0 where it is not known. */
    uint32_t line;
    uint32_t column;
};

struct jitlisten_code {
    /* In: sizeof(struct jitlisten_code). */
    size_t size;
    /* At least one, in any order. */
    const struct jitlisten_function *functions;
    size_t function_count;
    /* In any order; NULL if line_count is 0. */
    const struct jitlisten_line *lines;
    size_t line_count;
    /* The .eh_frame (Linux Standard Base, with or without a terminating zero word) that describes the functions; NULL if
     * eh_frame_size is 0. Not copied: it is read where it is, from *finalized* to *freeing*. The unwind sink registers
     * it with libgcc at *finalized*, unless the JIT has done so by then; afterwards it must not. Functions that it does
     * not describe get rules from their machine code where these can be known. */
    const void *eh_frame;
    size_t eh_frame_size;
};

/* *loaded*, for a JIT that makes no ELF objects. Copied, except eh_frame. Threads: any. */
jitlisten_status jitlisten_code_loaded(const struct jitlisten_code *code, jitlisten_object *object);

/* *finalized*: the bytes are relocated, executable and, for the image sink, no longer writable. The sinks have been notified when
 * this returns; let the code run after that. Threads: loader, in the first call after a library was opened. */
jitlisten_status jitlisten_finalized(jitlisten_object object);

/* *freeing*: the code is still there, and is freed next. Threads: any. */
jitlisten_status jitlisten_freeing(jitlisten_object object);

/* Unwind registration alone. -------------------------------------------------------------------------------------------
 *
 * Works without a session. The sink "unwind" does the same for every object; code that it knows need not be registered
 * here. */

/* A registration. Number 0 is never one; numbers are not used again. Passed as a uint64_t is. */
typedef struct jitlisten_unwind {
    uint64_t number;
} jitlisten_unwind;

/* Registers with libunwind, libgcc and LLVM's libunwind, as far as they are in the process, how to walk through the functions of text that
 * an .eh_frame describes: every copy of them, also those that have been opened with dlopen since. The .eh_frame must be
 * relocated for where it is now, and be true of the code until it is deregistered; it is copied, the code's personality
 * routines and LSDAs are not. Entries for code outside of text are left out. It is registered with libgcc only if it is
 * not yet: after this, do not call __register_frame for it. JITLISTEN_NOT_UNDERSTOOD if there is nothing in it.
 * Threads: loader. */
jitlisten_status jitlisten_unwind_register(const void *eh_frame, size_t eh_frame_size, uint64_t text, size_t text_size,
                                           jitlisten_unwind *out);

/* Undoes it, before the code is freed. JITLISTEN_UNKNOWN_OBJECT if that has been done. Threads: any. */
jitlisten_status jitlisten_unwind_deregister(jitlisten_unwind registration);

/* The log. -------------------------------------------------------------------------------------------------------------- */

/* level: 1 error, 2 warning, 3 information, 4 every object. message: one line, valid during the call. */
typedef void (*jitlisten_log_callback)(void *user, int32_t level, const char *message);

/* Hands messages up to a level to the program, beside the log that JITLISTEN_LOG asks for; a NULL callback: no more. Messages
 * come into being under locks, so they wait (at most 1024) and are handed over at the end of the next call that returns
 * a status, in its thread, one at a time and with no lock held: a callback may call any function. It must return. When
 * this function returns, the callback before it has returned, too, and is not called again; a callback that replaces
 * itself is the exception. Threads: any. */
jitlisten_status jitlisten_set_log(jitlisten_log_callback callback, void *user, int32_t level);

/* Statistics. ----------------------------------------------------------------------------------------------------------- */

/* Counters since the session was opened, in this process. */
struct jitlisten_statistics {
    /* In: sizeof(struct jitlisten_statistics). Members beyond it are not written; members the library does not know are
     * left as they are, and size becomes the number of bytes that were written. */
    size_t size;
    /* Objects that LLVM has placed in memory. */
    uint64_t objects_loaded;
    /* Objects whose code became final and executable. */
    uint64_t objects_finalized;
    /* Objects whose code was freed. */
    uint64_t objects_freed;
    /* Objects that could not be read: truncated, corrupt, of another machine. And code that makes no sense. */
    uint64_t objects_refused;
    /* Functions in the finalized objects. */
    uint64_t functions;
    /* Of those, functions that keep no frame pointer. */
    uint64_t functions_without_frame_pointer;
    /* Objects that have such functions although frame pointers were asked for: from a cache written without jitlisten, or
     * compiled before it came. */
    uint64_t objects_without_frame_pointers;
    /* Functions that no entry of their object's .eh_frame describes. */
    uint64_t functions_without_unwind_table;
    /* Bytes written to the perf map. */
    uint64_t perfmap_bytes_written;
    /* Times the perf map sink has switched itself off. */
    uint64_t perfmap_failures;
    /* Times the unwind sink has switched itself off. */
    uint64_t unwind_failures;
    /* Bytes written to jitdumps. */
    uint64_t jitdump_bytes_written;
    /* Times the jitdump sink has switched itself off: no directory, a full disk, a place that is mounted noexec, ... */
    uint64_t jitdump_failures;
    /* Bytes written to image files. */
    uint64_t image_bytes_written;
    /* Times the image sink has switched itself off. */
    uint64_t image_failures;
    /* Images written and mapped. */
    uint64_t images_written;
    /* Of those, images without header padding in front of the code: `perf record --call-graph dwarf` cannot use their unwind tables. */
    uint64_t images_without_padding;
    /* Runs of code pages without an image: not readable, not final (writable, shared, not executable), or nothing that an
     * ELF file can be made of. The log says which. */
    uint64_t images_refused;
    /* Images whose pages LLVM was about to change: they are anonymous memory again. */
    uint64_t images_withdrawn;
    /* Mappings that failed so late that the code had to be put back. */
    uint64_t images_put_back;
    /* Lines the log did not take: its file cannot be opened, belongs to another user, is on a full disk, ... */
    uint64_t log_lines_lost;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_statistics(struct jitlisten_statistics *statistics);

/* Recording. ------------------------------------------------------------------------------------------------------------
 *
 * Samples of every thread of this process, taken inside of it: no perf, no ptrace, no root. The file is a perf.data,
 * for perf report, perf script, samply and the reports of the command jitlisten. Compiled code has names and lines in
 * it if a session is open (jitlisten_open() and others); without one, what libraries have. Every thread gets a timer of
 * the kernel (RLIMIT_SIGPENDING) on its CPU time, whose signal is the highest real-time one that is not in use. A
 * thread named "jitlisten" writes. Images of compiled code are kept in a directory beside the file, FILE.images. See
 * docs/record.md. */

enum {
    /* Wall-clock time: threads that wait are sampled, too. */
    JITLISTEN_RECORD_WALL = 1,
    /* Children of a fork write files of their own; otherwise they are not sampled. */
    JITLISTEN_RECORD_CHILDREN = 2,
    /* Compiled code gets no images for the recording's sake. */
    JITLISTEN_RECORD_NO_IMAGES = 4,
    /* Functions that CPython interprets are no frames of their own. */
    JITLISTEN_RECORD_NO_PYTHON = 8
};

struct jitlisten_record_options {
    /* In: sizeof(struct jitlisten_record_options). */
    size_t size;
    /* Samples for each second of a thread's time, from 1 to 10000; 0: 199. Above the rate of the kernel's clock (100 to 1000
     * a second), CPU time is sampled no more often, and samples weigh more. */
    uint32_t hz;
    /* JITLISTEN_RECORD_WALL and others. */
    uint32_t flags;
    /* Ends the recording by itself after so many seconds; 0: does not. jitlisten_record_stop() is still to be called. */
    uint32_t seconds;
    /* A process that wants the recording, which ends with it; 0: none. recorder_start: see below. */
    uint32_t recorder;
    /* An event that is counted instead of time, as `perf list` names it: "cycles", "cache-misses", "page-faults"; with ":u" not
     * what the kernel does. NULL: time. It is read during the call. Where the kernel does not count it for this
     * process:
     * JITLISTEN_INVALID_ARGUMENT, and the reason in jitlisten_last_error(). */
    const char *event;
    /* When the process `recorder` started: field 22 of /proc/PID/stat. If it has ended by now: JITLISTEN_WRONG_ORDER. */
    uint64_t recorder_start;
};

/* Starts a recording into the file at path. An existing recording is overwritten, any other file is not. %p in it is the process,
 * %h the host, %% a percent sign. options may be NULL. JITLISTEN_WRONG_ORDER while there is another one;
 * JITLISTEN_INVALID_ARGUMENT if the file cannot be written. Threads: any. */
jitlisten_status jitlisten_record_start(const char *path, const struct jitlisten_record_options *options);

/* Ends it. The file is whole when this returns; before, and if the process is killed, it holds everything but the last
 * twentieth of a second. JITLISTEN_WRONG_ORDER if there is none. Threads: any. */
jitlisten_status jitlisten_record_stop(void);

/* Counters of the recording that is being made, or of the last one. */
struct jitlisten_record_statistics {
    /* In: sizeof(struct jitlisten_record_statistics). As in struct jitlisten_statistics. */
    size_t size;
    /* Samples in the file. */
    uint64_t samples;
    /* Of those, stacks that do not reach the start of their thread. */
    uint64_t incomplete;
    /* Stacks that are deeper than one record: 8,184 frames, 4,096 of them native; only the innermost are there. */
    uint64_t truncated;
    /* Samples for which there was no space. */
    uint64_t lost;
    /* Threads that were sampled. */
    uint64_t threads;
    /* Threads for which there was no timer (RLIMIT_SIGPENDING). */
    uint64_t threads_without_timer;
    /* Bytes of the file. */
    uint64_t bytes;
    /* 1 if the file could not be written to its end (a full disk): what is there can be read. */
    uint64_t failures;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_record_statistics(struct jitlisten_record_statistics *statistics);

/* What is alive. -------------------------------------------------------------------------------------------------------- */

/* A function that was finalized and not freed. */
struct jitlisten_live_function {
    /* The size of this structure as the library knows it. */
    size_t struct_size;
    uint64_t address;
    uint64_t size;
    /* As in the perf map. */
    const char *name;
    /* File and line of its first instruction; NULL and 0 where they are not known. */
    const char *file;
    uint32_t line;
    /* 0 */
    uint32_t reserved;
};

/* function and what it points to are valid during the call. */
typedef void (*jitlisten_function_callback)(void *user, const struct jitlisten_live_function *function);

/* Calls back for every function that is alive, by address, in this thread and with no lock held: the callback may call any
 * function. Reads line tables: not for a busy moment. Threads: any. */
jitlisten_status jitlisten_functions(jitlisten_function_callback callback, void *user);

enum {
    /* The LLVM calls us for each object. */
    JITLISTEN_DISCOVERED_BY_CALL = 1,
    /* Its __jit_debug_register_code cannot be hooked (a debugger occupies it): its list is read whenever it makes memory executable. */
    JITLISTEN_DISCOVERED_BY_LIST = 2
};

/* An observed LLVM of this process. */
struct jitlisten_llvm {
    /* The size of this structure as the library knows it. */
    size_t struct_size;
    /* The library it is in; "/proc/self/exe" for the program. */
    const char *path;
    /* JITLISTEN_DISCOVERED_BY_CALL or JITLISTEN_DISCOVERED_BY_LIST. */
    uint32_t discovered_by;
    /* 0 */
    uint32_t reserved;
    /* How many objects it has in its GDB JIT list now. */
    uint64_t objects;
    /* A JSON object for people and programs that look for trouble: {"file": "...", "version": "14" or null,
       "heard_by": ["runtimedyld", "jitlink", "list-call", "list-poll"] (those of them that hold), "linked": 3, "listed": 2,
       "missing": ["..."]}. Members may be added. */
    const char *facts;
};

/* llvm and what it points to are valid during the call. */
typedef void (*jitlisten_llvm_callback)(void *user, const struct jitlisten_llvm *llvm);

/* Calls back for every observed LLVM, as jitlisten_functions does. Threads: any. */
jitlisten_status jitlisten_llvms(jitlisten_llvm_callback callback, void *user);

#ifdef __cplusplus
}
#endif

#endif
