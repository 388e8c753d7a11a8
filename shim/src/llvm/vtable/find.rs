//! Finds the vtables of a C++ class in a library, by the Itanium C++ ABI ("Virtual Table Layout", "RTTI Layout").
//!
//! ```text
//!   "N4llvm14RuntimeDyldELFE\0"   <-------------+      type name, in read-only data
//!                                               |
//!   typeinfo:  vtable of the typeinfo's class,  name, (bases)
//!      ^
//!      +----------------------------+
//!   vtable:  offset to top,  typeinfo,  slot 0, slot 1, ...     offset to top is 0 in the first vtable of a class,
//!                                       ^ address point         and negative in the vtables of its further bases
//! ```
//!
//! No symbols are needed; if there is one (`_ZTV...`), its size bounds the slots. All functions work on slices, so
//! malformed input yields at worst a bogus candidate, which callers reject.
//!
//! The search does not scan the constants for the names, because a library has ten times as many bytes of constants as
//! of pointers. Instead, it follows the pointers that may belong to typeinfos. A program at a fixed address has its
//! typeinfos among the constants, so in that case the names are searched for first.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{Relocation, is_relative};

use crate::process::relocations::is_import;

/// Contiguous bytes of a library, with their address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: &'a [u8],
}

/// Parts of a library that are searched for vtables.
#[derive(Clone, Debug, Default)]
pub(crate) struct LibraryView<'a> {
    /// Difference between addresses in memory and addresses in the file.
    pub(crate) bias: u64,
    /// Segments that may contain type names.
    pub(crate) constants: Vec<Segment<'a>>,
    /// Segments that may contain vtables.
    pub(crate) data: Vec<Segment<'a>>,
    /// Relocations that the loader has yet to apply to `data`; `None` if the library is already relocated.
    pub(crate) relocations: Option<Cow<'a, [Relocation]>>,
    /// Relocations of a library that is already relocated. They show which words refer to other libraries.
    pub(crate) applied_relocations: &'a [Relocation],
    /// Address ranges of executable code.
    pub(crate) code: Vec<Range<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vtable {
    /// Index of the class in the list of class names.
    pub(crate) class: usize,
    /// Address of slot 0, which objects of the class point to.
    pub(crate) address_point: u64,
    /// Offset to the top of the object; 0 in the first vtable of the class.
    pub(crate) offset_to_top: i64,
    /// Functions as they are in memory, or will be after relocation. Each is code of this library, or of another
    /// library that contains part of LLVM. The latter are 0 until the loader has filled them in.
    pub(crate) slots: Vec<u64>,
    /// True if a symbol bounds the slots. Otherwise they end at the first word that does not point to code.
    pub(crate) is_bounded: bool,
}

/// A `_ZTV...` symbol, which covers all vtables of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Index of the class in the list of class names.
    pub(crate) class: usize,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// Common prefix of all class names, so that one search finds all of them.
const NAME_PREFIX: &str = "N4llvm";

/// Maximum number of slots in a vtable; none of the classes has that many.
const MAX_SLOTS: usize = 64;

/// Maximum number of vtables of a class; none of the classes has that many.
const MAX_VTABLES_PER_CLASS: usize = 32;

/// Maximum absolute offset to top. A word with a larger value is not an offset to top.
const MAX_OFFSET_TO_TOP: i64 = 1 << 20;

const WORD_BYTES: u64 = 8;

const MAX_VTABLE_BYTES: u64 = (MAX_SLOTS as u64 + 2) * WORD_BYTES;
const MAX_VTABLE_GROUP_BYTES: u64 = MAX_VTABLE_BYTES * MAX_VTABLES_PER_CLASS as u64;

/// Finds the vtables of the classes `names` by their RTTI. The names are mangled like `typeid(...).name()`, and all are
/// in the `llvm` namespace.
pub(crate) fn vtables_by_type_name(view: &LibraryView<'_>, names: &[&str]) -> Vec<Vtable> {
    let name_pointers = match view.bias {
        0 => view.find_pointers(&find_strings(&view.constants, names)),
        _ => view.find_name_pointers(names),
    };
    let typeinfos =
        name_pointers.into_iter().filter_map(|(class, address)| Some((class, address.checked_sub(WORD_BYTES)?)));
    let typeinfos: Vec<(usize, u64)> = typeinfos.collect();
    let starts = view
        .find_pointers(&typeinfos)
        .into_iter()
        .filter_map(|(class, address)| Some((class, address.checked_sub(WORD_BYTES)?)));
    let starts: Vec<(usize, u64)> = starts.collect();
    let excerpt = view.excerpt(starts.iter().map(|start| (start.1, MAX_VTABLE_BYTES)).collect());
    starts.into_iter().filter_map(|(class, start)| excerpt.vtable(class, start, None)).collect()
}

