//! Activity of each sample, and the line that the sample is charged to.
//!
//! A stack belongs to its innermost Python or compiled function, its *owner*: the time of C functions is charged to the
//! line that called them. Functions of a compiler, of the import system and of the garbage collector take precedence
//! over the owner, as do waiting functions in a recording of wall-clock time.

use rustc_hash::FxHashMap;

use super::owners::{
    BASE_LIBRARIES, FOR_GIL, FOR_THREADS, GC_FUNCTIONS, IDLE_THREADS, POOL_LIBRARIES, STANDARD_LIBRARY,
    find_wait_reason, is_compiler_entry, is_generated, is_llvm_function, is_user_source, native_library,
    packages_of_files, python_library,
};
use crate::recording::Recording;
use crate::symbols::{Frame, Function, Kind, Symbols};

/// Activity of a thread. The HTML page refers to the variants by number, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Activity {
    /// Running compiled code, or C functions that compiled code called.
    Compiled,
    /// Interpreting the user's Python, or running C functions that it called.
    Interpreted,
    /// Running library code; [`StackActivity::name`] is the library.
    Library,
    /// Compiling, in Numba or LLVM.
    Compiling,
    /// Importing a library.
    Importing,
    /// Collecting garbage.
    Collecting,
    /// Waiting; [`StackActivity::name`] is the reason. Only in recordings of wall-clock time.
    Waiting,
}

impl Activity {
    /// All activities, in the order of their numbers.
    pub const ALL: [Activity; 7] = [
        Activity::Compiled,
        Activity::Interpreted,
        Activity::Library,
        Activity::Compiling,
        Activity::Importing,
        Activity::Collecting,
        Activity::Waiting,
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
        }
    }
}

/// Activity of a thread at one stack.
#[derive(Clone, Copy, Debug)]
pub struct StackActivity {
    /// Activity that the sample's time is charged to.
    pub activity: Activity,
    /// Library, or reason of a wait, as an index into [`Activities::names`].
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
    /// Line that the time is charged to: usually the owner's. For code that Numba itself compiles in, as for `a.sum()`,
    /// it is the calling line.
    pub line: Option<(u32, u32)>,
}

/// Activity at each stack of a recording.
#[derive(Clone, Debug, Default)]
pub struct Activities {
    /// Names of libraries, and reasons of waits.
    pub names: Vec<String>,
    /// By source: true if the file is the user's, not a library's or Python's.
    is_user_source: Vec<bool>,
    /// By source: true if the file is part of Numba.
    is_from_numba: Vec<bool>,
    /// By source, and by function: the package, as an index into `names`.
    source_packages: Vec<Option<u32>>,
    function_packages: Vec<Option<u32>>,
    /// By function: the library, unless it is one that every library uses.
    function_libraries: Vec<Option<u32>>,
    stacks: Vec<StackActivity>,
}

/// Properties of a function that determine the activity of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct Role {
    compiles: bool,
    is_llvm: bool,
    imports: bool,
    collects: bool,
    wait_reason: Option<&'static str>,
    /// True for a function of Python itself, which waits on a condition variable only for the GIL.
    is_python_itself: bool,
    is_condition: bool,
    /// True for a thread pool's library. Its threads do nothing there but wait.
    is_pool: bool,
    /// Library of the function, as an index into the names.
    library: Option<u32>,
    /// True for a library that all others use. It is named only if no other library is on the stack.
    is_base: bool,
    /// True for a function of an installed package.
    is_package: bool,
    is_python: bool,
}

/// Properties of a code location, merged from its function and all calls inlined there.
#[derive(Clone, Copy, Debug, Default)]
struct LocationRole {
    role: Role,
    owner: Option<(Frame, Kind)>,
    user: Option<(u32, u32)>,
    is_user_code: bool,
    has_file: bool,
    line: Option<(u32, u32)>,
    /// Package of `line`'s file.
    package: Option<u32>,
    /// True if `line` is in generated code, which has no file.
    is_generated: bool,
}

