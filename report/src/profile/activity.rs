//! Activity of each sample, and the line that the sample is charged to.
//!
//! A stack belongs to its *owner*, which is its innermost Python or compiled function. The time of C functions is
//! charged to the owner's line that called them. The functions of Numba's compiler, of the import system, of the
//! garbage collector and of the interpreter's end take precedence over the owner, as do waiting functions in a
//! wall-clock recording.

use std::path::PathBuf;

use rustc_hash::FxHashMap;

use super::imports::Imports;
use super::owners::{Owners, STANDARD_LIBRARY, is_generated, packages_of_files};
use super::role::{Role, Roles, Wait, native_library, pool_library};
use crate::distinct::Distinct;
use crate::recording::Recording;
use crate::symbols::{Frame, Function, Kind, Symbols};

/// Activity of a thread. The HTML page refers to the variants by number, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Activity {
    /// Running compiled code, or C functions that compiled code called, except libraries that run parallel loops.
    Compiled,
    /// Interpreting the user's Python, or running C functions that it called.
    Interpreted,
    /// Running library code; [`StackActivity::name`] is the library.
    Library,
    /// Compiling, in Numba or LLVM; [`StackActivity::name`] is the compiler.
    Compiling,
    /// Importing a library.
    Importing,
    /// Collecting garbage.
    Collecting,
    /// Waiting; [`StackActivity::name`] is the reason. Only in recordings of wall-clock time.
    Waiting,
    /// Building Numba's registries, once in each process.
    FirstUse,
    /// Loading compiled code from Numba's cache.
    Loading,
    /// Ending the interpreter.
    Ending,
}

impl Activity {
    /// All activities, in the order of their numbers.
    pub const ALL: [Activity; 10] = [
        Activity::Compiled,
        Activity::Interpreted,
        Activity::Library,
        Activity::Compiling,
        Activity::Importing,
        Activity::Collecting,
        Activity::Waiting,
        Activity::FirstUse,
        Activity::Loading,
        Activity::Ending,
    ];

    /// Label in reports.
    pub fn words(self) -> &'static str {
        match self {
            Activity::Compiled => "compiled code",
            Activity::Interpreted => "your Python",
            Activity::Library => "libraries",
            Activity::Compiling => "compiling",
            Activity::Importing => "importing",
            Activity::Collecting => "garbage collection",
            Activity::Waiting => "waiting",
            Activity::FirstUse => "Numba's first use",
            Activity::Loading => "loading compiled code",
            Activity::Ending => "ending Python",
        }
    }

    /// Returns true for the time that `--no-compile` leaves out: a program that compiles nothing does not spend it.
    pub fn is_for_compiled_code(self) -> bool {
        matches!(self, Activity::Compiling | Activity::FirstUse | Activity::Loading)
    }
}

/// Activity of a thread at one stack.
#[derive(Clone, Copy, Debug)]
pub struct StackActivity {
    /// Activity that the sample's time is charged to.
    pub activity: Activity,
    /// Library, compiler, or reason of a wait, as an index into [`Activities::names`].
    pub name: u32,
    /// Package of the compiled code, if it belongs to one, as an index into [`Activities::names`].
    pub package: Option<u32>,
    /// True if LLVM was compiling.
    pub in_llvm: bool,
    /// True if the program counter was in a C function that the owner called.
    pub in_c: bool,
    /// Innermost Python or compiled function.
    pub owner: Option<Frame>,
    /// Innermost line in the user's files: source and line number.
    pub user: Option<(u32, u32)>,
    /// Line that the time is charged to, usually the owner's. Code that Numba supplies for a call such as `a.sum()` is
    /// charged to the calling line.
    pub line: Option<(u32, u32)>,
}

/// Activity at each stack of a recording.
#[derive(Clone, Debug, Default)]
pub struct Activities {
    /// Names of libraries, and reasons of waits.
    pub names: Vec<String>,
    owners: Owners,
    /// Flag per source: true if the file is the user's, not part of a library or Python.
    is_user_source: Vec<bool>,
    /// Flag per source: true if the file is part of Numba.
    is_from_numba: Vec<bool>,
    /// Package per source and per function, as an index into `names`.
    source_packages: Vec<Option<u32>>,
    function_packages: Vec<Option<u32>>,
    /// Library per function; `None` for a library that every library uses.
    function_libraries: Vec<Option<u32>>,
    stacks: Vec<StackActivity>,
}

