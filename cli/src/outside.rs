//! Reading only: names for what is compiled in a process, without changing anything in it.
//!
//! Every LLVM keeps a list of its objects for debuggers (`__jit_debug_descriptor`, see gdb's manual, "JIT Compilation Interface").
//! Found in the files that the process maps, read by `process_vm_readv(2)`, and written as `/tmp/perf-PID.map`, where the process
//! sees `/tmp`, under the number it has itself.
//!
//! ```text
//!   __jit_debug_descriptor   u32 version (1), u32 action, u64 relevant_entry, u64 first_entry
//!   jit_code_entry           u64 next, u64 prev, u64 symfile_addr, u64 symfile_size
//! ```

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use jitlisten::{LoadedObject, name};

use crate::problem::Problem;
use crate::process::Process;
use crate::symbols;

const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// Below this size a file cannot hold an LLVM with a code generator, unless it exports the descriptor and its name says LLVM.
const SMALLEST: u64 = 4 << 20;
/// More objects than this are a list that runs in circles.
const MOST_OBJECTS: usize = 1_000_000;
/// No debug object is larger.
const LARGEST: u64 = 1 << 30;
/// How often to look for what is new.
const PAUSE: Duration = Duration::from_millis(250);

/// Writes the perf map of what is there, and goes on with what comes until the process ends if `watch`. `refusal` is why nothing
/// better could be done.
pub(crate) fn read(process: &Process, watch: bool, refusal: Option<&Problem>) -> Result<ExitCode, Problem> {
    let also = |problem: Problem| match refusal {
        Some(refusal) => Problem::new(format!("{refusal}; nor can its code be named from outside: {problem}")),
        None => problem,
    };
    check_access(process).map_err(also)?;
    let mut reader = Reader::new(process).map_err(also)?;
    let mut map = Map::create(process).map_err(also)?;
    if let Some(refusal) = refusal {
        let _ = writeln!(io::stderr(), "jitlisten: {refusal}; reading only");
    }
    let functions = reader.add_new(&mut map)?;
    let pid = process.pid;
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "process {pid}: reading only: {functions} compiled functions in {}", map.path.display());
    let _ = out.flush();
    while watch && process.is_there() {
        sleep(PAUSE);
        match reader.add_new(&mut map) {
            Ok(0) => {}
            Ok(more) => {
                let _ = writeln!(out, "process {pid}: {more} more").and_then(|()| out.flush());
            }
            Err(_) if !process.is_there() => break,
            Err(problem) => return Err(problem),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An LLVM that compiles while the process runs.
pub(crate) struct Llvm {
    pub(crate) library: PathBuf,
    /// How many objects are in its list for debuggers, if that can be read.
    pub(crate) objects: Option<usize>,
}

/// Every LLVM of a process that has a list for debuggers.
pub(crate) fn llvms(process: &Process) -> Vec<Llvm> {
    let found = process.libraries().into_iter().filter_map(|library| Some((library, descriptor(process, library)?)));
    let llvm = |(library, descriptor): (&Path, u64)| Llvm {
        library: library.to_owned(),
        objects: entries(process, descriptor).ok().map(|entries| entries.len()),
    };
    found.map(llvm).collect()
}

fn check_access(process: &Process) -> Result<(), Problem> {
    let address = process.mappings.first().map_or(0, |mapping| mapping.start);
    read_memory(process.pid, address, 8).map(|_| ()).map_err(|error| {
        if process.is_there() {
            let pid = process.pid;
            Problem::new(format!("the memory of process {pid} cannot be read: {error} (see `jitlisten doctor {pid}`)"))
        } else {
            process.ended()
        }
    })
}

/// What was read so far.
struct Reader<'a> {
    process: &'a Process,
    descriptors: Vec<u64>,
    /// Entries and where their debug objects are: an entry's address may be used again.
    known: HashSet<[u64; 3]>,
}

impl Reader<'_> {
    fn new(process: &Process) -> Result<Reader<'_>, Problem> {
        let descriptors: Vec<u64> =
            process.libraries().into_iter().filter_map(|library| descriptor(process, library)).collect();
        if descriptors.is_empty() {
            return Err(Problem::new(format!(
                "process {} has no LLVM that compiles code while it runs (or not yet: is Numba imported?)",
                process.pid
            )));
        }
        Ok(Reader { process, descriptors, known: HashSet::new() })
    }

    /// Adds what is new to the map; returns how many functions.
    fn add_new(&mut self, map: &mut Map) -> Result<usize, Problem> {
        let mut lines = String::new();
        let mut count = 0;
        for descriptor in self.descriptors.clone() {
            // The process runs on: a list that changes under our eyes is read again.
            let entries = (0..3).find_map(|_| entries(self.process, descriptor).ok()).unwrap_or_default();
            for entry in entries {
                let [_, address, size] = entry;
                if self.known.contains(&entry) || size > LARGEST {
                    continue;
                }
                let Ok(bytes) = read_memory(self.process.pid, address, size as usize) else { continue };
                self.known.insert(entry);
                count += describe(&bytes, &mut lines);
            }
        }
        map.append(&lines)?;
        Ok(count)
    }
}

