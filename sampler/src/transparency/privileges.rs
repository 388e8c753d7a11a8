//! Interposed calls that drop privileges needed by a recording, and `syscall(2)`, which can make any of these calls.
//!
//! ```text
//!   prctl, seccomp                          a seccomp filter: the recording ends before the call
//!   setuid and its variants, chroot         the file of a child without samples is created before the call
//!   unshare, setns                          the writer thread exits before the call, and a new one starts after it
//!   prctl, capset: capabilities             the same, so that the writer has those of the caller
//! ```
//!
//! Capabilities belong to a thread. libc makes `setgroups(2)` in all threads, and aborts if only some may do that.

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::plumbing::{HostStateGuard, checked_read};
use jitlisten::{Address, log_line};

use crate::recording::{current, pause};
use crate::transparency::next::interpose;
use crate::transparency::{exit, fatal};

/// True if the program has a seccomp filter that may kill it for one of our system calls.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Returns true if this process should make no system call that the program itself does not make.
pub fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Acquire)
}

/// `struct sock_fprog`
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    length: u16,
    padding: [u16; 3],
    instructions: u64,
}

/// `struct sock_filter`
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    jumps: [u8; 2],
    constant: u32,
}

impl Instruction {
    /// Returns true for a return instruction with an action other than allowing, logging or refusing the call.
    fn may_end_process(&self) -> bool {
        const RETURN: u16 = 6;
        const SOURCE: u16 = 0x18;
        let action = self.constant & 0xffff_0000;
        let allows_survival =
            [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_LOG, libc::SECCOMP_RET_ERRNO].contains(&action);
        self.code & 7 == RETURN && (self.code & SOURCE != 0 || !allows_survival)
    }
}

/// Returns true if a filter may kill the process. Returns false for an unreadable filter, which the kernel refuses as
/// well.
fn may_end_process(filter: u64) -> bool {
    // SAFETY: the struct has only integers, so all bytes are valid.
    let Ok(program) = (unsafe { checked_read::copy_struct::<Program>(Address(filter)) }) else { return false };
    let length = usize::from(program.length);
    // SAFETY: the struct has only integers, so all bytes are valid.
    let instructions = unsafe { checked_read::copy_structs::<Instruction>(Address(program.instructions), length) };
    instructions.is_ok_and(|instructions| instructions.iter().any(Instruction::may_end_process))
}

/// Ends the recording before `prctl(PR_SET_SECCOMP, mode, filter)`.
pub(crate) fn prepare_seccomp(mode: c_long, filter: u64) {
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(|| {
        if let Some(recording) = current::own() {
            log_line!(Error, "the recording of this process ends: it installs a seccomp filter");
            exit::end_recording_and_writer(recording);
            fatal::restore_defaults();
        }
        if mode == libc::SECCOMP_MODE_STRICT.into() || may_end_process(filter) {
            IS_CONFINED.store(true, Ordering::Release);
        }
    });
}

/// Ends the recording before `seccomp(operation, flags, filter)`.
pub(crate) fn prepare_seccomp_call(operation: c_long, filter: u64) {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => prepare_seccomp(libc::SECCOMP_MODE_STRICT.into(), 0),
        libc::SECCOMP_SET_MODE_FILTER => prepare_seccomp(libc::SECCOMP_MODE_FILTER.into(), filter),
        _ => {}
    }
}

/// Creates the file before the process changes its user or root, because it may lack the permission afterwards.
pub(crate) fn create_pending_file() {
    let Some(recording) = current::own().filter(|recording| !recording.has_file()) else { return };
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(|| {
        recording.requests.file.store(true, Ordering::Release);
        recording.write_samples(exit::WRITER_TIMEOUT_NS);
    });
}

/// Returns true if the kernel refuses `unshare(flags)` to a multithreaded process.
fn needs_one_thread(flags: c_long) -> bool {
    flags & c_long::from(libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM) != 0
}

/// Returns true if `prctl(option, ..)` changes what the calling thread alone may do.
fn changes_capabilities(option: c_long) -> bool {
    let options = [libc::PR_SET_KEEPCAPS, libc::PR_SET_SECUREBITS, libc::PR_CAPBSET_DROP, libc::PR_CAP_AMBIENT];
    options.iter().any(|&changing| c_long::from(changing) == option)
}

/// Prepares for a system call that the program issues through `syscall(2)`, then invokes `call` to perform it.
fn make_system_call(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    call: impl FnOnce() -> c_long,
) -> c_long {
    match number {
        libc::SYS_exit => exit::end_thread(),
        libc::SYS_exit_group => exit::end_recording(),
        libc::SYS_prctl if first == libc::PR_SET_SECCOMP.into() => prepare_seccomp(second, third as u64),
        libc::SYS_seccomp => prepare_seccomp_call(first, third as u64),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_chroot => create_pending_file(),
        libc::SYS_execve | libc::SYS_execveat => exit::prepare_exec(|| true),
        _ => {}
    }
    let result = match number {
        libc::SYS_unshare if needs_one_thread(first) => pause::single_threaded(call),
        libc::SYS_setns => pause::single_threaded(call),
        libc::SYS_capset => pause::without_writer(call),
        libc::SYS_prctl if changes_capabilities(first) => pause::without_writer(call),
        _ => call(),
    };
    if matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        exit::resume_after_failed_exec();
    }
    result
}

/// Creates a pending file, then invokes `call`, which changes the user or the root directory.
fn drop_privileges(call: impl FnOnce() -> c_int) -> c_int {
    create_pending_file();
    call()
}

interpose! {
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long,
        |call| make_system_call(number, a, b, c, call);
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int, |call| {
        if option == libc::PR_SET_SECCOMP {
            prepare_seccomp(a as c_long, b);
        }
        if changes_capabilities(option.into()) { pause::without_writer(call) } else { call() }
    };
    capset(header: *mut c_void, data: *const c_void) -> c_int, |call| pause::without_writer(call);
    unshare(flags: c_int) -> c_int,
        |call| if needs_one_thread(flags.into()) { pause::single_threaded(call) } else { call() };
    setns(descriptor: c_int, kind: c_int) -> c_int, |call| pause::single_threaded(call);
    setuid(user: libc::uid_t) -> c_int, |call| drop_privileges(call);
    seteuid(user: libc::uid_t) -> c_int, |call| drop_privileges(call);
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int, |call| drop_privileges(call);
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int, |call| drop_privileges(call);
    chroot(path: *const c_char) -> c_int, |call| drop_privileges(call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_only_refuse_calls_end_nothing() {
        let instruction = |code, constant| Instruction { code, jumps: [0; 2], constant };
        let may_end = |instructions: &[Instruction]| {
            let length = instructions.len() as u16;
            let program = Program { length, padding: [0; 3], instructions: instructions.as_ptr() as u64 };
            may_end_process(&raw const program as u64)
        };
        let load = instruction(0x20, 0);
        let (allow, refuse) = (instruction(6, libc::SECCOMP_RET_ALLOW), instruction(6, libc::SECCOMP_RET_ERRNO | 1));
        assert!(!may_end(&[load, refuse, allow]));
        for action in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_KILL_THREAD, libc::SECCOMP_RET_TRAP] {
            assert!(may_end(&[load, instruction(6, action), allow]));
        }
        assert!(may_end(&[load, instruction(0x16, 0)]), "an action that is computed");
        assert!(!may_end_process(1), "the kernel returns an error");
    }
}
