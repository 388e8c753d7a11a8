/* jitlisten.h - makes code that is compiled at run time visible to profilers, debuggers and unwinders.
 *
 * Overview
 *   The C API of libjitlisten. A process has one session. The session learns about compiled code and notifies its
 *   sinks: the perf map, the jitdump, images, unwinders, ... (see the README). It learns in two ways:
 *
 *   discovery   The library observes every LLVM in the process. This is the default with LD_PRELOAD=libjitlisten.so,
 *               where the session opens before the program starts, and after jitlisten_open(). Code that was compiled
 *               earlier is found, too. llvmlite's code gets no frame pointers if the library comes late, because
 *               Python's ctypes has already looked up LLVM's functions.
 *   calls       A JIT reports its objects with the three verbs below. A session opened with JITLISTEN_LISTEN_CALLS uses
 *               only these, and changes nothing in the process.
 *
 * Ownership
 *   Returned strings are valid for the life of the process (for jitlisten_last_error: until the thread's next call).
 *   Arguments are copied before a call returns. The two exceptions, both .eh_frame sections, are documented there.
 *
 * Threads
 *   Every function may be called from any thread at any time, also in the child of a fork, but not from a signal
 *   handler. A line that begins with "Threads:" adds what applies to one function. "Loader" there: the function may
 *   take the dynamic loader's lock. Do not call it while you hold a lock that another thread waits for inside the
 *   loader, for example in the constructor of a library.
 *
 * Errors
 *   A function that can fail returns a jitlisten_status; jitlisten_last_error() has the details. Outputs are written
 *   only on JITLISTEN_OK. No function aborts, prints, changes errno or throws. A callback must return: an exception
 *   that leaves it ends the process, as with noexcept. A sink that fails switches itself off and logs it once; the
 *   statistics count the failures of each sink that writes files or registers unwind tables.
 *
 * Pointers
 *   NULL and misaligned pointers are JITLISTEN_INVALID_ARGUMENT, unless NULL has a meaning; impossible sizes are as
 *   well. Other pointers are not checked: an invalid address ends the program, as with any C library.
 *
 * Versions
 *   Status numbers are never reused. A structure that begins with its size may grow at its end: the options,
 *   jitlisten_code, the statistics, jitlisten_live_function and jitlisten_llvm. Hence an old program works with a new
 *   library. A new program works with an old library, which refuses members that it does not know and that are not zero
 *   (JITLISTEN_INVALID_ARGUMENT). Set all other members to zero (struct x y = {0}, x y{}), the reserved ones too.
 *   jitlisten_section, jitlisten_function and jitlisten_line are used in arrays and never grow. No structure has
 *   padding. The symbols of an installed library (make install) have the version JITLISTEN_0.1. The library also
 *   exports jitlisten_facts, which `jitlisten doctor` reads from other processes. Its layout may change at any time.
 *
 * Two copies
 *   The shared library is one copy, whether it is linked, preloaded or opened. A second copy in the process, or
 *   libjitlisten.a in a program that runs with the shared library in LD_PRELOAD, cannot open a session while the first
 *   copy has one: JITLISTEN_SWITCHED_OFF.
 *
 * Example
 *   tests/c/tour.c, which is compiled and run as C11 and as C++17.
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
    /* A pointer is NULL or misaligned, or a size or a text is invalid. */
    JITLISTEN_INVALID_ARGUMENT = 1,
    /* Neither jitlisten_open() nor jitlisten_open_with() has been called in this process. */
    JITLISTEN_NOT_OPEN = 2,
    /* No sink has that name. */
    JITLISTEN_UNKNOWN_SINK = 3,
    /* JITLISTEN=off, or another copy of the library has the session. */
    JITLISTEN_SWITCHED_OFF = 4,
    /* A defect of jitlisten; see the log. */
    JITLISTEN_INTERNAL = 5,
    /* No live object has this number. */
    JITLISTEN_UNKNOWN_OBJECT = 6,
    /* A call in the wrong order, such as a second jitlisten_finalized() for one object. */
    JITLISTEN_WRONG_ORDER = 7,
    /* An object, code or unwind table is malformed or of an unsupported kind. It is ignored; objects and code are
     * counted. */
    JITLISTEN_NOT_UNDERSTOOD = 8
};

/* The status in English, without a full stop. Never NULL. Threads: any. */
const char *jitlisten_status_text(jitlisten_status status);

