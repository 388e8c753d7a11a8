//! jitlisten's log. It is silent unless `JITLISTEN_LOG` is set, because the process belongs to the host.
//!
//! ```text
//! JITLISTEN_LOG=/var/tmp/jit.log          warnings and errors
//! JITLISTEN_LOG=debug:/var/tmp/jit.log    everything
//! JITLISTEN_LOG=info:stderr
//!
//! jitlisten[4711] warn: JITLISTEN: unknown sink "nonsense"
//! ```
//!
//! A program may receive the messages with [`set_queue_level`].
//!
//! Each line is a single `write(2)` on a descriptor opened with `O_APPEND`, so several processes may share the file.
//! The target must be a terminal, `/dev/null`, or a regular file that we own and that has a single link. It is opened,
//! and created if needed, only when the first line is written: programs that log nothing leave no file, and a launcher
//! that runs as root does not leave one that its program cannot write to. Lines that cannot be written are counted in
//! the statistics; the first few are kept, and written before the next line or at exit. Once the host has replaced
//! standard error, nothing more is written to it.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use once_cell::race::OnceBox;

use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::write_once;

/// Verbosity of the log; each level includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// A feature of jitlisten stopped working.
    Error = 1,
    /// Something may differ from what the user expects.
    Warn,
    /// LLVM instances and libraries that were detected, and the actions taken.
    Info,
    /// Events of every object.
    Debug,
}

impl Level {
    const NAMES: [(&'static str, Level); 4] =
        [("error", Level::Error), ("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)];

    /// Returns the level with this number: 1 (errors) to 4 (everything).
    pub fn from_number(number: u8) -> Option<Level> {
        Level::NAMES.into_iter().map(|(_, level)| level).find(|&level| level as u8 == number)
    }

    fn name(self) -> &'static str {
        Level::NAMES[self as usize - 1].0
    }
}

/// Destination of the log.
///
/// ```
/// use jitlisten::options::{Level, LogTarget};
///
/// assert_eq!(LogTarget::parse("debug:stderr".as_ref()), LogTarget::Stderr(Level::Debug));
/// assert_eq!(LogTarget::parse("/tmp/jit.log".as_ref()), LogTarget::File("/tmp/jit.log".into(), Level::Warn));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Nothing is logged.
    #[default]
    Silent,
    /// Standard error.
    Stderr(Level),
    /// A file, appended to; created with mode 0600.
    File(PathBuf, Level),
}

impl LogTarget {
    /// Parses `[LEVEL:]PATH` or `[LEVEL:]stderr`. The default level is [`Level::Warn`].
    pub fn parse(value: &OsStr) -> LogTarget {
        let bytes = value.as_bytes();
        let (level, destination) = Level::NAMES
            .into_iter()
            .find_map(|(name, level)| Some((level, bytes.strip_prefix(name.as_bytes())?.strip_prefix(b":")?)))
            .unwrap_or((Level::Warn, bytes));
        match destination {
            b"" => LogTarget::Silent,
            b"stderr" => LogTarget::Stderr(level),
            path => LogTarget::File(PathBuf::from(OsStr::from_bytes(path)), level),
        }
    }
}

mod event;
mod queue;

pub use event::LogEvent;
pub(crate) use queue::{QueueGuard, lock_for_fork};
pub use queue::{has_message, pop, set_queue_level};

static LEVEL: AtomicU8 = AtomicU8::new(0);
static LOG: OnceBox<Log> = OnceBox::new();

/// Number of lines that could not be written.
static LOST_LINES: AtomicU64 = AtomicU64::new(0);
/// First lines that could not be written, kept for a retry. Only `try_lock` is safe here, because the lock may be held
/// by this thread, or after a fork by one of the parent's threads.
static KEPT_LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MAX_KEPT_LINES: usize = 32;

enum Log {
    Stderr(FileIdentity),
    /// Path of the log, and the open file once the first line has been written.
    File(PathBuf, OnceBox<CheckedFile>),
}

/// Number of lines that could not be written so far.
pub(crate) fn lost_lines() -> u64 {
    LOST_LINES.load(Ordering::Relaxed)
}

/// Sets the destination of the log, once per process.
pub(crate) fn open(target: &LogTarget) {
    let opened = match target {
        LogTarget::Silent => return,
        LogTarget::Stderr(level) => stderr().map(|(_, identity)| (*level, Log::Stderr(identity))),
        LogTarget::File(path, level) => {
            // Resolve the path now, because the host may change its working directory before the first line.
            std::path::absolute(path).map(|path| (*level, Log::File(path, OnceBox::new())))
        }
    };
    let Ok((level, log)) = opened else { return };
    if LOG.set(Box::new(log)).is_ok() {
        LEVEL.store(level as u8, Ordering::Release);
    }
}

fn open_file(path: &Path) -> io::Result<CheckedFile> {
    let file = jitlisten_files::open_or_create(path)?;
    let metadata = file.metadata()?;
    match jitlisten_files::check_appendable(&metadata) {
        Some(reason) if !metadata.file_type().is_char_device() => Err(io::Error::other(reason)),
        _ => CheckedFile::new(file),
    }
}

/// Returns a duplicate of standard error, and the identity of the file that it refers to now.
fn stderr() -> io::Result<(File, FileIdentity)> {
    let copy = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let identity = FileIdentity::from_metadata(&copy.metadata()?);
    Ok((copy, identity))
}

/// Returns true if a line of this level would be written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Acquire) || queue::is_wanted(level)
}

/// Writes one line if `level` is enabled.
pub fn line(level: Level, message: Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let text = message.to_string().replace(|c: char| c.is_control(), " ");
    if queue::is_wanted(level) {
        queue::enqueue(level, &text);
    }
    if level as u8 > LEVEL.load(Ordering::Acquire) {
        return;
    }
    let line = format_line(level, &text);
    // A log that cannot be written must not disturb the host. Drop the error and keep the line for a retry.
    flush();
    if write(&line).is_err() {
        LOST_LINES.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut kept_lines) = KEPT_LINES.try_lock()
            && kept_lines.len() < MAX_KEPT_LINES
        {
            kept_lines.push(line);
        }
    }
}

