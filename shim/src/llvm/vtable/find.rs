//! Finds the vtables of a C++ class in a library, by the Itanium C++ ABI ("Virtual Table Layout", "RTTI Layout").
//!
//! ```text
//!   "N4llvm14RuntimeDyldELFE\0"   <-------------+      type name, in read-only data
//!                                               |
//!   typeinfo:  vtable of the typeinfo's class,  name, (bases)
//!      ^
//!      +----------------------------+
//!   vtable:  offset to top,  typeinfo,  slot 0, slot 1, ...     offset to top is 0 in the first vtable of a class,
//!                                       ^ address point         and negative in those of its further bases
//! ```
//!
//! None of this needs symbols; if there is one (`_ZTV...`), its size bounds the slots. Everything here works on slices:
//! malformed input yields at worst a bogus candidate, which callers validate.
//!
//! The names are not searched in the constants, because a library has ten times as many bytes of constants as of
//! pointers. Instead, pointers that may belong to typeinfos are followed. A program at fixed addresses has its
//! typeinfos among the constants; there the names come first.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{Relocation, is_relative};

/// Bytes of a library and where they are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: &'a [u8],
}

/// A library, as far as vtables are looked for in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct View<'a> {
    /// What is added to addresses in the file.
    pub(crate) bias: u64,
    /// Where the names of types are.
    pub(crate) constants: Vec<Segment<'a>>,
    /// Where vtables are.
    pub(crate) data: Vec<Segment<'a>>,
    /// Of a library that is not relocated yet: what the loader will add to `data`.
    pub(crate) relocations: Option<Cow<'a, [Relocation]>>,
    /// Of one that is: which words the loader has filled with what other libraries define.
    pub(crate) relocated: &'a [Relocation],
    /// Where its code is.
    pub(crate) code: Vec<Range<u64>>,
}

/// A vtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vtable {
    /// Which of the names it was found by.
    pub(crate) class: usize,
    /// What objects of the class point at: the address of slot 0.
    pub(crate) address_point: u64,
    /// 0 for the first vtable of the class.
    pub(crate) offset_to_top: i64,
    /// The functions, as they are or will be in memory: each is code of this library, or of another one that has a part
    /// of LLVM. Those are zero until the loader has filled them in.
    pub(crate) slots: Vec<u64>,
    /// Whether a symbol says where the slots end; otherwise they end where something else than code is pointed at.
    pub(crate) bounded: bool,
}

/// `_ZTV...`: all vtables of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// The index of the class's name.
    pub(crate) class: usize,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// All names begin with this: one search finds them all.
const PREFIX: &str = "N4llvm";

/// More slots than any class has that is looked for.
const MOST_SLOTS: usize = 64;

/// More vtables than one class has.
const MOST_VTABLES: usize = 32;

/// Offsets to top that are larger are none.
const LARGEST_OFFSET: i64 = 1 << 20;

const WORD: u64 = 8;

/// How many bytes are looked at from the start of a vtable.
const LARGEST_VTABLE: u64 = (MOST_SLOTS as u64 + 2) * WORD;
const LARGEST_GROUP: u64 = LARGEST_VTABLE * MOST_VTABLES as u64;

/// The vtables of the classes called `names` (mangled, as in `typeid(...).name()`; all in the namespace `llvm`), by the
/// names of their types.
pub(crate) fn by_type_name(view: &View<'_>, names: &[&str]) -> Vec<Vtable> {
    let named = match view.bias {
        0 => view.pointing_at(&strings(&view.constants, names)),
        _ => view.pointing_at_names(names),
    };
    let infos = named.into_iter().filter_map(|(class, at)| Some((class, at.checked_sub(WORD)?)));
    let infos: Vec<(usize, u64)> = infos.collect();
    let starts = view.pointing_at(&infos).into_iter().filter_map(|(class, at)| Some((class, at.checked_sub(WORD)?)));
    let starts: Vec<(usize, u64)> = starts.collect();
    let near = view.near(starts.iter().map(|start| (start.1, LARGEST_VTABLE)).collect());
    starts.into_iter().filter_map(|(class, start)| near.vtable(class, start, None)).collect()
}

/// The vtables at these symbols.
pub(crate) fn by_symbol(view: &View<'_>, symbols: &[Symbol]) -> Vec<Vtable> {
    let near = view.near(symbols.iter().map(|symbol| (symbol.address, symbol.size.min(LARGEST_GROUP))).collect());
    symbols.iter().flat_map(|&symbol| near.group(symbol)).collect()
}

