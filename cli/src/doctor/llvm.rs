//! Each LLVM of a process: version, compiled functions, and how it is observed. Read from its file, from memory, and
//! from the facts that the library publishes; nothing is changed.
//!
//! | fact | from |
//! | --- | --- |
//! | existence | the library's facts; GDB JIT lists; RTTI names and messages in files |
//! | version, engines | the file (`llvm_file.rs`), its symbols |
//! | how it is observed, problems | the library's facts (`facts.rs`); else, the body of `__jit_debug_register_code` |
//! | frame pointers | the code of each function that is in its list |

#![forbid(unsafe_code)]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jitlisten::{Function, LineRows, LoadedObject, cfi};

use super::Finding;
use super::facts::{Facts, HeardLlvm, UnheardLlvm};
use super::llvm_file::{LINKERS, LlvmFile};
use crate::jit_list::{self, JitList};
use crate::memory;
use crate::process::Process;
use crate::symbols::Symbols;

const REGISTER_FUNCTION: &str = "__jit_debug_register_code";
/// The longest redirected body: see `shim/src/process/detour`.
const BODY: usize = 16;
/// A breakpoint of a debugger, which may sit there, too.
const BREAKPOINT: u8 = 0xcc;
/// Below this size a file cannot hold an LLVM with a code generator.
const SMALLEST: u64 = 4 << 20;
/// Nothing behind this is looked at.
const LARGEST: u64 = 4 << 30;

/// Types, as `typeid` names them; a vtable's symbol is `_ZTV` and the same.
const ENGINES: [(&str, &str); 3] = [
    ("N4llvm5MCJITE", "MCJIT"),
    ("N4llvm3orc24RTDyldObjectLinkingLayerE", "ORC with RuntimeDyld"),
    ("N4llvm3orc18ObjectLinkingLayerE", "ORC with JITLink"),
];

/// What was found of one LLVM.
pub(super) struct Llvm {
    library: PathBuf,
    version: Option<String>,
    engines: Vec<&'static str>,
    /// Whether its linkers can be known: by symbols or by names of types.
    names_linker: bool,
    list: List,
    heard: Heard,
}

/// Its GDB JIT list.
enum List {
    /// There is none that can be found from outside.
    None,
    Unreadable,
    Of(Compiled),
}

/// How it is observed.
enum Heard {
    /// As the library says.
    By(HeardLlvm),
    /// The library says why not.
    Not(UnheardLlvm),
    /// The library does not know it.
    Unknown,
    /// The library publishes nothing: it is not loaded, or an older one. Whether `__jit_debug_register_code` is hooked.
    Unsaid { is_redirected: bool },
}

/// What is alive of what it has compiled.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) objects: usize,
    pub(super) functions: usize,
    pub(super) without_frame_pointer: usize,
    pub(super) objects_with_lines: usize,
    /// Functions in objects without a line table; Numba's own runtime, which never has one, is none of them.
    pub(super) without_lines: usize,
    /// Functions, without those of that runtime.
    pub(super) of_program: usize,
}

impl Llvm {
    /// Every LLVM of a process that can be known.
    pub(super) fn all(process: &Process, facts: Option<Facts>) -> Vec<Llvm> {
        let lists = jit_list::lists(process);
        let has_facts = facts.is_some();
        let facts = facts.unwrap_or_default();
        let mut all: Vec<Llvm> = Vec::new();
        for heard in facts.llvms {
            all.push(Llvm::of(process, &heard.library(process), Heard::By(heard)));
        }
        for unheard in facts.unheard {
            all.push(Llvm::of(process, &unheard.library(process), Heard::Not(unheard)));
        }
        for list in &lists {
            let known = all.iter().position(|llvm| llvm.library == list.library).unwrap_or_else(|| {
                all.push(Llvm::of(process, &list.library, Heard::unsaid(process, &list.library, has_facts)));
                all.len() - 1
            });
            all[known].list = compiled(process, list).map_or(List::Unreadable, List::Of);
        }
        // Facts do not have those that were switched off, nor, without a log, those that show only by their messages.
        let end = Instant::now() + jit_list::PATIENCE;
        let libraries = process.libraries().into_iter().take_while(|_| Instant::now() < end);
        let others = libraries.filter(|library| may_have_llvm(process, library));
        let others: Vec<&Path> = others.filter(|library| !all.iter().any(|llvm| llvm.library == **library)).collect();
        all.extend(others.into_iter().filter_map(|library| Llvm::by_types(process, library, has_facts)));
        all
    }

    fn of(process: &Process, library: &Path, heard: Heard) -> Llvm {
        Llvm::with_file(process, library, read_file(process, library), heard)
    }

