//! The activity of each sample (exactly one of a few), and the line that it is charged to.
//!
//! A stack belongs to its innermost Python or compiled function, its *owner*: the time of C functions is charged to the
//! line that called them. Functions of a compiler, of the import system and of the garbage collector take precedence
//! over the owner, as do waiting functions in a recording of wall-clock time.

use rustc_hash::FxHashMap;

use crate::recording::Recording;
use crate::symbols::{Frame, Function, Kind, Symbols};

/// What a thread did. The page numbers them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Activity {
    /// It ran compiled code, or C functions that compiled code called.
    Compiled,
    /// It interpreted the user's Python, or ran C functions that this called.
    Interpreted,
    /// It was in a library: [`Done::name`].
    Library,
    /// It compiled: Numba, or LLVM.
    Compiling,
    /// It imported a library.
    Importing,
    /// It looked for garbage.
    Collecting,
    /// It waited: [`Done::name`]. Only in a recording of wall-clock time.
    Waiting,
}

impl Activity {
    /// Each, in their order.
    pub const ALL: [Activity; 7] = [
        Activity::Compiled,
        Activity::Interpreted,
        Activity::Library,
        Activity::Compiling,
        Activity::Importing,
        Activity::Collecting,
        Activity::Waiting,
    ];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Activity::Compiled => "compiled code",
            Activity::Interpreted => "your Python",
            Activity::Library => "libraries",
            Activity::Compiling => "compiling",
            Activity::Importing => "importing",
            Activity::Collecting => "garbage collection",
            Activity::Waiting => "waiting",
        }
    }
}

/// What was done at a stack.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// What the thread did.
    pub activity: Activity,
    /// Whose library, what was waited for: index into [`Activities::names`].
    pub name: u32,
    /// Whose compiled code it was, if it was a package's: index into [`Activities::names`].
    pub package: Option<u32>,
    /// Whether it was LLVM that compiled.
    pub in_llvm: bool,
    /// Whether the program counter was in a C function that the owner called.
    pub in_c: bool,
    /// The innermost function of Python or of compiled code.
    pub owner: Option<Frame>,
    /// The innermost line of the user's files: source and number.
    pub user: Option<(u32, u32)>,
    /// The line that it is the time of: the owner's, and of what Numba itself compiles in, as for `a.sum()`, the one
    /// that calls that.
    pub line: Option<(u32, u32)>,
}

/// What was done at each stack of a recording.
#[derive(Clone, Debug, Default)]
pub struct Activities {
    /// Libraries, and what is waited for.
    pub names: Vec<String>,
    /// Whether each source is the user's, and not a library's or Python's.
    is_users: Vec<bool>,
    /// Whether each source is Numba's.
    is_numbas: Vec<bool>,
    /// The package of each source and of each function, as the number of its name.
    source_packages: Vec<Option<u32>>,
    function_packages: Vec<Option<u32>>,
    /// The library of each function that is not of one which all others use.
    function_libraries: Vec<Option<u32>>,
    stacks: Vec<Done>,
}

/// The activity of a function.
#[derive(Clone, Copy, Debug, Default)]
struct Role {
    compiles: bool,
    is_llvm: bool,
    imports: bool,
    collects: bool,
    waits: Option<&'static str>,
    /// Of Python itself, which waits on a condition for its lock only.
    is_python_itself: bool,
    is_condition: bool,
    /// Of a library whose threads wait in it, and do nothing else there.
    is_pool: bool,
    /// Whose it is: index of the name.
    library: Option<u32>,
    /// Of a library that all others use: named only where no other is.
    is_base: bool,
    /// Of an installed package.
    is_package: bool,
    is_python: bool,
}

/// The activity of a place, all inlined calls together.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    role: Role,
    owner: Option<(Frame, Kind)>,
    user: Option<(u32, u32)>,
    is_users: bool,
    has_file: bool,
    line: Option<(u32, u32)>,
    /// The package of the file of that line.
    package: Option<u32>,
    /// Whether that line has no file.
    is_generated: bool,
}

