//! The vtables of LLVM's linkers. LLVM calls through them for every object, with or without a listener or symbols.
//!
//! | file | content |
//! | --- | --- |
//! | `find.rs` | finds the vtables of a class, in slices of memory (pure) |
//! | `mapped.rs` | the slices of a mapped library |
//! | `search.rs` | finds the vtables of a class in a mapped library: by symbol, or by RTTI |
//! | `unwind_tables.rs` | the range of `.eh_frame`, which is not searched (pure) |
//! | `patch.rs` | replaces a slot, before or after the library is relocated |

pub(crate) mod find;
pub(crate) mod mapped;
pub(crate) mod patch;
pub(crate) mod search;
mod unwind_tables;

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

/// Classes whose vtables are searched, as `typeid` names them: RuntimeDyld's first.
pub(crate) const CLASSES: [&str; 4] = [
    "N4llvm14RuntimeDyldELFE",
    "N4llvm18RuntimeDyldELFMipsE",
    "N4llvm19RuntimeDyldCOFFI386E",
    "N4llvm3orc18ObjectLinkingLayerE",
];

/// Index of the last class.
pub(crate) const OBJECT_LINKING_LAYER: usize = 3;

/// Reads words of several ranges (address and number of words) that need not be mapped, in one system call.
pub(crate) fn read_words_of_ranges<const COUNT: usize>(ranges: &[(usize, usize)]) -> Option<[usize; COUNT]> {
    let ranges: Vec<(Address, usize)> =
        ranges.iter().map(|&(address, count)| (Address(address as u64), count)).collect();
    checked_read::copy_words(&ranges).ok()
}

/// Reads words of memory that need not be mapped, in one system call.
pub(crate) fn read_words<const COUNT: usize>(address: usize) -> Option<[usize; COUNT]> {
    // SAFETY: integers take every bit pattern.
    unsafe { checked_read::copy_struct(Address(address as u64)) }.ok()
}

/// Reads words of several ranges of mapped memory.
///
/// # Safety
/// Each range must be readable for its words, and no thread may write to it meanwhile.
pub(crate) unsafe fn read_mapped_words<const COUNT: usize>(ranges: &[(usize, usize)]) -> [usize; COUNT] {
    let mut words = [0; COUNT];
    let addresses =
        ranges.iter().flat_map(|&(address, count)| (0..count).map(move |index| address + index * size_of::<usize>()));
    for (word, address) in words.iter_mut().zip(addresses) {
        // SAFETY: a word of one of the ranges that the caller promises to be readable.
        *word = unsafe { (address as *const usize).read_unaligned() };
    }
    words
}