/// Library of a function.
#[derive(Clone, Copy, Debug)]
struct Library {
    /// Index into [`Activities::names`].
    name: u32,
    /// True for a base library that all others use. A base library is named only if no other library is on the stack.
    is_base: bool,
    /// True for an installed package.
    is_package: bool,
    /// True for a library that runs parallel loops.
    is_pool: bool,
}

/// Line of a code location.
#[derive(Clone, Copy, Debug)]
struct Line {
    source: u32,
    number: u32,
    /// Package of the line's file.
    package: Option<u32>,
    /// True in generated code, which does not come from a file.
    is_generated: bool,
}

/// Properties of a function that determine the activity of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct FunctionRole {
    roles: Roles,
    wait: Option<Wait>,
    library: Option<Library>,
}

/// Properties of a code location, merged from its function and all calls inlined there.
#[derive(Clone, Copy, Debug, Default)]
struct LocationRole {
    role: FunctionRole,
    owner: Option<(Frame, Kind)>,
    user: Option<(u32, u32)>,
    is_user_code: bool,
    has_file: bool,
    line: Option<Line>,
    /// True if the line is unknown.
    is_function: bool,
}

impl Activities {
    /// Classifies each stack of the recording once. The texts of lines that import are searched below `roots` first.
    pub fn new(recording: &Recording, symbols: &Symbols, roots: &[PathBuf]) -> Activities {
        Activities::with_owners(recording, symbols, roots, Owners::new(recording, &[]))
    }

    /// Same as [`new`](Activities::new), with known owners of files.
    pub(crate) fn with_owners(
        recording: &Recording,
        symbols: &Symbols,
        roots: &[PathBuf],
        owners: Owners,
    ) -> Activities {
        let packages = packages_of_files(recording, &owners);
        let mut activities = Activities {
            is_user_source: symbols.sources.iter().map(|path| owners.is_user_source(path)).collect(),
            is_from_numba: symbols.sources.iter().map(|path| owners.package(path) == Some("numba")).collect(),
            ..Activities::default()
        };
        let mut names = Distinct::default();
        let role = |function| FunctionRole::new(function, &owners, &packages, &mut names);
        let roles: Vec<FunctionRole> = symbols.functions.iter().map(role).collect();
        let package = |path: &String| owners.package(path).map(|name| names.number(name.to_owned()));
        activities.source_packages = symbols.sources.iter().map(package).collect();
        let is_python = |function: &Function| function.kind == Kind::Python;
        let package = |(function, role): (_, &FunctionRole)| {
            role.library.filter(|library| is_python(function) || library.is_package).map(|library| library.name)
        };
        activities.function_packages = symbols.functions.iter().zip(&roles).map(package).collect();
        let library = |role: &FunctionRole| role.library.filter(|library| !library.is_base).map(|library| library.name);
        activities.function_libraries = roles.iter().map(library).collect();
        let locations = 0..recording.locations.len() as u32;
        let location_role = |location: u32| LocationRole {
            is_function: recording.locations[location as usize].is_function,
            ..activities.location_role(symbols, &owners, &roles, location)
        };
        let location_roles: Vec<LocationRole> = locations.map(location_role).collect();
        let is_wall = recording.is_wall();
        let mut imports = Imports::new(recording, symbols, &owners, roots);
        let stack = |stack: u32| {
            StackSummary::new(recording.stacks.get(stack).iter().map(|location| &location_roles[*location as usize]))
                .classify(is_wall, &mut names, &mut imports)
        };
        activities.stacks = (0..recording.stacks.len() as u32).map(stack).collect();
        (activities.names, activities.owners) = (names.values, owners);
        activities
    }

    /// Returns the activity at a stack.
    pub fn get(&self, stack: u32) -> &StackActivity {
        &self.stacks[stack as usize]
    }

