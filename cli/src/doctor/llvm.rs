//! LLVM instances of a process: version, compiled functions, and how each is observed. The information comes from the
//! library file, from memory, and from the facts that our library publishes. The process is not changed.
//!
//! | property | source |
//! | --- | --- |
//! | existence | facts of our library; GDB JIT lists; RTTI names and messages in files |
//! | version, engines | the library file (`llvm_file.rs`) and its symbols |
//! | hooks, problems | facts of our library ([`wire::facts`]), else the code of `__jit_debug_register_code` |
//! | frame pointers | the code of each function in the GDB JIT list |

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jitlisten::plumbing::cfi;
use jitlisten::{Function, LineRows, LoadedObject};
use wire::facts::{Channel, Count, Missing, NO_SYMBOLS_OR_RTTI, ObservedLlvm, Part, Snapshot, UnobservedLlvm};

use super::Finding;
use super::facts::library_path;
use super::llvm_file::{LINKERS, LlvmFile};
use crate::process::Process;
use crate::process::jit_list::{self, JitList};
use crate::process::memory;
use crate::process::symbols::Symbols;

const REGISTER_FUNCTION: &str = "__jit_debug_register_code";
/// Maximum size of a code patch: see `shim/src/process/detour`.
const MAX_PATCH_BYTES: usize = 16;
/// Breakpoint instruction of a debugger, which must not be mistaken for our hook.
const BREAKPOINT: u8 = 0xcc;
/// Minimum size of a file that contains an LLVM with a code generator.
const MIN_FILE_BYTES: u64 = 4 << 20;
const MAX_SEARCHED_BYTES: u64 = 4 << 30;

/// RTTI names of engines, each with its readable name. Prefixed with `_ZTV`, an RTTI name is the symbol of the vtable.
const ENGINES: [(&str, &str); 3] = [
    ("N4llvm5MCJITE", "MCJIT"),
    ("N4llvm3orc24RTDyldObjectLinkingLayerE", "ORC with RuntimeDyld"),
    ("N4llvm3orc18ObjectLinkingLayerE", "ORC with JITLink"),
];

/// Findings about one LLVM instance.
pub(super) struct Llvm {
    library: PathBuf,
    version: Option<String>,
    engines: Vec<&'static str>,
    /// True if the linkers of this LLVM have symbols or RTTI names.
    names_linker: bool,
    list: List,
    observation: Observation,
}

/// GDB JIT list of one LLVM instance.
enum List {
    /// The list cannot be found from outside the process.
    None,
    Unreadable,
    Counted(Compiled),
}

/// State of our library's hooks in one LLVM instance.
enum Observation {
    /// Observed, according to the facts.
    Observed(ObservedLlvm),
    /// Not observed, according to the facts.
    Unobserved(UnobservedLlvm),
    /// Not mentioned in the facts.
    Unknown,
    /// The facts are missing, because our library is not loaded or too old. `is_redirected` is true if
    /// `__jit_debug_register_code` is hooked.
    NoFacts { is_redirected: bool },
}

/// Counts of live code in GDB JIT lists.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) objects: usize,
    pub(super) functions: usize,
    pub(super) without_frame_pointer: usize,
    pub(super) objects_with_lines: usize,
    /// Number of functions in objects without a line table. Excludes Numba's runtime, which never has one.
    pub(super) without_lines: usize,
    /// Number of functions, excluding those of Numba's runtime.
    pub(super) of_program: usize,
}

