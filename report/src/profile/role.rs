//! Roles of functions, which determine the activity of a stack: tables for CPython, Numba, LLVM and libc.

use crate::symbols::{Function, Kind};

/// Role of a function, or of the library that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Compiles a function, or saves it in a cache.
    Compiler,
    /// Builds Numba's registries, once in each process.
    FirstUse,
    /// Loads compiled code from Numba's cache.
    Loader,
    Llvm,
    /// Imports a module.
    Importer,
    /// Collects garbage.
    Collector,
    /// Ends the interpreter.
    Finalizer,
    /// Ends the process, and calls the destructors of its libraries.
    Exit,
    /// Waits on a condition variable.
    Condition,
    /// Belongs to Python itself, which waits on a condition variable only for the GIL.
    Interpreter,
    /// Belongs to a thread pool library. A thread that waits in such a library waits for work.
    Pool,
    /// Runs a thread of one of Python's pools.
    PoolThread,
    /// Gets work for a thread of a pool, or hands it on. A thread that waits in such a function waits for work.
    PoolQueue,
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles(u16);

impl Roles {
    /// Returns the roles of a function.
    pub(super) fn of_function(function: &Function) -> Roles {
        let (module, base) = (function.module.as_str(), function.base.as_str());
        let roles: &[(Role, bool)] = match function.kind {
            Kind::Python => {
                let part = numba_part(module, base);
                &[
                    (Role::Compiler, part == Some(Role::Compiler)),
                    (Role::FirstUse, part == Some(Role::FirstUse)),
                    (Role::Loader, part == Some(Role::Loader)),
                    (Role::Importer, module.starts_with("<frozen importlib") && base == "_find_and_load"),
                    (Role::PoolThread, runs_pool_thread(module, base)),
                    (Role::PoolQueue, is_pool_queue(module, base)),
                ]
            }
            Kind::Native => {
                let library = native_library(module);
                let is_llvm = library == "libllvmlite"
                    || library.starts_with("libLLVM")
                    || LLVM_PREFIXES.iter().any(|prefix| function.name.starts_with(prefix));
                &[
                    (Role::Llvm, is_llvm),
                    (Role::Collector, GC_FUNCTIONS.contains(&base)),
                    (Role::Finalizer, FINALIZERS.contains(&base)),
                    (Role::Exit, library == "libc" && EXIT_FUNCTIONS.contains(&base)),
                    (Role::Condition, base.trim_start_matches('_').starts_with("pthread_cond_")),
                    (Role::Interpreter, library.starts_with("libpython") || library.starts_with("python")),
                    (Role::Pool, find_pool(module).is_some_and(|pool| pool.is_openmp)),
                ]
            }
            Kind::Kernel | Kind::Compiled | Kind::Unknown => &[],
        };
        let bits = roles.iter().filter(|(_, has_role)| *has_role).map(|(role, _)| role.bit());
        Roles(bits.fold(0, |set, bit| set | bit))
    }

    /// Returns the part of Numba that the function belongs to.
    pub(super) fn numba_part(self) -> Option<Role> {
        [Role::Compiler, Role::FirstUse, Role::Loader].into_iter().find(|role| self.contains(*role))
    }

    pub(super) fn contains(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    pub(super) fn add(&mut self, other: Roles) {
        self.0 |= other.0;
    }
}

impl Role {
    fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// Reason for waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Gil,
    Threads,
    /// Waiting for work in a thread that runs no code of the program, such as a pool worker.
    Idle,
    Sleep,
    Io,
    Processes,
}

impl Wait {
    /// Label in reports.
    pub(super) fn words(self) -> &'static str {
        match self {
            Wait::Gil => "the GIL",
            Wait::Threads => "threads",
            Wait::Idle => "idle threads",
            Wait::Sleep => "sleep",
            Wait::Io => "input and output",
            Wait::Processes => "processes",
        }
    }

