//! Safe points: whether a stopped thread may call `pthread_create` and `dlopen`, which allocate. It must not call them
//! while it is inside `malloc`, the loader, or a signal handler that may have interrupted one of these.
//!
//! ```text
//!   state of the thread                                            conclusion
//!   executes code outside libc, the loader and malloc libraries    none of their functions is active
//!   waits in a system call that these functions never wait in      only libc's wrapper of that call is active
//!   has a signal frame on its stack                                handler active, or stale frame: assume a handler
//! ```
//!
//! Some of these functions run callbacks while they are active: the loader calls constructors, for example, and `qsort`
//! a comparison function. Programs allocate in callbacks, too, so callbacks count as safe points.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::inject::signal_frame;
use crate::inject::trace::StoppedThread;
use crate::process::memory;
use crate::process::symbols::Symbols;
use crate::process::{Mapping, Process, is_libc};

/// Maximum size of a stack that is searched for signal frames.
const MAX_STACK_BYTES: u64 = 8 << 20;
/// Minimum free stack space: a signal frame with the largest vector registers, plus a system call.
const MIN_FREE_STACK_BYTES: u64 = 16 << 10;

/// System calls that wait for external events. Neither `malloc` nor the loader waits in these calls.
#[cfg(target_arch = "x86_64")]
const WAITING_CALLS: &[libc::c_long] = &[
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
const WAITING_CALLS: &[libc::c_long] = &[];
/// Further system calls that are harmless if the process uses libc's `malloc`. Other allocators sleep between attempts
/// to take a lock. A sleep that was interrupted, perhaps by an earlier check of ours, continues as `restart_syscall`.
const SLEEPING_CALLS: &[libc::c_long] = &[libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_restart_syscall];

/// Code in which a thread must not be used for calls, and the stacks of the process.
pub(crate) struct SafePoints {
    forbidden_code: Vec<Range<u64>>,
    has_own_malloc: bool,
    stacks: Stacks,
}

impl SafePoints {
    pub(crate) fn find(process: &Process) -> SafePoints {
        let defines_malloc =
            |path: &Path| Symbols::open(process, path).is_some_and(|symbols| symbols.defined(&["malloc"]) == [true]);
        let is_loader = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld"));
        let is_system_library = |path: &&Path| is_libc(path) || is_loader(path);
        let libraries: BTreeSet<&Path> = process.libraries().into_iter().collect();
        let (system_libraries, other_libraries): (BTreeSet<&Path>, BTreeSet<&Path>) =
            libraries.into_iter().partition(is_system_library);
        let allocators: BTreeSet<&Path> = other_libraries.into_iter().filter(|path| defines_malloc(path)).collect();
        let code = process.mappings.iter().filter(|mapping| mapping.is_executable);
        let is_forbidden = |path: &Path| system_libraries.contains(path) || allocators.contains(path);
        let code = code.filter(|mapping| is_forbidden(&mapping.path)).map(|mapping| mapping.start..mapping.end);
        SafePoints {
            forbidden_code: code.collect(),
            has_own_malloc: !allocators.is_empty(),
            stacks: Stacks::new(process),
        }
    }

    /// Returns the reason why the thread cannot be used, after giving it a short time to reach a safe point.
    pub(crate) fn refusal(&self, process: &Process, thread: &mut StoppedThread) -> io::Result<Option<&'static str>> {
        // Some programs spend nearly all their time in `malloc`.
        thread.resume_until(|pc| self.is_outside_forbidden_code(pc))?;
        let (pc, sp) = thread.pc_and_sp();
        Ok(match thread.blocking_syscall() {
            Some((call, second_argument))
                if !self.is_outside_forbidden_code(pc) && !self.is_harmless(call, second_argument) =>
            {
                Some("in a system call or a lock")
            }
            None if !self.is_outside_forbidden_code(pc) => Some("in the C library"),
            _ => match self.stacks.has_signal_frame(process, sp) {
                Some(false) => None,
                Some(true) => Some(IN_HANDLER_REASON),
                None => Some("on a stack that cannot be read"),
            },
        })
    }

    fn is_outside_forbidden_code(&self, pc: u64) -> bool {
        !self.forbidden_code.iter().any(|range| range.contains(&pc))
    }

    fn is_harmless(&self, call: u64, second_argument: u64) -> bool {
        // glibc's locks wait with FUTEX_WAIT. Its condition variables, semaphores and thread joins use
        // FUTEX_WAIT_BITSET.
        const FUTEX_WAIT_BITSET: u64 = 9;
        const FUTEX_OPTION_BITS: u64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;
        let is_listed_in = |calls: &[libc::c_long]| calls.contains(&(call as libc::c_long));
        let is_condition = call == libc::SYS_futex as u64 && second_argument & !FUTEX_OPTION_BITS == FUTEX_WAIT_BITSET;
        is_listed_in(WAITING_CALLS) || !self.has_own_malloc && (is_listed_in(SLEEPING_CALLS) || is_condition)
    }
}

const IN_HANDLER_REASON: &str = "in a signal handler";

/// Stacks of a process, and the return addresses that mark signal frames on them.
pub(crate) struct Stacks {
    mappings: Vec<Mapping>,
    restorers: Vec<u64>,
}

impl Stacks {
    pub(crate) fn new(process: &Process) -> Stacks {
        let libc = process.mappings.iter().filter(|mapping| mapping.is_executable && is_libc(&mapping.path));
        let restorers = libc.flat_map(|mapping| signal_frame::find_restorers(process, &(mapping.start..mapping.end)));
        Stacks { restorers: restorers.collect(), mappings: process.mappings.clone() }
    }

    /// Returns the reason why no call can be made on the thread's current stack. A signal stack may be nearly full.
    pub(crate) fn refusal(&self, process: &Process, thread: &StoppedThread) -> Option<&'static str> {
        let (_, sp) = thread.pc_and_sp();
        match self.find_mapping(sp) {
            Some(mapping) if mapping.is_main_stack => None,
            Some(mapping) if sp < mapping.start + MIN_FREE_STACK_BYTES => Some("on a stack without room"),
            Some(_) if self.has_signal_frame(process, sp) == Some(false) => None,
            Some(_) => Some(IN_HANDLER_REASON),
            None => Some("on no stack"),
        }
    }

    /// Finds the mapping that contains the stack pointer. The main stack may have grown below its recorded start.
    fn find_mapping(&self, sp: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| sp < mapping.end)
    }

    fn has_signal_frame(&self, process: &Process, sp: u64) -> Option<bool> {
        let size = self.find_mapping(sp)?.end - sp;
        let bytes =
            memory::read(process.pid, sp, usize::try_from(size).ok().filter(|_| size <= MAX_STACK_BYTES)?).ok()?;
        let is_restorer = |word: &[u8]| self.restorers.iter().any(|address| address.to_le_bytes() == word);
        let mut words = bytes.chunks_exact(8).enumerate().filter(|(_, word)| is_restorer(word));
        Some(words.any(|(number, _)| signal_frame::is_signal_frame(&bytes[number * 8..])))
    }
}
