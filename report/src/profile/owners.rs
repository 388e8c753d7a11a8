//! Owners of files and functions, judged by their names: the user, a package, Python, Numba, LLVM, libc.

use rustc_hash::FxHashMap;

use crate::recording::Recording;

/// Garbage collector functions of CPython, from several releases.
pub(super) const GC_FUNCTIONS: [&str; 6] = [
    "gc_collect_main",
    "gc_collect_generations",
    "gc_collect_with_callback",
    "gc_collect_region",
    "gc_collect_young",
    "_PyGC_CollectNoFail",
];

/// Reasons of waits. Threads that no code of the program called, such as the workers of a pool, are idle: they wait for
/// work.
pub(super) const FOR_THREADS: &str = "threads";
pub(super) const FOR_GIL: &str = "the GIL";
pub(super) const IDLE_THREADS: &str = "idle threads";

/// Returns true if the thread waited for other threads.
pub(crate) fn is_wait_for_threads(name: &str) -> bool {
    name == FOR_THREADS || name == IDLE_THREADS
}

/// OpenMP runtimes. They have no symbols.
pub(super) const POOL_LIBRARIES: [&str; 3] = ["libgomp", "libomp", "libiomp5"];

/// Libraries that every other library uses.
pub(super) const BASE_LIBRARIES: [&str; 8] =
    ["libc", "libm", "libpthread", "libgcc_s", "libstdc++", "ld-linux", "[vdso]", "kernel"];

/// Returns true for the functions in which Numba begins to compile. Each takes the compiler's lock, except for a few
/// that run before it.
pub(super) fn is_compiler_entry(file: &str, function: &str) -> bool {
    let Some((_, file)) = file.rsplit_once("/numba/") else { return false };
    match file {
        "core/compiler_lock.py" | "core/compiler.py" | "core/compiler_machinery.py" => true,
        "core/dispatcher.py" => function.contains("compile") || function == "get_call_template",
        "np/ufunc/dufunc.py" | "np/ufunc/ufuncbuilder.py" | "np/ufunc/gufunc.py" => {
            function.contains("compile") || function.contains("build")
        }
        _ => false,
    }
}

/// Returns true for a function of an LLVM that is linked into another library.
pub(super) fn is_llvm_function(function: &str) -> bool {
    function.starts_with("llvm::") || function.starts_with("_ZN4llvm")
}

/// Returns the reason of the wait if a C function blocks. Valid only in recordings of wall-clock time, and only while
/// the function is innermost.
pub(super) fn find_wait_reason(function: &str) -> Option<&'static str> {
    let name = function.trim_start_matches('_');
    let name = name.strip_prefix("GI_").unwrap_or(name).trim_start_matches('_').trim_start_matches("libc_");
    match name {
        "take_gil" | "drop_gil" => Some(FOR_GIL),
        // Its callee `sem_wait` has no symbol if libc is stripped.
        "PyThread_acquire_lock_timed" | "PyMutex_LockTimed" | "PySemaphore_Wait" => Some(FOR_THREADS),
        "clock_nanosleep" | "nanosleep" | "usleep" | "sleep" | "pause" | "sigsuspend" => Some("sleep"),
        "poll" | "ppoll" | "select" | "pselect" | "epoll_wait" | "epoll_pwait" | "read" | "write" | "recv"
        | "recvfrom" | "recvmsg" | "send" | "sendto" | "sendmsg" | "accept" | "accept4" | "connect" | "pread64"
        | "pwrite64" | "fsync" | "readv" | "writev" => Some("input and output"),
        "wait4" | "waitpid" | "waitid" => Some("processes"),
        "sched_yield" => Some(FOR_THREADS),
        _ if name.starts_with("futex_") || name.starts_with("lll_lock_wait") || name.starts_with("pthread_cond_") => {
            Some(FOR_THREADS)
        }
        _ if name.starts_with("sem_") || name.starts_with("pthread_join") || name.starts_with("pthread_clockjoin") => {
            Some(FOR_THREADS)
        }
        _ => None,
    }
}

/// Returns true if a source belongs neither to a library nor to Python. Generated code has no file of its own.
pub(crate) fn is_user_source(path: &str) -> bool {
    !is_generated(path) && python_library(path).is_none()
}

/// Returns true for generated code without a file, such as `<string>`. `<frozen importlib._bootstrap>` belongs to the
/// standard library.
pub(crate) fn is_generated(path: &str) -> bool {
    path.starts_with('<') && !path.starts_with("<frozen ")
}

pub(super) const STANDARD_LIBRARY: &str = "Python's library";

/// Returns the package of a Python file if it is installed or ours, and `Python's library` for the standard library.
pub(crate) fn python_library(path: &str) -> Option<&str> {
    if path.starts_with("<frozen ") {
        return Some(STANDARD_LIBRARY);
    }
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = path.rsplit_once(folder) {
            let first = rest.split('/').next().unwrap_or(rest);
            return Some(first.strip_suffix(".py").unwrap_or(first));
        }
    }
    if path.contains("/jitlisten/_") {
        return Some("jitlisten");
    }
    let (_, rest) = path.rsplit_once("/lib/python")?;
    rest.starts_with(|digit: char| digit.is_ascii_digit()).then_some(STANDARD_LIBRARY)
}

/// Maps the file names of C libraries in a process to the packages that brought them.
pub(super) fn packages_of_files(recording: &Recording) -> FxHashMap<&str, &str> {
    let files = recording.files.iter().filter(|file| file.path.contains(".so"));
    let package = |path| {
        // Tools that repair wheels put copies of libraries next to the package.
        python_library(path).map(|package| package.strip_suffix(".libs").unwrap_or(package))
    };
    files.filter_map(|file| Some((file.path.rsplit('/').next()?, package(&file.path)?))).collect()
}

/// Returns a library's name without suffixes: `libpython3.12` for `libpython3.12.so.1.0`, `_multiarray_umath` for
/// `_multiarray_umath.cpython-311-x86_64-linux-gnu.so`.
pub(super) fn native_library(file: &str) -> &str {
    let end = file.find(".so").unwrap_or(file.len());
    let end = file[..end].find(".cpython-").unwrap_or(end);
    let end = file[..end].find(".abi3").unwrap_or(end);
    let name = &file[..end];
    if name.starts_with("ld-linux") { "ld-linux" } else { name.strip_suffix(".6").unwrap_or(name) }
}
