//! A perf counter of one thread, which sends the sampler's signal at each overflow.
//!
//! `perf_event_open(2)` opens the counter for the thread; `F_SETOWN_EX` and `F_SETSIG` (`fcntl(2)`) direct the signal
//! to it. After an overflow the counter is disabled until the handler has taken its sample (`PERF_EVENT_IOC_REFRESH`).
//! So at most one signal is pending, however long the thread blocks signals, and the handler itself is not counted. The
//! period of a sample is the count since the previous sample.
//!
//! The program may close our descriptor and open a file of its own with that number. Therefore each use first reads the
//! counter's id (`PERF_EVENT_IOC_ID`), which fails for another file.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use wire::perf_data::{ATTR_DISABLED, ATTR_EXCLUDE_HV, ATTR_EXCLUDE_KERNEL, ATTR_FREQ};

use crate::recording::event_name::Counter;
use crate::recording::process;
use crate::system::descriptors;

/// Request numbers `PERF_EVENT_IOC_*` of `linux/perf_event.h`.
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_REFRESH: libc::c_ulong = 0x2402;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const IOC_ID: libc::c_ulong = 0x8008_2407;
/// `fcntl` commands `F_SETSIG` and `F_SETOWN_EX`, and the owner type `F_OWNER_TID`, of `linux/fcntl.h`.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;
/// `PERF_FLAG_FD_CLOEXEC` of `linux/perf_event.h`.
const CLOEXEC: libc::c_ulong = 8;
/// `POLL_IN` and `POLL_HUP`: reasons why the kernel sends a descriptor's signal.
const POLL_IN: c_int = 1;
const POLL_HUP: c_int = 6;

/// Signal codes of file descriptor signals (`F_SETSIG`), from `POLL_IN` to `POLL_HUP`.
pub(crate) const SIGNAL_CODES: std::ops::RangeInclusive<c_int> = POLL_IN..=POLL_HUP;

/// `struct perf_event_attr` in its first version (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    /// Events per sample, or samples per second with `ATTR_FREQ`.
    rate: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// `struct f_owner_ex`: the thread that receives a descriptor's signals.
#[repr(C)]
struct SignalTarget {
    kind: c_int,
    tid: c_int,
}

/// Descriptors of counters are below this number.
const MAX_DESCRIPTORS: usize = 1 << 16;

struct OpenCounters {
    /// Slot index plus one, by file descriptor; 0 if none. A signal carries the descriptor, not the slot.
    slot_by_descriptor: [AtomicU32; MAX_DESCRIPTORS],
    count: AtomicU32,
}

/// The open counters. Static because late signals of an ended recording need them, too.
static OPEN_COUNTERS: OpenCounters =
    OpenCounters { slot_by_descriptor: [const { AtomicU32::new(0) }; MAX_DESCRIPTORS], count: AtomicU32::new(0) };

/// Returns the number of open counters.
pub(crate) fn open_count() -> u32 {
    OPEN_COUNTERS.count.load(Ordering::Relaxed)
}

/// An open counter of a thread: its descriptor and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenCounter {
    pub(crate) descriptor: c_int,
    pub(crate) id: u64,
}