    fn with_file(process: &Process, library: &Path, file: LlvmFile, heard: Heard) -> Llvm {
        let symbols = Symbols::of(process, library);
        let classes = ENGINES.iter().map(|(class, _)| *class).chain(LINKERS);
        let names: Vec<String> = classes.map(|class| format!("_ZTV{class}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let defined = symbols.map(|symbols| symbols.defined(&names)).unwrap_or_default();
        let has = |at: usize| [&defined, &file.types].into_iter().any(|all| all.get(at) == Some(&true));
        let engines = ENGINES.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, (_, engine))| *engine).collect();
        let names_linker = file.names_linker || defined.iter().skip(ENGINES.len()).any(|is_there| *is_there);
        let said = if let Heard::By(heard) = &heard { heard.version.clone() } else { None };
        let version = file.version.or(said);
        Llvm { library: library.to_owned(), version, engines, names_linker, list: List::None, heard }
    }

    /// A library that only its types show to have an LLVM.
    fn by_types(process: &Process, library: &Path, has_facts: bool) -> Option<Llvm> {
        let file = read_file(process, library);
        file.has_linker.then(|| Llvm::with_file(process, library, file, Heard::unsaid(process, library, has_facts)))
    }

    pub(super) fn is_llvmlite(&self) -> bool {
        self.library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libllvmlite"))
    }

    /// Why its code gets no frame pointers, if the library says so.
    pub(super) fn without_frame_pointers(&self) -> Option<String> {
        let Heard::By(heard) = &self.heard else { return None };
        let why = heard.missing.iter().find_map(|missing| missing.strip_prefix("frame pointers: "))?;
        Some(format!("code of {}: {why}", self.library.file_name()?.display()))
    }

    pub(super) fn compiled(&self) -> Option<&Compiled> {
        if let List::Of(compiled) = &self.list { Some(compiled) } else { None }
    }

    /// The file, as the library names it in its log.
    pub(super) fn name_in_log(&self) -> Option<&str> {
        match &self.heard {
            Heard::By(heard) => Some(&heard.file),
            Heard::Not(unheard) => Some(&unheard.file),
            Heard::Unknown | Heard::Unsaid { .. } => None,
        }
    }

    pub(super) fn finding(&self, has_library: bool) -> Finding {
        let mut words = vec![match &self.version {
            Some(version) => format!("{}: LLVM {version}", self.library.display()),
            None => format!("{}: another JIT, or an LLVM of unknown version", self.library.display()),
        }];
        if !self.engines.is_empty() {
            words.push(format!("with {}", self.engines.join(", ")));
        }
        words.extend(match &self.list {
            List::Of(compiled) => Some(format!("{} objects in its GDB JIT list", compiled.objects)),
            List::Unreadable => Some("an unreadable GDB JIT list".to_owned()),
            List::None => None,
        });
        match &self.heard {
            Heard::By(heard) => {
                words.extend(heard.ways());
                words.extend(heard.lacks().map(|lack| format!("missing: {lack}")));
                if heard.is_silent() {
                    return Finding::no("LLVM", words.join("; "), NO_NAMES);
                }
                if heard.missing.iter().any(|missing| missing.contains(NAMELESS)) {
                    return Finding::note("LLVM", words.join("; "), NO_NAMES);
                }
                let lost = heard.counts.for_jitlink.saturating_sub(heard.counts.jitlink);
                if lost > 0 {
                    let found = format!("{lost} objects of JITLink not found in memory (yet)");
                    return Finding::note("LLVM", format!("{}; {found}", words.join("; ")), NO_NAMES);
                }
            }
            Heard::Not(unheard) => {
                words.push(format!("not observed: {}", unheard.why));
                return Finding::no("LLVM", words.join("; "), NO_NAMES);
            }
            // One that was switched off has them.
            Heard::Unknown if !self.names_linker => {
                words.push(format!("not observed: {NAMELESS}"));
                return Finding::no("LLVM", words.join("; "), NO_NAMES);
            }
            Heard::Unknown => words.push("not observed".to_owned()),
            Heard::Unsaid { is_redirected } => words.push(unsaid_words(has_library, *is_redirected).to_owned()),
        }
        Finding::ok("LLVM", words.join("; "))
    }
}

impl Heard {
    /// Of an LLVM that is not among the facts, if there are facts.
    fn unsaid(process: &Process, library: &Path, has_facts: bool) -> Heard {
        if has_facts {
            return Heard::Unknown;
        }
        let is_redirected = Symbols::of(process, library).is_some_and(|symbols| is_redirected(process, &symbols));
        Heard::Unsaid { is_redirected }
    }
}

