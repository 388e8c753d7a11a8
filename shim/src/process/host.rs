//! What this process is, asked before anything is hooked.

use std::ffi::c_void;
use std::path::PathBuf;

use crate::process::held::with_libraries_held;
use crate::process::library::Library;
use crate::process::loader::LoaderDebug;

/// Exported by every copy of this library. It returns 0 where the session is open, and writes no more than the size it
/// is given.
const STATISTICS: &str = "jitlisten_get_statistics";

/// Runs `work` with each library, the program first, until that returns `false`. Takes the loader's lock.
fn each_library(mut work: impl FnMut(&Library<'_>) -> bool) {
    with_libraries_held(|held, _| {
        let appeared = LoaderDebug::find().map(|r_debug| r_debug.libraries(held)).unwrap_or_default();
        let _ = appeared.into_iter().filter_map(|appeared| appeared.entry.library()).all(|library| work(&library));
    });
}

/// Whether the program is a Python interpreter.
///
/// Takes the loader's lock.
pub fn is_python() -> bool {
    let mut found = false;
    each_library(|program| {
        found = program.is_program() && program.starts_python();
        false
    });
    found
}

/// The path of another copy of this library that is at work: preloaded twice by two paths, or preloaded and opened by a
/// program that brings its own. Both would hook the same LLVM and write the same perf map. The second does nothing.
///
/// Takes the loader's lock.
pub fn duplicate_copy() -> Option<PathBuf> {
    // Not by the address of the exported function: in a second copy that is the first one's.
    let own = own_base()?;
    let mut copies = Vec::new();
    each_library(|library| {
        let is_other = library.identity.bias != own;
        if let Some(function) = library.dynamic_address(STATISTICS).filter(|_| is_other) {
            copies.push((library.path.clone(), function));
        }
        true
    });
    // Called when no lock is held: it is foreign code. A copy is never unloaded (`nodelete`).
    copies.into_iter().find(|(_, function)| is_open(*function)).map(|(path, _)| path)
}

/// Where the library is mapped that this code is in.
fn own_base() -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of our code, and writable memory for the result; zeros are a valid result, too.
    let (result, found) = unsafe { (libc::dladdr(own_base as *const c_void, found.as_mut_ptr()), found.assume_init()) };
    (result != 0).then_some(found.dli_fbase as usize)
}

fn is_open(function: usize) -> bool {
    let mut statistics = [size_of::<usize>()];
    type GetStatistics = unsafe extern "C" fn(*mut c_void) -> i32;
    // SAFETY: a function of that name and type, in a library that stays; the structure is as large as it says.
    unsafe { std::mem::transmute::<usize, GetStatistics>(function)(statistics.as_mut_ptr().cast()) == 0 }
}
