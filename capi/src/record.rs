//! Recordings of this process.

use std::ffi::{OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt as _;

use jitlisten::log_line;
use jitlisten_sampler::{Clock, Counter, Error, Options, Process, Statistics};

use crate::borrowed::{self, Plain};
use crate::guard::guarded;
use crate::status::{Failure, Status};

const NOT_INTERPOSED_WARNING: &str = "the program calls libc's pthread_create, _exit, execve, sigaction, ... directly: \
    the recording finds new threads late, and may lack its end; link with `pkg-config --libs jitlisten-record` instead";

const WALL: u32 = 1;
const CHILDREN: u32 = 2;
const NO_IMAGES: u32 = 4;
const NO_PYTHON: u32 = 8;

/// `struct jitlisten_record_options` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordOptions {
    size: usize,
    hz: u32,
    flags: u32,
    seconds: u32,
    recorder: u32,
    event: *const c_char,
    recorder_start: u64,
}

const _: () = assert!(size_of::<RecordOptions>() == 40);

// SAFETY: the struct has only integers and a raw pointer.
unsafe impl Plain for RecordOptions {}

/// Starts a recording.
///
/// # Safety
/// `path` and `options` must be null or as the header describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_record_start(path: *const c_char, options: *const RecordOptions) -> i32 {
    guarded(|| {
        // SAFETY: the caller passes null or a C string.
        let path = OsString::from_vec(unsafe { borrowed::read_text(path, "path") }?.to_vec());
        let mut sampler_options = Options::new(path);
        if !options.is_null() {
            // SAFETY: the caller guarantees that `options` is readable.
            let options = unsafe { borrowed::copy_sized(options, size_of::<usize>(), "options") }?;
            if options.flags & !(WALL | CHILDREN | NO_IMAGES | NO_PYTHON) != 0 {
                return Err(Failure::argument(format_args!("unknown flags {:#x}", options.flags)));
            }
            if options.hz != 0 {
                sampler_options.hz = options.hz;
            }
            if options.flags & WALL != 0 {
                sampler_options.clock = Clock::Wall;
            }
            sampler_options.children = options.flags & CHILDREN != 0;
            sampler_options.images = options.flags & NO_IMAGES == 0;
            sampler_options.python = options.flags & NO_PYTHON == 0;
            if !options.event.is_null() {
                // SAFETY: the caller guarantees that the name of the event is a C string.
                let event =
                    String::from_utf8_lossy(unsafe { borrowed::read_text(options.event, "event") }?).into_owned();
                sampler_options.counter = Some(Counter::named(&event).map_err(Failure::argument)?);
            }
            sampler_options.recorder =
                (options.recorder != 0).then_some(Process { pid: options.recorder, start: options.recorder_start });
            sampler_options.seconds = (options.seconds != 0).then_some(options.seconds);
        }
        jitlisten_sampler::start(sampler_options).map_err(|error| failure(&error))?;
        if !jitlisten_sampler::is_interposed() {
            log_line!(Warn, "{NOT_INTERPOSED_WARNING}");
        }
        Ok(())
    })
}

/// Ends the recording.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_record_stop() -> i32 {
    guarded(|| jitlisten_sampler::stop().map(drop).map_err(|error| failure(&error)))
}

/// Copies the path of the current recording.
///
/// # Safety
/// `path` must be null, or point to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_record_path(path: *mut c_char, size: usize) -> i32 {
    guarded(|| {
        borrowed::check_output(path, "path")?;
        let current = jitlisten_sampler::running_path().ok_or(Status::NotRecording)?;
        let current = current.unwrap_or_default().into_os_string().into_vec();
        if current.len() >= size {
            return Err(Failure::argument(format_args!("the path has {} bytes", current.len())));
        }
        // SAFETY: the caller vouches for `size` bytes, and `size` is greater than the length of the path.
        unsafe { std::ptr::copy_nonoverlapping(current.as_ptr().cast(), path, current.len()) };
        // SAFETY: the terminator is also within those `size` bytes.
        unsafe { path.add(current.len()).write(0) };
        Ok(())
    })
}

/// Names this process in reports.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_record_set_name(name: *const c_char) -> i32 {
    guarded(|| {
        // SAFETY: the caller vouches for the string.
        let name = unsafe { borrowed::read_text(name, "name") }?;
        jitlisten_sampler::set_process_name(&String::from_utf8_lossy(name));
        Ok(())
    })
}

/// Returns the time of a kernel clock in ns.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_clock(clock: c_int) -> u64 {
    jitlisten::plumbing::clock_ns(clock)
}

/// Copies the counters of the current recording, or of the last one if none is running.
///
/// # Safety
/// `statistics` must be null, or point to as many writable bytes as its first member specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_get_record_statistics(statistics: *mut RecordStatistics) -> i32 {
    guarded(|| {
        borrowed::check_output(statistics, "statistics")?;
        // SAFETY: the pointer is not null and is aligned; the caller vouches for at least the first member.
        let size = unsafe { (*statistics).size };
        if size < size_of::<usize>() {
            return Err(Failure::argument(format_args!("its size says {size}")));
        }
        let copied_size = size.min(size_of::<RecordStatistics>());
        let snapshot = RecordStatistics::new(copied_size, &jitlisten_sampler::statistics());
        // SAFETY: the caller vouches for `size` bytes; newer members after them are not written.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const snapshot).cast::<u8>(), statistics.cast::<u8>(), copied_size)
        };
        Ok(())
    })
}

/// `struct jitlisten_record_statistics` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordStatistics {
    size: usize,
    counters: [u64; 8],
}

const _: () = assert!(size_of::<RecordStatistics>() == 9 * 8);

impl RecordStatistics {
    fn new(size: usize, statistics: &Statistics) -> Self {
        let counters = [
            statistics.samples,
            statistics.incomplete,
            statistics.truncated,
            statistics.lost,
            statistics.threads,
            statistics.threads_without_timer,
            statistics.bytes,
            statistics.failures,
        ];
        RecordStatistics { size, counters }
    }
}

/// Converts an error of the sampler to a failed API call.
pub(crate) fn failure(error: &Error) -> Failure {
    let status = match error {
        Error::AlreadyRecording => Status::AlreadyRecording,
        Error::NotRecording => Status::NotRecording,
        Error::Options(_) | Error::Counter(..) => Status::InvalidArgument,
        Error::Output(..) => Status::IoError,
        // A reason in the process or the machine.
        _ => Status::CannotRecord,
    };
    Failure::new(status, error)
}
