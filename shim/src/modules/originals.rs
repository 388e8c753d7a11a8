//! The loader and libc functions that our hooks replace, and symbol lookup in our list of modules.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::plumbing::modules::{self, Counts};

/// Number of hooked functions. Their indices follow.
pub(super) const FUNCTIONS: usize = 6;
pub(super) const DL_ITERATE_PHDR: usize = 0;
pub(super) const DLADDR: usize = 1;
pub(super) const DLADDR1: usize = 2;
pub(super) const DL_FIND_OBJECT: usize = 3;
pub(super) const BACKTRACE_SYMBOLS: usize = 4;
pub(super) const BACKTRACE_SYMBOLS_FD: usize = 5;

/// Addresses of the original functions, by index; 0 if the function does not exist.
static ORIGINALS: [AtomicUsize; FUNCTIONS] = [const { AtomicUsize::new(0) }; FUNCTIONS];

/// Looks up the original functions, as the loader binds them for every library in the program's namespace. Takes the
/// loader's lock.
pub(super) fn find_originals() {
    const NAMES: [&CStr; FUNCTIONS] =
        [c"dl_iterate_phdr", c"dladdr", c"dladdr1", c"_dl_find_object", c"backtrace_symbols", c"backtrace_symbols_fd"];
    for (slot, name) in ORIGINALS.iter().zip(NAMES) {
        if slot.load(Ordering::Relaxed) == 0 {
            // SAFETY: `name` is null-terminated.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            slot.store(address as usize, Ordering::Release);
        }
    }
}

/// Address of the original function; 0 if it does not exist.
pub(super) fn original(function: usize) -> usize {
    ORIGINALS.get(function).map_or(0, |slot| slot.load(Ordering::Acquire))
}

/// Calls `use_symbol` with the name of the compiled function at `address`, the module's path, and the offset of
/// `address` in the function. Without a symbol, the offset is relative to the module. Returns `None` if no module
/// contains the address.
pub(super) fn with_symbol<R>(
    address: u64,
    use_symbol: impl FnOnce(Option<&CStr>, Option<&CStr>, u64) -> R,
) -> Option<R> {
    if modules::counts() == Counts::default() {
        return None;
    }
    let reading = modules::read();
    let module = reading.find(Address(address))?;
    let symbol = module.symbol(Address(address));
    let start = symbol.as_ref().map_or(module.bias(), |symbol| symbol.range.start().0);
    Some(use_symbol(symbol.map(|symbol| symbol.name), Some(module.path()), address.wrapping_sub(start)))
}

/// A pointer to a C string, with the same type in all hooks.
pub(super) type CStringPointer = *const c_char;
