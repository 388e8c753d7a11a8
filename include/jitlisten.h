/* jitlisten.h - makes code that is compiled at run time visible to profilers, debuggers and unwinders.
 *
 * Overview
 *   The C API of libjitlisten. A process has one session. The session receives events about compiled code and notifies
 *   its sinks: the perf map, the jitdump, images, unwinders, ... (see the README). Events have two sources:
 *
 *   discovery   The library observes every copy of LLVM in the process. This is the default after jitlisten_open(),
 *               and with LD_PRELOAD=libjitlisten.so, where the session opens before the program starts. Code that was
 *               compiled earlier is found as well. llvmlite's code gets no frame pointers if the library is loaded
 *               late, because Python's ctypes has already looked up LLVM's functions.
 *   calls       A JIT reports its objects with the three functions below. A session opened with
 *               JITLISTEN_LISTEN_CALLS uses only these, and changes nothing in the process.
 *
 * Ownership
 *   Returned strings are valid for the life of the process (for jitlisten_last_error: until the thread's next call).
 *   Arguments are copied before a call returns. The two exceptions, both .eh_frame sections, are documented with their
 *   functions.
 *
 * Threads
 *   Every function may be called from any thread at any time, also in the child of a fork, but not from a signal
 *   handler. "Threads:" in a comment adds the rules for one function. "Loader" means that the function may take the
 *   dynamic loader's lock. Do not call it while holding a lock that another thread may wait for inside the loader, for
 *   example in the constructor of a library.
 *
 * Errors
 *   A function that can fail returns a jitlisten_status; jitlisten_last_error() has the details. Outputs are written
 *   only on JITLISTEN_OK. No function aborts, prints, changes errno or throws. A callback must return: an exception
 *   that leaves it ends the process, as with noexcept. A sink that fails is disabled, and the failure is logged once;
 *   the statistics count the failures of each sink that writes files or registers unwind tables.
 *
 * Pointers
 *   NULL and misaligned pointers, and impossible sizes, return JITLISTEN_INVALID_ARGUMENT, unless NULL has a documented
 *   meaning. Other pointers are not checked: an invalid address crashes the program, as with any C library.
 *
 * Versions
 *   Status numbers are never reused. A structure that begins with its size may grow at its end: the options,
 *   jitlisten_code, the statistics, jitlisten_live_function and jitlisten_llvm. Hence an old program works with a new
 *   library. A new program works with an old library, unless it sets a member that the library does not know to a value
 *   other than zero (JITLISTEN_INVALID_ARGUMENT). Set all other members to zero (struct x y = {0}, x y{}), including
 *   the reserved ones.
 *   jitlisten_section, jitlisten_function and jitlisten_line are used in arrays and never grow. No structure has
 *   padding.
 *
 * Symbols
 *   The functions below; in an installed library (make install) they have the version JITLISTEN_0.1. Three more are for
 *   the jitlisten command and may change at any time: jitlisten_facts, which `jitlisten doctor` reads, and
 *   jitlisten_attached and jitlisten_record_end, which `jitlisten attach` and `record -p` call.
 *
 *   The library for LD_PRELOAD also defines the following functions of libc, so that a recording sees new threads, keeps
 *   its signal, and is complete when the program ends, replaces itself or drops privileges. They forward to the next
 *   definition, as the wrappers of other tools do. A program that records itself can link to this library (pkg-config
 *   jitlisten-record). The other installed libraries define none of them (docs/c-and-cpp.md).
 *
 *     pthread_create
 *     sigaction signal sigaltstack sigpending sigsuspend sigtimedwait sigwait sigwaitinfo signalfd
 *     _exit _Exit quick_exit
 *     execl execle execlp execv execve execvp execvpe execveat fexecve
 *     setuid seteuid setreuid setresuid capset chroot unshare setns prctl syscall
 *     fopen fopen64
 *
 *   Two more configure the sanitizers' runtimes: __asan_default_options and __tsan_default_suppressions.
 *
 * Two copies
 *   The shared library counts as one copy, whether it is linked, preloaded or opened. A second copy in the process, or
 *   libjitlisten.a in a program that runs with the shared library in LD_PRELOAD, cannot open a session while the first
 *   copy has one; it returns JITLISTEN_SWITCHED_OFF.
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

/* Version of this header; jitlisten_version() returns that of the library. */
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
    /* A pointer is NULL or misaligned, or a size or a string is invalid. */
    JITLISTEN_INVALID_ARGUMENT = 1,
    /* Neither jitlisten_open() nor jitlisten_open_with() has been called in this process. */
    JITLISTEN_NOT_OPEN = 2,
    /* No sink has that name. */
    JITLISTEN_UNKNOWN_SINK = 3,
    /* JITLISTEN=off, or another copy of the library has opened the session. */
    JITLISTEN_SWITCHED_OFF = 4,
    /* A bug in jitlisten; see the log. */
    JITLISTEN_INTERNAL = 5,
    /* No live object has this number. */
    JITLISTEN_UNKNOWN_OBJECT = 6,
    /* Calls in the wrong order, such as a second jitlisten_finalized() for one object. */
    JITLISTEN_WRONG_ORDER = 7,
    /* An object, code or unwind table is malformed or unsupported. It is ignored and counted (objects_refused,
     * unwind_tables_refused), as is code with a function without a name or of no size (INVALID_ARGUMENT). */
    JITLISTEN_NOT_UNDERSTOOD = 8,
    /* A file cannot be written. */
    JITLISTEN_IO_ERROR = 9,
    /* A recording is running. */
    JITLISTEN_ALREADY_RECORDING = 10,
    /* The session is open with other options. */
    JITLISTEN_ALREADY_OPEN = 11,
    /* jitlisten_close() was called, and no sink has been enabled since. */
    JITLISTEN_CLOSED = 12,
    /* No recording is running. */
    JITLISTEN_NOT_RECORDING = 13,
    /* This process cannot be recorded: it uses ThreadSanitizer, all signals have handlers, no thread can be created, ...
     */
    JITLISTEN_CANNOT_RECORD = 14
};

