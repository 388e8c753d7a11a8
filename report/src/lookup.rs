//! Finds the files that a recording names, and verifies that they are the recorded ones.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Where symbols are looked for, and how many of them.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Directories in which the recording's paths are tried first.
    pub roots: Vec<PathBuf>,
    /// Lines of code that a compiler wrote into files, too: of C and Rust libraries with debug information.
    pub native_lines: bool,
    /// Names of the kernel's functions.
    pub kernel: bool,
}

/// A path in each of the roots, then as it is.
pub(crate) fn candidates(roots: &[PathBuf], path: &Path) -> impl Iterator<Item = PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path).to_owned();
    roots.iter().map(move |root| root.join(&relative)).chain([path.to_owned()])
}

/// Whether a file's build id is the recorded one. Some recorders fill build ids up with zeros.
pub(crate) fn same_id(ours: &[u8], recorded: &[u8]) -> bool {
    let length = ours.len().min(20);
    recorded.len() >= length && recorded[..length] == ours[..length] && recorded[length..].iter().all(|byte| *byte == 0)
}

/// Opens a regular file, and nothing else: a recording may name anything, and to open a pipe is to wait for its writer,
/// to open a device may do something. If a pipe takes the file's place in between, nothing waits for its writer.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    open_regular(path, File::options().read(true))
}

/// [`open_file`] with other options.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    /// On x86_64 and aarch64.
    const O_NONBLOCK: i32 = 0o4000;
    let regular = |found: fs::Metadata| found.is_file().then_some(()).ok_or_else(|| io::Error::other("not a file"));
    regular(fs::metadata(path)?)?;
    let file = options.custom_flags(O_NONBLOCK).open(path)?;
    regular(file.metadata()?)?;
    Ok(file)
}
