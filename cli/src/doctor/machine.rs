//! Findings about the system: permissions of perf and ptrace, gdb, directories, glibc.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use super::Finding;
use crate::command;
use crate::sinks::is_writable;

/// Properties of the system that affect tools.
pub(super) struct Machine {
    pub(super) findings: Vec<Finding>,
    pub(super) can_use_perf: bool,
    pub(super) can_trace: bool,
    /// Major version of gdb, if it is installed.
    pub(super) gdb: Option<u32>,
    pub(super) perf_maps: bool,
    pub(super) images: bool,
}

impl Machine {
    pub(super) fn examine() -> Machine {
        let (perf, can_use_perf) = examine_perf();
        let (ptrace, can_trace) = examine_ptrace();
        let (gdb_finding, gdb) = examine_gdb();
        let perf_maps = is_writable(Path::new("/tmp"));
        let (image_finding, images) = examine_image_directory();
        let perf_map_finding = if perf_maps {
            Finding::ok("perf maps", "go to /tmp")
        } else {
            Finding::no("perf maps", "/tmp is not writable", "mount a writable /tmp, or use images")
        };
        let findings = vec![perf, ptrace, gdb_finding, perf_map_finding, image_finding, glibc()];
        Machine { findings, can_use_perf, can_trace, gdb, perf_maps, images }
    }
}

fn first_output_line(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).env_remove("LD_PRELOAD").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn examine_perf() -> (Finding, bool) {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let paranoid = paranoid.trim();
    let permission = open_perf_event();
    let Some(program) = command::find("perf".as_ref()) else {
        let advice = "install linux-perf (Debian), linux-tools-generic (Ubuntu) or perf (Fedora)";
        return (Finding::no("perf", "is not installed", advice), false);
    };
    let version = first_output_line(&program, "--version");
    if version.is_empty() {
        let advice = "Ubuntu: install linux-tools-generic and use a perf from /usr/lib/linux-tools*";
        return (Finding::no("perf", "does not run", advice), false);
    }
    let finding = match permission {
        Ok(()) if command::has_capabilities(&program) => Finding::note(
            "perf",
            format!("{version} with file capabilities"),
            "put it first: perf record -g jitlisten run -- python prog.py",
        ),
        Ok(()) => Finding::ok("perf", format!("{version}, can profile this user's processes")),
        Err(libc::EACCES | libc::EPERM) if is_filtered() => {
            let advice = "start the container with --cap-add PERFMON, or a seccomp profile that allows perf_event_open";
            Finding::no("perf", format!("{version}, but a seccomp filter forbids perf_event_open"), advice)
        }
        Err(libc::EACCES | libc::EPERM) => Finding::no(
            "perf",
            format!("{version}, but kernel.perf_event_paranoid is {paranoid}"),
            "sudo sysctl kernel.perf_event_paranoid=2, or give perf the capability CAP_PERFMON",
        ),
        Err(error) => {
            let error = std::io::Error::from_raw_os_error(error);
            Finding::no("perf", format!("{version}, but the kernel refuses: {error}"), "try another kernel or machine")
        }
    };
    (finding, permission.is_ok())
}

/// Opens a perf event for this process's user time, as `perf record -e cpu-clock:u` does.
fn open_perf_event() -> Result<(), i32> {
    // This is `PERF_ATTR_SIZE_VER0` of <linux/perf_event.h>. The words are type and size, config, two others, and
    // flags.
    const SIZE: usize = 64;
    let mut attributes = [0u64; SIZE / 8];
    // `PERF_TYPE_SOFTWARE` is 1; `PERF_COUNT_SW_CPU_CLOCK` is 0.
    attributes[0] = 1 | (SIZE as u64) << 32;
    // Flags: disabled, exclude_kernel, exclude_hv.
    attributes[5] = 1 | 1 << 5 | 1 << 6;
    // SAFETY: `attributes` has the size that it declares; the call creates a descriptor or fails.
    let descriptor = unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 8u64) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or_default());
    }
    // SAFETY: the descriptor was just created.
    unsafe { libc::close(descriptor as i32) };
    Ok(())
}