/* Description of the status in English, without a full stop. Never NULL. Threads: any. */
const char *jitlisten_status_text(jitlisten_status status);

/* Description of the last failed call on this thread, with the invalid value. Empty if no call has failed, never NULL.
 * Valid until this thread's next call. Threads: each has its own. */
const char *jitlisten_last_error(void);

/* Version of the library, such as "0.1.0". Threads: any. */
const char *jitlisten_version(void);

/* The session. ----------------------------------------------------------------------------------------------------- */

/* Opens the session with the options of the environment, and observes the process. An open session is not changed by
 * this function and the next one. They return JITLISTEN_OK if it was opened by LD_PRELOAD or `jitlisten record -p`, or
 * meets the request; JITLISTEN_ALREADY_OPEN if a string that is not NULL differs, or if it listens to calls only and
 * JITLISTEN_LISTEN_PROCESS is requested; JITLISTEN_CLOSED after jitlisten_close(): use jitlisten_enable(). Threads:
 * loader. */
jitlisten_status jitlisten_open(void);

enum {
    /* Discovery (as with LD_PRELOAD) and calls. */
    JITLISTEN_LISTEN_PROCESS = 0,
    /* Calls only. Nothing in the process is changed, so the sink "modules" has no effect: it hooks dladdr and
     * dl_iterate_phdr in libraries. */
    JITLISTEN_LISTEN_CALLS = 1
};

/* Options of a session. Each string has the format of an environment variable and overrides it; NULL: use the variable.
 * A process whose environment has JITLISTEN=off stays off. */
struct jitlisten_options {
    /* Set to sizeof(struct jitlisten_options) by the caller. */
    size_t size;
    /* JITLISTEN: "perfmap,unwind", "all", ... */
    const char *sinks;
    /* JITLISTEN_DIR: directory for all files but the perf map. Must exist. */
    const char *directory;
    /* JITLISTEN_LOG: "[LEVEL:]PATH" or "[LEVEL:]stderr". */
    const char *log;
    /* JITLISTEN_FRAME_POINTERS: "1", "0" or "untouched". Applies to llvmlite and every libLLVM.so, with
     * JITLISTEN_LISTEN_PROCESS. */
    const char *frame_pointers;
    /* JITLISTEN_NAMES: "readable" or "linkage". */
    const char *names;
    /* JITLISTEN_LISTEN_PROCESS or JITLISTEN_LISTEN_CALLS. */
    uint32_t listen;
    /* Reserved; 0. */
    uint32_t reserved;
};