    fn location_role(&self, symbols: &Symbols, owners: &Owners, roles: &[FunctionRole], location: u32) -> LocationRole {
        let mut merged = LocationRole::default();
        for frame in symbols.frames(location) {
            let (function, role) = (symbols.function(frame), roles[frame.function as usize]);
            merged.role.roles.add(role.roles);
            merged.role.wait = merged.role.wait.or(role.wait);
            merged.role.library = merged.role.library.or(role.library);
            if !matches!(function.kind, Kind::Compiled | Kind::Python) {
                continue;
            }
            merged.owner = merged.owner.or(Some((*frame, function.kind)));
            merged.has_file |= function.kind == Kind::Python && !is_generated(&function.module);
            let is_user_code = match frame.source {
                Some(source) => self.is_user_source[source as usize],
                None => function.kind == Kind::Python && owners.is_user_source(&function.module),
            };
            merged.is_user_code |= is_user_code;
            if let (None, Some((source, line)), false) =
                (merged.line, frame.source.zip(frame.line), self.is_from_numba(frame))
            {
                merged.line = Some(Line {
                    source,
                    number: line,
                    package: self.source_packages[source as usize],
                    is_generated: is_generated(&symbols.sources[source as usize]),
                });
            }
            if is_user_code {
                merged.user = merged.user.or(frame.source.zip(frame.line));
            }
        }
        merged
    }

    /// Returns the package of a source; `None` for the user's.
    pub(crate) fn package_of_source(&self, source: u32) -> Option<&str> {
        self.source_packages[source as usize].map(|name| self.names[name as usize].as_str())
    }

    /// Returns the owners of files.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Returns true if the thread waited for work. Only in recordings of wall-clock time.
    pub(crate) fn is_idle(&self, stack_activity: &StackActivity) -> bool {
        self.is_wait(stack_activity, Wait::Idle)
    }

    /// Returns true if the thread waited for the GIL. Only in recordings of wall-clock time.
    pub(crate) fn is_gil_wait(&self, stack_activity: &StackActivity) -> bool {
        self.is_wait(stack_activity, Wait::Gil)
    }

    fn is_wait(&self, stack_activity: &StackActivity, wait: Wait) -> bool {
        stack_activity.activity == Activity::Waiting && self.names[stack_activity.name as usize] == wait.words()
    }

    /// Describes a compiler, by the name of its library: Numba's, or another program's LLVM.
    pub(crate) fn compiler(&self, name: u32) -> String {
        match self.names[name as usize].as_str() {
            "numba" | "llvmlite" | "libllvmlite" => "Numba's compiler".to_owned(),
            library => format!("compiler in {library}"),
        }
    }

    /// Returns the package of a frame.
    pub(crate) fn package(&self, frame: &Frame) -> Option<u32> {
        let source_package = frame.source.and_then(|source| self.source_packages[source as usize]);
        source_package.or(self.function_packages[frame.function as usize])
    }

    /// Returns the name of a function's library.
    pub(crate) fn library_of_function(&self, function: usize) -> Option<&str> {
        self.function_libraries.get(function).copied().flatten().map(|name| self.names[name as usize].as_str())
    }

    fn is_from_numba(&self, frame: &Frame) -> bool {
        frame.source.is_some_and(|source| self.is_from_numba[source as usize])
    }
}

/// Function in which OpenBLAS's threads wait for work. They do so busily at first: some 20 ms each after NumPy and SciPy
/// have loaded it, and after each product.
const OPENBLAS_THREAD: &str = "blas_thread_server";
const OPENBLAS_IDLE: &str = "OpenBLAS's idle threads";

impl FunctionRole {
    fn new(
        function: &Function,
        owners: &Owners,
        packages: &FxHashMap<&str, &str>,
        names: &mut Distinct<String>,
    ) -> FunctionRole {
        let library = match function.kind {
            Kind::Python => owners.package(&function.module).map(|name| Library {
                name: names.number(name.to_owned()),
                is_base: false,
                is_package: name != STANDARD_LIBRARY && !is_import_hook(&function.module),
                is_pool: false,
            }),
            Kind::Native => {
                let name = native_library(&function.module);
                let pool = pool_library(&function.module);
                let is_base = BASE_LIBRARIES.contains(&name);
                let idle = (function.base == OPENBLAS_THREAD).then_some(OPENBLAS_IDLE);
                let is_other = pool.is_some() || is_base || idle.is_some();
                let package = packages.get(function.module.as_str()).filter(|_| !is_other);
                Some(Library {
                    name: names.number(pool.or(idle).or(package.copied()).unwrap_or(name).to_owned()),
                    is_base,
                    is_package: package.is_some_and(|name| *name != STANDARD_LIBRARY),
                    is_pool: pool.is_some(),
                })
            }
            Kind::Kernel => Some(Library {
                name: names.number("kernel".to_owned()),
                is_base: true,
                is_package: false,
                is_pool: false,
            }),
            Kind::Compiled | Kind::Unknown => None,
        };
        FunctionRole { roles: Roles::of_function(function), wait: Wait::of_function(function), library }
    }
}

