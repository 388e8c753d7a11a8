//! Environment of a program that replaces the program by `exec`.
//!
//! `pipenv run`, `poetry run`, or a script that sets a variable and executes itself again, is the first Python, so
//! `jitlisten run` takes it for the program, and it restores the environment ([`run_environment`]). What it executes is
//! the same process, and thus the program, too: it gets the library and the request again.
//!
//! [`run_environment`]: crate::run_environment

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::catch_unwind;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use jitlisten::Address;
use jitlisten::plumbing::{HostStateGuard, ProcessIdentity, RUN_VARIABLE, RunRequest, Word, checked_read, elf};
use jitlisten_sampler::CStringArray;
use wire::recording::{FILE_OWNER_VARIABLE, RECORD_VARIABLE};

use crate::run_environment::is_of_program;

unsafe extern "C" {
    static environ: CStringArray;
}

/// What `jitlisten run` and `record` have set for the program.
struct Request {
    /// The program. A child does not get the variables.
    process: ProcessIdentity,
    /// Entries of variables that contain lists: the name with `=`, and the entry.
    list_entries: Vec<(&'static [u8], Vec<u8>)>,
    /// Variables that replace those of the same name, as `NAME=VALUE`.
    replaced: Vec<Vec<u8>>,
    /// Variables that are added if there is none of the same name, as `NAME=VALUE`.
    added: Vec<Vec<u8>>,
}

static REQUEST: OnceLock<Request> = OnceLock::new();

/// End of the path of our sitecustomize's directory.
const SITE: &[u8] = b"/jitlisten/_site";

/// Stores the variables, if this process is the program. Call before the environment changes.
pub(crate) fn store_request() {
    let Some(value) = env::var_os(RUN_VARIABLE) else { return };
    let request = RunRequest::parse(&value);
    if !is_of_program(&request) {
        return;
    }
    let variable = |name: &&str| {
        let value = env::var_os(name).filter(|value| !value.is_empty())?.into_vec();
        Some([name.as_bytes(), b"=", &value].concat())
    };
    let mut list_entries = vec![(&b"LD_PRELOAD="[..], request.library.to_vec())];
    let python_path = env::var_os("PYTHONPATH").map(OsString::into_vec).unwrap_or_default();
    if let Some(site) = python_path.split(|&byte| byte == b':').find(|entry| entry.ends_with(SITE)) {
        list_entries.push((b"PYTHONPATH=", site.to_vec()));
    }
    // The file that the next program continues is that of this process.
    let file_owner = format!("{FILE_OWNER_VARIABLE}={}", std::process::id()).into_bytes();
    let record = variable(&RECORD_VARIABLE).map(|record| [record, file_owner]);
    let sinks: &[&str] = if request.has(Word::Sinks) { &["JITLISTEN"] } else { &[] };
    let _ = REQUEST.set(Request {
        process: ProcessIdentity::own(),
        list_entries,
        replaced: variable(&RUN_VARIABLE).into_iter().chain(record.into_iter().flatten()).collect(),
        added: sinks.iter().filter_map(variable).collect(),
    });
}

/// Environment with the request.
struct Environment {
    pointers: Vec<*const c_char>,
    /// Owns the changed strings that `pointers` refers to.
    _strings: Vec<CString>,
}

/// Executes a file by `call`, in an environment with the request. A program that cannot load this library gets the
/// caller's environment, and so does one for which the other is too large.
///
/// # Safety
/// Same contract as `execve(2)`.
pub(crate) unsafe fn execute(
    file: *const c_char,
    environment: CStringArray,
    call: impl Fn(CStringArray) -> c_int,
) -> c_int {
    // SAFETY: the caller passes the arguments of `execve(2)`.
    let Some(changed) = (unsafe { with_request(file, environment) }) else { return call(environment) };
    let result = call(changed.pointers.as_ptr());
    let is_too_large = std::io::Error::last_os_error().raw_os_error() == Some(libc::E2BIG);
    if is_too_large { call(environment) } else { result }
}

/// Returns the environment for a file that can load this library, if this process is the program.
///
/// # Safety
/// Same contract as `execve(2)`. The caller's environment must outlive the result.
unsafe fn with_request(file: *const c_char, environment: CStringArray) -> Option<Environment> {
    let request = REQUEST.get().filter(|request| request.process.pid == std::process::id())?;
    let _host_state = HostStateGuard::enter();
    // SAFETY: the kernel returns an error for a bad address.
    let is_executable = unsafe { libc::access(file, libc::X_OK) } == 0;
    // SAFETY: any bytes are a valid address.
    let is_readable = unsafe { checked_read::copy_struct::<usize>(Address(environment.addr() as u64)) }.is_ok();
    // A child may have the same number in another PID namespace.
    if !is_executable || !is_readable || request.process != ProcessIdentity::own() {
        return None;
    }
    let changed = catch_unwind(|| {
        // SAFETY: the kernel has read the path.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(file) }.to_bytes()));
        // SAFETY: the caller passes an environment like that of `execve(2)`.
        can_load_library(path).then(|| unsafe { request.add_to(environment) })
    });
    changed.ok().flatten()
}

impl Request {
    /// Copies an environment and adds the request.
    ///
    /// # Safety
    /// `environment` must be an array of null-terminated strings that ends with null, and must outlive the result.
    unsafe fn add_to(&self, environment: CStringArray) -> Environment {
        let mut pointers = Vec::new();
        let mut strings = Vec::new();
        let mut missing_entries: Vec<_> = self.list_entries.iter().collect();
        let mut added: Vec<_> = self.added.iter().collect();
        // SAFETY: the caller guarantees such an array.
        for string in unsafe { variables(environment) } {
            let text = string.to_bytes();
            let list = missing_entries.iter().position(|(name, _)| text.starts_with(name));
            if let Some((name, entry)) = list.map(|list| missing_entries.swap_remove(list)) {
                let rest = &text[name.len()..];
                if !has_entry(rest, entry) {
                    let separator: &[u8] = if rest.is_empty() { b"" } else { b":" };
                    strings.push([name, entry.as_slice(), separator, rest].concat());
                    continue;
                }
            } else if self.replaced.iter().any(|variable| is_same_variable(variable, text)) {
                continue;
            }
            added.retain(|variable| !is_same_variable(variable, text));
            pointers.push(string.as_ptr());
        }
        strings.extend(missing_entries.iter().map(|(name, entry)| [name, entry.as_slice()].concat()));
        strings.extend(self.replaced.iter().chain(added).cloned());
        let strings: Vec<CString> = strings.into_iter().filter_map(|string| CString::new(string).ok()).collect();
        pointers.extend(strings.iter().map(|string| string.as_ptr()));
        pointers.push(ptr::null());
        Environment { pointers, _strings: strings }
    }
}

/// Returns the strings of an environment.
///
/// # Safety
/// `environment` must be null, or an array of null-terminated strings that ends with null, and must outlive the result.
pub(crate) unsafe fn variables<'a>(environment: CStringArray) -> impl Iterator<Item = &'a CStr> {
    let count = if environment.is_null() { 0 } else { usize::MAX };
    (0..count).map_while(move |index| {
        // SAFETY: the array ends with null, and no string before this one was null.
        let string = unsafe { *environment.add(index) };
        // SAFETY: the caller guarantees null-terminated strings.
        (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
    })
}

/// Returns true if a list such as that of `LD_PRELOAD` has the entry.
pub(crate) fn has_entry(list: &[u8], entry: &[u8]) -> bool {
    list.split(|byte| b" :".contains(byte)).any(|part| part == entry)
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

/// Reads the pages that have a program's headers and the path of its loader. `None` for a file that the program has
/// open: closing it a second time would release the program's locks on it (`fcntl_locking(2)`).
fn read_first_bytes(path: &Path) -> Option<Vec<u8>> {
    let identity = |metadata: Metadata| (metadata.is_file(), metadata.dev(), metadata.ino());
    let file = fs::metadata(path).map(identity).ok().filter(|(is_file, ..)| *is_file)?;
    let mut descriptors = fs::read_dir("/proc/self/fd").ok()?.flatten();
    if descriptors.any(|descriptor| fs::metadata(descriptor.path()).map(identity).is_ok_and(|open| open == file)) {
        return None;
    }
    let mut bytes = Vec::new();
    // The file may have become a FIFO.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    opened.take(1 << 16).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the environment of the process.
pub(crate) fn own_environment() -> CStringArray {
    // SAFETY: `environ` is libc's variable, which the calling thread may read, as `execv` itself does.
    unsafe { environ }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            process: ProcessIdentity::own(),
            list_entries: vec![(b"LD_PRELOAD=", b"/our.so".to_vec()), (b"PYTHONPATH=", b"/site".to_vec())],
            replaced: vec![b"JITLISTEN_RUN=program:/our.so".to_vec()],
            added: vec![b"JITLISTEN=image".to_vec()],
        };
        let expected =
            ["A=1", "LD_PRELOAD=/our.so", "PYTHONPATH=/site", "JITLISTEN_RUN=program:/our.so", "JITLISTEN=image"];
        assert_eq!(environment_after(&request, &["A=1"]), expected);
        let again = environment_after(&request, &expected);
        assert_eq!(again.iter().collect::<BTreeSet<_>>(), BTreeSet::from(expected.map(String::from).each_ref()));
        let others =
            ["LD_PRELOAD=/a.so /b.so", "PYTHONPATH=", "JITLISTEN=gdb", "JITLISTEN_RUN=lines:7", "JITLISTEN_RUNS=1"];
        assert_eq!(
            environment_after(&request, &others),
            [
                "JITLISTEN=gdb",
                "JITLISTEN_RUNS=1",
                "LD_PRELOAD=/our.so:/a.so /b.so",
                "PYTHONPATH=/site",
                "JITLISTEN_RUN=program:/our.so",
            ]
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
