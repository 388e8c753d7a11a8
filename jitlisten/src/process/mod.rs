//! Host safety: running inside a process that belongs to someone else.
//!
//! | module | safeguard |
//! | --- | --- |
//! | [`checked_read`] | reads that cannot fault: `process_vm_readv(2)` returns an error where a load would crash |
//! | [`host_state`] | signals and cancellation are deferred while a thread runs our code; `errno` is restored |
//! | [`checked_file`] | the host may close our **descriptors** and reuse their numbers: see below |
//! | [`reserve`] | Rust aborts when an allocation fails: see below |
//! | [`write_nosignal`] | signals raised by our writes are consumed: `SIGXFSZ` (size limit), `SIGPIPE` (no reader) |
//! | [`across_fork`] | the locks of session, shim and sampler are held across `fork(2)` |
//! | [`fork_gate`] | a fork waits while we enumerate libraries: glibc 2.36 does not reset `dl_load_write_lock` |
//! | [`clock`] | direct system call: libfaketime may stop libc's clock, and a timeout would never expire |
//! | [`published`] | tables for signal handlers: lock-free, allocation-free |
//! | [`privilege`] | set-user-ID programs are left untouched |
//!
//! **Descriptors**: a number that now refers to another file is neither written to nor closed, and our file is
//! reopened. Our numbers are above three quarters of the limit, far from those that programs print or compare.
//!
//! **Allocation**: the heap of the library (`capi/src/heap`) has a reserve of 1 MiB for the work in progress; while
//! memory is short, new objects are refused and counted. Rust programs that link the crate use their own allocator
//! instead.
//!
//! **Planted files**: every file is opened with `O_NOFOLLOW`, new files with `O_EXCL`, in directories that we created.
//! An existing perf map or log must be a regular file that we own and that has a single link. The mode is set again
//! after creation, because a umask may clear bits that we need.
//!
//! **`_Fork`, `clone`** call no `pthread_atfork` handlers, so the PID is checked at each event.
//!
//! **seccomp**: `EPERM` and `ENOSYS` are tolerated. A filter that kills the process must allow the calls listed in
//! `docs/production.md`.
//!
//! **User changes** (`setuid`): the effective user is checked at each event, like the PID.
//!
//! `tests/safeguards.tsv` lists each safeguard with the test that fails without it.

pub(crate) mod across_fork;
pub(crate) mod checked_file;
pub mod checked_read;
pub(crate) mod clock;
pub mod elf;
pub(crate) mod file_mapping;
pub(crate) mod fork_gate;
pub(crate) mod host_state;
pub(crate) mod mappings;
pub(crate) mod memory_writers;
pub(crate) mod privilege;
pub(crate) mod published;
pub(crate) mod remote_file;
pub(crate) mod reserve;
pub(crate) mod write_nosignal;

/// Runs `test` in a child process without other test threads, and returns its result.
#[cfg(test)]
#[allow(unsafe_code)]
pub(crate) fn in_child(test: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has only this thread, which runs the test and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).unwrap_or(false);
        // SAFETY: the call ends the child process.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    let mut status = 0;
    // SAFETY: the call waits for the child forked above.
    unsafe { libc::waitpid(child, &raw mut status, 0) == child && status == 0 }
}

/// Allocates an executable page filled with `ret` (x86-64).
#[cfg(test)]
#[allow(unsafe_code)]
pub(crate) fn page_of_code() -> crate::AddressRange {
    let (flags, writable) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the call creates a new mapping, known only to the test.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 4096, writable, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping created above has this size and is writable.
    unsafe { start.cast::<u8>().write_bytes(0xc3, 4096) };
    // SAFETY: nothing else uses the mapping yet.
    assert_eq!(unsafe { libc::mprotect(start, 4096, libc::PROT_READ | libc::PROT_EXEC) }, 0);
    crate::AddressRange::new(crate::Address(start as u64), 4096).expect("an address of the kernel's")
}