    /// Returns the reason if a C function blocks. Valid only in wall-clock recordings, and only for the innermost
    /// frame.
    pub(super) fn of_function(function: &Function) -> Option<Wait> {
        if function.kind != Kind::Native {
            return None;
        }
        let name = function.base.trim_start_matches('_');
        let name = name.strip_prefix("GI_").unwrap_or(name).trim_start_matches('_').trim_start_matches("libc_");
        let by_name = WAITING_FUNCTIONS.iter().find(|(_, functions)| functions.contains(&name)).map(|(wait, _)| *wait);
        by_name.or_else(|| LOCK_PREFIXES.iter().any(|prefix| name.starts_with(prefix)).then_some(Wait::Threads))
    }
}

/// CPython and libc functions that wait, without leading underscores. In a stripped libc, `sem_wait` lacks a symbol, so
/// the table lists its callers in CPython instead.
const WAITING_FUNCTIONS: [(Wait, &[&str]); 5] = [
    (Wait::Gil, &["take_gil", "drop_gil"]),
    // `syscall` mostly makes futex calls, for which libc has no function.
    (
        Wait::Threads,
        &[
            "PyThread_acquire_lock_timed",
            "PyMutex_LockTimed",
            "PySemaphore_Wait",
            "sched_yield",
            "semop",
            "semtimedop",
            "syscall",
        ],
    ),
    (
        Wait::Sleep,
        &[
            "clock_nanosleep",
            "nanosleep",
            "usleep",
            "sleep",
            "pause",
            "sigsuspend",
            "sigwait",
            "sigwaitinfo",
            "sigtimedwait",
        ],
    ),
    (
        Wait::Io,
        &[
            "poll",
            "ppoll",
            "select",
            "pselect",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
            "open",
            "open64",
            "openat",
            "openat64",
            "close",
            "read",
            "write",
            "recv",
            "recvfrom",
            "recvmsg",
            "recvmmsg",
            "send",
            "sendto",
            "sendmsg",
            "sendmmsg",
            "sendfile",
            "sendfile64",
            "splice",
            "accept",
            "accept4",
            "connect",
            "pread64",
            "pwrite64",
            "preadv",
            "preadv64",
            "pwritev",
            "pwritev64",
            "readv",
            "writev",
            "fsync",
            "fdatasync",
            "msync",
            "sync",
            "syncfs",
            "flock",
            "fcntl",
            "fcntl64",
            "lockf",
            "lockf64",
            "ioctl",
            "getdents64",
            "msgrcv",
            "msgsnd",
            "mq_timedreceive",
            "mq_timedsend",
            "io_getevents",
        ],
    ),
    (Wait::Processes, &["wait4", "waitpid", "waitid"]),
];
/// Name prefixes of libc functions that wait for another thread.
const LOCK_PREFIXES: [&str; 6] =
    ["futex_", "lll_lock_wait", "pthread_cond_", "sem_", "pthread_join", "pthread_clockjoin"];

/// CPython garbage collector functions, from several releases.
const GC_FUNCTIONS: [&str; 5] =
    ["gc_collect_main", "gc_collect_generations", "gc_collect_with_callback", "gc_collect_region", "gc_collect_young"];

/// CPython functions that end an interpreter. `Py_FinalizeEx` may have become a jump to the next.
const FINALIZERS: [&str; 5] =
    ["Py_FinalizeEx", "_Py_Finalize", "finalize_modules", "finalize_interp_clear", "_PyGC_CollectNoFail"];

/// Functions of libc that call the destructors of libraries. The second has a symbol only with debug information.
const EXIT_FUNCTIONS: [&str; 2] = ["exit", "__run_exit_handlers"];

/// Name prefixes of LLVM functions in a library that LLVM is linked into.
const LLVM_PREFIXES: [&str; 2] = ["llvm::", "_ZN4llvm"];

/// Library that runs parallel loops.
struct Pool {
    /// Name of the file, up to the first `-` or `.`.
    file: &'static str,
    /// Name in reports. Numba's own modules call the libraries.
    name: &'static str,
    /// True for a runtime of OpenMP. Its waits are recognised by file name, because it lacks symbols.
    is_openmp: bool,
}

