//! The list for debuggers that every LLVM keeps of its objects, in another process: read, never changed.
//!
//! See gdb's manual, "JIT Compilation Interface". Found in the files that the process maps, read by `process_vm_readv(2)`, or where a
//! seccomp filter forbids that call, through `/proc/PID/mem`, which is under the same rights.
//!
//! ```text
//!   __jit_debug_descriptor   u32 version (1), u32 action, u64 relevant_entry, u64 first_entry
//!   jit_code_entry           u64 next, u64 prev, u64 symfile_addr, u64 symfile_size
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::process::Process;
use crate::symbols;

const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// Below this size a file cannot hold an LLVM with a code generator, unless it exports the descriptor and its name says LLVM.
const SMALLEST: u64 = 4 << 20;
/// More objects than this are a list that runs in circles.
const MOST_OBJECTS: usize = 1_000_000;
/// No debug object is larger.
const LARGEST: u64 = 1 << 30;

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

/// Every LLVM of a process that has a list for debuggers.
pub(crate) fn lists(process: &Process) -> Vec<JitList> {
    let found = process.libraries().into_iter().filter_map(|library| Some((library, descriptor(process, library)?)));
    found.map(|(library, descriptor)| JitList { library: library.to_owned(), descriptor }).collect()
}

impl JitList {
    /// What is in it, the oldest last as LLVM puts new ones in front. The process runs on: a list that changes meanwhile is read
    /// again.
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
        let [head, _, first] = words(&read_memory(pid, self.descriptor, 24)?);
        let mut entries = Vec::new();
        // Version 1, see the module's head.
        if head as u32 != 1 {
            return Ok(entries);
        }
        let (mut at, mut previous) = (first, 0);
        while at != 0 && entries.len() < MOST_OBJECTS {
            let [next, prev, address, size] = words(&read_memory(pid, at, 32)?);
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
        (self.size <= LARGEST).then(|| read_memory(process.pid, self.address, self.size as usize).ok())?
    }
}

pub(crate) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}

/// Where the descriptor of a library is in the process.
fn descriptor(process: &Process, library: &Path) -> Option<u64> {
    let file = File::open(process.visible(library)).ok()?;
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

/// Reads `size` bytes of a process.
pub(crate) fn read_memory(pid: u32, address: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: size };
    // SAFETY: the local vector is a buffer of that size; the kernel checks the other one.
    let read = unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        _ if read == size as isize => Ok(bytes),
        0.. => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                File::open(format!("/proc/{pid}/mem"))
                    .and_then(|memory| memory.read_exact_at(&mut bytes, address))
                    .map_err(|_| error)?;
                Ok(bytes)
            }
            error => Err(error),
        },
    }
}