/// Returns true if a seccomp filter is active (`proc_pid_status(5)`).
fn is_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Returns true if `ptrace(2)` reaches the kernel's own checks. If no filter intercepts the call, it fails with `ESRCH`
/// for a PID that cannot exist.
fn may_call_ptrace() -> bool {
    // SAFETY: this request takes only numbers.
    unsafe { libc::ptrace(libc::PTRACE_SEIZE, i32::MAX, 0usize, 0usize) };
    !matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES))
}

fn examine_ptrace() -> (Finding, bool) {
    let is_root = geteuid().is_root();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        _ if !may_call_ptrace() => (
            Finding::no(
                "ptrace",
                "a seccomp filter forbids it: py-spy, gdb and attach cannot work here",
                "start the container with --cap-add SYS_PTRACE, or use them from outside",
            ),
            false,
        ),
        "" | "0" => (Finding::ok("ptrace", "this user's processes can be traced"), true),
        "1" if is_root => (Finding::ok("ptrace", "root can trace every process"), true),
        "1" => (
            Finding::note(
                "ptrace",
                "only child processes can be traced (kernel.yama.ptrace_scope is 1): py-spy and gdb must start the \
                 program",
                "to attach: sudo sysctl kernel.yama.ptrace_scope=0, or sudo py-spy, sudo gdb",
            ),
            false,
        ),
        "2" if is_root => (Finding::ok("ptrace", "root can trace every process"), true),
        scope => (
            Finding::no(
                "ptrace",
                format!("kernel.yama.ptrace_scope is {scope}: this user cannot trace any process"),
                "sudo sysctl kernel.yama.ptrace_scope=0 (3 needs a reboot)",
            ),
            false,
        ),
    }
}

fn examine_gdb() -> (Finding, Option<u32>) {
    let Some(program) = command::find("gdb".as_ref()) else {
        return (Finding::note("gdb", "is not installed", "install it to debug compiled code"), None);
    };
    let version = first_output_line(&program, "--version");
    let number = version.rsplit(' ').next().unwrap_or_default();
    let major = number.split('.').next().and_then(|major| major.parse().ok());
    let finding = match major {
        Some(15) => Finding::no(
            "gdb",
            format!("{number}, which does not see code that is compiled at run time (numba issue 9817)"),
            "use gdb 14, or 16 and newer, or its images: docs/gdb.md",
        ),
        Some(_) => Finding::ok("gdb", number),
        None => Finding::no("gdb", "does not run", "install it again"),
    };
    (finding, major)
}

fn examine_image_directory() -> (Finding, bool) {
    let default_directory = jitlisten::plumbing::default_directory();
    let Some(configured_directory) =
        std::env::var_os("JITLISTEN_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from)
    else {
        return examine_directory(&default_directory, true);
    };
    match examine_directory(&configured_directory, false) {
        // The image sink falls back to the default directory.
        (finding, false) if is_writable(&configured_directory) && examine_directory(&default_directory, true).1 => {
            let advice = finding.advice.unwrap_or_default();
            (
                Finding::note(
                    "images",
                    format!("{}; they go to {}", finding.found, default_directory.display()),
                    advice,
                ),
                true,
            )
        }
        result => result,
    }
}

/// Examines a directory for images. `can_be_created` is true for the default directory, which is created on demand.
fn examine_directory(directory: &Path, can_be_created: bool) -> (Finding, bool) {
    let exists = directory.is_dir() || !can_be_created;
    let existing_directory = if exists { directory } else { directory.parent().unwrap_or(Path::new("/")) };
    let path = directory.display();
    if !is_writable(existing_directory) {
        let advice = "set JITLISTEN_DIR to a writable directory";
        return (Finding::no("images", format!("{path} is not writable"), advice), false);
    }
    if is_noexec(existing_directory) {
        let advice = "set JITLISTEN_DIR to a directory on a file system without noexec";
        return (
            Finding::no("images", format!("{path} is mounted noexec: code cannot be mapped from there"), advice),
            false,
        );
    }
    (Finding::ok("images", format!("go to {path}, and can be mapped executable")), true)
}

fn is_noexec(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|status| status.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

fn glibc() -> Finding {
    // SAFETY: the function returns a pointer to a constant C string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    Finding::ok("glibc", version.to_string_lossy())
}
