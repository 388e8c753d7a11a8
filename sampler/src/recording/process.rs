//! The identity of another process, and facts about this process. Names come from system calls, which are ten times as
//! fast as reading a file in /proc.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A process: its PID, and its start time in clock ticks since boot (`starttime` in `proc_pid_stat(5)`). The start time
/// distinguishes it from a later process with the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// PID in the PID namespace of the calling process.
    pub pid: u32,
    /// Start time, as in `/proc/PID/stat`.
    pub start: u64,
}

impl Process {
    /// Parses `PID:START`.
    pub(crate) fn parse(text: &str) -> Option<Process> {
        let (pid, start) = text.split_once(':')?;
        let process = Process { pid: pid.parse().ok()?, start: start.parse().ok()? };
        (1..=i32::MAX as u32).contains(&process.pid).then_some(process)
    }

    /// Returns true if the process has exited; false if that cannot be determined.
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: signal 0 only checks that the target exists.
        let result = unsafe { libc::kill(self.pid as libc::pid_t, 0) };
        if result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return true;
        }
        let Ok(stat) = fs::read(format!("/proc/{}/stat", self.pid)) else { return false };
        state_and_start(&stat).is_some_and(|(state, start)| start != self.start || matches!(state, b'Z' | b'X' | b'x'))
    }
}

/// Returns the major and minor number of the running kernel, such as 6 and 17.
pub(crate) fn kernel_version() -> Option<(u32, u32)> {
    let (_, release) = host_and_release();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().ok());
    numbers.next().flatten().zip(numbers.next().flatten())
}

/// Returns a section of this library or libc in place; `None` if `code` belongs to another library. The address comes
/// from the library's own headers. No copy is needed, because our handlers never run after either library is unmapped.
pub(crate) fn section_in_place(code: &Range<u64>, address: u64, size: u64) -> Option<&'static [u8]> {
    let known_functions = [section_in_place as *const () as u64, libc::getpid as *const () as u64];
    if !known_functions.iter().any(|function| code.contains(function)) {
        return None;
    }
    // SAFETY: the loader has mapped the section read-only at this address, and never unmaps it.
    Some(unsafe { std::slice::from_raw_parts(address as *const u8, usize::try_from(size).ok()?) })
}

/// Returns the load address of the library or program that contains `address`. Calls the loader, so it must not be
/// called under locks or in a fork child.
pub(crate) fn object_base(address: *const c_void) -> Option<*const u8> {
    let mut object = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` accepts any address, and `object` is writable.
    let result = unsafe { libc::dladdr(address, object.as_mut_ptr()) };
    // SAFETY: `object` was zeroed, and it is valid whether or not `dladdr` has written to it.
    (result != 0).then(|| unsafe { object.assume_init() }.dli_fbase.cast_const().cast())
}

/// Returns the load address of the library or program that a call of this function reaches.
pub(crate) fn symbol_object_base(function: &CStr) -> Option<*const u8> {
    // SAFETY: the name is NUL-terminated.
    object_base(unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) })
}

/// Returns true if a seccomp filter may refuse system calls of this process, or kill it for them.
pub(crate) fn has_seccomp_filter() -> bool {
    // SAFETY: the call returns the mode. In strict mode it would kill the process, which could not have got here.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// Returns the wait status of the main thread, if it has exited by itself; 0 after `pthread_exit`, or if unknown.
pub(crate) fn main_thread_status() -> i32 {
    let stat = fs::read("/proc/self/stat").unwrap_or_default();
    fields_after_name(&stat).and_then(Iterator::last).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// True if the process has standard input, output and error.
pub(crate) fn are_standard_descriptors_open() -> bool {
    // SAFETY: `F_GETFD` only reads flags, and a closed descriptor is allowed.
    (0..3).all(|descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0)
}

/// Returns the maximum size of the main thread's stack. The kernel keeps at least 128 MiB below the stack's end free of
/// other mappings (`mmap_base` in the kernel's `arch/x86/mm/mmap.c`, `mm/util.c`).
pub(crate) fn main_stack_limit() -> u64 {
    const DEFAULT_BYTES: u64 = 8 << 20;
    const MAX_BYTES: u64 = 128 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `getrlimit` writes the limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return 0;
    }
    if limit.rlim_cur == libc::RLIM_INFINITY { DEFAULT_BYTES } else { limit.rlim_cur.min(MAX_BYTES) }
}

/// Returns the name of this machine, and the kernel's release.
pub(crate) fn host_and_release() -> (String, String) {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the call writes to valid memory.
    unsafe { libc::uname(names.as_mut_ptr()) };
    // SAFETY: the structure consists of bytes; they are zeros if the call has failed.
    let names = unsafe { names.assume_init() };
    // SAFETY: the kernel terminates the fields.
    let text = |field: &[libc::c_char]| unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned();
    (text(&names.nodename), text(&names.release))
}

/// Returns the name of the calling thread.
pub(crate) fn caller_name() -> Vec<u8> {
    let mut name = [0_u8; 17];
    // SAFETY: `PR_GET_NAME` writes at most sixteen bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&name).map_or(Vec::new(), |name| name.to_bytes().to_vec())
}

/// Returns the fields of `/proc/PID/stat` after the second one, which is a name in parentheses and may contain
/// anything.
fn fields_after_name(stat: &[u8]) -> Option<std::str::SplitWhitespace<'_>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_whitespace())
}

/// Returns the state and the start time: fields 3 and 22 of `/proc/PID/stat`.
fn state_and_start(stat: &[u8]) -> Option<(u8, u64)> {
    let mut fields = fields_after_name(stat)?;
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Programs that start another program as a child and wait for it. Children of any other program are not
/// recorded, because otherwise a `popen` would take over the recording.
const LAUNCHERS: [&str; 30] = [
    "bash", "busybox", "bwrap", "dash", "find", "fish", "flock", "gdb", "just", "ksh", "lldb", "ltrace", "make",
    "mksh", "perf", "pixi", "rr", "script", "setsid", "sh", "strace", "tcsh", "time", "timeout", "tini", "unshare",
    "uv", "watch", "xargs", "zsh",
];

/// Returns true if a process runs a known launcher, with or without a version in its name (`perf_6.1`). `pid` may be
/// `self`.
pub fn is_launcher(pid: &str) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let base_name = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || "._-".contains(letter));
    LAUNCHERS.contains(&base_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process_of(pid: u32) -> Process {
        let (_, start) = state_and_start(&fs::read(format!("/proc/{pid}/stat")).unwrap()).unwrap();
        Process { pid, start }
    }

    #[test]
    fn zombies_and_later_processes_with_the_same_pid_have_ended() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = process_of(child.id());
        assert_eq!(Process::parse(&format!("{}:{}", process.pid, process.start)), Some(process));
        assert!(!process.has_ended() && Process { start: process.start + 1, ..process }.has_ended());
        child.kill().unwrap();
        while !fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(process.has_ended(), "not waited for yet");
        child.wait().unwrap();
        assert!(process.has_ended());
    }

    #[test]
    fn a_process_name_may_look_like_other_fields() {
        let fields: Vec<String> = (4..30).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) S 1) R {}", fields.join(" "));
        assert_eq!(state_and_start(stat.as_bytes()), Some((b'R', 22)));
        for invalid in ["", "1", "0:5", "4294967295:1", "1:", "x:1"] {
            assert_eq!(Process::parse(invalid), None, "{invalid}");
        }
    }
}
