//! Makes files and directories that no other local user can redirect, read or change. Everything that this project
//! writes is made here; `ci/files.py` finds any other way.
//!
//! ```text
//!   OwnDirectory   a directory of this user that nobody else may write to, held open; files in it by `openat(2)`
//!   Replacement    a file under a temporary name, renamed when it is complete
//!   create_new, open_or_create, ...     files and directories in places that the user chose
//!   open_regular   opens a file that a recording or a process named
//!   FileName       the names of our files, printed by the maker and parsed by the remover
//! ```
//!
//! A predictable name in a directory like `/tmp` may already exist as another user's link or directory. Therefore new
//! files are made with `O_EXCL | O_NOFOLLOW`, and the directory is checked through the descriptor that is used.
//!
//! In the process of a host: nothing here allocates more than a name, takes a lock, raises a signal or panics. Writing
//! may raise `SIGXFSZ`; a caller that must prevent that writes to [`Replacement::file`] itself. Keep no
//! [`OwnDirectory`] for longer than a call: a host may close its descriptor and open another directory with that
//! number.

#![forbid(unsafe_code)]
// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod directory;
mod name;
mod plain;
mod regular;
mod replacement;

pub use directory::OwnDirectory;
pub use name::FileName;
pub use plain::{
    create_directories, create_new, create_new_in, open_existing, open_or_create, open_to_append, unacceptable,
    with_free_name,
};
pub use regular::{open_in_place, open_regular, reopen_regular};
pub use replacement::{Replacement, Visibility};

#[cfg(test)]
mod tests;
