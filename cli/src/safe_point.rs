//! Whether a stopped thread may call `pthread_create` and `dlopen`, which allocate: not while it is inside of `malloc`,
//! of the loader, or of a signal handler, which may have interrupted these.
//!
//! ```text
//!   is outside of libc, the loader and files that define malloc       none of their functions is active
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
use crate::process::{Mapping, Process, is_libc};
use crate::signal_frame;
use crate::symbols::Symbols;
use crate::trace::Stopped;

/// More of a stack is not read.
const MOST_STACK: u64 = 8 << 20;
/// A signal frame with the vector registers of any machine, and a system call.
const MIN_ROOM: u64 = 16 << 10;

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
    has_own_malloc: bool,
    stacks: Stacks,
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
        SafePoints { code: code.collect(), has_own_malloc: !allocators.is_empty(), stacks: Stacks::of(process) }
    }

    /// Why the thread must not be disturbed where it is, or a little later.
    pub(crate) fn refuse(&self, process: &Process, thread: &mut Stopped) -> io::Result<Option<&'static str>> {
        // A program may be in `malloc` nearly always.
        thread.run_on(|at| self.is_outside(at))?;
        let (at, stack) = thread.place();
        Ok(match thread.waits_in() {
            Some((call, second)) if !self.is_outside(at) && !self.is_harmless(call, second) => {
                Some("in a system call or a lock")
            }
            None if !self.is_outside(at) => Some("in the C library"),
            _ => match self.stacks.has_signal_frame(process, stack) {
                Some(false) => None,
                Some(true) => Some(IN_HANDLER),
                None => Some("on a stack that cannot be read"),
            },
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
}

const IN_HANDLER: &str = "in a signal handler";

/// The stacks of a process.
pub(crate) struct Stacks {
    mappings: Vec<Mapping>,
    returns: Vec<u64>,
}

impl Stacks {
    pub(crate) fn of(process: &Process) -> Stacks {
        let libc = process.mappings.iter().filter(|mapping| mapping.is_executable && is_libc(&mapping.path));
        let returns = libc.flat_map(|mapping| signal_frame::returns_in(process, &(mapping.start..mapping.end)));
        Stacks { returns: returns.collect(), mappings: process.mappings.clone() }
    }

    /// Why no call can be made on the thread's own stack. A signal stack may be nearly full.
    pub(crate) fn refuse(&self, process: &Process, thread: &Stopped) -> Option<&'static str> {
        let (_, stack) = thread.place();
        match self.at(stack) {
            Some(mapping) if mapping.is_main_stack => None,
            Some(mapping) if stack < mapping.start + MIN_ROOM => Some("on a stack without room"),
            Some(_) if self.has_signal_frame(process, stack) == Some(false) => None,
            Some(_) => Some(IN_HANDLER),
            None => Some("on no stack"),
        }
    }

    /// The mapping of this stack; the main one may begin further down by now.
    fn at(&self, stack: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| stack < mapping.end)
    }

    fn has_signal_frame(&self, process: &Process, stack: u64) -> Option<bool> {
        let size = self.at(stack)?.end - stack;
        let bytes =
            memory::read(process.pid, stack, usize::try_from(size).ok().filter(|_| size <= MOST_STACK)?).ok()?;
        let returns = |word: &[u8]| self.returns.iter().any(|address| address.to_le_bytes() == word);
        let mut words = bytes.chunks_exact(8).enumerate().filter(|(_, word)| returns(word));
        Some(words.any(|(number, _)| signal_frame::is_whole(&bytes[number * 8..])))
    }
}