/// Retries the lines that could not be written before.
pub(crate) fn flush() {
    if let Ok(mut kept_lines) = KEPT_LINES.try_lock()
        && !kept_lines.is_empty()
        && write(&kept_lines.concat()).is_ok()
    {
        LOST_LINES.fetch_sub(kept_lines.len() as u64, Ordering::Relaxed);
        kept_lines.clear();
    }
}

fn format_line(level: Level, text: &str) -> String {
    format!("jitlisten[{}] {}: {text}\n", std::process::id(), level.name())
}

fn write(text: &str) -> io::Result<()> {
    let write_whole = |file: &File| match write_once(file, text.as_bytes())? {
        written if written == text.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    };
    match LOG.get() {
        Some(Log::Stderr(identity)) => match stderr()? {
            (file, now) if now == *identity => write_whole(&file),
            _ => Ok(()),
        },
        Some(Log::File(path, opened)) => {
            if opened.get().is_none() {
                // Another thread may have opened the file in the meantime.
                let _ = opened.set(Box::new(open_file(path)?));
            }
            match opened.get().and_then(|file| file.get()) {
                Some(file) => write_whole(file),
                // The host has closed the descriptor. Open the file for this line only, because the host may close it
                // again.
                None => write_whole(open_file(path)?.get().ok_or(io::ErrorKind::Other)?),
            }
        }
        None => Ok(()),
    }
}

/// Logs one line at the given [`Level`](crate::log::Level), formatted like `format!`. Arguments are not evaluated if
/// the level is disabled.
#[doc(hidden)]
#[macro_export]
macro_rules! log_line {
    ($level:ident, $($message:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::line($crate::log::Level::$level, format_args!($($message)*));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_optional() {
        assert_eq!(LogTarget::parse(OsStr::new("/tmp/x")), LogTarget::File("/tmp/x".into(), Level::Warn));
        assert_eq!(LogTarget::parse(OsStr::new("debug:/tmp/x")), LogTarget::File("/tmp/x".into(), Level::Debug));
        assert_eq!(LogTarget::parse(OsStr::new("info:stderr")), LogTarget::Stderr(Level::Info));
        assert_eq!(LogTarget::parse(OsStr::new("debug:")), LogTarget::Silent);
    }
}
