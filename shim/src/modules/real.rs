//! The functions of the loader and libc that our hooks replace, and our own answers for an address.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::Address;
use jitlisten::modules::{self, Counts};

/// How many there are.
pub(super) const FUNCTIONS: usize = 6;
pub(super) const DL_ITERATE_PHDR: usize = 0;
pub(super) const DLADDR: usize = 1;
pub(super) const DLADDR1: usize = 2;
pub(super) const DL_FIND_OBJECT: usize = 3;
pub(super) const BACKTRACE_SYMBOLS: usize = 4;
pub(super) const BACKTRACE_SYMBOLS_FD: usize = 5;

/// The originals of our functions, by these numbers; 0 if there is none.
static REAL: [AtomicUsize; FUNCTIONS] = [const { AtomicUsize::new(0) }; FUNCTIONS];

/// Looks them up: what every library of the program is bound to. Takes the loader's lock.
pub(super) fn find_real() {
    const NAMES: [&CStr; FUNCTIONS] =
        [c"dl_iterate_phdr", c"dladdr", c"dladdr1", c"_dl_find_object", c"backtrace_symbols", c"backtrace_symbols_fd"];
    for (real, name) in REAL.iter().zip(NAMES) {
        if real.load(Ordering::Relaxed) == 0 {
            // SAFETY: a terminated name.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            real.store(found as usize, Ordering::Release);
        }
    }
}

/// Where the real function is; 0 if there is none.
pub(super) fn real(function: usize) -> usize {
    REAL.get(function).map_or(0, |real| real.load(Ordering::Acquire))
}

/// The name of the compiled function at `address`, and how far into it that is.
pub(super) fn with_name<R>(address: u64, then: impl FnOnce(Option<&CStr>, Option<&CStr>, u64) -> R) -> Option<R> {
    if modules::counts() == Counts::default() {
        return None;
    }
    let reading = modules::read();
    let module = reading.find(Address(address))?;
    let symbol = module.symbol(Address(address));
    let start = symbol.as_ref().map_or(module.bias(), |symbol| symbol.range.start().0);
    Some(then(symbol.map(|symbol| symbol.name), Some(module.path()), address.wrapping_sub(start)))
}

/// So that the strings of C have one type here.
pub(super) type Text = *const c_char;