impl Activities {
    /// Looks at every stack once.
    pub fn new(recording: &Recording, symbols: &Symbols) -> Activities {
        let mut activities = Activities {
            is_users: symbols.sources.iter().map(|path| is_users(path)).collect(),
            is_numbas: symbols.sources.iter().map(|path| python_library(path) == Some("numba")).collect(),
            ..Activities::default()
        };
        let mut names = Names::default();
        let packages = packages_of_files(recording);
        let role = |function| Role::of(function, &packages, &mut names);
        let roles: Vec<Role> = symbols.functions.iter().map(role).collect();
        let package = |path: &String| python_library(path).map(|name| names.number(name));
        activities.source_packages = symbols.sources.iter().map(package).collect();
        activities.function_packages =
            roles.iter().map(|role| role.library.filter(|_| role.is_python || role.is_package)).collect();
        activities.function_libraries = roles.iter().map(|role| role.library.filter(|_| !role.is_base)).collect();
        let locations = 0..recording.locations.len() as u32;
        let places: Vec<Place> = locations.map(|location| activities.place(symbols, &roles, location)).collect();
        let is_wall = recording.is_wall();
        let stack = |stack: u32| {
            Walk::over(recording.stacks.get(stack).iter().map(|at| &places[*at as usize])).done(is_wall, &mut names)
        };
        activities.stacks = (0..recording.stacks.len() as u32).map(stack).collect();
        activities.names = names.all;
        activities
    }

    /// What was done at a stack.
    pub fn of(&self, stack: u32) -> &Done {
        &self.stacks[stack as usize]
    }

    fn place(&self, symbols: &Symbols, roles: &[Role], location: u32) -> Place {
        let mut place = Place::default();
        for frame in symbols.frames(location) {
            let (function, role) = (symbols.function(frame), roles[frame.function as usize]);
            place.role.compiles |= role.compiles;
            place.role.is_llvm |= role.is_llvm;
            place.role.imports |= role.imports;
            place.role.collects |= role.collects;
            place.role.waits = place.role.waits.or(role.waits);
            place.role.is_condition |= role.is_condition;
            place.role.is_python_itself |= role.is_python_itself;
            place.role.is_pool |= role.is_pool;
            if place.role.library.is_none() {
                (place.role.library, place.role.is_base) = (role.library, role.is_base);
                place.role.is_package = role.is_package;
            }
            if !matches!(function.kind, Kind::Compiled | Kind::Python) {
                continue;
            }
            place.owner = place.owner.or(Some((*frame, function.kind)));
            place.has_file |= function.kind == Kind::Python && !is_generated(&function.module);
            let is_users = match frame.source {
                Some(source) => self.is_users[source as usize],
                None => function.kind == Kind::Python && is_users(&function.module),
            };
            place.is_users |= is_users;
            if let (None, Some((source, line)), false) =
                (place.line, frame.source.zip(frame.line), self.is_numbas(frame))
            {
                place.line = Some((source, line));
                place.package = self.source_packages[source as usize];
                place.is_generated = is_generated(&symbols.sources[source as usize]);
            }
            if is_users {
                place.user = place.user.or(frame.source.zip(frame.line));
            }
        }
        place
    }

    /// The package that a frame is of.
    pub(crate) fn package(&self, frame: &Frame) -> Option<u32> {
        let of_source = frame.source.and_then(|source| self.source_packages[source as usize]);
        of_source.or(self.function_packages[frame.function as usize])
    }

    /// The name of the library that a function is of.
    pub(crate) fn library_of_function(&self, function: usize) -> Option<&str> {
        self.function_libraries.get(function).copied().flatten().map(|name| self.names[name as usize].as_str())
    }

    fn is_numbas(&self, frame: &Frame) -> bool {
        frame.source.is_some_and(|source| self.is_numbas[source as usize])
    }
}

/// Each name once.
#[derive(Debug, Default)]
struct Names {
    all: Vec<String>,
    numbers: FxHashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.numbers.insert(name.to_owned(), self.all.len() as u32);
        self.all.push(name.to_owned());
        self.all.len() as u32 - 1
    }
}

impl Role {
    fn of(function: &Function, packages: &FxHashMap<&str, &str>, names: &mut Names) -> Role {
        let mut role = Role::default();
        match function.kind {
            Kind::Python => {
                role.compiles = compiles(&function.module, &function.base);
                role.imports = function.module.starts_with("<frozen importlib") && function.base == "_find_and_load";
                let library = python_library(&function.module);
                role.library = library.map(|name| names.number(name));
                role.is_python = true;
                role.is_package = library.is_some_and(|name| name != PYTHONS_LIBRARY);
            }
            Kind::Native => {
                let name = native_library(&function.module);
                role.is_llvm = name == "libllvmlite" || name.starts_with("libLLVM") || is_of_llvm(&function.name);
                role.compiles = role.is_llvm;
                role.collects = COLLECTORS.contains(&function.base.as_str());
                role.waits = waits(&function.base);
                role.is_condition = function.base.trim_start_matches('_').starts_with("pthread_cond_");
                role.is_python_itself = name.starts_with("libpython") || name.starts_with("python");
                role.is_base = BASES.contains(&name);
                // A wheel's copy has a hash: libgomp-a34b3233.
                role.is_pool = POOLS.contains(&name.split('-').next().unwrap_or(name));
                let package = packages.get(function.module.as_str());
                role.is_package = package.is_some_and(|name| *name != PYTHONS_LIBRARY);
                role.library = Some(names.number(package.unwrap_or(&name)));
            }
            Kind::Kernel => (role.library, role.is_base) = (Some(names.number("kernel")), true),
            Kind::Compiled | Kind::Unknown => {}
        }
        role
    }
}