/// `[entry, symfile_addr, symfile_size]`, the oldest last as LLVM puts new ones in front.
fn entries(process: &Process, descriptor: u64) -> io::Result<Vec<[u64; 3]>> {
    let pid = process.pid;
    let [head, _, first] = words(&read_memory(pid, descriptor, 24)?);
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
        entries.push([at, address, size]);
        (previous, at) = (at, next);
    }
    Ok(entries)
}

fn describe(debug_object: &[u8], lines: &mut String) -> usize {
    use std::fmt::Write as _;
    let Ok(object) = LoadedObject::parse(debug_object) else { return 0 };
    for function in object.functions() {
        let name = name::readable(&function.linkage_name, None);
        let _ = writeln!(lines, "{:x} {:x} {}", function.range.start().0, function.range.size(), name.text);
    }
    object.functions().len()
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
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

fn read_memory(pid: u32, address: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: size };
    // SAFETY: the local vector is a buffer of that size; the kernel checks the other one.
    let read = unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        _ if read == size as isize => Ok(bytes),
        0.. => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The perf map, where perf looks for it.
struct Map {
    path: PathBuf,
    file: File,
}

impl Map {
    fn create(process: &Process) -> Result<Map, Problem> {
        let name = format!("perf-{}.map", process.inner_pid());
        let path = process.visible(Path::new("/tmp")).join(&name);
        let shown = if process.is_elsewhere() { path } else { Path::new("/tmp").join(&name) };
        let failed = |error: io::Error| Problem::new(format!("{} cannot be written: {error}", shown.display()));
        if let Some(begin) = begin_of(&shown)
            && !begin.starts_with(MARK)
        {
            return Err(Problem::new(format!(
                "{} is there already, from the process itself: leave it, or remove it and try again",
                shown.display()
            )));
        }
        let _ = fs::remove_file(&shown);
        let safely = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).custom_flags(safely).open(&shown);
        let mut file = file.map_err(failed)?;
        let first = format!("{MARK}{} {} {} alive\n", process.inner_pid(), process.start, process.namespace());
        file.write_all(first.as_bytes()).map_err(failed)?;
        Ok(Map { path: shown, file })
    }

    fn append(&mut self, lines: &str) -> Result<(), Problem> {
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(|error| Problem::new(format!("{} cannot be written: {error}", self.path.display())))
    }
}

/// How the first line of a map written from outside begins, of which perf sees a function of no bytes at 0. What follows tells
/// `jitlisten clean` whose it is.
pub(crate) const MARK: &str = "0 0 jitlisten-outside ";

fn begin_of(path: &Path) -> Option<String> {
    let mut begin = [0; MARK.len()];
    let mut file = File::open(path).ok()?;
    let read = io::Read::read(&mut file, &mut begin).ok()?;
    Some(String::from_utf8_lossy(&begin[..read]).into_owned())
}