/* The last failure of a function below in the calling thread: what was wrong, with the value. Empty if there was none,
 * never NULL. Valid until this thread's next call. Threads: each has its own. */
const char *jitlisten_last_error(void);

/* The version of the library, such as "0.1.0". Threads: any. */
const char *jitlisten_version(void);

/* The session. ----------------------------------------------------------------------------------------------------- */

/* Opens the session with the options of the environment, and observes the process. Later calls of this or the next
 * function return JITLISTEN_OK and change nothing, also after LD_PRELOAD has opened the session. Threads: loader. */
jitlisten_status jitlisten_open(void);

enum {
    /* Discovery, as with LD_PRELOAD, and calls. */
    JITLISTEN_LISTEN_PROCESS = 0,
    /* Calls only. Nothing in the process is changed. */
    JITLISTEN_LISTEN_CALLS = 1
};

/* Options of a session. Each text has the format of an environment variable and replaces it; NULL: use the environment.
 * A process whose environment has JITLISTEN=off stays off. */
struct jitlisten_options {
    /* In: sizeof(struct jitlisten_options). */
    size_t size;
    /* JITLISTEN: "perfmap,unwind", "all", ... */
    const char *sinks;
    /* JITLISTEN_DIR: where files other than the perf map go. Must exist. */
    const char *directory;
    /* JITLISTEN_LOG: "[LEVEL:]PATH" or "[LEVEL:]stderr". */
    const char *log;
    /* JITLISTEN_FRAME_POINTERS: "1", "0" or "untouched". Has an effect with JITLISTEN_LISTEN_PROCESS, for llvmlite and
     * every libLLVM.so. */
    const char *frame_pointers;
    /* JITLISTEN_NAMES: "readable" or "linkage". */
    const char *names;
    /* JITLISTEN_LISTEN_PROCESS or JITLISTEN_LISTEN_CALLS. */
    uint32_t listen;
    /* 0 */
    uint32_t reserved;
};

/* Opens the session with these options. An invalid text is JITLISTEN_INVALID_ARGUMENT or JITLISTEN_UNKNOWN_SINK; no
 * session is opened then. Threads: loader. */
jitlisten_status jitlisten_open_with(const struct jitlisten_options *options);

/* Switches every sink off; their files are closed and kept. The session continues to listen, so sinks can be switched
 * on again. Threads: any. */
jitlisten_status jitlisten_close(void);

/* Switches a sink on by its name, as in JITLISTEN: "perfmap", "jitdump", "image", "unwind", "gdb", "modules". The sink
 * receives all live code, including code that was compiled earlier. If the sink is on, nothing happens, except in the
 * child of a fork that has compiled no code of its own: its perf map or jitdump is written now, with the inherited
 * code. Threads: any. */
jitlisten_status jitlisten_enable(const char *sink);

/* Switches a sink off. If the sink is off, nothing happens. Threads: any. */
jitlisten_status jitlisten_disable(const char *sink);

/* Whether a sink is on, 1 or 0. A sink that failed is off. Threads: any. */
jitlisten_status jitlisten_is_enabled(const char *sink, int32_t *enabled);

/* Reporting objects. --------------------------------------------------------------------------------------------------
 *
 * Three verbs for JITs. An object is *loaded* (its addresses are known), *finalized* (its bytes are final and
 * executable, and none has run) and *freeing* (its code still exists and is freed next). *freeing* may come at any time
 * after *loaded*, *finalized* once between the two.
 *
 * An object of an observed LLVM may be reported as well, before or after its discovery: it stays one object. If two
 * objects have the same address, the older one counts as freed. */

/* A loaded object. Numbers are never 0 and never reused. The structure is passed like a uint64_t. */
typedef struct jitlisten_object {
    uint64_t number;
} jitlisten_object;

/* The address at which a section was loaded. */
struct jitlisten_section {
    const char *name;
    uint64_t address;
};

/* *loaded*, for a JIT that makes ELF objects: elf_size bytes of a relocatable 64-bit ELF file, whose loaded sections
 * have their address in sh_addr. Addresses in sections (NULL if section_count is 0) override those by name; if several
 * sections of the object have one name, the first entry with it is for the first of them, and so on. Entries for other
 * sections are ignored. All arguments are copied, except the live .eh_frame, which is read where it was loaded. The
 * caller registers it with libgcc (__register_frame), as LLVM's engines do. Threads: any. */
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