impl Counter {
    /// Returns the counter if the kernel permits it; otherwise a variant that excludes the kernel
    /// (`perf_event_paranoid` above 1).
    ///
    /// # Errors
    /// The error of `perf_event_open(2)`, if the event cannot be counted for a thread.
    pub fn permitted(self, hz: u32) -> io::Result<Counter> {
        if self.may_hang_kernel() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        match self.open(0, hz, None) {
            Ok(descriptor) => {
                close(descriptor);
                Ok(self)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !self.user_only => {
                self.excluding_kernel().permitted(hz)
            }
            Err(error) => Err(error),
        }
    }

    /// True for a clock on a kernel that may hang when `PERF_EVENT_IOC_REFRESH` disables the clock within its own
    /// timer. Linux 6.18 has "perf/core: Fix system hang caused by cpu-clock usage"; see issue 1578 of async-profiler.
    pub(crate) fn may_hang_kernel(&self) -> bool {
        self.is_clock() && matches!(process::kernel_version(), Some((6, 16 | 17)))
    }

    /// Explains an error of [`Counter::permitted`] to a user.
    pub fn reason(error: &io::Error) -> &'static str {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                "the kernel does not allow it (/proc/sys/kernel/perf_event_paranoid above 2, or a container's \
                 seccomp); recording without an event needs no permission"
            }
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) => {
                "this machine does not have that counter, as many virtual machines have none; page-faults and other \
                 software events are everywhere"
            }
            _ if error.kind() == io::ErrorKind::Unsupported => {
                "Linux 6.16 and 6.17 may hang when a program uses such a clock; recording without an event needs none"
            }
            _ => "recording without an event needs no counter",
        }
    }

    /// Opens the counter for a thread (0: the calling thread) without enabling it.
    fn open(&self, tid: u32, hz: u32, first_period: Option<u64>) -> io::Result<c_int> {
        let period = first_period.or(self.period);
        let attributes = Attributes {
            kind: self.kind,
            size: size_of::<Attributes>() as u32,
            config: self.config,
            rate: period.unwrap_or(hz.into()),
            sample_type: 0,
            read_format: 0,
            flags: ATTR_DISABLED
                | ATTR_EXCLUDE_HV
                | if period.is_none() { ATTR_FREQ } else { 0 }
                | if self.user_only { ATTR_EXCLUDE_KERNEL } else { 0 },
            wakeup: 1,
            breakpoint: 0,
            config1: 0,
        };
        // SAFETY: `perf_event_open` reads the attributes. The other arguments mean any processor and no group.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, tid, -1, -1, CLOEXEC) };
        if descriptor < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(descriptors::move_to_high_descriptor(descriptor as c_int))
        }
    }

    /// Opens a counter for a thread that uses slot `index`. It counts after [`OpenCounter::resume`]. The first sample
    /// is due after `first_period`, and all others too until [`OpenCounter::set_period`].
    pub(crate) fn prepare(
        &self,
        tid: u32,
        signal: c_int,
        index: usize,
        hz: u32,
        first_period: Option<u64>,
    ) -> io::Result<OpenCounter> {
        let descriptor = self.open(tid, hz, first_period)?;
        let prepared = prepare(descriptor, tid, signal, index);
        if prepared.is_err() {
            close(descriptor);
        }
        prepared
    }

    /// Opens a counter that never counts. While it is open, the kernel opens others without waiting for a grace period
    /// of RCU, which would delay the handler.
    pub(crate) fn open_unused(&self, hz: u32) -> Option<UnusedCounter> {
        let descriptor = self.open(0, hz, None).ok()?;
        let id = read_id(descriptor);
        if id.is_none() {
            close(descriptor);
        }
        id.map(|id| UnusedCounter(OpenCounter { descriptor, id }))
    }
}

/// Counter that never counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnusedCounter(OpenCounter);

impl UnusedCounter {
    /// Closes the descriptor, if it is still ours.
    pub(crate) fn close(self) {
        if self.0.is_open() {
            close(self.0.descriptor);
        }
    }
}

fn prepare(descriptor: c_int, tid: u32, signal: c_int, index: usize) -> io::Result<OpenCounter> {
    let slot = OPEN_COUNTERS
        .slot_by_descriptor
        .get(descriptor as usize)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
    // SAFETY: for this command, `fcntl` takes an integer.
    let has_signal = set_signal_target(descriptor, tid) && unsafe { libc::fcntl(descriptor, F_SETSIG, signal) } == 0;
    // SAFETY: for this command, `fcntl` takes flags.
    if !has_signal || unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let id = read_id(descriptor).ok_or_else(io::Error::last_os_error)?;
    slot.store(index as u32 + 1, Ordering::Release);
    OPEN_COUNTERS.count.fetch_add(1, Ordering::Relaxed);
    Ok(OpenCounter { descriptor, id })
}