/// Where the strings are in memory, with the indices of their names.
fn strings(constants: &[Segment<'_>], names: &[&str]) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    for segment in constants {
        for at in memchr::memmem::find_iter(segment.bytes, PREFIX) {
            if let Some(class) = beginning(&segment.bytes[at..], names) {
                found.push((class, segment.address.wrapping_add(at as u64)));
            }
        }
    }
    found
}

/// Which of the names, with the zero behind it, `bytes` begin with.
fn beginning(bytes: &[u8], names: &[&str]) -> Option<usize> {
    let is_there = |name: &str| bytes.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
    bytes.starts_with(PREFIX.as_bytes()).then(|| names.iter().position(|name| is_there(name)))?
}

impl View<'_> {
    fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    fn is_read_only(&self, address: u64) -> bool {
        self.constants.iter().any(|segment| segment.holds(address)) || self.is_code(address)
    }

    /// The addresses of words that point at one of `names`, as the second word of a typeinfo does, each with the index
    /// of the name.
    fn pointing_at_names(&self, names: &[&str]) -> Vec<(usize, u64)> {
        // Asked of every pointer of the library.
        let constants = self.constants.iter().map(|segment| (segment.address, segment.bytes.len() as u64));
        let constants: Vec<(u64, u64)> = constants.collect();
        let is_constant = |value: u64| constants.iter().any(|&(start, size)| value.wrapping_sub(start) < size);
        // In front of the name is the vtable of the typeinfo's class, of this library or another one; behind it, the
        // typeinfo of a base, or numbers: the classes that are looked for have bases. That rules out tables of names,
        // and of functions.
        let is_typeinfo = |before: Option<u64>, after: Option<u64>| {
            before.is_none_or(|word| word != 0 && word.is_multiple_of(WORD) && !self.is_read_only(word))
                && after.is_none_or(|word| !self.is_read_only(word))
        };
        let named = |value: u64| {
            let segment = self.constants.iter().find(|segment| segment.holds(value))?;
            beginning(&segment.bytes[(value - segment.address) as usize..], names)
        };
        let mut found = Vec::new();
        let mut add = |value: u64, at: u64| {
            if let Some(class) = named(value)
                && found.len() < MOST_VTABLES * names.len()
            {
                found.push((class, at));
            }
        };
        if let Some(relocations) = self.relocations.as_deref() {
            // A neighbour that is absent from this table, too, is unknown.
            let at = |index: usize, offset: u64| {
                let &[neighbour, info, addend] = relocations.get(index)?;
                (neighbour == offset && is_relative(info)).then(|| addend.wrapping_add(self.bias))
            };
            for (index, &[offset, info, addend]) in relocations.iter().enumerate() {
                let value = addend.wrapping_add(self.bias);
                if is_constant(value)
                    && is_relative(info)
                    && is_typeinfo(
                        at(index.wrapping_sub(1), offset.wrapping_sub(WORD)),
                        at(index + 1, offset.wrapping_add(WORD)),
                    )
                {
                    add(value, offset.wrapping_add(self.bias));
                }
            }
        } else {
            for segment in &self.data {
                for (at, value) in segment.words().filter(|word| is_constant(word.1)) {
                    let neighbour = |at: u64| segment.word_at(at);
                    if is_typeinfo(neighbour(at.wrapping_sub(WORD)), neighbour(at.wrapping_add(WORD))) {
                        add(value, at);
                    }
                }
            }
        }
        found
    }

    /// The addresses of words that point at one of `targets`, each with the index that comes with the target.
    fn pointing_at(&self, targets: &[(usize, u64)]) -> Vec<(usize, u64)> {
        let addresses = targets.iter().map(|target| target.1);
        let (Some(first), Some(last)) = (addresses.clone().min(), addresses.max()) else { return Vec::new() };
        let mut found = Vec::new();
        let mut look = |value: u64, at: u64| {
            if (first..=last).contains(&value)
                && let Some(&(class, _)) = targets.iter().find(|target| target.1 == value)
                && found.len() < MOST_VTABLES * targets.len()
            {
                found.push((class, at));
            }
        };
        match self.relocations.as_deref() {
            Some(relocations) => {
                for &[offset, _, addend] in relocations.iter().filter(|relocation| is_relative(relocation[1])) {
                    look(addend.wrapping_add(self.bias), offset.wrapping_add(self.bias));
                }
            }
            None => self.data.iter().for_each(|segment| segment.words().for_each(|(at, value)| look(value, at))),
        }
        found
    }

    /// The same, with the relocations of these ranges only: there may be half a million, and one pass finds them.
    fn near(&self, ranges: Vec<(u64, u64)>) -> Near<'_> {
        let is_near = |relocation: &&Relocation| {
            let at = relocation[0].wrapping_add(self.bias);
            ranges.iter().any(|&(start, size)| at.wrapping_sub(start) < size)
        };
        // Without a range, no relocation needs to be looked at.
        let all = if ranges.is_empty() { &[] } else { self.relocations.as_deref().unwrap_or(self.relocated) };
        Near { view: self, relocations: all.iter().filter(is_near).copied().collect() }
    }
}