/// Reads the vtables that these symbols cover.
pub(crate) fn vtables_by_symbol(view: &LibraryView<'_>, symbols: &[Symbol]) -> Vec<Vtable> {
    let excerpt =
        view.excerpt(symbols.iter().map(|symbol| (symbol.address, symbol.size.min(MAX_VTABLE_GROUP_BYTES))).collect());
    symbols.iter().flat_map(|&symbol| excerpt.vtables_at_symbol(symbol)).collect()
}

/// Finds the names in memory. Returns the index and the address of each occurrence.
fn find_strings(constants: &[Segment<'_>], names: &[&str]) -> Vec<(usize, u64)> {
    let mut addresses = Vec::new();
    for segment in constants {
        for offset in memchr::memmem::find_iter(segment.bytes, NAME_PREFIX) {
            if let Some(class) = leading_name(&segment.bytes[offset..], names) {
                addresses.push((class, segment.address.wrapping_add(offset as u64)));
            }
        }
    }
    addresses
}

/// Returns the index of the null-terminated name at the start of `bytes`.
fn leading_name(bytes: &[u8], names: &[&str]) -> Option<usize> {
    let is_leading = |name: &str| bytes.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
    bytes.starts_with(NAME_PREFIX.as_bytes()).then(|| names.iter().position(|name| is_leading(name)))?
}

impl LibraryView<'_> {
    fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    fn is_read_only(&self, address: u64) -> bool {
        self.constants.iter().any(|segment| segment.contains(address)) || self.is_code(address)
    }

    /// Finds words that point to one of `names` and look like the second word of a typeinfo. Returns the index of the
    /// name and the address of the word.
    fn find_name_pointers(&self, names: &[&str]) -> Vec<(usize, u64)> {
        // This test runs for every pointer in the library, so collect the ranges first.
        let constants = self.constants.iter().map(|segment| (segment.address, segment.bytes.len() as u64));
        let constants: Vec<(u64, u64)> = constants.collect();
        let is_constant = |value: u64| constants.iter().any(|&(start, size)| value.wrapping_sub(start) < size);
        // The word before the name is the vtable pointer of the typeinfo, in this library or another. The word after it
        // is a base's typeinfo or a number, because all the searched classes have bases. This test rules out tables of
        // names and tables of functions.
        let is_typeinfo = |previous: Option<u64>, next: Option<u64>| {
            previous.is_none_or(|word| word != 0 && word.is_multiple_of(WORD_BYTES) && !self.is_read_only(word))
                && next.is_none_or(|word| !self.is_read_only(word))
        };
        let name_at = |value: u64| {
            let segment = self.constants.iter().find(|segment| segment.contains(value))?;
            leading_name(&segment.bytes[(value - segment.address) as usize..], names)
        };
        let mut pointers = Vec::new();
        let mut record_pointer = |value: u64, address: u64| {
            if let Some(class) = name_at(value)
                && pointers.len() < MAX_VTABLES_PER_CLASS * names.len()
            {
                pointers.push((class, address));
            }
        };
        if let Some(relocations) = self.relocations.as_deref() {
            // If the neighbouring word's relocation is not next to this one in the table, that word's value counts as
            // unknown.
            let relocated_word = |index: usize, offset: u64| {
                let &[neighbour, info, addend] = relocations.get(index)?;
                (neighbour == offset && is_relative(info)).then(|| addend.wrapping_add(self.bias))
            };
            for (index, &[offset, info, addend]) in relocations.iter().enumerate() {
                let value = addend.wrapping_add(self.bias);
                if is_constant(value)
                    && is_relative(info)
                    && is_typeinfo(
                        relocated_word(index.wrapping_sub(1), offset.wrapping_sub(WORD_BYTES)),
                        relocated_word(index + 1, offset.wrapping_add(WORD_BYTES)),
                    )
                {
                    record_pointer(value, offset.wrapping_add(self.bias));
                }
            }
        } else {
            for segment in &self.data {
                for (address, value) in segment.words().filter(|word| is_constant(word.1)) {
                    let word_at = |address: u64| segment.word_at(address);
                    if is_typeinfo(word_at(address.wrapping_sub(WORD_BYTES)), word_at(address.wrapping_add(WORD_BYTES)))
                    {
                        record_pointer(value, address);
                    }
                }
            }
        }
        pointers
    }

    /// Finds words that point to one of `targets`. Returns the index of the target and the address of the word.
    fn find_pointers(&self, targets: &[(usize, u64)]) -> Vec<(usize, u64)> {
        let addresses = targets.iter().map(|target| target.1);
        let (Some(first), Some(last)) = (addresses.clone().min(), addresses.max()) else { return Vec::new() };
        let mut pointers = Vec::new();
        let mut record_if_target = |value: u64, address: u64| {
            if (first..=last).contains(&value)
                && let Some(&(class, _)) = targets.iter().find(|target| target.1 == value)
                && pointers.len() < MAX_VTABLES_PER_CLASS * targets.len()
            {
                pointers.push((class, address));
            }
        };
        match self.relocations.as_deref() {
            Some(relocations) => {
                for &[offset, _, addend] in relocations.iter().filter(|relocation| is_relative(relocation[1])) {
                    record_if_target(addend.wrapping_add(self.bias), offset.wrapping_add(self.bias));
                }
            }
            None => self
                .data
                .iter()
                .for_each(|segment| segment.words().for_each(|(address, value)| record_if_target(value, address))),
        }
        pointers
    }

    /// Restricts the view to the relocations in these ranges. There may be half a million relocations, so a single pass
    /// filters them.
    fn excerpt(&self, ranges: Vec<(u64, u64)>) -> Excerpt<'_> {
        let is_in_ranges = |relocation: &&Relocation| {
            let address = relocation[0].wrapping_add(self.bias);
            ranges.iter().any(|&(start, size)| address.wrapping_sub(start) < size)
        };
        // Skip the pass if there are no ranges.
        let relocations =
            if ranges.is_empty() { &[] } else { self.relocations.as_deref().unwrap_or(self.applied_relocations) };
        Excerpt { view: self, relocations: relocations.iter().filter(is_in_ranges).copied().collect() }
    }
}

