//! Host safety: living in a process that is not ours.
//!
//! | module | safeguard |
//! | --- | --- |
//! | [`checked_read`] | reads that cannot fault: `process_vm_readv(2)` returns an error where a load would be a crash |
//! | [`host_state`] | signals and cancellation wait while a thread is in our code; `errno` is put back |
//! | [`checked_file`] | **descriptors** are the host's to close: a number that means another file by now is neither written to nor closed, and our file is opened again. Numbers are above three quarters of the limit, out of the way of programs that print or compare theirs |
//! | [`reserve`] | Rust ends the process when an allocation fails, so the library's heap (`capi/src/heap`) has a reserve of 1 MiB for the work at hand, and objects are refused, and counted, while there is too little for them. A Rust program that links the crate has its own allocator instead |
//! | [`write_nosignal`] | signals of our own making (`SIGXFSZ` past a file size limit, `SIGPIPE` of a log's reader) are taken off again |
//! | [`across_fork`] | the session's, the shim's and the sampler's locks are held across `fork(2)` |
//! | [`fork_gate`] | a fork waits until no thread of ours lists libraries: glibc 2.36 does not give the child the loader's `dl_load_write_lock` anew |
//! | [`clock`] | the system call, made in assembly: libfaketime may stop the C library's, and a quarantine would never end |
//! | [`published`] | what signal handlers search: they take no lock and no memory |
//! | [`privilege`] | nothing happens in set-user-ID programs |
//!
//! **Planted files**: everything is opened with `O_NOFOLLOW`, new files with `O_EXCL`, in directories made by us; a perf map or a
//! log that exists must be a regular file of ours with one name. The mode is set after the fact, too, because an umask can take
//! away what we need. **`_Fork`, `clone`**: no handler of `pthread_atfork` is called, so the process number is compared at each
//! object. **seccomp**: `EPERM` and `ENOSYS` are lived with; a filter that kills
//! has to allow the calls in `docs/production.md`. **Another user** (`setuid`): the effective user is compared at each verb, like the
//! process number.
//!
//! `tests/safeguards.tsv` lists each safeguard with the test that fails without it.

pub(crate) mod across_fork;
pub(crate) mod checked_file;
pub mod checked_read;
pub(crate) mod clock;
pub(crate) mod fork_gate;
pub(crate) mod host_state;
pub(crate) mod mappings;
pub(crate) mod privilege;
pub(crate) mod published;
pub(crate) mod reserve;
pub(crate) mod write_nosignal;
