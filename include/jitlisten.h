/* jitlisten.h - make code that LLVM compiles at run time visible to profilers, debuggers and unwinders.
 *
 * What this is
 *   The C contract of libjitlisten. A process has one session. It hears of every object that an LLVM in the process
 *   compiles, and tells its sinks: the perf map (/tmp/perf-PID.map), and others as they come.
 *
 *   Under LD_PRELOAD=libjitlisten.so the session opens by itself before the program starts, with the options of the
 *   environment variables JITLISTEN, JITLISTEN_DIR, JITLISTEN_QUOTA, JITLISTEN_LOG, JITLISTEN_FRAME_POINTERS and JITLISTEN_NAMES (see the
 *   README). A program that is linked with the library, or loads it with dlopen, calls jitlisten_open(); code that was
 *   compiled before is found, too. A library that comes late cannot give llvmlite's code frame pointers: Python's ctypes
 *   has looked the functions up already.
 *
 * Ownership
 *   Strings that are returned live as long as the process. Arguments are borrowed for the call.
 *
 * Threads
 *   Every function may be called from any thread, at any time, but not from a signal handler.
 *
 * Errors
 *   A function that can fail returns a jitlisten_status; outputs are written only on JITLISTEN_OK. Nothing here aborts,
 *   prints, or raises a C++ exception. A sink that cannot go on switches itself off, counts it in the statistics, and
 *   says so once in the log.
 *
 * NULL
 *   A NULL pointer is JITLISTEN_INVALID_ARGUMENT.
 *
 * Versions
 *   Status numbers are never used again for something else. A structure that the caller fills begins with its size, so
 *   that an old program works with a new library and the other way round.
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

typedef int32_t jitlisten_status;

enum {
    JITLISTEN_OK = 0,
    /* A pointer is NULL, misaligned or leads nowhere, or a size or a word makes no sense. */
    JITLISTEN_INVALID_ARGUMENT = 1,
    /* jitlisten_open() has not been called in this process. */
    JITLISTEN_NOT_OPEN = 2,
    /* No sink has that name. */
    JITLISTEN_UNKNOWN_SINK = 3,
    /* JITLISTEN=off: the session does nothing in this process. */
    JITLISTEN_SWITCHED_OFF = 4,
    /* A defect of jitlisten; see the log. */
    JITLISTEN_INTERNAL = 5,
    /* Nothing has that number, or no more. */
    JITLISTEN_UNKNOWN_OBJECT = 6,
    /* The call comes a second time: jitlisten_finalized() for one object. */
    JITLISTEN_WRONG_ORDER = 7,
    /* An object, code or unwind table contradicts itself or is of a kind not known here. It is counted and passed over. */
    JITLISTEN_NOT_UNDERSTOOD = 8
};

/* The status in English, without a full stop. Never NULL. */
const char *jitlisten_status_text(jitlisten_status status);

/* The last failure of a function below in the calling thread, in words: what was wrong, with the value. Empty if there was none.
 * Never NULL; the text changes with this thread's next failure. */
const char *jitlisten_last_error(void);

/* The version of the library, such as "0.1.0". */
const char *jitlisten_version(void);

/* Opens the session of this process with the options of the environment, and starts to listen. Once; further calls
 * return JITLISTEN_OK and change nothing. Must not be called while the dynamic loader's lock is held by the calling
 * thread, that is, from a library's constructor. */
jitlisten_status jitlisten_open(void);

/* Switches every sink off; their files are closed and stay. The session goes on listening, so that sinks can be switched
 * on again. */
jitlisten_status jitlisten_close(void);

/* Switches a sink on by its name, as in JITLISTEN: "perfmap", "jitdump", "image", "unwind", "gdb". It is told of all code that is
 * alive, so this takes effect for code that was compiled earlier. Nothing happens if it is on. */
jitlisten_status jitlisten_enable(const char *sink);

/* Switches a sink off. Nothing happens if it is off. */
jitlisten_status jitlisten_disable(const char *sink);

/* Telling of objects. ------------------------------------------------------------------------------------------------
 *
 * For who compiles and wants no listening: three verbs. An object is *loaded* (its addresses are known), *finalized* (its
 * bytes are final and executable, and nothing of it has run), and *freeing* (its code is about to go away and still there).
 * *freeing* may come at any time, the other two once and in this order.
 *
 * An object that is also heard of by listening, because it was compiled by an LLVM of the process, is one object: reporting it
 * here, too, does no harm, whoever is first. Of two objects at one address the older is taken for gone. */

/* An object that was loaded. 0 is never one; numbers are not used again. */
typedef uint64_t jitlisten_object;

/* Where a section was loaded. */
struct jitlisten_section {
    const char *name;
    uint64_t address;
};

/* *loaded*, for a JIT that makes ELF objects: elf_size bytes of a relocatable 64-bit ELF file, whose loaded sections have their
 * address in sh_addr; addresses in sections (may be NULL if section_count is 0) override those by name. If several sections
 * of the object have one name, the first entry with that name is for the first of them, and so on. Entries for other sections
 * are passed over. Everything is copied, except the live .eh_frame: it is read where it was loaded. libgcc has to be told of the
 * .eh_frame by somebody else, as every LLVM does. */
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
     * eh_frame_size is 0. Not copied: it is read where it is, from *finalized* to *freeing*. Functions that it does not describe
     * get rules from their machine code where these can be known. */
    const void *eh_frame;
    size_t eh_frame_size;
};

/* *loaded*, for a JIT that makes no ELF objects. Copied, except eh_frame. */
jitlisten_status jitlisten_code_loaded(const struct jitlisten_code *code, jitlisten_object *object);

/* *finalized*: the bytes are relocated and executable. The sinks are told before this returns. */
jitlisten_status jitlisten_finalized(jitlisten_object object);

/* *freeing*: the code is still there, and goes away next. */
jitlisten_status jitlisten_freeing(jitlisten_object object);

/* Counters since the session was opened, in this process. */
struct jitlisten_statistics {
    /* In: sizeof(struct jitlisten_statistics). Members beyond it are not written; members the library does not know are
     * left as they are, and size becomes the number of bytes that were written. */
    size_t size;
    /* Objects that LLVM has placed in memory. */
    uint64_t objects_loaded;
    /* Objects whose code became final and executable. */
    uint64_t objects_finalized;
    /* Objects whose code went away. */
    uint64_t objects_freed;
    /* Objects that could not be read: truncated, corrupt, of another machine. */
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
    /* Of those, images with no room in front of the code: `perf record --call-graph dwarf` cannot use their unwind tables. */
    uint64_t images_without_room;
    /* Runs of code pages without an image: not readable, not final (writable, shared, not executable), or nothing that an
     * ELF file can be made of. The log says which. */
    uint64_t images_refused;
    /* Images whose pages LLVM was about to change: they are anonymous memory again. */
    uint64_t images_withdrawn;
    /* Mappings that failed so late that the code had to be put back. */
    uint64_t images_put_back;
};

/* Copies the counters. statistics->size must be set. */
jitlisten_status jitlisten_statistics(struct jitlisten_statistics *statistics);

#ifdef __cplusplus
}
#endif

#endif
