//! Environment of a program that replaces the program by `exec`.
//!
//! `pipenv run`, `poetry run`, or a script that sets a variable and executes itself again, is the first Python, so
//! `jitlisten run` takes it for the program, and it restores the environment ([`run_environment`]). What it executes is
//! the same process, and thus the program, too: it gets the library and the request again.
//!
//! [`run_environment`]: crate::run_environment

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::panic::catch_unwind;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use jitlisten::plumbing::{HostStateGuard, RUN_VARIABLE, RunRequest, Word, elf};
use jitlisten_sampler::CStringArray;

unsafe extern "C" {
    static environ: CStringArray;
}

/// Variables that `jitlisten run` has set for the program.
struct Request {
    /// Process ID of the program. A child does not get the variables.
    pid: u32,
    /// Entries of variables that contain lists: the name with `=`, and the first entry.
    list_entries: Vec<(&'static [u8], Vec<u8>)>,
    /// Other variables, as `NAME=VALUE`.
    variables: Vec<Vec<u8>>,
}

static REQUEST: OnceLock<Request> = OnceLock::new();

/// Stores the variables, if this process is the program. Call before the environment is restored.
pub(crate) fn store_request(request: &RunRequest<'_>) {
    let variable = |name: &str| {
        let value = env::var_os(name).filter(|value| !value.is_empty())?.into_vec();
        Some([name.as_bytes(), b"=", &value].concat())
    };
    let mut list_entries = vec![(&b"LD_PRELOAD="[..], request.library.to_vec())];
    let python_path = env::var_os("PYTHONPATH").filter(|_| request.has(Word::Lines)).map(OsString::into_vec);
    if let Some(first) = python_path.as_deref().and_then(|path| path.split(|&byte| byte == b':').next()) {
        list_entries.push((b"PYTHONPATH=", first.to_vec()));
    }
    let sinks = request.has(Word::Sinks).then(|| variable("JITLISTEN")).flatten();
    let variables = variable(RUN_VARIABLE).into_iter().chain(sinks).collect();
    let _ = REQUEST.set(Request { pid: std::process::id(), list_entries, variables });
}

/// Environment for `execve(2)`.
pub(crate) struct ExecEnvironment {
    /// The caller's, if nothing is to be changed.
    unchanged: CStringArray,
    pointers: Vec<*const c_char>,
    /// Owns the changed strings that `pointers` refers to.
    _strings: Vec<CString>,
}

impl ExecEnvironment {
    /// Prepares the environment for a file that is about to be executed. A program that cannot load this library gets
    /// the caller's environment.
    ///
    /// # Safety
    /// Same contract as `execve(2)`. The caller's environment must outlive the result.
    pub(crate) unsafe fn new(file: *const c_char, environment: CStringArray) -> ExecEnvironment {
        let unchanged = ExecEnvironment { unchanged: environment, pointers: Vec::new(), _strings: Vec::new() };
        let Some(request) = REQUEST.get().filter(|request| request.pid == std::process::id()) else { return unchanged };
        if file.is_null() || environment.is_null() {
            return unchanged;
        }
        let _host_state = HostStateGuard::enter();
        let changed = catch_unwind(|| {
            // SAFETY: the caller passes a path like that of `execve(2)`, and it is not null.
            let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(file) }.to_bytes()));
            // SAFETY: the caller passes an environment like that of `execve(2)`, and it is not null.
            can_load_library(path).then(|| unsafe { request.add_to(environment) })
        });
        changed.ok().flatten().unwrap_or(unchanged)
    }

    /// Returns the environment, which is valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> CStringArray {
        if self.pointers.is_empty() { self.unchanged } else { self.pointers.as_ptr() }
    }
}

impl Request {
    /// Copies an environment and adds the request.
    ///
    /// # Safety
    /// `environment` must be an array of null-terminated strings that ends with null, and must outlive the result.
    unsafe fn add_to(&self, environment: CStringArray) -> ExecEnvironment {
        let mut pointers = Vec::new();
        let mut strings = Vec::new();
        let mut missing_entries: Vec<_> = self.list_entries.iter().collect();
        for index in 0.. {
            // SAFETY: the array ends with null, and no string before this one was null.
            let string = unsafe { *environment.add(index) };
            if string.is_null() {
                break;
            }
            // SAFETY: the caller guarantees null-terminated strings.
            let text = unsafe { CStr::from_ptr(string) }.to_bytes();
            let list = missing_entries.iter().position(|(name, _)| text.starts_with(name));
            if let Some((name, entry)) = list.map(|list| missing_entries.swap_remove(list)) {
                let rest = &text[name.len()..];
                let has_entry = rest.split(|byte| b" :".contains(byte)).any(|part| part == entry.as_slice());
                let separator: &[u8] = if rest.is_empty() { b"" } else { b":" };
                strings.extend((!has_entry).then(|| [name, entry.as_slice(), separator, rest].concat()));
                if !has_entry {
                    continue;
                }
            } else if self.variables.iter().any(|variable| is_same_variable(variable, text)) {
                continue;
            }
            pointers.push(string);
        }
        strings.extend(missing_entries.iter().map(|(name, entry)| [name, entry.as_slice()].concat()));
        strings.extend(self.variables.iter().cloned());
        let strings: Vec<CString> = strings.into_iter().filter_map(|string| CString::new(string).ok()).collect();
        pointers.extend(strings.iter().map(|string| string.as_ptr()));
        pointers.push(ptr::null());
        ExecEnvironment { unchanged: environment, pointers, _strings: strings }
    }
}

