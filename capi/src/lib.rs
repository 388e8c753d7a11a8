//! The C ABI of jitlisten, declared in `include/jitlisten.h`, and the constructor that runs under `LD_PRELOAD`.
//!
//! Exported functions guard, check pointers and call safe Rust; there is no logic here.

mod preload;

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use jitlisten::options::{Options, SinkKind};
use jitlisten::{Session, Statistics};

/// `jitlisten_status`. Numbers are never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Status {
    Ok = 0,
    InvalidArgument = 1,
    NotOpen = 2,
    UnknownSink = 3,
    SwitchedOff = 4,
    Internal = 5,
}

impl Status {
    const ALL: [(Status, &CStr); 6] = [
        (Status::Ok, c"success"),
        (Status::InvalidArgument, c"a pointer is null or a size is wrong"),
        (Status::NotOpen, c"the session of this process is not open"),
        (Status::UnknownSink, c"no sink has that name"),
        (Status::SwitchedOff, c"jitlisten is switched off in this process"),
        (Status::Internal, c"internal error of jitlisten"),
    ];
}

/// The one panic boundary.
fn guarded(work: impl FnOnce() -> Status) -> i32 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Status::Internal) as i32
}

/// Opens the session of this process with the options of the environment, and starts to listen.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_open() -> i32 {
    guarded(|| {
        let (options, complaints) = Options::read(|name| std::env::var_os(name));
        let session = Session::open(options, &complaints);
        if !session.options().active {
            return Status::SwitchedOff;
        }
        jitlisten_shim::start(session);
        Status::Ok
    })
}

/// Switches every sink off. The session stays open.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_close() -> i32 {
    with_session(|session| {
        SinkKind::ALL.into_iter().for_each(|kind| session.disable(kind));
        Status::Ok
    })
}

/// Switches a sink on.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_enable(name: *const c_char) -> i32 {
    // SAFETY: passed on.
    with_session(|session| match unsafe { sink(name) } {
        Ok(_) if !session.options().active => Status::SwitchedOff,
        Ok(kind) => {
            session.enable(kind);
            Status::Ok
        }
        Err(status) => status,
    })
}

/// Switches a sink off.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_disable(name: *const c_char) -> i32 {
    // SAFETY: passed on.
    with_session(|session| match unsafe { sink(name) } {
        Ok(kind) => {
            session.disable(kind);
            Status::Ok
        }
        Err(status) => status,
    })
}

/// `struct jitlisten_statistics` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CStatistics {
    size: usize,
    objects_loaded: u64,
    objects_finalized: u64,
    objects_freed: u64,
    objects_refused: u64,
    functions: u64,
    functions_without_frame_pointer: u64,
    objects_without_frame_pointers: u64,
    functions_without_unwind_table: u64,
    perfmap_bytes_written: u64,
    perfmap_failures: u64,
    unwind_failures: u64,
    jitdump_bytes_written: u64,
    jitdump_failures: u64,
}

const _: () = assert!(size_of::<CStatistics>() == 14 * 8);

impl CStatistics {
    fn new(size: usize, statistics: Statistics) -> CStatistics {
        let perfmap = statistics.sinks[SinkKind::PerfMap as usize];
        let jitdump = statistics.sinks[SinkKind::Jitdump as usize];
        CStatistics {
            size,
            objects_loaded: statistics.objects_loaded,
            objects_finalized: statistics.objects_finalized,
            objects_freed: statistics.objects_freed,
            objects_refused: statistics.objects_refused,
            functions: statistics.functions,
            functions_without_frame_pointer: statistics.functions_without_frame_pointer,
            objects_without_frame_pointers: statistics.objects_without_frame_pointers,
            functions_without_unwind_table: statistics.functions_without_unwind_table,
            perfmap_bytes_written: perfmap.bytes_written,
            perfmap_failures: perfmap.failures,
            unwind_failures: statistics.sinks[SinkKind::Unwind as usize].failures,
            jitdump_bytes_written: jitdump.bytes_written,
            jitdump_failures: jitdump.failures,
        }
    }
}

/// Copies the counters.
///
/// # Safety
/// `statistics` must be null, or point to as many writable bytes as its first member says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_statistics(statistics: *mut CStatistics) -> i32 {
    with_session(|session| {
        if statistics.is_null() || !statistics.is_aligned() {
            return Status::InvalidArgument;
        }
        // SAFETY: not null and aligned; the caller vouches for at least the first member.
        let size = unsafe { (*statistics).size };
        if size < size_of::<usize>() {
            return Status::InvalidArgument;
        }
        let known = size.min(size_of::<CStatistics>());
        let full = CStatistics::new(known, session.statistics());
        // SAFETY: the caller vouches for `size` bytes; what a newer caller has behind them is left alone.
        unsafe { std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), statistics.cast::<u8>(), known) };
        Status::Ok
    })
}

/// The version as a C string.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// A status in words.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_status_text(status: i32) -> *const c_char {
    let known = Status::ALL.iter().find(|(known, _)| *known as i32 == status);
    known.map_or(c"unknown status", |(_, text)| text).as_ptr()
}

fn with_session(work: impl FnOnce(&'static Session) -> Status) -> i32 {
    guarded(|| Session::process().map_or(Status::NotOpen, work))
}

/// # Safety
/// `name` must be null or a C string.
unsafe fn sink(name: *const c_char) -> Result<SinkKind, Status> {
    if name.is_null() {
        return Err(Status::InvalidArgument);
    }
    // SAFETY: not null, and the caller vouches for the terminator.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Status::UnknownSink)?;
    SinkKind::from_name(name).ok_or(Status::UnknownSink)
}