/* Opens the session with these options. For an invalid string, returns JITLISTEN_INVALID_ARGUMENT or
 * JITLISTEN_UNKNOWN_SINK without opening a session. Threads: loader. */
jitlisten_status jitlisten_open_with(const struct jitlisten_options *options);

/* Disables all sinks; their files are closed and kept. The session keeps receiving events, so sinks can be enabled
 * again. Threads: any. */
jitlisten_status jitlisten_close(void);

/* Enables a sink by its name, as in JITLISTEN: "perfmap", "jitdump", "image", "unwind", "gdb", "modules". The sink
 * receives all live code, including code that was compiled earlier. Has no effect if the sink is enabled, except in the
 * child of a fork that has compiled no code of its own: its perf map or jitdump is written now, with the inherited
 * code. Threads: any. */
jitlisten_status jitlisten_enable(const char *sink);

/* Disables a sink. Has no effect if the sink is disabled. Threads: any. */
jitlisten_status jitlisten_disable(const char *sink);

/* Sets *enabled to 1 if the sink is enabled, otherwise to 0. A sink that failed is disabled. Threads: any. */
jitlisten_status jitlisten_is_enabled(const char *sink, int32_t *enabled);

/* Reporting objects. --------------------------------------------------------------------------------------------------
 *
 * Three events for JITs. An object is *loaded* (its addresses are known), *finalized* (its bytes are final and
 * executable, and have not run yet) and *freeing* (its code still exists and is about to be freed). *freeing* may come
 * at any time after *loaded*; *finalized* may come once in between.
 *
 * A JIT may also report objects of an observed LLVM, before or after their discovery; each stays one object. If two
 * objects overlap, the older one counts as freed, which is logged as a warning. A second report of the same code at the
 * same addresses returns the same handle; each report then needs its own *finalized* and *freeing*. */

/* Handle of a loaded object. Numbers are never 0 and never reused. The structure is passed like a uint64_t. */
typedef struct jitlisten_object {
    uint64_t number;
} jitlisten_object;

/* Name and load address of a section. */
struct jitlisten_section {
    const char *name;
    uint64_t address;
};

/* Reports *loaded*, for a JIT that makes ELF objects: elf_size bytes of a relocatable 64-bit ELF file, whose loaded
 * sections have their address in sh_addr. Entries of sections (NULL if section_count is 0) override these addresses by
 * name. If several sections of the object have the same name, the first entry with that name applies to the first such
 * section, and so on. Entries for unknown sections are ignored. All arguments are copied, except the loaded .eh_frame,
 * which is read in place. The caller registers it with libgcc (__register_frame), as LLVM's engines do.
 * Threads: any. */
jitlisten_status jitlisten_object_loaded(const void *elf, size_t elf_size, const struct jitlisten_section *sections,
                                         size_t section_count, jitlisten_object *object);

/* A function of a JIT that makes no ELF objects. */
struct jitlisten_function {
    uint64_t address;
    /* Size in bytes, from 1 to UINT32_MAX. */
    uint64_t size;
    /* Name; not empty. Mangled C++ and Numba names are demangled. */
    const char *name;
};

/* Row of a line table: the code from address to the next row, or to the end of the function, belongs to this line. */
struct jitlisten_line {
    uint64_t address;
    /* Full path of the source file. NULL or empty: unknown. */
    const char *file;
    /* Line and column, from 1; 0: unknown. */
    uint32_t line;
    uint32_t column;
};