/// Properties of a stack, merged from its locations, innermost first.
#[derive(Debug, Default)]
struct StackSummary {
    owner: Option<(Frame, Kind)>,
    in_c: bool,
    /// Roles of the owner and of the functions that it called.
    owner_roles: Roles,
    /// Roles of the whole stack.
    roles: Roles,
    /// Innermost part of Numba.
    numba_part: Option<Role>,
    /// Library that contains LLVM.
    llvm: Option<u32>,
    /// True if a module is being imported and no user file runs inside that import.
    imports: bool,
    /// True if the interpreter or its process ends and no user file runs.
    ends: bool,
    wait: Option<Wait>,
    /// True if the thread belongs to a pool and is between two tasks; `None` while that is unknown.
    is_between_tasks: Option<bool>,
    /// Innermost library, and innermost base library.
    library: Option<u32>,
    base: Option<u32>,
    /// True if the innermost library runs parallel loops.
    in_pool: bool,
    /// Owner of the innermost frame that has a file: a flag for user code, and the library. Generated code belongs to
    /// its caller.
    file_owner: Option<(bool, Option<u32>)>,
    /// Innermost package outside of Python's standard library, called by the innermost user line.
    package: Option<u32>,
    user: Option<(u32, u32)>,
    line: Option<Line>,
}

