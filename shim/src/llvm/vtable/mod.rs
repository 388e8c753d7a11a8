//! The vtables of LLVM's linkers. LLVM calls through these vtables for every object, whether or not a listener is
//! registered, and whether or not the library has symbols.
//!
//! | file | content |
//! | --- | --- |
//! | `find.rs` | finds the vtables of a class in slices of memory (no side effects) |
//! | `mapped.rs` | converts a mapped library into such slices |
//! | `search.rs` | finds the vtables of a class in a mapped library: by symbol, or by RTTI |
//! | `unwind_tables.rs` | determines the range of `.eh_frame`, which need not be searched (no side effects) |
//! | `patch.rs` | replaces a slot, before or after the library is relocated |

pub(crate) mod find;
pub(crate) mod mapped;
pub(crate) mod patch;
pub(crate) mod search;
mod unwind_tables;

use jitlisten::Address;
use jitlisten::plumbing::checked_read;

/// Classes whose vtables are searched for, as `typeid` names them; RuntimeDyld's classes come first.
pub(crate) const CLASSES: [&str; 4] = [
    "N4llvm14RuntimeDyldELFE",
    "N4llvm18RuntimeDyldELFMipsE",
    "N4llvm19RuntimeDyldCOFFI386E",
    "N4llvm3orc18ObjectLinkingLayerE",
];

/// Index of the last class in [`CLASSES`].
pub(crate) const OBJECT_LINKING_LAYER: usize = 3;

/// Reads words of several ranges (start address and number of words) in one system call. The ranges need not be mapped.
pub(crate) fn read_words_of_ranges<const COUNT: usize>(ranges: &[(usize, usize)]) -> Option<[usize; COUNT]> {
    let ranges: Vec<(Address, usize)> =
        ranges.iter().map(|&(address, count)| (Address(address as u64), count)).collect();
    checked_read::copy_words(&ranges).ok()
}

/// Reads consecutive words in one system call. The memory need not be mapped.
pub(crate) fn read_words<const COUNT: usize>(address: usize) -> Option<[usize; COUNT]> {
    // SAFETY: every bit pattern is a valid integer.
    unsafe { checked_read::copy_struct(Address(address as u64)) }.ok()
}

/// Reads words of several ranges (start address and number of words) of mapped memory.
///
/// # Safety
/// All words of each range must be readable, and no thread may write to them meanwhile.
pub(crate) unsafe fn read_mapped_words<const COUNT: usize>(ranges: &[(usize, usize)]) -> [usize; COUNT] {
    let mut words = [0; COUNT];
    let addresses =
        ranges.iter().flat_map(|&(address, count)| (0..count).map(move |index| address + index * size_of::<usize>()));
    for (word, address) in words.iter_mut().zip(addresses) {
        // SAFETY: the word is in one of the ranges, and the caller promises that they are readable.
        *word = unsafe { (address as *const usize).read_unaligned() };
    }
    words
}
