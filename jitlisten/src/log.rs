//! The log: silent unless `JITLISTEN_LOG` names a place, because the process belongs to somebody else.
//!
//! ```text
//! JITLISTEN_LOG=/var/tmp/jit.log          warnings and errors
//! JITLISTEN_LOG=debug:/var/tmp/jit.log    everything
//! JITLISTEN_LOG=info:stderr
//!
//! jitlisten[4711] warn: JITLISTEN: no sink is called "nonsense"
//! ```
//!
//! One line is one `write(2)` on a descriptor opened with `O_APPEND`, so several processes may share the file. A log that
//! cannot be written is given up silently.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use once_cell::race::OnceBox;

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

static LEVEL: AtomicU8 = AtomicU8::new(0);
static FILE: OnceBox<Option<File>> = OnceBox::new();

/// Opens the log, once for the process.
pub(crate) fn open(target: &LogTarget) {
    let (level, file) = match target {
        LogTarget::Silent => return,
        LogTarget::Stderr(level) => (*level, None),
        LogTarget::File(path, level) => {
            let flags = libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
            let opened = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
            match opened {
                Ok(file) => (*level, Some(file)),
                Err(_) => return,
            }
        }
    };
    if FILE.set(Box::new(file)).is_ok() {
        LEVEL.store(level as u8, Ordering::Release);
    }
}

/// Whether a line of that level would be written.
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Acquire)
}

/// Writes one line, if `level` is asked for.
pub fn line(level: Level, message: Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let text = message.to_string().replace(|c: char| c.is_control(), " ");
    let line = format!("jitlisten[{}] {}: {text}\n", std::process::id(), level.name());
    // A log that cannot be written must not trouble the host: nothing can be done about an error here.
    let _ = match FILE.get() {
        Some(Some(file)) => (&mut &*file).write_all(line.as_bytes()),
        Some(None) => std::io::stderr().write_all(line.as_bytes()),
        None => Ok(()),
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
