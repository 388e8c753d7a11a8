//! The program of this process.

use crate::process::loader::{LoaderDebug, with_libraries_held};

/// Exported by a Python that is one executable, imported by one with a `libpython`. Programs that embed Python (gdb,
/// perf) call other functions. Python has it since 3.8.
const MAIN_OF_PYTHON: &str = "Py_BytesMain";

/// Whether the program is a Python interpreter.
///
/// Takes the loader's lock.
pub fn is_python() -> bool {
    let mut found = false;
    with_libraries_held(|_| {
        // SAFETY: the libraries are held.
        let entries = LoaderDebug::find().and_then(|r_debug| unsafe { r_debug.libraries() }).unwrap_or_default();
        // The program is the first in the list.
        // SAFETY: the libraries have been held since the entry was read.
        let program = entries.first().and_then(|entry| unsafe { entry.library() });
        found = program.is_some_and(|program| program.mentions(MAIN_OF_PYTHON));
    });
    found
}
