//! GDB JIT lists in another process. Each copy of LLVM registers its objects in such a list; we only read it. gdb's
//! manual documents the format in "JIT Compilation Interface". The list is located through the files that the process
//! maps, and read from the process's memory (`memory.rs`).
//!
//! ```text
//!   __jit_debug_descriptor   u32 version (1), u32 action, u64 relevant_entry, u64 first_entry
//!   jit_code_entry           u64 next, u64 prev, u64 symfile_addr, u64 symfile_size
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::process::memory::{read, words};
use crate::process::symbols;

const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// Minimum size of a file that may contain LLVM's code generator. Files with `llvm` in their names are always searched.
const MIN_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of entries to follow, in case the list is circular.
const MAX_OBJECTS: usize = 1_000_000;
/// Time limit for reading one process, which may present gigabytes of entries.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// GDB JIT list of one copy of LLVM.
pub(crate) struct JitList {
    /// Path of the file that contains LLVM, in the process's mount namespace.
    pub(crate) library: PathBuf,
    descriptor: u64,
}

/// List entry of one object. LLVM may reuse an entry's address, so only all fields together identify the entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    entry_address: u64,
    object_address: u64,
    object_size: u64,
}

/// Finds the GDB JIT list of every copy of LLVM in a process.
pub(crate) fn find_lists(process: &Process) -> Vec<JitList> {
    let deadline = Instant::now() + READ_TIMEOUT;
    let libraries = process.libraries().into_iter().take_while(|_| Instant::now() < deadline);
    let descriptors = libraries.filter_map(|library| Some((library, find_descriptor(process, library)?)));
    descriptors.map(|(library, descriptor)| JitList { library: library.to_owned(), descriptor }).collect()
}

impl JitList {
    /// Reads the entries, newest first, because LLVM inserts them at the front. The process keeps running, so the list
    /// is read again if it changes meanwhile.
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
        // Version 1 is the only version that the interface defines.
        if head as u32 != 1 {
            return Ok(entries);
        }
        let (mut entry_address, mut previous) = (first, 0);
        while entry_address != 0 && entries.len() < MAX_OBJECTS {
            let [next, prev, object_address, object_size] = words(&read(pid, entry_address, 32)?);
            if prev != previous {
                return Err(io::ErrorKind::InvalidData.into());
            }
            entries.push(Entry { entry_address, object_address, object_size });
            (previous, entry_address) = (entry_address, next);
        }
        Ok(entries)
    }
}

impl Entry {
    /// Copies the object; `None` if its memory has been unmapped.
    pub(crate) fn object(&self, process: &Process) -> Option<Vec<u8>> {
        read(process.pid, self.object_address, usize::try_from(self.object_size).ok()?).ok()
    }
}

fn find_descriptor(process: &Process, library: &Path) -> Option<u64> {
    let file = process.open_file(library).ok()?;
    let name = library.file_name()?.to_string_lossy().to_lowercase();
    // Our own library has a list of its own, which the gdb sink fills with code that LLVM did not compile.
    if name.starts_with("libjitlisten") {
        return None;
    }
    let is_llvm_name = name.contains("llvm");
    if !is_llvm_name && file.metadata().ok()?.len() < MIN_FILE_BYTES {
        return None;
    }
    symbols::address(process, library, DESCRIPTOR)
}