/// What the places of a stack say together.
#[derive(Debug, Default)]
struct Walk {
    owner: Option<(Frame, Kind)>,
    in_c: bool,
    /// Below the owner, and anywhere.
    owner_compiles: bool,
    compiles: bool,
    in_llvm: bool,
    imports: bool,
    collects: bool,
    waits: Option<&'static str>,
    /// Whether the place before waits on a condition.
    in_condition: bool,
    /// The innermost library, and the innermost of those that all others use.
    library: Option<u32>,
    base: Option<u32>,
    /// Whether the owner is the user's, and else whose; what was generated is its caller's.
    owned_by: Option<(bool, Option<u32>)>,
    /// The innermost package, which is not Python's own library.
    package: Option<u32>,
    user: Option<(u32, u32)>,
    line: Option<(u32, u32)>,
    /// The package of the line's file, and whether it has none.
    line_package: Option<u32>,
    is_generated: bool,
}

impl Walk {
    fn over<'a>(places: impl Iterator<Item = &'a Place>) -> Walk {
        let mut walk = Walk::default();
        for place in places {
            let role = &place.role;
            walk.in_llvm |= role.is_llvm;
            walk.compiles |= role.compiles;
            if walk.owner.is_none() {
                walk.owner_compiles |= role.compiles;
                walk.collects |= role.collects;
                let in_pool = role.is_pool && walk.library.is_none();
                // What Python waits for says more than how.
                let has_gil_to_come = walk.in_condition && role.is_python_itself;
                walk.in_condition = role.is_condition;
                match role.waits {
                    _ if has_gil_to_come => walk.waits = Some(GIL),
                    Some(GIL) => walk.waits = Some(GIL),
                    what => walk.waits = walk.waits.or(what).or(in_pool.then_some(THREADS)),
                }
                walk.owner = place.owner;
                walk.in_c |= place.owner.is_none();
                if place.owner.is_none() {
                    let name = if role.is_base { &mut walk.base } else { &mut walk.library };
                    *name = name.or(role.library);
                }
            }
            if walk.owned_by.is_none() && place.has_file {
                walk.owned_by = Some((place.is_users, role.library));
            }
            walk.package = walk.package.or(role.library.filter(|_| role.is_package));
            // What the user's own files do when they are imported is theirs.
            walk.imports |= role.imports && walk.user.is_none();
            walk.user = walk.user.or(place.user);
            if walk.line.is_none() && place.line.is_some() {
                walk.line = place.line;
                (walk.line_package, walk.is_generated) = (place.package, place.is_generated);
            }
        }
        walk
    }

    fn done(self, is_wall: bool, names: &mut Names) -> Done {
        let is_compiled = self.owner.is_some_and(|(_, kind)| kind == Kind::Compiled);
        let (is_users, of) = self.owned_by.unwrap_or((true, None));
        let (activity, name) = match (self.waits, self.owner) {
            (Some(THREADS), None) if is_wall => (Activity::Waiting, Some(names.number(IDLE))),
            (Some(what), _) if is_wall => (Activity::Waiting, Some(names.number(what))),
            _ if self.owner_compiles || (self.compiles && !is_compiled) => (Activity::Compiling, of),
            _ if self.collects => (Activity::Collecting, None),
            _ if is_compiled => (Activity::Compiled, None),
            _ if self.imports => (Activity::Importing, self.package.or(of)),
            (_, None) => (Activity::Library, self.library.or(self.base)),
            _ if is_users => (Activity::Interpreted, None),
            _ => (Activity::Library, of),
        };
        Done {
            activity,
            name: name.unwrap_or_else(|| names.number("[unknown]")),
            // What was generated is its caller's.
            package: if self.is_generated { of } else { self.line_package }.filter(|_| is_compiled),
            in_llvm: self.in_llvm,
            in_c: self.in_c,
            owner: self.owner.map(|(frame, _)| frame),
            user: self.user,
            line: match self.owner {
                Some((_, Kind::Compiled)) => self.line,
                owner => owner.and_then(|(frame, _)| frame.source.zip(frame.line)),
            },
        }
    }
}

/// CPython's collectors of garbage, by release.
const COLLECTORS: [&str; 6] = [
    "gc_collect_main",
    "gc_collect_generations",
    "gc_collect_with_callback",
    "gc_collect_region",
    "gc_collect_young",
    "_PyGC_CollectNoFail",
];

