//! The vtables of LLVM's linkers, which are called for every object, with or without a listener or symbols.
//!
//! | file | |
//! | --- | --- |
//! | `find.rs` | finds the vtables of a class, in slices of memory (pure) |
//! | `mapped.rs` | the slices of a mapped library |
//! | `unwind_tables.rs` | the part of them that is `.eh_frame`, which is not searched (pure) |
//! | `patch.rs` | exchanges a slot, before or after the library is relocated |

pub(crate) mod find;
pub(crate) mod mapped;
pub(crate) mod patch;
mod unwind_tables;

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

/// The classes whose vtables are looked for, as `typeid` names them: RuntimeDyld's first.
pub(crate) const CLASSES: [&str; 4] = [
    "N4llvm14RuntimeDyldELFE",
    "N4llvm18RuntimeDyldELFMipsE",
    "N4llvm19RuntimeDyldCOFFI386E",
    "N4llvm3orc18ObjectLinkingLayerE",
];

/// The last of them.
pub(crate) const OBJECT_LINKING_LAYER: usize = 3;

/// Words of several places in memory that need not be mapped, by one system call: each address with how many.
pub(crate) fn words_of<const COUNT: usize>(places: &[(usize, usize)]) -> Option<[usize; COUNT]> {
    let places: Vec<(Address, usize)> =
        places.iter().map(|&(address, count)| (Address(address as u64), count)).collect();
    checked_read::copy_words(&places).ok()
}

/// Words of memory that need not be mapped, by one system call.
pub(crate) fn words<const COUNT: usize>(address: usize) -> Option<[usize; COUNT]> {
    // SAFETY: integers take every bit pattern.
    unsafe { checked_read::copy_struct(Address(address as u64)) }.ok()
}

/// The same of memory that is there.
///
/// # Safety
/// Each place must be readable for its words, and nothing may write to it meanwhile.
pub(crate) unsafe fn plain_words_of<const COUNT: usize>(places: &[(usize, usize)]) -> [usize; COUNT] {
    let mut words = [0; COUNT];
    let addresses =
        places.iter().flat_map(|&(address, count)| (0..count).map(move |at| address + at * size_of::<usize>()));
    for (word, address) in words.iter_mut().zip(addresses) {
        // SAFETY: one of the words that the caller says may be read.
        *word = unsafe { (address as *const usize).read_unaligned() };
    }
    words
}
