//! Facts about the host process, determined before anything is hooked.

use std::ffi::c_void;
use std::path::PathBuf;

use crate::process::library::Library;
use crate::process::loader::LoaderDebug;
use crate::process::mapped_proof::with_libraries_held;

/// Name of a function that every copy of this library exports. The function returns 0 while the session is open, and
/// never writes past the size that its caller passes.
const STATISTICS_FUNCTION: &str = "jitlisten_get_statistics";

/// Calls `work` for each library, beginning with the program, until it returns `false`. Takes the loader's lock.
fn each_library(mut work: impl FnMut(&Library<'_>) -> bool) {
    let Some(r_debug) = LoaderDebug::find() else { return };
    with_libraries_held(|held, _| {
        let _ = r_debug
            .libraries(held)
            .into_iter()
            .filter_map(|library| library.entry.library())
            .all(|library| work(&library));
    });
}

/// Returns true for a Python interpreter, which defines or imports `Py_BytesMain` (Python 3.8 or later). Programs that
/// embed Python (gdb, perf) call other functions.
pub(crate) fn is_python_launcher(library: &Library<'_>) -> bool {
    const MAIN: &str = "Py_BytesMain";
    library.exports(MAIN) || !library.imported(&[MAIN]).is_empty()
}

/// Returns true if the program is a Python interpreter.
///
/// Takes the loader's lock.
pub fn is_python() -> bool {
    let mut is_interpreter = false;
    each_library(|program| {
        is_interpreter = program.is_program() && is_python_launcher(program);
        false
    });
    is_interpreter
}

/// Returns the path of another active copy of this library. The library may be preloaded twice under two paths, or
/// preloaded and also opened by a program that ships its own copy. Both copies would hook the same LLVM instances and
/// write the same perf map, so the second copy stays inactive.
///
/// Takes the loader's lock.
pub fn duplicate_copy() -> Option<PathBuf> {
    // The address of the exported function cannot be compared, because the second copy's symbol resolves to the first
    // copy.
    let own_address = own_base()?;
    let mut copies = Vec::new();
    each_library(|library| {
        let is_other = library.identity.bias != own_address;
        if let Some(function) = library.dynamic_address(STATISTICS_FUNCTION).filter(|_| is_other) {
            copies.push((library.path.clone(), function));
        }
        true
    });
    // No lock may be held here, because this calls foreign code. A copy is never unloaded (`nodelete`).
    copies.into_iter().find(|(_, function)| is_open(*function)).map(|(path, _)| path)
}

/// Load address of the library that contains this code.
fn own_base() -> Option<usize> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `own_base` is an address in our code, and `dladdr` writes its result to our own memory. An all-zero
    // result is valid, too.
    let (status, info) = unsafe { (libc::dladdr(own_base as *const c_void, info.as_mut_ptr()), info.assume_init()) };
    (status != 0).then_some(info.dli_fbase as usize)
}

/// Returns true if a copy of this library is active. `function` is the address of that copy's
/// `jitlisten_get_statistics`.
fn is_open(function: usize) -> bool {
    let mut statistics = [size_of::<usize>()];
    type GetStatistics = unsafe extern "C" fn(*mut c_void) -> i32;
    // SAFETY: the function has this name and type, and its library is never unloaded. The structure is as large as its
    // size field states.
    unsafe { std::mem::transmute::<usize, GetStatistics>(function)(statistics.as_mut_ptr().cast()) == 0 }
}