impl Llvm {
    pub(super) fn find_all(process: &Process, facts: Option<Snapshot>) -> Vec<Llvm> {
        let lists = jit_list::find_lists(process);
        let has_facts = facts.is_some();
        let facts = facts.unwrap_or_default();
        let mut llvms: Vec<Llvm> = Vec::new();
        for observed in facts.observed {
            let library = library_path(process, observed.start, &observed.file);
            llvms.push(Llvm::from_library(process, &library, Observation::Observed(observed)));
        }
        for unobserved in facts.unobserved {
            let library = library_path(process, unobserved.start, &unobserved.file);
            llvms.push(Llvm::from_library(process, &library, Observation::Unobserved(unobserved)));
        }
        for list in &lists {
            let index = llvms.iter().position(|llvm| llvm.library == list.library).unwrap_or_else(|| {
                llvms.push(Llvm::from_library(
                    process,
                    &list.library,
                    Observation::without_facts(process, &list.library, has_facts),
                ));
                llvms.len() - 1
            });
            llvms[index].list = count_compiled(process, list).map_or(List::Unreadable, List::Counted);
        }
        // The facts omit LLVM instances whose observation is disabled and, without a log, those recognised only by
        // their messages.
        let deadline = Instant::now() + jit_list::READ_TIMEOUT;
        let libraries = process.libraries().into_iter().take_while(|_| Instant::now() < deadline);
        let candidates = libraries.filter(|library| may_have_llvm(process, library));
        let candidates: Vec<&Path> =
            candidates.filter(|library| !llvms.iter().any(|llvm| llvm.library == **library)).collect();
        llvms.extend(candidates.into_iter().filter_map(|library| Llvm::from_file_markers(process, library, has_facts)));
        llvms
    }

    fn from_library(process: &Process, library: &Path, observation: Observation) -> Llvm {
        Llvm::with_file(process, library, read_file(process, library), observation)
    }