/// What is waited for: other threads; by a thread that was called by no code of the program, as those of a pool, for
/// work.
const THREADS: &str = "threads";
const GIL: &str = "the GIL";
const IDLE: &str = "idle threads";

/// Whether other threads were waited for.
pub(crate) fn is_for_threads(name: &str) -> bool {
    name == THREADS || name == IDLE
}

/// Runtimes of OpenMP, which have no symbols.
const POOLS: [&str; 3] = ["libgomp", "libomp", "libiomp5"];

/// What every library uses.
const BASES: [&str; 8] = ["libc", "libm", "libpthread", "libgcc_s", "libstdc++", "ld-linux", "[vdso]", "kernel"];

/// Where Numba begins to compile, whoever asks: each takes the compiler's lock, but for what comes before.
fn compiles(file: &str, function: &str) -> bool {
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

/// Of an LLVM that is part of another library.
fn is_of_llvm(function: &str) -> bool {
    function.starts_with("llvm::") || function.starts_with("_ZN4llvm")
}

/// What a function of C waits for, at least as long as it is the innermost. In recordings of wall-clock time only.
fn waits(function: &str) -> Option<&'static str> {
    let name = function.trim_start_matches('_');
    let name = name.strip_prefix("GI_").unwrap_or(name).trim_start_matches('_').trim_start_matches("libc_");
    match name {
        "take_gil" | "drop_gil" => Some(GIL),
        // Its `sem_wait` has no symbol where libc is stripped.
        "PyThread_acquire_lock_timed" | "PyMutex_LockTimed" | "PySemaphore_Wait" => Some(THREADS),
        "clock_nanosleep" | "nanosleep" | "usleep" | "sleep" | "pause" | "sigsuspend" => Some("sleep"),
        "poll" | "ppoll" | "select" | "pselect" | "epoll_wait" | "epoll_pwait" | "read" | "write" | "recv"
        | "recvfrom" | "recvmsg" | "send" | "sendto" | "sendmsg" | "accept" | "accept4" | "connect" | "pread64"
        | "pwrite64" | "fsync" | "readv" | "writev" => Some("input and output"),
        "wait4" | "waitpid" | "waitid" => Some("processes"),
        "sched_yield" => Some(THREADS),
        _ if name.starts_with("futex_") || name.starts_with("lll_lock_wait") || name.starts_with("pthread_cond_") => {
            Some(THREADS)
        }
        _ if name.starts_with("sem_") || name.starts_with("pthread_join") || name.starts_with("pthread_clockjoin") => {
            Some(THREADS)
        }
        _ => None,
    }
}

/// Whether a source is neither of a library nor of Python itself. What was generated is its caller's.
pub(crate) fn is_users(path: &str) -> bool {
    !is_generated(path) && python_library(path).is_none()
}

/// `<string>`: there is no file. `<frozen importlib._bootstrap>` is of Python's library.
pub(crate) fn is_generated(path: &str) -> bool {
    path.starts_with('<') && !path.starts_with("<frozen ")
}

const PYTHONS_LIBRARY: &str = "Python's library";

/// The package that a file of Python is of, if it is installed or ours; of Python's own files `Python's library`.
pub(crate) fn python_library(path: &str) -> Option<&str> {
    if path.starts_with("<frozen ") {
        return Some(PYTHONS_LIBRARY);
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
    rest.starts_with(|digit: char| digit.is_ascii_digit()).then_some(PYTHONS_LIBRARY)
}

/// The packages that brought the libraries of C that a process had mapped, by file name.
fn packages_of_files(recording: &Recording) -> FxHashMap<&str, &str> {
    let files = recording.files.iter().filter(|file| file.path.contains(".so"));
    let package = |path| {
        // What repairs wheels puts copies of libraries beside the package.
        python_library(path).map(|package| package.strip_suffix(".libs").unwrap_or(package))
    };
    files.filter_map(|file| Some((file.path.rsplit('/').next()?, package(&file.path)?))).collect()
}

/// `libpython3.12.so.1.0` is `libpython3.12`; `_multiarray_umath.cpython-311-x86_64-linux-gnu.so` is
/// `_multiarray_umath`.
fn native_library(file: &str) -> &str {
    let end = file.find(".so").unwrap_or(file.len());
    let end = file[..end].find(".cpython-").unwrap_or(end);
    let end = file[..end].find(".abi3").unwrap_or(end);
    let name = &file[..end];
    if name.starts_with("ld-linux") { "ld-linux" } else { name.strip_suffix(".6").unwrap_or(name) }
}
