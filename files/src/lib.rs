//! Files and directories that no other local user can redirect, read or change. All files of this project are created
//! through this crate; `ci/files.py` rejects any other way.
//!
//! ```text
//!   OwnDirectory   a directory that only this user may write to, held open; files in it by `openat(2)`
//!   Replacement    a file under a temporary name, renamed when it is complete
//!   create_new, open_or_create, ...     files and directories at paths that the user chose
//!   open_regular   opens a file that a recording or a process named
//!   FileName       the names of our files, printed on creation and parsed before removal
//! ```
//!
//! A predictable name in a directory like `/tmp` may already exist as another user's link or directory. Therefore new
//! files are created with `O_EXCL | O_NOFOLLOW`, and each directory is checked through the descriptor that is then
//! used.
//!
//! This crate may run in a host's process: it takes no locks, raises no signals, does not panic, and allocates nothing
//! larger than a name. A write may raise `SIGXFSZ`. Callers that must prevent this signal write to
//! [`Replacement::file`] themselves. Drop an [`OwnDirectory`] before you return to the host, which may close the
//! descriptor and then reuse its number for another directory.

#![forbid(unsafe_code)]
// Code in the host's process must not panic. Each exception needs a comment that explains why it cannot panic.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod directory;
mod name;
mod regular;
mod replacement;
mod user_paths;

pub use directory::OwnDirectory;
pub use name::FileName;
pub use regular::{open_in_place, open_regular, reopen_regular};
pub use replacement::{Replacement, Visibility};
pub use user_paths::{
    check_appendable, create_directories, create_new, create_new_in, create_with_free_name, open_existing,
    open_or_create, open_to_append, try_lock,
};

#[cfg(test)]
mod tests;
