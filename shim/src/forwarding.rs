//! Hooks that do not know how many arguments their function takes: they pass on eight words, more than any of these
//! functions has. The excess words come unread from the caller's registers and stack.

/// Words that a hook passes on.
pub(crate) type Words = [usize; 8];

/// Type of a hook, and of the function behind it. On aarch64 a result in memory is returned to an address that is not
/// among the words: see `channels/runtime_dyld/load_object.rs`.
pub(crate) type Forwarding<R = usize> =
    unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> R;

/// A returned value, in both registers that the ABI uses for results.
#[repr(C)]
pub(crate) struct Returned([usize; 2]);

/// Defines a hook of type [`Forwarding`] that calls `$body` with its const parameters and its words: `hook::<SLOT>`
/// calls `load_object(SLOT, words)`.
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
            // SAFETY: the words are those that this hook was called with.
            unsafe { $body($($parameter),+, [a, b, c, d, e, f, g, h]) }
        }
    };
}
pub(crate) use forwarding_hook;

/// Calls the function behind a hook.
///
/// # Safety
/// `original` must be the address of the function that the hook replaces, and `words` those that the hook was called
/// with.
pub(crate) unsafe fn forward<R>(original: usize, [a, b, c, d, e, f, g, h]: Words) -> R {
    // SAFETY: the caller forwards the host's own call; excess words are ignored.
    unsafe { std::mem::transmute::<usize, Forwarding<R>>(original)(a, b, c, d, e, f, g, h) }
}