/// A view with only those relocations that fall into certain ranges.
struct Excerpt<'a> {
    view: &'a LibraryView<'a>,
    relocations: Vec<Relocation>,
}

impl Excerpt<'_> {
    /// Reads up to `max_words` words from `start`, with the values that they will have after relocation. Stops at the
    /// end of the segment. The flag is true if the word is another library's function.
    fn words(&self, start: u64, max_words: usize) -> Vec<(u64, bool)> {
        let bias = self.view.bias;
        let Some(segment) = self.view.data.iter().find(|segment| segment.contains(start)) else { return Vec::new() };
        let rest = &segment.bytes[(start - segment.address) as usize..];
        let words = rest.chunks_exact(WORD_BYTES as usize).take(max_words).map(|bytes| (word(bytes), false));
        let mut words: Vec<(u64, bool)> = words.collect();
        for &[offset, info, addend] in &self.relocations {
            let index = offset.wrapping_add(bias).wrapping_sub(start) / WORD_BYTES;
            if let Some(word) = words.get_mut(index as usize).filter(|_| offset.wrapping_add(bias) >= start) {
                word.1 = is_import(info, addend);
                if self.view.relocations.is_some() {
                    // Relocations of any other type have an unknown value.
                    word.0 = if is_relative(info) { addend.wrapping_add(bias) } else { 0 };
                }
            }
        }
        words
    }

    /// Reads the vtable at `start`, which is the address of its offset to top.
    fn vtable(&self, class: usize, start: u64, bound: Option<usize>) -> Option<Vtable> {
        let words = self.words(start, bound.unwrap_or(MAX_SLOTS + 2).min(MAX_SLOTS + 2));
        let &[(offset_to_top, _), _typeinfo, ref slots @ ..] = words.as_slice() else { return None };
        let offset_to_top = offset_to_top as i64;
        let is_slot = |&(slot, is_import): &(u64, bool)| is_import || self.view.is_code(slot);
        let slots: Vec<u64> = slots.iter().copied().take_while(is_slot).map(|slot| slot.0).collect();
        let is_plausible = !slots.is_empty()
            && slots.len() < MAX_SLOTS
            && (-MAX_OFFSET_TO_TOP..=0).contains(&offset_to_top)
            && start.is_multiple_of(WORD_BYTES);
        is_plausible.then(|| Vtable {
            class,
            address_point: start.wrapping_add(2 * WORD_BYTES),
            offset_to_top,
            slots,
            is_bounded: bound.is_some(),
        })
    }

    /// Reads the consecutive vtables that a symbol covers.
    fn vtables_at_symbol(&self, symbol: Symbol) -> Vec<Vtable> {
        let mut vtables = Vec::new();
        let (mut start, end) = (symbol.address, symbol.address.saturating_add(symbol.size));
        while start < end && vtables.len() < MAX_VTABLES_PER_CLASS {
            let max_words = ((end - start) / WORD_BYTES) as usize;
            let Some(vtable) = self.vtable(symbol.class, start, Some(max_words)) else { return vtables };
            start = vtable.address_point.saturating_add(vtable.slots.len() as u64 * WORD_BYTES);
            vtables.push(vtable);
        }
        vtables
    }
}

impl Segment<'_> {
    fn contains(&self, address: u64) -> bool {
        address >= self.address && address - self.address < self.bytes.len() as u64
    }

    pub(crate) fn word_at(&self, address: u64) -> Option<u64> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..start.checked_add(WORD_BYTES as usize)?).map(word)
    }

    /// Aligned words of the segment, with their addresses.
    fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        let misalignment = self.address.wrapping_neg() % WORD_BYTES;
        let words = self.bytes.get(misalignment as usize..).unwrap_or_default().chunks_exact(WORD_BYTES as usize);
        let first_address = self.address.wrapping_add(misalignment);
        words
            .enumerate()
            .map(move |(index, bytes)| (first_address.wrapping_add(index as u64 * WORD_BYTES), word(bytes)))
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default()
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