impl Activities {
    /// Classifies each stack of the recording once.
    pub fn new(recording: &Recording, symbols: &Symbols) -> Activities {
        let mut activities = Activities {
            is_user_source: symbols.sources.iter().map(|path| is_user_source(path)).collect(),
            is_from_numba: symbols.sources.iter().map(|path| python_library(path) == Some("numba")).collect(),
            ..Activities::default()
        };
        let mut names = Names::default();
        let packages = packages_of_files(recording);
        let role = |function| Role::new(function, &packages, &mut names);
        let roles: Vec<Role> = symbols.functions.iter().map(role).collect();
        let package = |path: &String| python_library(path).map(|name| names.intern(name));
        activities.source_packages = symbols.sources.iter().map(package).collect();
        activities.function_packages =
            roles.iter().map(|role| role.library.filter(|_| role.is_python || role.is_package)).collect();
        activities.function_libraries = roles.iter().map(|role| role.library.filter(|_| !role.is_base)).collect();
        let locations = 0..recording.locations.len() as u32;
        let location_roles: Vec<LocationRole> =
            locations.map(|location| activities.location_role(symbols, &roles, location)).collect();
        let is_wall = recording.is_wall();
        let stack = |stack: u32| {
            StackSummary::new(recording.stacks.get(stack).iter().map(|location| &location_roles[*location as usize]))
                .classify(is_wall, &mut names)
        };
        activities.stacks = (0..recording.stacks.len() as u32).map(stack).collect();
        activities.names = names.all;
        activities
    }

    /// Returns the activity at a stack.
    pub fn get(&self, stack: u32) -> &StackActivity {
        &self.stacks[stack as usize]
    }

