//! Another copy of this library in the process: preloaded twice by two paths, or preloaded and opened by a program that
//! brings its own. Both would hook the same LLVM and write the same perf map. The second does nothing.

use std::ffi::c_void;
use std::path::PathBuf;

use crate::process::loader::{LoaderDebug, with_libraries_held};

/// Exported by every copy. It returns 0 where the session is open, and writes no more than the size it is given.
const STATISTICS: &str = "jitlisten_get_statistics";

/// The path of a copy that is at work, if there is one.
///
/// Takes the loader's lock.
pub fn duplicate_copy() -> Option<PathBuf> {
    // Not by the address of the exported function: in a second copy that is the first one's.
    let own = own_base()?;
    let mut copies = Vec::new();
    with_libraries_held(|_| {
        // SAFETY: the libraries are held.
        let entries = LoaderDebug::find().and_then(|r_debug| unsafe { r_debug.libraries() }).unwrap_or_default();
        for entry in entries {
            // SAFETY: the libraries have been held since the entry was read.
            let Some(library) = (unsafe { entry.library() }) else { continue };
            if library.identity.bias != own
                && let Some(function) = library.dynamic_address(STATISTICS)
            {
                copies.push((library.path, function));
            }
        }
    });
    // Called when no lock is held: it is foreign code. A copy is never unloaded (`nodelete`).
    copies.into_iter().find(|(_, function)| is_open(*function)).map(|(path, _)| path)
}

/// Where the library is mapped that this code is in.
fn own_base() -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of our code, and writable memory for the result.
    let result = unsafe { libc::dladdr(own_base as *const c_void, found.as_mut_ptr()) };
    // SAFETY: zeros are a valid result, whatever was written over them.
    let found = unsafe { found.assume_init() };
    (result != 0).then_some(found.dli_fbase as usize)
}

fn is_open(function: usize) -> bool {
    let mut statistics = [size_of::<usize>()];
    // SAFETY: the address of a function of that name and type, in a library that stays.
    let function: unsafe extern "C" fn(*mut c_void) -> i32 = unsafe { std::mem::transmute(function) };
    // SAFETY: the structure is as large as it says.
    unsafe { function(statistics.as_mut_ptr().cast()) == 0 }
}