/// As the library says it.
const NAMELESS: &str = "its linkers have neither symbols nor RTTI";

pub(super) const NO_NAMES: &str = "see docs/limits.md: which code has names, addresses for names, or neither";

fn unsaid_words(has_library: bool, is_redirected: bool) -> &'static str {
    match (has_library, is_redirected) {
        (true, true) => "its GDB JIT list is hooked",
        (true, false) => {
            "__jit_debug_register_code is not hooked: observed by its linkers, or its GDB JIT list is read when code \
             becomes executable"
        }
        (false, _) => "not observed",
    }
}

impl HeardLlvm {
    /// How it is observed, with counts.
    fn ways(&self) -> Vec<String> {
        let counts = &self.counts;
        let way = |way: &String| match way.as_str() {
            "runtimedyld" => format!("RuntimeDyld is hooked, objects so far: {}", counts.runtime_dyld),
            "jitlink" => format!("JITLink is hooked, objects so far: {}", counts.for_jitlink),
            "list-call" => "its GDB JIT list is hooked".to_owned(),
            "list-poll" => "its GDB JIT list is read when code becomes executable".to_owned(),
            other => format!("observed by {other}"),
        };
        if self.heard_by.is_empty() { vec!["not observed".to_owned()] } else { self.heard_by.iter().map(way).collect() }
    }

    /// The missing parts. A linker that is not in the library is none of it, nor is a list that nothing depends on.
    fn lacks(&self) -> impl Iterator<Item = &str> {
        let has_linker = self.heard_by.iter().any(|way| way == "runtimedyld" || way == "jitlink");
        let is_none = move |missing: &&str| {
            missing.contains(": no vtable of ") || has_linker && missing.starts_with("GDB JIT list")
        };
        self.missing.iter().map(String::as_str).filter(move |missing| !is_none(missing))
    }

    /// Whether it seems to have compiled code without a report.
    fn is_silent(&self) -> bool {
        self.heard_by.is_empty()
            || self.missing.iter().any(|missing| missing.contains("code became executable without a report"))
    }
}

/// A file that is too small, or ours, has none.
fn may_have_llvm(process: &Process, library: &Path) -> bool {
    let is_ours = library.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libjitlisten"));
    let size = process.open_file(library).and_then(|file| Ok(file.metadata()?.len()));
    !is_ours && size.is_ok_and(|size| size >= SMALLEST)
}

fn read_file(process: &Process, library: &Path) -> LlvmFile {
    let types = ENGINES.map(|(class, _)| class);
    process.open_file(library).and_then(|file| LlvmFile::read(file.take(LARGEST), &types)).unwrap_or_default()
}

/// Functions that are alive, and how many of them set up no frame pointer.
fn compiled(process: &Process, list: &JitList) -> Option<Compiled> {
    let entries = list.entries(process).ok()?;
    let mut compiled = Compiled { objects: entries.len(), ..Compiled::default() };
    let end = Instant::now() + jit_list::PATIENCE;
    let entries = entries.iter().take_while(|_| Instant::now() < end);
    for object in entries.filter_map(|entry| entry.object(process)) {
        let has_lines = LineRows::parse(&object).is_ok_and(|lines| !lines.rows().is_empty());
        compiled.objects_with_lines += usize::from(has_lines);
        let Ok(object) = LoadedObject::parse(&object) else { continue };
        if !object.functions().iter().any(is_of_runtime) {
            compiled.of_program += object.functions().len();
            compiled.without_lines += if has_lines { 0 } else { object.functions().len() };
        }
        let keeps = |function: &Function| {
            let size = function.range.size() as usize;
            let code = memory::read(process.pid, function.range.start().0, size).ok()?;
            Some(cfi::sets_up_frame_pointer(&code, object.machine()))
        };
        compiled.functions += object.functions().len();
        compiled.without_frame_pointer += object.functions().iter().filter(|one| keeps(one) == Some(false)).count();
    }
    Some(compiled)
}

/// Numba compiles its reference counting from LLVM's language.
fn is_of_runtime(function: &Function) -> bool {
    &*function.linkage_name == "NRT_incref"
}

fn is_redirected(process: &Process, symbols: &Symbols) -> bool {
    let Some((address, in_file)) = symbols.code(REGISTER_FUNCTION, BODY) else { return false };
    let Ok(in_memory) = memory::read(process.pid, address, in_file.len()) else { return false };
    let mut changed = in_file.iter().zip(&in_memory).filter(|(file, memory)| file != memory);
    changed.next().is_some_and(|(_, now)| *now != BREAKPOINT)
}