    fn location_role(&self, symbols: &Symbols, roles: &[Role], location: u32) -> LocationRole {
        let mut merged = LocationRole::default();
        for frame in symbols.frames(location) {
            let (function, role) = (symbols.function(frame), roles[frame.function as usize]);
            merged.role.compiles |= role.compiles;
            merged.role.is_llvm |= role.is_llvm;
            merged.role.imports |= role.imports;
            merged.role.collects |= role.collects;
            merged.role.wait_reason = merged.role.wait_reason.or(role.wait_reason);
            merged.role.is_condition |= role.is_condition;
            merged.role.is_python_itself |= role.is_python_itself;
            merged.role.is_pool |= role.is_pool;
            if merged.role.library.is_none() {
                (merged.role.library, merged.role.is_base) = (role.library, role.is_base);
                merged.role.is_package = role.is_package;
            }
            if !matches!(function.kind, Kind::Compiled | Kind::Python) {
                continue;
            }
            merged.owner = merged.owner.or(Some((*frame, function.kind)));
            merged.has_file |= function.kind == Kind::Python && !is_generated(&function.module);
            let is_user_code = match frame.source {
                Some(source) => self.is_user_source[source as usize],
                None => function.kind == Kind::Python && is_user_source(&function.module),
            };
            merged.is_user_code |= is_user_code;
            if let (None, Some((source, line)), false) =
                (merged.line, frame.source.zip(frame.line), self.is_from_numba(frame))
            {
                merged.line = Some((source, line));
                merged.package = self.source_packages[source as usize];
                merged.is_generated = is_generated(&symbols.sources[source as usize]);
            }
            if is_user_code {
                merged.user = merged.user.or(frame.source.zip(frame.line));
            }
        }
        merged
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

/// Interned names.
#[derive(Debug, Default)]
struct Names {
    all: Vec<String>,
    indices: FxHashMap<String, u32>,
}

impl Names {
    fn intern(&mut self, name: &str) -> u32 {
        if let Some(intern) = self.indices.get(name) {
            return *intern;
        }
        self.indices.insert(name.to_owned(), self.all.len() as u32);
        self.all.push(name.to_owned());
        self.all.len() as u32 - 1
    }
}

impl Role {
    fn new(function: &Function, packages: &FxHashMap<&str, &str>, names: &mut Names) -> Role {
        let mut role = Role::default();
        match function.kind {
            Kind::Python => {
                role.compiles = is_compiler_entry(&function.module, &function.base);
                role.imports = function.module.starts_with("<frozen importlib") && function.base == "_find_and_load";
                let library = python_library(&function.module);
                role.library = library.map(|name| names.intern(name));
                role.is_python = true;
                role.is_package = library.is_some_and(|name| name != STANDARD_LIBRARY);
            }
            Kind::Native => {
                let name = native_library(&function.module);
                role.is_llvm = name == "libllvmlite" || name.starts_with("libLLVM") || is_llvm_function(&function.name);
                role.compiles = role.is_llvm;
                role.collects = GC_FUNCTIONS.contains(&function.base.as_str());
                role.wait_reason = find_wait_reason(&function.base);
                role.is_condition = function.base.trim_start_matches('_').starts_with("pthread_cond_");
                role.is_python_itself = name.starts_with("libpython") || name.starts_with("python");
                role.is_base = BASE_LIBRARIES.contains(&name);
                // A wheel's copy has a hash: libgomp-a34b3233.
                role.is_pool = POOL_LIBRARIES.contains(&name.split('-').next().unwrap_or(name));
                let package = packages.get(function.module.as_str());
                role.is_package = package.is_some_and(|name| *name != STANDARD_LIBRARY);
                role.library = Some(names.intern(package.unwrap_or(&name)));
            }
            Kind::Kernel => (role.library, role.is_base) = (Some(names.intern("kernel")), true),
            Kind::Compiled | Kind::Unknown => {}
        }
        role
    }
}

/// Properties of a stack, merged from its locations, innermost first.
#[derive(Debug, Default)]
struct StackSummary {
    owner: Option<(Frame, Kind)>,
    in_c: bool,
    /// True if the owner, or a function that it called, belongs to a compiler; `compiles` covers the whole stack.
    owner_compiles: bool,
    compiles: bool,
    in_llvm: bool,
    imports: bool,
    collects: bool,
    wait_reason: Option<&'static str>,
    /// True if the previous location waits on a condition variable.
    in_condition: bool,
    /// Innermost library; and innermost library among those that all others use.
    library: Option<u32>,
    base: Option<u32>,
    /// For the innermost frame with a file: true if it is the user's, and its library. Generated code belongs to its
    /// caller.
    file_owner: Option<(bool, Option<u32>)>,
    /// Innermost package outside of Python's standard library.
    package: Option<u32>,
    user: Option<(u32, u32)>,
    line: Option<(u32, u32)>,
    /// Package of `line`'s file, and true if `line` is in generated code without a file.
    line_package: Option<u32>,
    is_generated: bool,
}

impl StackSummary {
    fn new<'a>(locations: impl Iterator<Item = &'a LocationRole>) -> StackSummary {
        let mut summary = StackSummary::default();
        for location in locations {
            let role = &location.role;
            summary.in_llvm |= role.is_llvm;
            summary.compiles |= role.compiles;
            if summary.owner.is_none() {
                summary.owner_compiles |= role.compiles;
                summary.collects |= role.collects;
                let in_pool = role.is_pool && summary.library.is_none();
                // The reason why Python waits is more useful than the system call it waits in.
                let reacquires_gil = summary.in_condition && role.is_python_itself;
                summary.in_condition = role.is_condition;
                match role.wait_reason {
                    _ if reacquires_gil => summary.wait_reason = Some(FOR_GIL),
                    Some(FOR_GIL) => summary.wait_reason = Some(FOR_GIL),
                    reason => summary.wait_reason = summary.wait_reason.or(reason).or(in_pool.then_some(FOR_THREADS)),
                }
                summary.owner = location.owner;
                summary.in_c |= location.owner.is_none();
                if location.owner.is_none() {
                    let name = if role.is_base { &mut summary.base } else { &mut summary.library };
                    *name = name.or(role.library);
                }
            }
            if summary.file_owner.is_none() && location.has_file {
                summary.file_owner = Some((location.is_user_code, role.library));
            }
            summary.package = summary.package.or(role.library.filter(|_| role.is_package));
            // Time that the user's own files take while they are imported is charged to them.
            summary.imports |= role.imports && summary.user.is_none();
            summary.user = summary.user.or(location.user);
            if summary.line.is_none() && location.line.is_some() {
                summary.line = location.line;
                (summary.line_package, summary.is_generated) = (location.package, location.is_generated);
            }
        }
        summary
    }

    fn classify(self, is_wall: bool, names: &mut Names) -> StackActivity {
        let is_compiled = self.owner.is_some_and(|(_, kind)| kind == Kind::Compiled);
        let (is_user_code, library) = self.file_owner.unwrap_or((true, None));
        let (activity, name) = match (self.wait_reason, self.owner) {
            (Some(FOR_THREADS), None) if is_wall => (Activity::Waiting, Some(names.intern(IDLE_THREADS))),
            (Some(reason), _) if is_wall => (Activity::Waiting, Some(names.intern(reason))),
            _ if self.owner_compiles || (self.compiles && !is_compiled) => (Activity::Compiling, library),
            _ if self.collects => (Activity::Collecting, None),
            _ if is_compiled => (Activity::Compiled, None),
            _ if self.imports => (Activity::Importing, self.package.or(library)),
            (_, None) => (Activity::Library, self.library.or(self.base)),
            _ if is_user_code => (Activity::Interpreted, None),
            _ => (Activity::Library, library),
        };
        StackActivity {
            activity,
            name: name.unwrap_or_else(|| names.intern("[unknown]")),
            // Generated code belongs to its caller.
            package: if self.is_generated { library } else { self.line_package }.filter(|_| is_compiled),
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