/// Returns true if two strings `NAME=VALUE` have the same name.
fn is_same_variable(one: &[u8], other: &[u8]) -> bool {
    let name = |string: &'_ [u8]| string.iter().position(|&byte| byte == b'=');
    name(one).is_some_and(|length| other.get(..=length) == one.get(..=length))
}

/// Maximum number of interpreters that the kernel follows from script to script.
const MAX_INTERPRETERS: usize = 5;

/// Returns true if the file is a program with the same loader as this one, or a script for such a program. Any other
/// loader could refuse the library, or print a message.
fn can_load_library(file: &Path) -> bool {
    let mut path = file.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        let Some(first_bytes) = read_first_bytes(&path) else { return false };
        let Some(line) = first_bytes.strip_prefix(b"#!") else {
            let own_bytes = read_first_bytes(Path::new("/proc/self/exe")).unwrap_or_default();
            let loader = elf::loader_path(&first_bytes).filter(|loader| !loader.is_empty());
            return loader.is_some() && loader == elf::loader_path(&own_bytes);
        };
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_start();
        let interpreter = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        path = Path::new(OsStr::from_bytes(interpreter)).to_owned();
    }
    false
}

/// Reads the pages that have a program's headers and the path of its loader.
fn read_first_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))?;
    file.take(1 << 16).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the environment of the process.
pub(crate) fn own_environment() -> CStringArray {
    // SAFETY: `environ` is libc's variable, which the calling thread may read, as `execv` itself does.
    unsafe { environ }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment_after(request: &Request, variables: &[&str]) -> Vec<String> {
        let strings: Vec<CString> = variables.iter().map(|variable| CString::new(*variable).unwrap()).collect();
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        // SAFETY: the array ends with null.
        let environment = unsafe { request.add_to(pointers.as_ptr()) };
        let texts = environment.pointers.iter().take_while(|pointer| !pointer.is_null());
        // SAFETY: the pointers refer to strings above or in `environment`.
        texts.map(|&pointer| unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_request_is_put_back_once() {
        let request = Request {
            pid: 0,
            list_entries: vec![(b"LD_PRELOAD=", b"/our.so".to_vec()), (b"PYTHONPATH=", b"/site".to_vec())],
            variables: vec![b"JITLISTEN_RUN=program:/our.so".to_vec()],
        };
        let expected = ["A=1", "LD_PRELOAD=/our.so", "PYTHONPATH=/site", "JITLISTEN_RUN=program:/our.so"];
        assert_eq!(environment_after(&request, &["A=1"]), expected);
        assert_eq!(environment_after(&request, &expected), expected);
        let others = ["LD_PRELOAD=/a.so /b.so", "PYTHONPATH=", "JITLISTEN_RUN=lines:7", "JITLISTEN_RUNS=1"];
        assert_eq!(
            environment_after(&request, &others),
            ["JITLISTEN_RUNS=1", "LD_PRELOAD=/our.so:/a.so /b.so", "PYTHONPATH=/site", "JITLISTEN_RUN=program:/our.so",]
        );
    }

    #[test]
    fn only_programs_with_the_same_loader_get_it() {
        let loads = |path: &str| can_load_library(Path::new(path));
        assert!(loads("/proc/self/exe"));
        for other in ["/dev/null", "/etc/passwd", "/nonexistent", "/proc/self/maps", "/"] {
            assert!(!loads(other), "{other}");
        }
        let directory = env::temp_dir().join(format!("jitlisten-exec-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let script = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let own = env::current_exe().unwrap();
        let first = script("first", format!("#! {} -x\n", own.display()));
        let second = script("second", format!("#!{}\t-y", first.display()));
        let endless = directory.join("endless");
        let endless = script("endless", format!("#!{}\n", endless.display()));
        let of_text = script("of-text", "#!/etc/passwd\n".to_owned());
        let results = [&first, &second, &endless, &of_text].map(|path| can_load_library(path));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(results, [true, true, false, false]);
    }
}