/// Some places of a library.
struct Near<'a> {
    view: &'a View<'a>,
    relocations: Vec<Relocation>,
}

impl Near<'_> {
    /// The words from `start` on, as they will be once the library is relocated, and whether it is another library's
    /// function; fewer at the end of the segment.
    fn words(&self, start: u64, most: usize) -> Vec<(u64, bool)> {
        let bias = self.view.bias;
        let Some(segment) = self.view.data.iter().find(|segment| segment.holds(start)) else { return Vec::new() };
        let rest = &segment.bytes[(start - segment.address) as usize..];
        let words = rest.chunks_exact(WORD as usize).take(most).map(|bytes| (word(bytes), false));
        let mut words: Vec<(u64, bool)> = words.collect();
        for &[offset, info, addend] in &self.relocations {
            let index = offset.wrapping_add(bias).wrapping_sub(start) / WORD;
            if let Some(word) = words.get_mut(index as usize).filter(|_| offset.wrapping_add(bias) >= start) {
                word.1 = is_import(info, addend);
                if self.view.relocations.is_some() {
                    // What another kind of relocation will put there is not known.
                    word.0 = if is_relative(info) { addend.wrapping_add(bias) } else { 0 };
                }
            }
        }
        words
    }

    /// The vtable that begins, with its offset to top, at `start`.
    fn vtable(&self, class: usize, start: u64, bound: Option<usize>) -> Option<Vtable> {
        let words = self.words(start, bound.unwrap_or(MOST_SLOTS + 2).min(MOST_SLOTS + 2));
        let &[(offset_to_top, _), _typeinfo, ref slots @ ..] = words.as_slice() else { return None };
        let offset_to_top = offset_to_top as i64;
        let is_slot = |&(slot, is_import): &(u64, bool)| is_import || self.view.is_code(slot);
        let slots: Vec<u64> = slots.iter().copied().take_while(is_slot).map(|slot| slot.0).collect();
        let is_one = !slots.is_empty()
            && slots.len() < MOST_SLOTS
            && (-LARGEST_OFFSET..=0).contains(&offset_to_top)
            && start.is_multiple_of(WORD);
        is_one.then(|| Vtable {
            class,
            address_point: start.wrapping_add(2 * WORD),
            offset_to_top,
            slots,
            bounded: bound.is_some(),
        })
    }

    /// The vtables one behind the other that a symbol covers.
    fn group(&self, symbol: Symbol) -> Vec<Vtable> {
        let mut vtables = Vec::new();
        let (mut at, end) = (symbol.address, symbol.address.saturating_add(symbol.size));
        while at < end && vtables.len() < MOST_VTABLES {
            let left = ((end - at) / WORD) as usize;
            let Some(vtable) = self.vtable(symbol.class, at, Some(left)) else { return vtables };
            at = vtable.address_point.saturating_add(vtable.slots.len() as u64 * WORD);
            vtables.push(vtable);
        }
        vtables
    }
}

impl Segment<'_> {
    fn holds(&self, address: u64) -> bool {
        address >= self.address && address - self.address < self.bytes.len() as u64
    }

    /// The word at `address`.
    pub(crate) fn word_at(&self, address: u64) -> Option<u64> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..start.checked_add(WORD as usize)?).map(word)
    }

    /// Its aligned words, with their addresses.
    fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        let skip = self.address.wrapping_neg() % WORD;
        let words = self.bytes.get(skip as usize..).unwrap_or_default().chunks_exact(WORD as usize);
        let first = self.address.wrapping_add(skip);
        words.enumerate().map(move |(index, bytes)| (first.wrapping_add(index as u64 * WORD), word(bytes)))
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default()
}

/// Whether a relocation puts the address of a function there that another library may define. References to what
/// describes types in the C++ library have an addend.
pub(crate) fn is_import(info: u64, addend: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    const ADDRESS: u32 = object::elf::R_X86_64_64.0;
    #[cfg(target_arch = "aarch64")]
    const ADDRESS: u32 = object::elf::R_AARCH64_ABS64.0;
    info as u32 == ADDRESS && addend == 0
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
