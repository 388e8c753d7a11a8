//! The log: silent unless `JITLISTEN_LOG` names a place, because the process is not ours.
//!
//! ```text
//! JITLISTEN_LOG=/var/tmp/jit.log          warnings and errors
//! JITLISTEN_LOG=debug:/var/tmp/jit.log    everything
//! JITLISTEN_LOG=info:stderr
//!
//! jitlisten[4711] warn: JITLISTEN: no sink is called "nonsense"
//! ```
//!
//! A program may take the messages itself, see [`listen`].
//!
//! One line is one `write(2)` on a descriptor opened with `O_APPEND`, so several processes may share the file: a regular
//! file of ours that has one name, or a terminal, or `/dev/null`. A log that cannot be written is given up silently. So is
//! standard error when the host has put something else in its place.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use once_cell::race::OnceBox;

use crate::process::checked_file::{CheckedFile, FileIdentity};
use crate::process::write_nosignal::{effective_user, write_once};

/// How much is logged; each level includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something of ours stopped working.
    Error = 1,
    /// Something is not as the user might think.
    Warn,
    /// What was found and what is done about it.
    Info,
    /// Every object.
    Debug,
}

impl Level {
    const NAMES: [(&'static str, Level); 4] =
        [("error", Level::Error), ("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)];

    /// The level of that number: 1 for errors to 4 for everything.
    pub fn from_number(number: u8) -> Option<Level> {
        Level::NAMES.into_iter().map(|(_, level)| level).find(|&level| level as u8 == number)
    }

    fn name(self) -> &'static str {
        Level::NAMES[self as usize - 1].0
    }
}

/// Where the log goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    #[default]
    Silent,
    /// To standard error.
    Stderr(Level),
    /// To the end of a file, created with mode 0600.
    File(PathBuf, Level),
}

impl LogTarget {
    /// Reads `[LEVEL:]PATH` or `[LEVEL:]stderr`; without a level, warnings and errors.
    pub fn parse(value: &OsStr) -> LogTarget {
        let bytes = value.as_bytes();
        let (level, place) = Level::NAMES
            .into_iter()
            .find_map(|(name, level)| Some((level, bytes.strip_prefix(name.as_bytes())?.strip_prefix(b":")?)))
            .unwrap_or((Level::Warn, bytes));
        match place {
            b"" => LogTarget::Silent,
            b"stderr" => LogTarget::Stderr(level),
            path => LogTarget::File(PathBuf::from(OsStr::from_bytes(path)), level),
        }
    }
}

mod queue;

pub(crate) use queue::{QueueGuard, lock_for_fork};
pub use queue::{listen, take, waits};

static LEVEL: AtomicU8 = AtomicU8::new(0);
static LOG: OnceBox<Log> = OnceBox::new();

enum Log {
    Stderr(FileIdentity),
    File(PathBuf, CheckedFile),
}

/// Opens the log, once for the process.
pub(crate) fn open(target: &LogTarget) {
    let opened = match target {
        LogTarget::Silent => return,
        LogTarget::Stderr(level) => stderr().map(|(_, identity)| (*level, Log::Stderr(identity))),
        LogTarget::File(path, level) => {
            let file = std::path::absolute(path).and_then(|path| Ok(Log::File(path.clone(), open_file(&path)?)));
            file.map(|file| (*level, file))
        }
    };
    let Ok((level, log)) = opened else { return };
    if LOG.set(Box::new(log)).is_ok() {
        LEVEL.store(level as u8, Ordering::Release);
    }
}

fn open_file(path: &Path) -> io::Result<CheckedFile> {
    let safely = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(safely);
    let file = match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The host's umask may have taken from us, too.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path)?,
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let is_ours = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == effective_user();
    if is_ours || metadata.file_type().is_char_device() {
        CheckedFile::new(file)
    } else {
        Err(io::ErrorKind::Other.into())
    }
}

/// Standard error, borrowed, and what it is now.
fn stderr() -> io::Result<(File, FileIdentity)> {
    let copy = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let identity = FileIdentity::of(&copy.metadata()?);
    Ok((copy, identity))
}

/// Whether a line of that level would be written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Acquire) || queue::wants(level)
}

/// Writes one line, if `level` is asked for.
pub fn line(level: Level, message: Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let text = message.to_string().replace(|c: char| c.is_control(), " ");
    if queue::wants(level) {
        queue::put(level, &text);
    }
    if level as u8 > LEVEL.load(Ordering::Acquire) {
        return;
    }
    let line = format!("jitlisten[{}] {}: {text}\n", std::process::id(), level.name());
    // A log that cannot be written must not trouble the host: nothing can be done about an error here.
    let _ = match LOG.get() {
        Some(Log::Stderr(identity)) => match stderr() {
            Ok((file, now)) if now == *identity => write_once(&file, line.as_bytes()),
            _ => return,
        },
        Some(Log::File(path, file)) => match file.get() {
            Some(file) => write_once(file, line.as_bytes()),
            // The host has closed it: it may do so again.
            None => {
                open_file(path).and_then(|file| write_once(file.get().ok_or(io::ErrorKind::Other)?, line.as_bytes()))
            }
        },
        None => return,
    };
}

/// Logs one line at the given [`Level`](crate::log::Level), formatted like `format!`, which costs nothing while it is off.
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