const POOLS: [Pool; 7] = [
    Pool { file: "libgomp", name: "libgomp", is_openmp: true },
    Pool { file: "libomp", name: "libomp", is_openmp: true },
    Pool { file: "libiomp5", name: "libiomp5", is_openmp: true },
    Pool { file: "libtbb", name: "tbb", is_openmp: false },
    Pool { file: "omppool", name: "libgomp", is_openmp: false },
    Pool { file: "tbbpool", name: "tbb", is_openmp: false },
    Pool { file: "workqueue", name: "workqueue", is_openmp: false },
];

fn find_pool(module: &str) -> Option<&'static Pool> {
    // A copy in a wheel has a hash in its name: `libgomp-a34b3233.so.1.0.0`.
    let file = module.split(['-', '.']).next().unwrap_or(module);
    POOLS.iter().find(|pool| pool.file == file)
}

/// Returns the name in reports of a library that runs parallel loops, from its file name.
pub(super) fn pool_library(module: &str) -> Option<&'static str> {
    find_pool(module).map(|pool| pool.name)
}

/// Returns true for the name in reports of a library that runs parallel loops.
pub(crate) fn is_pool_library(name: &str) -> bool {
    POOLS.iter().any(|pool| pool.name == name)
}

/// Returns the part of Numba that a Python function enters. A part ends where its function returns, so these are the
/// functions between which `_compilations.py` measures a compilation.
fn numba_part(file: &str, function: &str) -> Option<Role> {
    // Frozen programs have relative paths.
    let file = file.strip_prefix("numba/").or_else(|| Some(file.rsplit_once("/numba/")?.1))?;
    // Python 3.11 and later have qualified names.
    let name = function.rsplit('.').next().unwrap_or(function);
    match (file, name) {
        ("core/base.py" | "core/typing/context.py", "refresh")
        | ("core/registry.py", "_toplevel_target_context" | "_toplevel_typing_context")
        | ("core/entrypoints.py", "init_all") => Some(Role::FirstUse),
        ("core/caching.py", "load_overload") => Some(Role::Loader),
        ("core/caching.py", "save_overload")
        | ("core/dispatcher.py", "_compile_cached" | "_compile_core")
        | ("core/ccallback.py", "_compile_uncached")
        | ("np/ufunc/ufuncbuilder.py", "_compile_core" | "_build_element_wise_ufunc_wrapper" | "build")
        | ("np/ufunc/parallel.py", "build") => Some(Role::Compiler),
        ("core/compiler.py", _) if name.contains("compile") => Some(Role::Compiler),
        _ if file.starts_with("pycc/") && name.contains("compile") => Some(Role::Compiler),
        _ => None,
    }
}

/// Returns true for a function that runs a thread of a pool: for a worker, or between the program and its worker
/// processes.
fn runs_pool_thread(file: &str, function: &str) -> bool {
    const FUNCTIONS: [(&str, &[&str]); 5] = [
        ("concurrent/futures/thread.py", &["_worker"]),
        ("multiprocessing/pool.py", &["worker", "_handle_workers", "_handle_tasks", "_handle_results"]),
        ("multiprocessing/queues.py", &["_feed"]),
        ("concurrent/futures/process.py", &["_process_worker", "wait_result_broken_or_wakeup"]),
        ("loky/process_executor.py", &["_process_worker", "wait_result_broken_or_wakeup"]),
    ];
    // Python 3.11 and later have qualified names.
    let name = function.rsplit('.').next().unwrap_or(function);
    FUNCTIONS.iter().any(|(path, names)| file.ends_with(path) && names.contains(&name))
}

/// Returns true for a function of Python that a pool's thread calls between tasks, and not to run one.
fn is_pool_queue(file: &str, function: &str) -> bool {
    const FILES: [&str; 7] = [
        "multiprocessing/connection.py",
        "multiprocessing/pool.py",
        "multiprocessing/queues.py",
        "multiprocessing/synchronize.py",
        "/queue.py",
        "/selectors.py",
        "/threading.py",
    ];
    FILES.iter().any(|path| file.ends_with(path)) && !["mapstar", "starmapstar"].contains(&function)
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
