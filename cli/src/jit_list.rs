//! The GDB JIT list that every LLVM keeps of its objects, in another process: read, never changed.
//!
//! See gdb's manual, "JIT Compilation Interface". Found in the files that the process maps, read from its memory
//! (`memory.rs`).
//!
//! ```text
//!   __jit_debug_descriptor   u32 version (1), u32 action, u64 relevant_entry, u64 first_entry
//!   jit_code_entry           u64 next, u64 prev, u64 symfile_addr, u64 symfile_size
//! ```

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::memory::{read, words};
use crate::process::Process;
use crate::symbols;

const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// Below this size a file cannot hold an LLVM with a code generator, unless it exports the descriptor and its name says
/// LLVM.
const SMALLEST: u64 = 4 << 20;
/// More objects than this are a list that runs in circles.
const MOST_OBJECTS: usize = 1_000_000;
/// For what a process shows at one look: it may show gigabytes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// The list of one LLVM.
pub(crate) struct JitList {
    /// The file with the LLVM, as the process names it.
    pub(crate) library: PathBuf,
    descriptor: u64,
}

/// An object in it. The address of an entry may be used again, so two are the same only if all of it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    at: u64,
    address: u64,
    size: u64,
}

/// Every LLVM of a process that has a GDB JIT list.
pub(crate) fn lists(process: &Process) -> Vec<JitList> {
    let end = Instant::now() + PATIENCE;
    let libraries = process.libraries().into_iter().take_while(|_| Instant::now() < end);
    let found = libraries.filter_map(|library| Some((library, descriptor(process, library)?)));
    found.map(|(library, descriptor)| JitList { library: library.to_owned(), descriptor }).collect()
}

impl JitList {
    /// What is in it, the oldest last as LLVM puts new ones in front. The process runs on: a list that changes
    /// meanwhile is read again.
    pub(crate) fn entries(&self, process: &Process) -> io::Result<Vec<Entry>> {
        let mut result = self.read(process.pid);
        for _ in 1..3 {
            if result.is_ok() {
                break;
            }
            result = self.read(process.pid);
        }
        result
    }

    fn read(&self, pid: u32) -> io::Result<Vec<Entry>> {
        let [head, _, first] = words(&read(pid, self.descriptor, 24)?);
        let mut entries = Vec::new();
        // Version 1, see the module's head.
        if head as u32 != 1 {
            return Ok(entries);
        }
        let (mut at, mut previous) = (first, 0);
        while at != 0 && entries.len() < MOST_OBJECTS {
            let [next, prev, address, size] = words(&read(pid, at, 32)?);
            if prev != previous {
                return Err(io::ErrorKind::InvalidData.into());
            }
            entries.push(Entry { at, address, size });
            (previous, at) = (at, next);
        }
        Ok(entries)
    }
}

impl Entry {
    /// The object; `None` if it has gone meanwhile, or is none.
    pub(crate) fn object(&self, process: &Process) -> Option<Vec<u8>> {
        read(process.pid, self.address, usize::try_from(self.size).ok()?).ok()
    }
}

/// Where the descriptor of a library is in the process.
fn descriptor(process: &Process, library: &Path) -> Option<u64> {
    let file = process.open_file(library).ok()?;
    let name = library.file_name()?.to_string_lossy().to_lowercase();
    // Ours has a list for code that no LLVM has compiled (the gdb sink).
    if name.starts_with("libjitlisten") {
        return None;
    }
    let says_llvm = name.contains("llvm");
    if !says_llvm && file.metadata().ok()?.len() < SMALLEST {
        return None;
    }
    symbols::address(process, library, DESCRIPTOR)
}
