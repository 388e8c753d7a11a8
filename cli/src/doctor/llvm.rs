//! Each LLVM of a process: which one it is, and what it has compiled. Read from its file and from memory; nothing is changed.
//!
//! | fact | from |
//! | --- | --- |
//! | version | the string `LLVM22.1.0`, which the bitcode writer puts into what it writes (`llvm/lib/Bitcode/Writer/BitcodeWriter.cpp`) |
//! | engines | the vtables of MCJIT and of ORC's object layers, among the symbols; stripped libraries have none |
//! | how it is heard | whether the body of `__jit_debug_register_code` in memory is that of the file |
//! | frame pointers | the code of each function that is alive |

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use jitlisten::{Function, LineRows, LoadedObject, cfi};

use super::Finding;
use crate::jit_list::{self, JitList};
use crate::process::Process;
use crate::symbols::Symbols;

const RENDEZVOUS: &str = "__jit_debug_register_code";
/// The longest redirected body: see `shim/src/detour`.
const BODY: usize = 16;
/// A breakpoint of a debugger, which may sit there, too.
const BREAKPOINT: u8 = 0xcc;

const ENGINES: [(&str, &str); 3] = [
    ("_ZTVN4llvm5MCJITE", "MCJIT"),
    ("_ZTVN4llvm3orc24RTDyldObjectLinkingLayerE", "ORC with RuntimeDyld"),
    ("_ZTVN4llvm3orc18ObjectLinkingLayerE", "ORC with JITLink"),
];

/// What was found of one LLVM.
pub(super) struct Llvm {
    library: PathBuf,
    version: Option<String>,
    engines: Vec<&'static str>,
    /// `None` if its list cannot be read.
    compiled: Option<Compiled>,
    is_redirected: bool,
}

/// What is alive of what it has compiled.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) objects: usize,
    pub(super) functions: usize,
    pub(super) without_frame_pointer: usize,
    pub(super) objects_with_lines: usize,
}

impl Llvm {
    /// Every LLVM of a process that has a list for debuggers.
    pub(super) fn all(process: &Process) -> Vec<Llvm> {
        jit_list::lists(process).iter().map(|list| Llvm::of(process, list)).collect()
    }

    fn of(process: &Process, list: &JitList) -> Llvm {
        let file = process.visible(&list.library);
        let symbols = Symbols::of(process, &list.library);
        let names: Vec<_> = ENGINES.iter().map(|(symbol, _)| *symbol).collect();
        let defined = symbols.as_ref().map(|symbols| symbols.defined(&names)).unwrap_or_default();
        Llvm {
            version: File::open(file).ok().and_then(version),
            engines: ENGINES.iter().zip(defined).filter(|(_, there)| *there).map(|((_, engine), _)| *engine).collect(),
            compiled: compiled(process, list),
            is_redirected: symbols.is_some_and(|symbols| is_redirected(process, &symbols)),
            library: list.library.clone(),
        }
    }

    pub(super) fn compiled(&self) -> Option<&Compiled> {
        self.compiled.as_ref()
    }

    pub(super) fn finding(&self, has_library: bool) -> Finding {
        let mut words = vec![match &self.version {
            Some(version) => format!("{}: LLVM {version}", self.library.display()),
            None => format!("{}: another JIT, or an LLVM that does not say its version", self.library.display()),
        }];
        if !self.engines.is_empty() {
            words.push(format!("with {}", self.engines.join(", ")));
        }
        words.push(match &self.compiled {
            Some(compiled) => format!("{} objects in its list for debuggers", compiled.objects),
            None => "objects that cannot be counted".to_owned(),
        });
        words.push(match (has_library, self.is_redirected) {
            (true, true) => "reported by a call for each object".to_owned(),
            (true, false) => {
                "its rendezvous with debuggers is as in the file: heard by its linkers, or its list is read when code becomes executable"
                    .to_owned()
            }
            (false, _) => "not listened to".to_owned(),
        });
        Finding::ok("LLVM", words.join("; "))
    }
}

/// Functions that are alive, and how many of them set up no frame pointer.
fn compiled(process: &Process, list: &JitList) -> Option<Compiled> {
    let entries = list.entries(process).ok()?;
    let mut compiled = Compiled { objects: entries.len(), ..Compiled::default() };
    for object in entries.iter().filter_map(|entry| entry.object(process)) {
        compiled.objects_with_lines +=
            usize::from(LineRows::parse(&object).is_ok_and(|lines| !lines.rows().is_empty()));
        let Ok(object) = LoadedObject::parse(&object) else { continue };
        let keeps = |function: &Function| {
            let size = function.range.size() as usize;
            let code = jit_list::read_memory(process.pid, function.range.start().0, size).ok()?;
            Some(cfi::sets_up_frame_pointer(&code, object.machine()))
        };
        compiled.functions += object.functions().len();
        compiled.without_frame_pointer += object.functions().iter().filter(|one| keeps(one) == Some(false)).count();
    }
    Some(compiled)
}

fn is_redirected(process: &Process, symbols: &Symbols) -> bool {
    let Some((address, in_file)) = symbols.code(RENDEZVOUS, BODY) else { return false };
    let Ok(in_memory) = jit_list::read_memory(process.pid, address, in_file.len()) else { return false };
    let mut changed = in_file.iter().zip(&in_memory).filter(|(file, memory)| file != memory);
    changed.next().is_some_and(|(_, now)| *now != BREAKPOINT)
}

/// The version in the bitcode writer's string, the whole string being `LLVM`, numbers and a NUL.
fn version(file: File) -> Option<String> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut string = Vec::new();
    loop {
        string.clear();
        if reader.read_until(0, &mut string).ok()? == 0 {
            return None;
        }
        if let Some(version) = identification(&string) {
            return Some(version);
        }
    }
}

/// `LLVM22.1.0\0`
fn identification(string: &[u8]) -> Option<String> {
    let version = string.strip_suffix(b"\0")?.strip_prefix(b"LLVM")?;
    let text = std::str::from_utf8(version).ok()?;
    let numbers: Vec<_> = text.split('.').collect();
    let is_number = |number: &&str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (numbers.len() == 3 && numbers.iter().all(is_number)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_string_of_its_own() {
        assert_eq!(identification(b"LLVM22.1.0\0").as_deref(), Some("22.1.0"));
        for other in ["LLVM\0", "LLVM22\0", "LLVM22.1.x\0", "LLVM22.1.0", "xLLVM22.1.0\0", "LLVM..\0"] {
            assert_eq!(identification(other.as_bytes()), None, "{other}");
        }
    }
}