/* Code of a JIT that makes no ELF objects. */
struct jitlisten_code {
    /* Set to sizeof(struct jitlisten_code) by the caller. */
    size_t size;
    /* Functions of the code: at least one, in any order. */
    const struct jitlisten_function *functions;
    size_t function_count;
    /* Line table, in any order; NULL if line_count is 0. */
    const struct jitlisten_line *lines;
    size_t line_count;
    /* The .eh_frame (Linux Standard Base, with or without a terminating zero word) of the functions; NULL if
     * eh_frame_size is 0. It is not copied, but read in place from *finalized* to *freeing*. The unwind sink registers
     * it with libgcc at *finalized*, unless the JIT has done so before; do not register it later. Functions without an
     * entry get rules derived from their machine code where possible. */
    const void *eh_frame;
    size_t eh_frame_size;
};

/* Reports *loaded*, for a JIT that makes no ELF objects. Everything but eh_frame is copied. Functions that overlap
 * without one containing the other, and lines outside all functions, are logged as warnings. Threads: any. */
jitlisten_status jitlisten_code_loaded(const struct jitlisten_code *code, jitlisten_object *object);

/* Promises, between *loaded* and *finalized*, that the pages of this object's code hold no code of other objects, and
 * that from *finalized* to *freeing* nothing writes to, protects, unmaps or replaces them. The image sink replaces
 * pages with pages of a file that have the same contents; concurrent writes of another thread would be lost. It makes
 * an image only where that cannot happen: if the promise was given for all code in the pages, or the process has a
 * single thread, or an observed LLVM's memory manager placed the code (JITLISTEN_LISTEN_PROCESS). Other pages are left
 * unchanged and counted in images_refused; the other sinks still name their code. A JIT that puts many functions on one
 * page (a bump allocator) must not give the promise. Threads: any. */
jitlisten_status jitlisten_owns_pages(jitlisten_object object);

/* Promises, between *loaded* and *finalized*, that the size bytes before the first page of this object's code are whole
 * pages of private anonymous memory, which nothing uses until *freeing*. The image sink maps the headers and unwind
 * tables of the image there. perf record --call-graph dwarf needs that: it looks for unwind tables in the first page of
 * a file. A page holds those of dozens of functions. Afterwards the contents and protection of this memory are
 * unspecified. Returns JITLISTEN_INVALID_ARGUMENT if it is anything else, JITLISTEN_WRONG_ORDER after *finalized*.
 * Threads: any. */
jitlisten_status jitlisten_owns_padding(jitlisten_object object, uint64_t size);

/* Reports *finalized*: the bytes are relocated, executable and, for the image sink, no longer writable. The sinks have
 * been notified when this returns; do not run the code earlier. Returns JITLISTEN_NOT_UNDERSTOOD if the .eh_frame is
 * unreadable or malformed, or has rules that an unwinder cannot follow; for jitlisten_code_loaded also if it has no
 * entry for the functions, or an entry is empty, overlaps another or is partly outside the functions. The object is
 * then finalized without it. Threads: loader, in the first call after a library was opened. */
jitlisten_status jitlisten_finalized(jitlisten_object object);

/* Reports *freeing*: the code still exists, and is about to be freed. Threads: any. */
jitlisten_status jitlisten_freeing(jitlisten_object object);

/* Unwind registration alone. ------------------------------------------------------------------------------------------
 *
 * Works without a session. The "unwind" sink does the same for every object; do not register such code here again. */

/* Handle of a registration. Numbers are never 0 and never reused. The structure is passed like a uint64_t. */
typedef struct jitlisten_unwind {
    uint64_t number;
} jitlisten_unwind;

/* Registers the functions of text that an .eh_frame describes with every copy of libunwind, libgcc and LLVM's libunwind
 * in the process, including copies that are opened later. The .eh_frame must be relocated for its current address, and
 * describe the code until it is deregistered. It is copied; personality routines and LSDAs are not. Entries for code
 * outside of text are omitted. It is registered with libgcc unless that was done before; do not call __register_frame
 * for it afterwards. Returns JITLISTEN_NOT_UNDERSTOOD if it has no entry for text. Threads: loader. */
jitlisten_status jitlisten_unwind_register(const void *eh_frame, size_t eh_frame_size, uint64_t text, size_t text_size,
                                           jitlisten_unwind *out);

/* Removes a registration; call it before the code is freed. Returns JITLISTEN_UNKNOWN_OBJECT if the registration was
 * removed before. Threads: any. */