/// Sets the thread that receives a descriptor's signals (0: none). The kernel queues signals under the owner's lock, so
/// the previous owner receives none after this call.
fn set_signal_target(descriptor: c_int, tid: u32) -> bool {
    let owner = SignalTarget { kind: F_OWNER_TID, tid: tid as c_int };
    // SAFETY: `F_SETOWN_EX` reads the structure.
    unsafe { libc::fcntl(descriptor, F_SETOWN_EX, &raw const owner) == 0 }
}

/// Returns the slot whose counter has sent this signal.
pub(crate) fn find_slot(code: c_int, descriptor: c_int) -> Option<usize> {
    let is_overflow = matches!(code, POLL_IN | POLL_HUP);
    let slot = OPEN_COUNTERS.slot_by_descriptor.get(usize::try_from(descriptor).ok()?).filter(|_| is_overflow)?;
    (slot.load(Ordering::Acquire) as usize).checked_sub(1)
}

fn read_id(descriptor: c_int) -> Option<u64> {
    let mut id = 0_u64;
    // SAFETY: a counter writes its id; other files return an error.
    let result = unsafe { libc::ioctl(descriptor, IOC_ID, &raw mut id) };
    (result == 0).then_some(id)
}

impl OpenCounter {
    /// True unless the program has closed the descriptor.
    pub(crate) fn is_open(self) -> bool {
        read_id(self.descriptor) == Some(self.id)
    }

    /// Enables the counter until its next overflow.
    pub(crate) fn resume(self) -> bool {
        // SAFETY: for this request, `ioctl` takes an integer; a file other than a counter refuses the request.
        self.is_open() && unsafe { libc::ioctl(self.descriptor, IOC_REFRESH, 1) } == 0
    }

    /// Changes the number of events per sample, from the next sample on. The counter must be disabled.
    pub(crate) fn set_period(self, period: u64) {
        if self.is_open() {
            // SAFETY: for this request, `ioctl` reads a number; a file other than a counter refuses the request.
            unsafe { libc::ioctl(self.descriptor, IOC_PERIOD, &raw const period) };
        }
    }

    /// Reads the total count.
    pub(crate) fn read_count(self) -> Option<u64> {
        let mut count = 0_u64;
        // SAFETY: `read` writes at most eight bytes. libc's `read` would be a cancellation point.
        let read = self
            .is_open()
            .then(|| unsafe { libc::syscall(libc::SYS_read, self.descriptor, &raw mut count, size_of::<u64>()) });
        (read == Some(8)).then_some(count)
    }

    /// Keeps counting, but sends no further signal. An earlier signal may still be pending.
    pub(crate) fn mute(self) {
        let _ = self.is_open() && set_signal_target(self.descriptor, 0);
    }

    /// Undoes [`OpenCounter::mute`].
    pub(crate) fn unmute(self, tid: u32) {
        let _ = self.is_open() && set_signal_target(self.descriptor, tid) && self.resume();
    }

    /// Stops the signals, and disables the counter.
    pub(crate) fn stop(self) {
        self.mute();
        if self.is_open() {
            // SAFETY: for this request, `ioctl` takes an integer; a file other than a counter refuses the request.
            unsafe { libc::ioctl(self.descriptor, IOC_DISABLE, 0) };
        }
    }

    /// Closes the descriptor, if it is still ours. No handler may be using it.
    pub(crate) fn close(self) {
        OPEN_COUNTERS.count.fetch_sub(1, Ordering::Relaxed);
        if self.is_open() {
            if let Some(slot) = OPEN_COUNTERS.slot_by_descriptor.get(self.descriptor as usize) {
                slot.store(0, Ordering::Release);
            }
            close(self.descriptor);
        }
    }
}

fn close(descriptor: c_int) {
    // SAFETY: the descriptor is ours. libc's `close` would be a cancellation point, and this may be a handler.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}
