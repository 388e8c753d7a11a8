//! Functions of the process that a request calls.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use wire::mailbox::REQUEST_OFFSET;

use crate::inject::request::Start;
use crate::inject::safe_point::{SafePoints, Stacks};
use crate::inject::signal_frame::ReturnPath;
use crate::inject::trace::StoppedThread;
use crate::installation::LIBRARY;
use crate::problem::Problem;
use crate::process::{Process, is_libc, memory, symbols};

pub(crate) const PAGE_BYTES: usize = 4096;
const CALL_RESULT_BYTES: u64 = 64;

/// Method of running a request in the process.
pub(crate) enum Method<'a> {
    /// Pending call in the interpreter; holds the path of the Python package.
    Python(PathBuf),
    /// New thread that runs the request in the interpreter; holds the paths of the Python package and of the library.
    PythonThread(PathBuf, PathBuf),
    /// New thread that starts a recording; holds the path of the library.
    Thread(PathBuf, &'a Start),
}

/// Addresses of the functions to call in the process.
pub(crate) struct Functions {
    mmap: u64,
    pub(crate) munmap: u64,
    pub(crate) start: StartMethod,
    pub(crate) return_path: ReturnPath,
    pub(crate) stacks: Stacks,
}

pub(crate) enum StartMethod {
    /// `Py_AddPendingCall` and `PyRun_SimpleString`.
    Python { add_pending_call: u64, run_string: u64 },
    /// `pthread_create`, and `dlopen` if the library is not loaded yet.
    Thread { pthread_create: u64, dlopen: Option<u64>, library: PathBuf, safe_points: SafePoints },
}

impl Functions {
    pub(crate) fn find(process: &Process, method: &Method) -> Result<Functions, Problem> {
        let find_python_symbol = |name: &str| {
            let is_python = |path: &&Path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().contains("python"))
                    || Some(*path) == process.executable()
            };
            let mut libraries = process.libraries().into_iter().filter(is_python);
            let address = libraries.find_map(|path| symbols::function(process, path, name));
            address.ok_or_else(|| Problem::new(format!("the interpreter exports no {name}, or its file was replaced")))
        };
        // Before glibc 2.34, `pthread_create` and `dlopen` are in separate libraries.
        let find_libc_symbol = |name| {
            let libraries = process.libraries();
            let mut libraries = libraries.iter().filter(|path| is_libc(path));
            let address = libraries.find_map(|path| symbols::function(process, path, name));
            address.ok_or_else(|| Problem::new("not a glibc process, or the file of its libc was replaced"))
        };
        let start = match method {
            Method::Python(_) => StartMethod::Python {
                add_pending_call: find_python_symbol("Py_AddPendingCall")?,
                run_string: find_python_symbol("PyRun_SimpleString")?,
            },
            Method::Thread(library, _) | Method::PythonThread(_, library) => {
                let has_library = process.library_named(LIBRARY).is_some();
                let dlopen = if has_library { None } else { Some(find_libc_symbol("dlopen")?) };
                let (pthread_create, safe_points) = (find_libc_symbol("pthread_create")?, SafePoints::find(process));
                StartMethod::Thread { pthread_create, dlopen, library: library.clone(), safe_points }
            }
        };
        let (mmap, munmap, return_path) =
            (find_libc_symbol("mmap")?, find_libc_symbol("munmap")?, return_path(process)?);
        Ok(Functions { mmap, munmap, start, return_path, stacks: Stacks::new(process) })
    }

    pub(crate) fn check_mapped(&self, process: &Process) -> io::Result<()> {
        let mut addresses = vec![self.mmap, self.munmap];
        match &self.start {
            StartMethod::Python { add_pending_call, run_string } => addresses.extend([*add_pending_call, *run_string]),
            StartMethod::Thread { pthread_create, dlopen, .. } => {
                addresses.extend(dlopen.iter().chain([pthread_create]))
            }
        }
        let still_mapped = process.still_maps(&addresses);
        if still_mapped { Ok(()) } else { Err(exec_problem()) }
    }

    /// Maps the memory, writes the text into it and starts the request in the process.
    pub(crate) fn start_request(
        &self,
        process: &Process,
        stopped: &mut StoppedThread,
        size: usize,
        make_text: impl Fn(u64) -> Vec<u8>,
    ) -> io::Result<u64> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let address =
            stopped.call(self.mmap, [0, size as u64, protection, flags, u64::MAX, 0], None, self.return_path)?;
        if address == 0 || !address.is_multiple_of(PAGE_BYTES as u64) {
            return Err(io::Error::other("it is out of memory"));
        }
        let outcome =
            self.call_start(process, stopped, address, address + size as u64 - CALL_RESULT_BYTES, &make_text(address));
        if outcome.is_err() {
            let _ = stopped.call(self.munmap, [address, size as u64, 0, 0, 0, 0], None, self.return_path);
        }
        outcome.map(|()| address)
    }

    fn call_start(
        &self,
        process: &Process,
        stopped: &mut StoppedThread,
        address: u64,
        stack_top: u64,
        text: &[u8],
    ) -> io::Result<()> {
        let text_address = address + REQUEST_OFFSET as u64;
        match &self.start {
            StartMethod::Python { add_pending_call, run_string } => {
                memory::write(process.pid, text_address, text)?;
                match stopped.call(
                    *add_pending_call,
                    [*run_string, text_address, 0, 0, 0, 0],
                    Some(stack_top),
                    self.return_path,
                )? as i32
                {
                    0 => Ok(()),
                    _ => Err(io::Error::other("too many pending calls")),
                }
            }
            StartMethod::Thread { pthread_create, dlopen, library, .. } => {
                if let Some(dlopen) = dlopen {
                    memory::write(process.pid, text_address, &[library.as_os_str().as_bytes(), b"\0"].concat())?;
                    let flags = (libc::RTLD_NOW | libc::RTLD_LOCAL) as u64;
                    if stopped.call(*dlopen, [text_address, flags, 0, 0, 0, 0], Some(stack_top), self.return_path)? == 0
                    {
                        return Err(io::Error::other(format!("it cannot open {}", library.display())));
                    }
                }
                // `dlopen` has added mappings, so read the mappings again.
                let reopened = Process::open(process.pid).map_err(|_| io::ErrorKind::NotFound)?;
                let function = find_function(&reopened, library, "jitlisten_attached")?;
                memory::write(process.pid, text_address, text)?;
                match stopped.call(
                    *pthread_create,
                    [stack_top, 0, function, address, 0, 0],
                    Some(stack_top),
                    self.return_path,
                )? as i32
                {
                    0 => Ok(()),
                    number => {
                        let error = io::Error::from_raw_os_error(number);
                        Err(io::Error::other(format!("it cannot start a thread: {error}")))
                    }
                }
            }
        }
    }
}

pub(crate) fn return_path(process: &Process) -> Result<ReturnPath, Problem> {
    ReturnPath::find(process).ok_or_else(|| Problem::new("its libc has no code by which a call could return"))
}

/// Returns the address of an exported function of our library in the process.
pub(crate) fn find_function(process: &Process, library: &Path, name: &str) -> io::Result<u64> {
    let problem = || format!("it has another version of jitlisten, {}, or its file was replaced", library.display());
    symbols::function(process, library, name).ok_or_else(|| io::Error::other(problem()))
}

pub(crate) fn exec_problem() -> io::Error {
    io::Error::other("it executed another program")
}
