//! A process that another one depends on, distinguished from a later process with the same PID; and facts about this
//! process: names by a system call, which takes a tenth of reading a file of /proc, and memory that stays mapped.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A process: its number, and when it started, in ticks of the kernel's clock since the boot (`starttime` of
/// `proc_pid_stat(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// As seen by the process that asks.
    pub pid: u32,
    /// Of `/proc/PID/stat`.
    pub start: u64,
}

impl Process {
    /// Parses `PID:START`.
    pub(crate) fn parse(text: &str) -> Option<Process> {
        let (pid, start) = text.split_once(':')?;
        let process = Process { pid: pid.parse().ok()?, start: start.parse().ok()? };
        (1..=i32::MAX as u32).contains(&process.pid).then_some(process)
    }

    /// Whether the process has ended; no where the system does not tell.
    pub(crate) fn has_ended(self) -> bool {
        // SAFETY: no signal is sent.
        let asked = unsafe { libc::kill(self.pid as libc::pid_t, 0) };
        if asked != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return true;
        }
        let Ok(stat) = fs::read(format!("/proc/{}/stat", self.pid)) else { return false };
        state_and_start(&stat).is_some_and(|(state, start)| start != self.start || matches!(state, b'Z' | b'X' | b'x'))
    }
}

/// Memory of a library that has code in `code`, by its own headers, if that is this library or libc. What their files
/// have need not be copied: no handler of ours runs where one of them was unmapped.
pub(crate) fn in_place(code: &Range<u64>, address: u64, size: u64) -> Option<&'static [u8]> {
    let needed = [in_place as *const () as u64, libc::getpid as *const () as u64];
    if !needed.iter().any(|function| code.contains(function)) {
        return None;
    }
    // SAFETY: the loader has mapped it as these headers say, read-only, and it stays.
    Some(unsafe { std::slice::from_raw_parts(address as *const u8, usize::try_from(size).ok()?) })
}

/// Where the library or program is loaded that has this address. Asks the loader: not under locks, nor in the child of
/// a fork.
pub(crate) fn object_of(address: *const c_void) -> Option<*const u8> {
    let mut object = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address, and writable memory for the result.
    let result = unsafe { libc::dladdr(address, object.as_mut_ptr()) };
    // SAFETY: zeros are a valid result, whatever was written over them.
    (result != 0).then(|| unsafe { object.assume_init() }.dli_fbase.cast_const().cast())
}

/// The library or program whose function of that name a program calls.
pub(crate) fn owner_of(function: &CStr) -> Option<*const u8> {
    // SAFETY: a terminated name.
    object_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) })
}

/// How the main thread has ended by itself, as `wait(2)` has it; 0 by `pthread_exit`, or if that is not known.
pub(crate) fn status_of_main_thread() -> i32 {
    let stat = fs::read("/proc/self/stat").unwrap_or_default();
    fields_after_name(&stat).and_then(Iterator::last).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// How large the main thread's stack may become. Below its end the kernel keeps 128 MiB or more free of other mappings
/// (`mmap_base` in the kernel's `arch/x86/mm/mmap.c`, `mm/util.c`).
pub(crate) fn main_stack_limit() -> u64 {
    const USUAL: u64 = 8 << 20;
    const MOST: u64 = 128 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return 0;
    }
    if limit.rlim_cur == libc::RLIM_INFINITY { USUAL } else { limit.rlim_cur.min(MOST) }
}

/// The name of this machine, and the kernel's release.
pub(crate) fn system() -> (String, String) {
    let mut found = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: writable memory for it.
    unsafe { libc::uname(found.as_mut_ptr()) };
    // SAFETY: bytes; zeros where the call has failed.
    let found = unsafe { found.assume_init() };
    // SAFETY: the kernel terminates them.
    let text = |field: &[libc::c_char]| unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned();
    (text(&found.nodename), text(&found.release))
}

/// The name of the calling thread.
pub(crate) fn own_name() -> Vec<u8> {
    let mut name = [0_u8; 17];
    // SAFETY: writes sixteen bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&name).map_or(Vec::new(), |name| name.to_bytes().to_vec())
}

/// The fields of `/proc/PID/stat` after the second one, a name in parentheses that may have anything in it.
fn fields_after_name(stat: &[u8]) -> Option<std::str::SplitWhitespace<'_>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_whitespace())
}

/// The third and the 22nd field of `/proc/PID/stat`.
fn state_and_start(stat: &[u8]) -> Option<(u8, u64)> {
    let mut fields = fields_after_name(stat)?;
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: u32) -> Process {
        let (_, start) = state_and_start(&fs::read(format!("/proc/{pid}/stat")).unwrap()).unwrap();
        Process { pid, start }
    }

    #[test]
    fn a_process_a_zombie_and_a_later_process_of_the_same_number() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = of(child.id());
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
    fn a_name_may_look_like_the_rest() {
        let fields: Vec<String> = (4..30).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) S 1) R {}", fields.join(" "));
        assert_eq!(state_and_start(stat.as_bytes()), Some((b'R', 22)));
        for other in ["", "1", "0:5", "4294967295:1", "1:", "x:1"] {
            assert_eq!(Process::parse(other), None, "{other}");
        }
    }
}
