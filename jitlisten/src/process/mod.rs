//! Host safety: living in a process that is not ours.
//!
//! | module | safeguard |
//! | --- | --- |
//! | [`checked_read`] | reads that cannot fault: `process_vm_readv(2)` returns an error where a load would be a crash |
//! | [`host_state`] | signals and cancellation wait while a thread is in our code; `errno` is restored |
//! | [`checked_file`] | **descriptors** may be closed by the host, and become other files: see below |
//! | [`reserve`] | Rust aborts when an allocation fails: see below |
//! | [`write_nosignal`] | our signals are consumed: `SIGXFSZ` at a file size limit, `SIGPIPE` of a log's reader |
//! | [`across_fork`] | the session's, the shim's and the sampler's locks are held across `fork(2)` |
//! | [`fork_gate`] | a fork waits until no thread of ours lists libraries: glibc 2.36 keeps `dl_load_write_lock` |
//! | [`clock`] | a system call in assembly: libfaketime may stop libc's clock, and a quarantine would never end |
//! | [`published`] | tables for signal handlers, which take no lock and allocate nothing |
//! | [`privilege`] | nothing happens in set-user-ID programs |
//!
//! **Descriptors**: a number that has become another file is neither written to nor closed, and our file is opened
//! again. Numbers are above three quarters of the limit, away from those that programs print or compare.
//! **Allocation**: the library's heap (`capi/src/heap`) has a reserve of 1 MiB for the current work, and new objects
//! are refused, and counted, while memory is short. A Rust program that links the crate has its own allocator instead.
//!
//! **Planted files**: everything is opened with `O_NOFOLLOW`, new files with `O_EXCL`, in directories that we created;
//! an existing perf map or log must be a regular file of ours with one name. The mode is set again after creation,
//! because a umask may clear bits that we need. **`_Fork`, `clone`** call no `pthread_atfork` handler, so the PID is
//! compared at each object. **seccomp**: `EPERM` and `ENOSYS` are tolerated; a filter that kills must allow the calls
//! in `docs/production.md`. **Another user** (`setuid`): the effective user is compared at each verb, like the PID.
//!
//! `tests/safeguards.tsv` lists each safeguard with the test that fails without it.

pub(crate) mod across_fork;
pub(crate) mod alone;
pub(crate) mod checked_file;
pub mod checked_read;
pub(crate) mod clock;
pub mod elf;
pub(crate) mod fork_gate;
pub(crate) mod host_state;
pub(crate) mod mappings;
pub(crate) mod privilege;
pub(crate) mod published;
pub(crate) mod reserve;
pub(crate) mod write_nosignal;

/// What `test` says in a child of this process, where no other test runs.
#[cfg(test)]
pub(crate) fn in_child(test: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has this thread only, runs the test, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = 0;
    // SAFETY: the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) == child && status == 0 }
}

/// A page of `ret` (on x86-64), which may run.
#[cfg(test)]
pub(crate) fn page_of_code() -> crate::AddressRange {
    let (flags, writable) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: new memory, which only the test knows.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 4096, writable, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: that memory.
    unsafe { start.cast::<u8>().write_bytes(0xc3, 4096) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mprotect(start, 4096, libc::PROT_READ | libc::PROT_EXEC) }, 0);
    crate::AddressRange::new(crate::Address(start as u64), 4096).expect("an address of the kernel's")
}