/* The code from address to the next row, or to the end of the function, belongs to this line. */
struct jitlisten_line {
    uint64_t address;
    /* A full path. NULL or empty: unknown. */
    const char *file;
    /* From 1; 0: unknown. */
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
    /* The .eh_frame (Linux Standard Base, with or without a terminating zero word) of the functions; NULL if
     * eh_frame_size is 0. It is not copied, but read in place from *finalized* to *freeing*. The unwind sink registers
     * it with libgcc at *finalized*, unless the JIT has; do not register it later. Functions without an entry get rules
     * derived from their machine code where possible. */
    const void *eh_frame;
    size_t eh_frame_size;
};

/* *loaded*, for a JIT that makes no ELF objects. All is copied, except eh_frame. Threads: any. */
jitlisten_status jitlisten_code_loaded(const struct jitlisten_code *code, jitlisten_object *object);

/* Promises, between *loaded* and *finalized*, that the pages of this object's code hold no code of other objects, and
 * that from *finalized* to *freeing* nothing writes to them, protects, unmaps or replaces them. The image sink replaces
 * pages by those of a file with the same bytes; what another thread writes meanwhile would be lost. So it makes an image
 * only where that cannot happen: if the promise was given for all code in the pages, or while the process has a single
 * thread, or for code that a memory manager of LLVM's has placed and the session observes (JITLISTEN_LISTEN_PROCESS).
 * Other pages stay as they are and are counted in images_refused; the other sinks name their code. A JIT that puts many
 * functions on one page (a bump allocator) must not give the promise. Threads: any. */
jitlisten_status jitlisten_owns_pages(jitlisten_object object);

/* *finalized*: the bytes are relocated, executable and, for the image sink, no longer writable. The sinks have been
 * notified when this returns; run the code after that. Threads: loader, in the first call after a library was
 * opened. */
jitlisten_status jitlisten_finalized(jitlisten_object object);

/* *freeing*: the code still exists, and is freed next. Threads: any. */
jitlisten_status jitlisten_freeing(jitlisten_object object);

/* Unwind registration alone. ------------------------------------------------------------------------------------------
 *
 * Needs no session. The sink "unwind" does the same for every object; do not register its code here again. */

/* A registration. Numbers are never 0 and never reused. The structure is passed like a uint64_t. */
typedef struct jitlisten_unwind {
    uint64_t number;
} jitlisten_unwind;

/* Registers the functions of text that an .eh_frame describes with every copy of libunwind, libgcc and LLVM's libunwind
 * in the process, also with copies that are opened later. The .eh_frame must be relocated for its present address, and
 * describe the code until it is deregistered. It is copied; personality routines and LSDAs are not. Entries for code
 * outside of text are omitted. libgcc gets it only if it does not have it yet: do not call __register_frame for it
 * afterwards. JITLISTEN_NOT_UNDERSTOOD if it has no entry for text. Threads: loader. */
jitlisten_status jitlisten_unwind_register(const void *eh_frame, size_t eh_frame_size, uint64_t text, size_t text_size,
                                           jitlisten_unwind *out);

/* Removes a registration, before the code is freed. JITLISTEN_UNKNOWN_OBJECT if it was removed before. Threads: any. */
jitlisten_status jitlisten_unwind_deregister(jitlisten_unwind registration);

/* The log. --------------------------------------------------------------------------------------------------------- */

/* level: 1 error, 2 warning, 3 information, 4 every object. message: one line, valid during the call. */
typedef void (*jitlisten_log_callback)(void *user, int32_t level, const char *message);

/* Passes messages up to a level to the program, in addition to the log of JITLISTEN_LOG; a NULL callback ends it.
 * Messages arise under locks. Hence they wait (at most 1024) and are delivered at the end of the next call that returns
 * a status, in its thread, one at a time and with no lock held: a callback may call any function. It must return. When
 * this function returns, the previous callback has returned and is not called again, unless it replaced itself.
 * Threads: any. */
jitlisten_status jitlisten_set_log(jitlisten_log_callback callback, void *user, int32_t level);

/* Statistics. ------------------------------------------------------------------------------------------------------ */