jitlisten_status jitlisten_unwind_deregister(jitlisten_unwind registration);

/* The log. --------------------------------------------------------------------------------------------------------- */

/* level: 1 error, 2 warning, 3 information, 4 every object. message: one line, valid during the call. */
typedef void (*jitlisten_log_callback)(void *user, int32_t level, const char *message);

/* Passes messages up to a level to the program, in addition to the log of JITLISTEN_LOG; a NULL callback stops this.
 * Messages are created under locks. Therefore they are queued (at most 1024) and delivered at the end of the next call
 * that returns a status, on its thread, one at a time and without any lock held: the callback may call any function. It
 * must return. When this function returns, the previous callback has returned and is not called again, except if
 * it called this function itself. Threads: any. */
jitlisten_status jitlisten_set_log(jitlisten_log_callback callback, void *user, int32_t level);

/* Statistics. ------------------------------------------------------------------------------------------------------ */

/* Counters since the session was opened, in this process. */
struct jitlisten_statistics {
    /* Set to sizeof(struct jitlisten_statistics) by the caller. Members beyond it are not written; members that the
     * library does not know are unchanged, and size becomes the number of bytes written. */
    size_t size;
    /* Objects that were placed in memory. */
    uint64_t objects_loaded;
    /* Objects whose code became final and executable. */
    uint64_t objects_finalized;
    /* Objects whose code was freed. */
    uint64_t objects_freed;
    /* Objects that could not be read (truncated, corrupt, of another machine), and invalid code. */
    uint64_t objects_refused;
    /* Functions in the finalized objects. */
    uint64_t functions;
    /* Functions without a frame pointer. */
    uint64_t functions_without_frame_pointer;
    /* Objects with such functions although frame pointers were requested: cached or compiled without jitlisten. */
    uint64_t objects_without_frame_pointers;
    /* Functions without an entry in their object's .eh_frame. */
    uint64_t functions_without_unwind_table;
    /* Bytes written to the perf map. */
    uint64_t perfmap_bytes_written;
    /* Number of failures of the perf map sink; each one disabled it. */
    uint64_t perfmap_failures;
    /* Number of failures of the unwind sink; each one disabled it. */
    uint64_t unwind_failures;
    /* Bytes written to jitdumps. */
    uint64_t jitdump_bytes_written;
    /* Number of failures of the jitdump sink (no directory, a full disk, a file system with noexec, ...); each one
     * disabled it. */
    uint64_t jitdump_failures;
    /* Bytes written to image files. */
    uint64_t image_bytes_written;
    /* Number of failures of the image sink; each one disabled it. */
    uint64_t image_failures;
    /* Images written and mapped. */
    uint64_t images_written;
    /* Images without header padding in front of the code: `perf record --call-graph dwarf` cannot use their unwind
     * tables. */
    uint64_t images_without_padding;
    /* Runs of code pages without an image: unreadable, not final (writable, shared, not executable), not owned
     * (jitlisten_owns_pages), or not representable as an ELF file. The log has the reasons. */
    uint64_t images_refused;
    /* Images replaced by anonymous memory, because their code was freed or their pages were about to change. */
    uint64_t images_withdrawn;
    /* Mappings that failed so late that the code had to be restored. */
    uint64_t images_put_back;
    /* Lost log lines: the file cannot be opened, belongs to another user, is on a full disk, ... */
    uint64_t log_lines_lost;
    /* Unwind tables of reported objects that were ignored (jitlisten_finalized). */
    uint64_t unwind_tables_refused;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_statistics(struct jitlisten_statistics *statistics);

/* Recording. ----------------------------------------------------------------------------------------------------------
 *
 * Samples every thread of this process from inside, without perf, ptrace or root. The file is a perf.data, for perf
 * report, perf script, samply and the reports of the command jitlisten. Compiled code has names and lines if a session
 * is open; otherwise only libraries have. Each thread gets either a kernel timer on its CPU time (limited by
 * RLIMIT_SIGPENDING), which raises the highest unused real-time signal, or a perf counter, which raises SIGSTKFLT. A
 * thread named "jitlisten" writes the file. Images of compiled code are kept in a directory next to it, FILE.images.
 * See docs/record.md. */

enum {
    /* Sample wall-clock time, including waiting threads. */
    JITLISTEN_RECORD_WALL = 1,
    /* Record the children of a fork, each to its own file. */
    JITLISTEN_RECORD_CHILDREN = 2,
    /* Make no images of compiled code for the recording. */
    JITLISTEN_RECORD_NO_IMAGES = 4,
    /* Omit Python functions. */
    JITLISTEN_RECORD_NO_PYTHON = 8
};

/* Options of a recording. */
struct jitlisten_record_options {
    /* Set to sizeof(struct jitlisten_record_options) by the caller. */
    size_t size;
    /* Samples per second of each thread's time, from 1 to 10000; 0: 199. CPU timers fire at the kernel's clock tick,
     * 100 to 1000 times a second; with a higher rate each sample has a longer period. */
    uint32_t hz;
    /* Flags: JITLISTEN_RECORD_WALL, ... */
    uint32_t flags;
    /* Ends the recording after this many seconds; 0: no limit. jitlisten_record_stop() must still be called. */
    uint32_t seconds;
    /* PID of the process that requests the recording; the recording ends with that process. 0: none. */
    uint32_t recorder;
    /* An event to count instead of time, as `perf list` names it: "cycles", "cache-misses", "page-faults"; ":u"
     * excludes the kernel. NULL: time. JITLISTEN_INVALID_ARGUMENT if the kernel does not count it for this process;
     * jitlisten_last_error() has the reason. */
    const char *event;
    /* Start time of `recorder`: field 22 of /proc/PID/stat. JITLISTEN_CANNOT_RECORD if that process has exited. */
    uint64_t recorder_start;
};

/* Starts a recording into the file at path. At the first sample, an existing recording is renamed to path.old and its
 * images to path.old.images; any other existing file is an error. If another process is recording into the file, the name
 * is path.PID instead. In path, %p stands for the PID, %h for the host name, %r for the rank that a launcher such as
 * mpirun gave, %q{VAR} for an environment variable, %% for a percent sign; others are an error. options may be NULL.
 * Returns JITLISTEN_ALREADY_RECORDING while another recording runs, and JITLISTEN_IO_ERROR if the file cannot be written.
 * Logs a warning if the program's calls of libc do not reach the library ("Symbols"): new threads are then found within
 * 1/10 s (1 s if as many have ended), the file lacks up to the last 1/20 s if the program calls _exit or execve or is
 * killed by a signal, a handler that the program sets for the sampling signal ends the samples, and a seccomp filter must
 * allow the calls of the recording. Threads: any. */
jitlisten_status jitlisten_record_start(const char *path, const struct jitlisten_record_options *options);

/* Ends the recording. The file is complete when this returns. Before that, or if the process is killed, it lacks at
 * most the last 1/20 s. Returns JITLISTEN_NOT_RECORDING if there is none. Threads: any. */
jitlisten_status jitlisten_record_stop(void);

/* Copies the absolute path of the current recording as a C string to the `size` bytes at path. Until the first sample,
 * the string is empty if an earlier recording has that name. The child of a fork has its own file. Returns
 * JITLISTEN_NOT_RECORDING if there is none, and JITLISTEN_INVALID_ARGUMENT if size is too small. Threads: any. */
jitlisten_status jitlisten_record_path(char *path, size_t size);

/* Names this process in reports of its recordings, as a worker of a pool for example: at most 100 bytes of UTF-8 are
 * used. The child of a fork has no name. Threads: any. */
jitlisten_status jitlisten_record_set_name(const char *name);

/* Time of a clock in ns, as clock_gettime(2) numbers it; 0 if the kernel does not have it. Samples have the time of
 * CLOCK_MONOTONIC. The time comes from the kernel, also where a library such as libfaketime replaces libc's clocks.
 * Threads: any. */
uint64_t jitlisten_clock(int clock);

/* Counters of the current recording, or of the last one. */
struct jitlisten_record_statistics {
    /* Set to sizeof(struct jitlisten_record_statistics) by the caller; as in struct jitlisten_statistics. */
    size_t size;
    /* Samples in the file. */
    uint64_t samples;
    /* Samples whose stack does not reach the thread's entry function. */
    uint64_t incomplete;
    /* Stacks that exceed one record (8,184 frames, 4,096 of them native); only the innermost frames are recorded. */
    uint64_t truncated;
    /* Samples lost because a buffer was full. */
    uint64_t lost;
    /* Threads that were sampled. */
    uint64_t threads;
    /* Threads without a timer (RLIMIT_SIGPENDING), which are not sampled. */
    uint64_t threads_without_timer;
    /* Size of the file in bytes. */
    uint64_t bytes;
    /* 1 if writing failed (a full disk); the file is readable up to that point. */
    uint64_t failures;
};

/* Copies the counters. statistics->size must be set. Threads: any. */
jitlisten_status jitlisten_get_record_statistics(struct jitlisten_record_statistics *statistics);

/* Live functions. -------------------------------------------------------------------------------------------------- */

/* A live function: finalized and not yet freed. */
struct jitlisten_live_function {
    /* Size of this structure in the library's version. */
    size_t struct_size;
    uint64_t address;
    uint64_t size;
    /* Name as in the perf map. */
    const char *name;
    /* File and line of the first instruction; NULL and 0 if unknown. */
    const char *file;
    uint32_t line;
    /* Reserved; 0. */
    uint32_t reserved;
};

/* function and its strings are valid during the call. */
typedef void (*jitlisten_function_callback)(void *user, const struct jitlisten_live_function *function);

/* Calls the callback for every live function, in order of address, on this thread and without any lock held: the
 * callback may call any function. Slow, because it reads line tables. Threads: any. */
jitlisten_status jitlisten_functions(jitlisten_function_callback callback, void *user);

enum {
    /* A hook is called for each object. */
    JITLISTEN_DISCOVERED_BY_CALL = 1,
    /* __jit_debug_register_code cannot be hooked because a debugger uses it: the GDB JIT list is read whenever this
     * copy of LLVM makes memory executable. */
    JITLISTEN_DISCOVERED_BY_LIST = 2
};

/* Bits of jitlisten_llvm.heard_by. Later versions may set others. */
enum {
    /* Hooks of RuntimeDyld. */
    JITLISTEN_HEARD_BY_RUNTIMEDYLD = 1,
    /* Hooks of JITLink. */
    JITLISTEN_HEARD_BY_JITLINK = 2,
    /* Hook of __jit_debug_register_code. */
    JITLISTEN_HEARD_BY_LIST_CALL = 4,
    /* The GDB JIT list, read when memory becomes executable. */
    JITLISTEN_HEARD_BY_LIST_POLL = 8
};

/* A copy of LLVM that is observed in this process. */
struct jitlisten_llvm {
    /* Size of this structure in the library's version. */
    size_t struct_size;
    /* Path of the library that contains this copy of LLVM; "/proc/self/exe" for the program. */
    const char *path;
    /* Release as far as the library reveals it, such as "14" or "19.1"; NULL if unknown. */
    const char *version;
    /* JITLISTEN_DISCOVERED_BY_CALL or JITLISTEN_DISCOVERED_BY_LIST. */
    uint32_t discovered_by;
    /* Methods of observation: JITLISTEN_HEARD_BY_... */
    uint32_t heard_by;
    /* Number of objects currently in LLVM's GDB JIT list. */
    uint64_t objects;
    /* Number of objects that its linkers have reported, whether listed or not. */
    uint64_t linked;
    /* Reasons why some of its code cannot be observed, for people to read: missing_count strings. */
    const char *const *missing;
    size_t missing_count;
};

/* llvm, its strings and its array are valid during the call. */
typedef void (*jitlisten_llvm_callback)(void *user, const struct jitlisten_llvm *llvm);

/* Calls the callback for every observed copy of LLVM, like jitlisten_functions. Threads: any. */
jitlisten_status jitlisten_llvms(jitlisten_llvm_callback callback, void *user);

#ifdef __cplusplus
}
#endif

#endif
