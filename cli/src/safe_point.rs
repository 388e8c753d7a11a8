//! Whether a stopped thread may call `pthread_create` and `dlopen`, which allocate: not while it is inside of `malloc`,
//! of the loader, or of a signal handler, which may have interrupted these.
//!
//! ```text
//!   runs outside of libc, the loader and files that define malloc     none of their functions is active
//!   waits in a system call that they never wait in                    libc's wrapper of that call is active
//!   a signal frame on its stack                                       a handler, or a trace of one: not known
//! ```
//! The loader calls constructors, `qsort` its comparison, and so on: there the program allocates, too.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::memory;
use crate::process::{Process, is_libc};
use crate::symbols::Symbols;
use crate::trace::Stopped;

/// More of a stack is not read.
const MOST_STACK: u64 = 8 << 20;
/// glibc's `__restore_rt`, to which every handler returns: `mov $15, %rax; syscall`.
const RETURN_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Calls in which a thread waits for others, and neither `malloc` nor the loader does.
#[cfg(target_arch = "x86_64")]
const WAITS: &[libc::c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_pause,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_select,
    libc::SYS_semtimedop,
    libc::SYS_wait4,
    libc::SYS_waitid,
];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[libc::c_long] = &[];
/// The same, where `malloc` is libc's: others sleep between two looks at a lock. A sleep that was interrupted, by an
/// earlier look perhaps, goes on as another call.
const SLEEPS: &[libc::c_long] = &[libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_restart_syscall];

/// The code of a process that a thread must not be in.
pub(crate) struct SafePoints {
    code: Vec<Range<u64>>,
    returns: Vec<u64>,
    has_own_malloc: bool,
    mappings: Vec<Range<u64>>,
}

impl SafePoints {
    pub(crate) fn of(process: &Process) -> SafePoints {
        let defines_malloc =
            |path: &Path| Symbols::of(process, path).is_some_and(|symbols| symbols.defined(&["malloc"]) == [true]);
        let is_loader = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld"));
        let usual = |path: &&Path| is_libc(path) || is_loader(path);
        let libraries: BTreeSet<&Path> = process.libraries().into_iter().collect();
        let (usual, others): (BTreeSet<&Path>, BTreeSet<&Path>) = libraries.into_iter().partition(usual);
        let allocators: BTreeSet<&Path> = others.into_iter().filter(|path| defines_malloc(path)).collect();
        let code = process.mappings.iter().filter(|mapping| mapping.is_executable);
        let excluded = |path: &Path| usual.contains(path) || allocators.contains(path);
        let code = code.filter(|mapping| excluded(&mapping.path)).map(|mapping| mapping.start..mapping.end);
        let code: Vec<_> = code.collect();
        let returns = code.iter().flat_map(|range| returns_in(process, range)).collect();
        let mappings = process.mappings.iter().map(|mapping| mapping.start..mapping.end).collect();
        SafePoints { code, returns, has_own_malloc: !allocators.is_empty(), mappings }
    }

    /// Why the thread must not be disturbed where it is, or a little later.
    pub(crate) fn refuse(&self, process: &Process, thread: &mut Stopped) -> io::Result<Option<&'static str>> {
        match thread.waits_in() {
            Some((call, second)) if !self.is_harmless(call, second) => return Ok(Some("in a system call or a lock")),
            Some(_) => {}
            // A program may be in `malloc` nearly always.
            None => thread.step(|at| self.is_outside(at))?,
        }
        let (at, stack) = thread.place();
        Ok(match self.has_signal_frame(process, stack) {
            _ if thread.waits_in().is_none() && !self.is_outside(at) => Some("in the C library"),
            Some(false) => None,
            Some(true) => Some("in a signal handler"),
            None => Some("on a stack that cannot be read"),
        })
    }

    fn is_outside(&self, at: u64) -> bool {
        !self.code.iter().any(|range| range.contains(&at))
    }

    fn is_harmless(&self, call: u64, second: u64) -> bool {
        // glibc's own locks wait with FUTEX_WAIT; conditions, semaphores and ends of threads with this.
        const FUTEX_WAIT_BITSET: u64 = 9;
        const OPTIONS: u64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;
        let is = |calls: &[libc::c_long]| calls.contains(&(call as libc::c_long));
        let is_condition = call == libc::SYS_futex as u64 && second & !OPTIONS == FUTEX_WAIT_BITSET;
        is(WAITS) || !self.has_own_malloc && (is(SLEEPS) || is_condition)
    }

    fn has_signal_frame(&self, process: &Process, stack: u64) -> Option<bool> {
        // The main stack's begins further down by now, perhaps.
        let size = self.mappings.iter().find(|mapping| stack < mapping.end)?.end - stack;
        let bytes =
            memory::read(process.pid, stack, usize::try_from(size).ok().filter(|_| size <= MOST_STACK)?).ok()?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        Some(words.any(|word| self.returns.contains(&word)))
    }
}

fn returns_in(process: &Process, range: &Range<u64>) -> Vec<u64> {
    let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let bytes = memory::read(process.pid, range.start, size).unwrap_or_default();
    memchr::memmem::find_iter(&bytes, &RETURN_FROM_SIGNAL).map(|at| range.start + at as u64).collect()
}