/* Counters since the session was opened, in this process. */
struct jitlisten_statistics {
    /* In: sizeof(struct jitlisten_statistics). Members beyond it are not written; members that the library does not
     * know are unchanged, and size becomes the number of bytes written. */
    size_t size;
    /* Objects that LLVM has placed in memory. */
    uint64_t objects_loaded;
    /* Objects whose code became final and executable. */
    uint64_t objects_finalized;
    /* Objects whose code was freed. */
    uint64_t objects_freed;
    /* Objects that could not be read (truncated, corrupt, of another machine), and invalid code. */
    uint64_t objects_refused;
    /* Functions in the finalized objects. */
    uint64_t functions;
    /* Those without a frame pointer. */
    uint64_t functions_without_frame_pointer;
    /* Objects with such functions although frame pointers were asked for: cached or compiled without jitlisten. */
    uint64_t objects_without_frame_pointers;
    /* Functions without an entry in their object's .eh_frame. */
    uint64_t functions_without_unwind_table;
    /* Bytes written to the perf map. */
    uint64_t perfmap_bytes_written;
    /* Times the perf map sink has switched itself off. */
    uint64_t perfmap_failures;
    /* Times the unwind sink has switched itself off. */
    uint64_t unwind_failures;
    /* Bytes written to jitdumps. */
    uint64_t jitdump_bytes_written;
    /* Times the jitdump sink has switched itself off: no directory, a full disk, a file system with noexec, ... */
    uint64_t jitdump_failures;
    /* Bytes written to image files. */
    uint64_t image_bytes_written;
    /* Times the image sink has switched itself off. */
    uint64_t image_failures;
    /* Images written and mapped. */
    uint64_t images_written;
    /* Those without header padding in front of the code: `perf record --call-graph dwarf` cannot use their unwind
     * tables. */
    uint64_t images_without_padding;
    /* Runs of code pages without an image: unreadable, not final (writable, shared, not executable), not owned
     * (jitlisten_owns_pages), or not representable as an ELF file. The log has the reasons. */
    uint64_t images_refused;
    /* Images replaced by anonymous memory, because their code was freed or their pages were about to change. */
    uint64_t images_withdrawn;
    /* Mappings that failed late: the code was restored. */
    uint64_t images_put_back;
    /* Lost log lines: the file cannot be opened, belongs to another user, is on a full disk, ... */
    uint64_t log_lines_lost;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_statistics(struct jitlisten_statistics *statistics);

/* Recording. ----------------------------------------------------------------------------------------------------------
 *
 * Samples every thread of this process from inside: no perf, no ptrace, no root. The file is a perf.data, for perf
 * report, perf script, samply and the reports of the command jitlisten. Compiled code has names and lines if a session
 * is open; without one, only libraries have. Each thread gets a timer of the kernel (RLIMIT_SIGPENDING) on its CPU
 * time, with the highest real-time signal that is not in use, or a counter with SIGSTKFLT. A thread named "jitlisten"
 * writes. Images of compiled code are kept in a directory beside the file, FILE.images. See docs/record.md. */

enum {
    /* Wall-clock time, waiting threads included. */
    JITLISTEN_RECORD_WALL = 1,
    /* Children of a fork write files of their own; otherwise they are not recorded. */
    JITLISTEN_RECORD_CHILDREN = 2,
    /* Make no images of compiled code for the recording. */
    JITLISTEN_RECORD_NO_IMAGES = 4,
    /* Omit Python functions. */
    JITLISTEN_RECORD_NO_PYTHON = 8
};

struct jitlisten_record_options {
    /* In: sizeof(struct jitlisten_record_options). */
    size_t size;
    /* Samples per second of each thread's time, from 1 to 10000; 0: 199. CPU timers fire at the kernel's clock tick,
     * 100 to 1000 times a second; with a higher rate each sample has a longer period. */
    uint32_t hz;
    /* JITLISTEN_RECORD_WALL, ... */
    uint32_t flags;
    /* Ends the recording after so many seconds; 0: no limit. jitlisten_record_stop() must still be called. */
    uint32_t seconds;
    /* The PID of the process that requests the recording, which ends with it; 0: none. */
    uint32_t recorder;
    /* An event to count instead of time, as `perf list` names it: "cycles", "cache-misses", "page-faults"; ":u"
     * excludes the kernel. NULL: time. JITLISTEN_INVALID_ARGUMENT if the kernel does not count it for this process;
     * jitlisten_last_error() has the reason. */
    const char *event;
    /* When `recorder` started: field 22 of /proc/PID/stat. JITLISTEN_WRONG_ORDER if it has ended. */
    uint64_t recorder_start;
};

/* Starts a recording into the file at path. With the first sample an existing recording is renamed to path.old, and its
 * images to path.old.images; any other file is refused. In path, %p is the process, %h the host, %% a percent sign.
 * options may be NULL. JITLISTEN_WRONG_ORDER while another recording runs; JITLISTEN_INVALID_ARGUMENT if the file cannot
 * be written. Threads: any. */
jitlisten_status jitlisten_record_start(const char *path, const struct jitlisten_record_options *options);

/* Ends the recording. The file is complete when this returns; before, or if the process is killed, it lacks at most the
 * last 1/20 s. JITLISTEN_WRONG_ORDER if there is none. Threads: any. */
jitlisten_status jitlisten_record_stop(void);

/* Copies the absolute path of the current recording, terminated, to the `size` bytes at path: an empty one until the
 * first sample, if an earlier recording has the name. The child of a fork has a file of its own. JITLISTEN_WRONG_ORDER if
 * there is no recording, JITLISTEN_INVALID_ARGUMENT if size is too small. Threads: any. */
jitlisten_status jitlisten_record_path(char *path, size_t size);

/* Counters of the current recording, or of the last one. */
struct jitlisten_record_statistics {
    /* In: sizeof(struct jitlisten_record_statistics). As in struct jitlisten_statistics. */
    size_t size;
    /* Samples in the file. */
    uint64_t samples;
    /* Those whose stack does not reach the start of the thread. */
    uint64_t incomplete;
    /* Stacks that are deeper than one record: 8,184 frames, 4,096 of them native; only the innermost are there. */
    uint64_t truncated;
    /* Samples lost because a buffer was full. */
    uint64_t lost;
    /* Threads that were sampled. */
    uint64_t threads;
    /* Threads without a timer (RLIMIT_SIGPENDING), which are not sampled. */
    uint64_t threads_without_timer;
    /* Bytes of the file. */
    uint64_t bytes;
    /* 1 if writing failed (a full disk): the file is readable up to there. */
    uint64_t failures;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_record_statistics(struct jitlisten_record_statistics *statistics);

/* What is alive. --------------------------------------------------------------------------------------------------- */

/* A function that was finalized and not freed. */
struct jitlisten_live_function {
    /* The size of this structure as the library knows it. */
    size_t struct_size;
    uint64_t address;
    uint64_t size;
    /* As in the perf map. */
    const char *name;
    /* File and line of its first instruction; NULL and 0: unknown. */
    const char *file;
    uint32_t line;
    /* 0 */
    uint32_t reserved;
};

/* function and its strings are valid during the call. */
typedef void (*jitlisten_function_callback)(void *user, const struct jitlisten_live_function *function);

/* Calls back for every live function, by address, in this thread and with no lock held: the callback may call any
 * function. Reads line tables, hence slow. Threads: any. */
jitlisten_status jitlisten_functions(jitlisten_function_callback callback, void *user);

enum {
    /* A hook is called for each object. */
    JITLISTEN_DISCOVERED_BY_CALL = 1,
    /* __jit_debug_register_code cannot be hooked (a debugger occupies it): the GDB JIT list is read whenever this LLVM
     * makes memory executable. */
    JITLISTEN_DISCOVERED_BY_LIST = 2
};

/* An observed LLVM of this process. */
struct jitlisten_llvm {
    /* The size of this structure as the library knows it. */
    size_t struct_size;
    /* The library that contains it; "/proc/self/exe" for the program. */
    const char *path;
    /* JITLISTEN_DISCOVERED_BY_CALL or JITLISTEN_DISCOVERED_BY_LIST. */
    uint32_t discovered_by;
    /* 0 */
    uint32_t reserved;
    /* Objects in its GDB JIT list now. */
    uint64_t objects;
    /* A JSON object for diagnostics: {"file": "...", "version": "14" or null, "heard_by": a list of "runtimedyld",
     * "jitlink", "list-call" and "list-poll", "linked": 3, "listed": 2, "missing": ["..."]}. Members may be added. */
    const char *facts;
};

/* llvm and its strings are valid during the call. */
typedef void (*jitlisten_llvm_callback)(void *user, const struct jitlisten_llvm *llvm);

/* Calls back for every observed LLVM, as jitlisten_functions does. Threads: any. */
jitlisten_status jitlisten_llvms(jitlisten_llvm_callback callback, void *user);

#ifdef __cplusplus
}
#endif

#endif