    fn with_file(process: &Process, library: &Path, file: LlvmFile, observation: Observation) -> Llvm {
        let symbols = Symbols::open(process, library);
        let classes = ENGINES.iter().map(|(class, _)| *class).chain(LINKERS);
        let names: Vec<String> = classes.map(|class| format!("_ZTV{class}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let defined = symbols.map(|symbols| symbols.defined(&names)).unwrap_or_default();
        let is_defined =
            |index: usize| [&defined, &file.types].into_iter().any(|flags| flags.get(index) == Some(&true));
        let engines = ENGINES
            .iter()
            .enumerate()
            .filter(|(index, _)| is_defined(*index))
            .map(|(_, (_, engine))| *engine)
            .collect();
        let names_linker = file.names_linker || defined.iter().skip(ENGINES.len()).any(|is_defined| *is_defined);
        let reported_version =
            if let Observation::Observed(observation) = &observation { observation.version.clone() } else { None };
        let version = file.version.or(reported_version);
        Llvm { library: library.to_owned(), version, engines, names_linker, list: List::None, observation }
    }

    /// Examines a library that can only be recognised as LLVM by RTTI names or messages in its file.
    fn from_file_markers(process: &Process, library: &Path, has_facts: bool) -> Option<Llvm> {
        let file = read_file(process, library);
        file.has_linker
            .then(|| Llvm::with_file(process, library, file, Observation::without_facts(process, library, has_facts)))
    }

    pub(super) fn is_llvmlite(&self) -> bool {
        self.library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libllvmlite"))
    }

    /// Returns the reason why code of this LLVM lacks frame pointers, if our library knows one.
    pub(super) fn without_frame_pointers(&self) -> Option<String> {
        let Observation::Observed(observed) = &self.observation else { return None };
        let reason = &observed.missing(Part::FramePointers)?.reason;
        Some(format!("code of {}: {reason}", self.library.file_name()?.display()))
    }

    pub(super) fn compiled(&self) -> Option<&Compiled> {
        if let List::Counted(compiled) = &self.list { Some(compiled) } else { None }
    }

    /// Returns the path of the LLVM library as our library's log prints it.
    pub(super) fn name_in_log(&self) -> Option<&str> {
        match &self.observation {
            Observation::Observed(observed) => Some(&observed.file),
            Observation::Unobserved(unobserved) => Some(&unobserved.file),
            Observation::Unknown | Observation::NoFacts { .. } => None,
        }
    }

    /// Returns true if this LLVM is observed, and has reported no object.
    pub(super) fn has_no_object(&self) -> bool {
        let Observation::Observed(observed) = &self.observation else { return false };
        let counts = [Count::RuntimeDyld, Count::ForJitLink].map(|count| observed.count(count));
        counts == [0, 0] && self.compiled().is_none_or(|compiled| compiled.objects == 0)
    }

    /// Describes this LLVM. `has_anonymous_code` is true if the process has executable memory without a file.
    pub(super) fn finding(&self, has_library: bool, has_anonymous_code: bool) -> Finding {
        let mut descriptions = vec![match &self.version {
            Some(version) => format!("{}: LLVM {version}", self.library.display()),
            None => format!("{}: another JIT, or an LLVM of unknown version", self.library.display()),
        }];
        if !self.engines.is_empty() {
            descriptions.push(format!("with {}", self.engines.join(", ")));
        }
        descriptions.extend(match &self.list {
            List::Counted(compiled) => Some(format!("{} objects in its GDB JIT list", compiled.objects)),
            List::Unreadable => Some("an unreadable GDB JIT list".to_owned()),
            List::None => None,
        });
        match &self.observation {
            Observation::Observed(observed) => {
                descriptions.extend(describe_hooks(observed));
                descriptions.extend(relevant_missing(observed).map(|missing| format!("missing: {missing}")));
                if is_silent(observed) {
                    return Finding::no("LLVM", descriptions.join("; "), NAMES_ADVICE);
                }
                if has_anonymous_code && self.has_no_object() {
                    descriptions
                        .push("no object was reported, but the process has code that belongs to no file".to_owned());
                    return Finding::note("LLVM", descriptions.join("; "), NAMES_ADVICE);
                }
                if observed.missing(Part::NamelessLinkers).is_some() {
                    return Finding::note("LLVM", descriptions.join("; "), NAMES_ADVICE);
                }
                let missing_objects = observed.count(Count::ForJitLink).saturating_sub(observed.count(Count::JitLink));
                if missing_objects > 0 {
                    let problem = format!("{missing_objects} objects of JITLink not found in memory (yet)");
                    return Finding::note("LLVM", format!("{}; {problem}", descriptions.join("; ")), NAMES_ADVICE);
                }
            }
            Observation::Unobserved(unobserved) => {
                descriptions.push(format!("not observed: {}", unobserved.reason));
                return Finding::no("LLVM", descriptions.join("; "), NAMES_ADVICE);
            }
            // An LLVM that is missing from the facts because observation is disabled would have names for its linkers.
            Observation::Unknown if !self.names_linker => {
                descriptions.push(format!("not observed: {NO_SYMBOLS_OR_RTTI}"));
                return Finding::no("LLVM", descriptions.join("; "), NAMES_ADVICE);
            }
            Observation::Unknown => descriptions.push("not observed".to_owned()),
            Observation::NoFacts { is_redirected } => {
                descriptions.push(describe_without_facts(has_library, *is_redirected).to_owned())
            }
        }
        Finding::ok("LLVM", descriptions.join("; "))
    }
}

impl Observation {
    /// Returns how an LLVM instance is observed if the facts do not list it, or are missing altogether (`has_facts` is
    /// false).
    fn without_facts(process: &Process, library: &Path, has_facts: bool) -> Observation {
        if has_facts {
            return Observation::Unknown;
        }
        let is_redirected = Symbols::open(process, library).is_some_and(|symbols| is_redirected(process, &symbols));
        Observation::NoFacts { is_redirected }
    }
}

pub(super) const NAMES_ADVICE: &str = "see docs/limits.md: which code has names, addresses for names, or neither";

fn describe_without_facts(has_library: bool, is_redirected: bool) -> &'static str {
    match (has_library, is_redirected) {
        (true, true) => "its GDB JIT list is hooked",
        (true, false) => {
            "__jit_debug_register_code is not hooked: observed by its linkers, or its GDB JIT list is read when code \
             becomes executable"
        }
        (false, _) => "not observed",
    }
}

/// Describes the hooks of an LLVM instance, with object counts.
fn describe_hooks(observed: &ObservedLlvm) -> Vec<String> {
    let describe = |channel: &Channel| match channel {
        Channel::RuntimeDyld => {
            format!("RuntimeDyld is hooked, objects so far: {}", observed.count(Count::RuntimeDyld))
        }
        Channel::JitLink => format!("JITLink is hooked, objects so far: {}", observed.count(Count::ForJitLink)),
        Channel::ListCall => "its GDB JIT list is hooked".to_owned(),
        Channel::ListPoll => "its GDB JIT list is read when code becomes executable".to_owned(),
    };
    if observed.channels.is_empty() {
        vec!["not observed".to_owned()]
    } else {
        observed.channels.iter().map(describe).collect()
    }
}

/// Returns the missing parts that matter. A linker that the LLVM library does not contain does not matter, nor does an
/// unused list.
fn relevant_missing(observed: &ObservedLlvm) -> impl Iterator<Item = &Missing> {
    let has_linker = [Channel::RuntimeDyld, Channel::JitLink].iter().any(|linker| observed.channels.contains(linker));
    observed.missing.iter().filter(move |missing| !(missing.is_absent || has_linker && missing.part == Part::List))
}

/// Returns true if an LLVM seems to compile code without reporting it.
fn is_silent(observed: &ObservedLlvm) -> bool {
    observed.channels.is_empty() || observed.missing(Part::Code).is_some()
}

/// Returns false for small files and for our own library.
fn may_have_llvm(process: &Process, library: &Path) -> bool {
    let is_ours = library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libjitlisten"));
    let size = process.open_file(library).and_then(|file| Ok(file.metadata()?.len()));
    !is_ours && size.is_ok_and(|size| size >= MIN_FILE_BYTES)
}

fn read_file(process: &Process, library: &Path) -> LlvmFile {
    let types = ENGINES.map(|(class, _)| class);
    process
        .open_file(library)
        .and_then(|file| LlvmFile::read(file.take(MAX_SEARCHED_BYTES), &types))
        .unwrap_or_default()
}

/// Counts live functions, in total and without a frame pointer.
fn count_compiled(process: &Process, list: &JitList) -> Option<Compiled> {
    let entries = list.entries(process).ok()?;
    let mut compiled = Compiled { objects: entries.len(), ..Compiled::default() };
    let deadline = Instant::now() + jit_list::READ_TIMEOUT;
    let entries = entries.iter().take_while(|_| Instant::now() < deadline);
    for object in entries.filter_map(|entry| entry.object(process)) {
        let has_lines = LineRows::parse(&object).is_ok_and(|lines| !lines.rows().is_empty());
        compiled.objects_with_lines += usize::from(has_lines);
        let Ok(object) = LoadedObject::parse(&object) else { continue };
        if !object.functions().iter().any(is_numba_runtime) {
            compiled.of_program += object.functions().len();
            compiled.without_lines += if has_lines { 0 } else { object.functions().len() };
        }
        let keeps_frame_pointer = |function: &Function| {
            let size = function.range.size() as usize;
            let code = memory::read(process.pid, function.range.start().0, size).ok()?;
            Some(cfi::sets_up_frame_pointer(&code, object.machine()))
        };
        compiled.functions += object.functions().len();
        compiled.without_frame_pointer +=
            object.functions().iter().filter(|function| keeps_frame_pointer(function) == Some(false)).count();
    }
    Some(compiled)
}

/// Returns true for a Numba reference-counting helper, which Numba compiles from LLVM IR.
fn is_numba_runtime(function: &Function) -> bool {
    &*function.linkage_name == "NRT_incref"
}

fn is_redirected(process: &Process, symbols: &Symbols) -> bool {
    let Some((address, file_code)) = symbols.code(REGISTER_FUNCTION, MAX_PATCH_BYTES) else { return false };
    let Ok(memory_code) = memory::read(process.pid, address, file_code.len()) else { return false };
    let mut changed = file_code.iter().zip(&memory_code).filter(|(file, memory)| file != memory);
    changed.next().is_some_and(|(_, byte)| *byte != BREAKPOINT)
}
