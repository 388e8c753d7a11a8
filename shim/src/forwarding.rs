//! Type of hooks that do not know how many arguments the hooked function takes. They pass on eight arguments, more than
//! any of these functions has. The excess values come from the caller's registers and stack, and nothing interprets
//! them.

/// The eight argument words that a hook passes on.
pub(crate) type ArgumentWords = [usize; 8];

/// Type of a hook and of the function that it forwards to. On aarch64, the address for a result returned in memory is
/// not among the arguments: see `channels/runtime_dyld/load_object.rs`.
pub(crate) type Forwarding<R = usize> =
    unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> R;

/// A return value, in both registers that the ABI uses for results.
#[repr(C)]
pub(crate) struct ReturnRegisters([usize; 2]);

/// Defines a hook of type [`Forwarding`] that calls `$body` with its const parameters and its arguments; for example,
/// `hook::<SLOT>` calls `load_object(SLOT, words)`.
macro_rules! forwarding_hook {
    ($name:ident<$($parameter:ident),+> -> $result:ty, $body:path) => {
        unsafe extern "C-unwind" fn $name<$(const $parameter: usize),+>(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
            g: usize,
            h: usize,
        ) -> $result {
            // SAFETY: `$body` gets the arguments that this hook was called with.
            unsafe { $body($($parameter),+, [a, b, c, d, e, f, g, h]) }
        }
    };
}
pub(crate) use forwarding_hook;

/// Calls the function that a hook replaces.
///
/// # Safety
/// `original` must be the address of the function that the hook replaces. The array must hold the arguments that the
/// hook was called with.
pub(crate) unsafe fn forward<R>(original: usize, [a, b, c, d, e, f, g, h]: ArgumentWords) -> R {
    // SAFETY: the caller forwards a call that the host made, and the function ignores excess arguments.
    unsafe { std::mem::transmute::<usize, Forwarding<R>>(original)(a, b, c, d, e, f, g, h) }
}