impl StackSummary {
    fn new<'a>(locations: impl Iterator<Item = &'a LocationRole>) -> StackSummary {
        let mut summary = StackSummary::default();
        let mut calls_condition = false;
        // The wrapper that called a function has another line.
        let mut hides_lines = false;
        for location in locations {
            let role = &location.role;
            summary.roles.add(role.roles);
            summary.add_pool_thread(location);
            summary.numba_part = summary.numba_part.or(role.roles.numba_part());
            if role.roles.contains(Role::Llvm) {
                summary.llvm = summary.llvm.or(role.library.map(|library| library.name));
            }
            if summary.owner.is_none() {
                summary.owner_roles.add(role.roles);
                summary.add_wait(role, calls_condition);
                calls_condition = role.roles.contains(Role::Condition);
                summary.owner = location.owner;
                summary.in_c |= location.owner.is_none();
                if location.owner.is_none()
                    && let Some(library) = role.library
                {
                    let name = if library.is_base { &mut summary.base } else { &mut summary.library };
                    summary.in_pool |= library.is_pool && name.is_none();
                    *name = name.or(Some(library.name));
                }
            }
            if summary.file_owner.is_none() && location.has_file {
                summary.file_owner = Some((location.is_user_code, role.library.map(|library| library.name)));
            }
            if summary.user.is_none() {
                let package = role.library.filter(|library| library.is_package);
                summary.package = summary.package.or(package.map(|library| library.name));
            }
            // Time in the user's own files during an import is charged to those files.
            summary.imports |= role.roles.contains(Role::Importer) && summary.user.is_none();
            let ends_process = summary.roles.contains(Role::Exit) && role.roles.contains(Role::Interpreter);
            summary.ends |= (ends_process || role.roles.contains(Role::Finalizer)) && summary.user.is_none();
            let is_python = matches!(location.owner, Some((_, Kind::Python)));
            hides_lines = (hides_lines || location.is_function) && !is_python;
            if !hides_lines {
                summary.user = summary.user.or(location.user);
                summary.line = summary.line.or(location.line);
            }
        }
        summary
    }

    /// Records why the thread waits, if the location is the owner or one of its callees.
    fn add_wait(&mut self, role: &FunctionRole, calls_condition: bool) {
        // Python's reason for waiting is more useful than the system call that blocks.
        let reacquires_gil = calls_condition && role.roles.contains(Role::Interpreter);
        let in_pool = role.roles.contains(Role::Pool) && self.library.is_none();
        self.wait = match role.wait {
            _ if reacquires_gil => Some(Wait::Gil),
            Some(Wait::Gil) => Some(Wait::Gil),
            wait => self.wait.or(wait).or(in_pool.then_some(Wait::Threads)),
        };
    }

    /// Records whether the innermost function of a pool's thread runs a task, which is any code but that of its queues.
    /// Its callers do not matter: a forked worker has those of the program.
    fn add_pool_thread(&mut self, location: &LocationRole) {
        if self.is_between_tasks.is_some() || location.owner.is_none() {
            return;
        }
        let roles = location.role.roles;
        if roles.contains(Role::PoolThread) {
            self.is_between_tasks = Some(true);
        } else if !roles.contains(Role::PoolQueue) || location.is_user_code {
            self.is_between_tasks = Some(false);
        }
    }

    /// Returns true if the thread waits because its pool has no work for it.
    fn waits_for_work(&self, wait: Wait, has_owner: bool) -> bool {
        match (wait, has_owner) {
            // A task may be a C function that sleeps.
            (Wait::Gil | Wait::Sleep, _) => false,
            (Wait::Threads, false) => true,
            _ => self.is_between_tasks == Some(true),
        }
    }

    fn classify(self, is_wall: bool, names: &mut Distinct<String>, imports: &mut Imports<'_>) -> StackActivity {
        let is_compiled = self.owner.is_some_and(|(_, kind)| kind == Kind::Compiled);
        let (is_user_code, library) = self.file_owner.unwrap_or((true, None));
        let numba_part = self.numba_part.filter(|_| !is_compiled);
        // LLVM prepares itself while it is imported, and frees its memory at the end.
        let is_llvm = self.owner_roles.contains(Role::Llvm) && (is_compiled || !self.imports)
            || self.roles.contains(Role::Llvm) && !is_compiled && !self.imports;
        let (activity, name) = match (self.wait, self.owner) {
            (Some(wait), owner) if is_wall && self.waits_for_work(wait, owner.is_some()) => {
                (Activity::Waiting, Some(names.number(Wait::Idle.words().to_owned())))
            }
            (Some(wait), _) if is_wall => (Activity::Waiting, Some(names.number(wait.words().to_owned()))),
            _ if numba_part == Some(Role::FirstUse) => (Activity::FirstUse, None),
            _ if numba_part == Some(Role::Loader) => (Activity::Loading, None),
            _ if numba_part.is_some() => (Activity::Compiling, Some(names.number("numba".to_owned()))),
            _ if self.ends && !is_compiled => (Activity::Ending, None),
            _ if is_llvm => (Activity::Compiling, self.llvm),
            _ if self.owner_roles.contains(Role::Collector) => (Activity::Collecting, None),
            // The main thread and the workers spend the same time there.
            _ if is_compiled && self.in_pool => (Activity::Library, self.library),
            _ if is_compiled => (Activity::Compiled, None),
            _ if self.imports => {
                let written = || imports.package(self.user?).map(|name| names.number(name.to_owned()));
                (Activity::Importing, self.package.or_else(written).or(library))
            }
            (_, None) => (Activity::Library, self.library.or(self.base)),
            _ if is_user_code => (Activity::Interpreted, None),
            _ => (Activity::Library, library),
        };
        // Generated code belongs to its caller.
        let package = self.line.and_then(|line| if line.is_generated { library } else { line.package });
        StackActivity {
            activity,
            name: name.unwrap_or_else(|| names.number("[unknown]".to_owned())),
            package: package.filter(|_| is_compiled),
            in_llvm: self.roles.contains(Role::Llvm),
            in_c: self.in_c,
            owner: self.owner.map(|(frame, _)| frame),
            user: self.user,
            line: match self.owner {
                Some((_, Kind::Compiled)) => self.line.map(|line| (line.source, line.number)),
                owner => owner.and_then(|(frame, _)| frame.source.zip(frame.line)),
            },
        }
    }
}

/// Returns true for jitlisten's own part of the import system, which runs below every other import.
fn is_import_hook(path: &str) -> bool {
    path.ends_with("/jitlisten/_numba/imports.py") || path.ends_with("/jitlisten/_site/sitecustomize.py")
}

/// Returns true if the thread waited for other threads.
pub(crate) fn is_wait_for_threads(name: &str) -> bool {
    [Wait::Threads, Wait::Idle].iter().any(|wait| wait.words() == name)
}

/// Libraries that every other library uses, and our own, which forwards some functions of libc.
const BASE_LIBRARIES: [&str; 9] =
    ["libc", "libm", "libpthread", "libgcc_s", "libstdc++", "ld-linux", "[vdso]", "kernel", "libjitlisten"];
