//! `llvm::orc::ObjectLinkingLayer::emit`: ORC calls it for every object that JITLink links.
//!
//! ```text
//!   two vtables     9 slots, then 4         destructors (2), dynamicClassID, isA, anchor, add, emit, ...
//!   three vtables   7 slots, then 4 and 7   emit for link graphs is in slot 3, that for objects in slot 6 of the
//!                                           first vtable and of the third, where the caller is an ObjectLayer
//! ```
//! `llvm/releases.rs` says which releases have which.
//!
//! `void emit(std::unique_ptr<MaterializationResponsibility>, std::unique_ptr<MemoryBuffer>)`: by the C++ ABI both
//! arguments are addresses of pointers. A `MemoryBuffer` is its vtable, begin, and end. The object is copied before it
//! is linked and located later: `linking.rs`, [`placement`](crate::placement). If a host with a debug plugin later
//! registers it with debuggers, it is the same object.
//!
//! # Why not a plugin
//! Since LLVM 13 a `Plugin` of the layer is called with the linked graph, which has exact addresses. But `addPlugin` is
//! inline, so one would have to be pushed into a private `std::vector`: of `unique_ptr` in LLVM 14, of `shared_ptr` in
//! 19, of another class in 22. Its vtable has other slots in 22, and one has other arguments in 19. Of the graph,
//! sections are a `vector` in 14 and a `MapVector` in 19; names are `StringRef` in 19, `SymbolStringPtr` in 22. A
//! stripped library shows none of these layouts. What `emit` is called with is an ELF file in every release, so its
//! code is located by its bytes.
//!
//! # Checks
//! The vtables must be adjacent and have the numbers of slots of the library's release. At each call, `this` must have
//! the vtable that was found, and the second pointer must lead to an ELF object. Otherwise the call is only passed on,
//! and the log says so once; objects of another machine (BPF) are passed on silently. The hook changes nothing and
//! passes on more words than `emit` has, so it is harmless even in front of another function of the vtable.

pub(crate) mod emitted;
pub(crate) mod hook;
mod linking;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{FileHeader, LE, THIS_MACHINE, file_header};
use jitlisten::{Address, AddressRange, log_line};

use crate::hook_table::{EMIT_VTABLES, Emit, Returned, SLOTS};
use crate::llvm::releases::{self, Release};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::{OBJECT_LINKING_LAYER, patch, words, words_of};
use crate::process::detour::Callers;
use crate::process::library::Library;

/// `emit` for objects, in each vtable that has it.
const EMIT: usize = 6;

/// In front of the slots of a vtable are the offset to top and the typeinfo.
const HEADER: u64 = 16;

/// Why JITLink of an LLVM is not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no JITLink.
    Missing,
    /// The vtables are not as in any release that is known, or not as in the one that the library says it is.
    Unknown,
    /// A release that is newer than any that is known.
    TooNew(u32),
    /// `JITLISTEN_LLVM` leaves it out.
    Unwanted,
    /// A slot could not be changed.
    Unchanged,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Missing => write!(f, "no vtable of ObjectLinkingLayer"),
            Refusal::Unknown => write!(f, "unknown release: vtables of ObjectLinkingLayer"),
            Refusal::TooNew(release) => write!(f, "unsupported release LLVM {release}"),
            Refusal::Unwanted => write!(f, "switched off"),
            Refusal::Unchanged => write!(f, "a slot of ObjectLinkingLayer could not be patched"),
        }
    }
}

/// Which of the class's vtables have `emit`, in a library that is one of these releases.
pub(crate) fn with_emit<'a>(vtables: &[&'a Vtable], releases: &[Release]) -> Result<Vec<&'a Vtable>, Refusal> {
    let mut all = vtables.to_vec();
    all.sort_by_key(|vtable| vtable.address_point);
    let Some((first, further)) = all.split_first() else { return Err(Refusal::Missing) };
    let end = |vtable: &Vtable| vtable.address_point + vtable.slots.len() as u64 * 8;
    let joined = all.windows(2).all(|pair| end(pair[0]) + HEADER == pair[1].address_point);
    let derived = first.offset_to_top == 0 && further.iter().all(|vtable| vtable.offset_to_top < 0);
    let slots: Vec<usize> = all.iter().map(|vtable| vtable.slots.len()).collect();
    let emits = match further {
        _ if !joined || !derived => return Err(Refusal::Unknown),
        [_] => vec![*first],
        [_, second] => vec![*first, second],
        _ => return Err(Refusal::Unknown),
    };
    let checked = releases::check(releases, |row| row.has_jitlink(&slots));
    checked.map(|()| emits).map_err(|too_new| too_new.map_or(Refusal::Unknown, Refusal::TooNew))
}

/// What a hook needs. Written before the vtable is changed.
struct Hooked {
    original: AtomicUsize,
    /// What objects of the class point at.
    vtable: AtomicUsize,
    /// Whether the log has said that a call was not understood.
    warned: AtomicBool,
}

static TABLE: [[Hooked; EMIT_VTABLES]; SLOTS] = [const {
    [const { Hooked { original: AtomicUsize::new(0), vtable: AtomicUsize::new(0), warned: AtomicBool::new(false) } };
        EMIT_VTABLES]
}; SLOTS];

/// Listens to JITLink of `library`. `slot` is its place in the table of sources, `hooks` are that place's, `vtables`
/// those of [`CLASSES`](crate::llvm::vtable::CLASSES), `releases` what the library says of itself.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    vtables: &[Vtable],
    releases: &[Release],
    hooks: [Emit; EMIT_VTABLES],
    callers: Callers,
) -> Result<(), Refusal> {
    let table = TABLE.get(slot).ok_or(Refusal::Missing)?;
    let of_class: Vec<&Vtable> = vtables.iter().filter(|vtable| vtable.class == OBJECT_LINKING_LAYER).collect();
    for (which, vtable) in with_emit(&of_class, releases)?.into_iter().enumerate() {
        table[which].original.store(patch::original(library, vtable, EMIT).unwrap_or_default(), Ordering::Relaxed);
        table[which].warned.store(false, Ordering::Relaxed);
        table[which].vtable.store(vtable.address_point as usize, Ordering::Release);
        // SAFETY: this slot's hook passes on whatever it is called with; `callers` says whose thread this is.
        let exchanged = unsafe { patch::exchange(library, vtable, EMIT, hooks[which] as usize, callers) };
        if let Err(error) = exchanged {
            let path = library.path.display();
            if which == 0 {
                log_line!(Info, "{path}: could not hook JITLink: {error}");
                return Err(Refusal::Unchanged);
            }
            log_line!(Warn, "{path}: could not hook one of JITLink's two vtables: {error}");
            // Behind a slot that was changed, this place of the table is not given to another library.
            return Ok(());
        }
    }
    Ok(())
}

/// Calls the original function of a hook.
///
/// # Safety
/// Only that hook may, with the words it was called with.
unsafe fn call_original(slot: usize, which: usize, words: [usize; 8]) -> Returned {
    let [a, b, c, d, e, f, g, h] = words;
    let original = TABLE[slot][which].original.load(Ordering::Acquire);
    // SAFETY: the function that was in the slot (the vtable leads to the hook only once that is written), and the
    // host's own call, passed on.
    unsafe { std::mem::transmute::<usize, Emit>(original)(a, b, c, d, e, f, g, h) }
}

const SMALLEST: usize = size_of::<FileHeader>();

impl Hooked {
    /// Whether an ignored object is to be reported: once.
    fn warns(&self) -> bool {
        !self.warned.swap(true, Ordering::Relaxed)
    }

    /// The object that is to be linked, or what is not as it should be. `Ok(None)` for an object of another machine, or
    /// where there is no memory for it, which the session says.
    fn read(
        &self,
        this: usize,
        responsibility: usize,
        object: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Result<Option<Vec<u8>>, &'static str> {
        const UNREADABLE: &str = "memory that cannot be read";
        let [class, responsible, buffer] =
            words_of(&[(this, 1), (responsibility, 1), (object, 1)]).ok_or(UNREADABLE)?;
        if class != self.vtable.load(Ordering::Acquire) {
            return Err("its linker is of another class");
        }
        if responsible == 0 {
            return Err("nothing is responsible for it");
        }
        // `MemoryBuffer { vtable, begin, end }`
        let [_, begin, end] = words(buffer).ok_or(UNREADABLE)?;
        let size = end.checked_sub(begin).filter(|&size| size >= SMALLEST).ok_or("too small for an ELF file")?;
        let copy = |size: usize| {
            let range = AddressRange::new(Address(begin as u64), size as u64)?;
            checked_read::copy(range).ok()
        };
        // First, because any size may stand where there is no object.
        let header = file_header(&copy(SMALLEST).ok_or(UNREADABLE)?).ok_or("no ELF object")?;
        if header.e_machine.get(LE) != THIS_MACHINE || !has_memory(2 * size) {
            return Ok(None);
        }
        copy(size).ok_or(UNREADABLE).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vtables one behind the other with so many slots each.
    fn group(slots: &[usize]) -> Vec<Vtable> {
        let mut next = 0x1000;
        let mut vtables = Vec::new();
        for (index, &slots) in slots.iter().enumerate() {
            let (address_point, offset_to_top) = (next + HEADER, -8 * index as i64);
            let slots = (0..slots as u64).map(|slot| 0x9000 + slot).collect::<Vec<u64>>();
            next = address_point + slots.len() as u64 * 8;
            vtables.push(Vtable { class: 0, address_point, offset_to_top, slots, bounded: false });
        }
        vtables
    }

    fn found(vtables: &[Vtable]) -> Result<Vec<u64>, Refusal> {
        // In any order.
        let all: Vec<&Vtable> = vtables.iter().rev().collect();
        with_emit(&all, &[]).map(|found| found.iter().map(|vtable| vtable.address_point).collect())
    }

    #[test]
    fn only_vtables_of_known_releases_are_taken() {
        assert_eq!(found(&group(&[9, 4])), Ok(vec![0x1010]));
        let three = group(&[7, 4, 7]);
        assert_eq!(found(&three), Ok(vec![three[0].address_point, three[2].address_point]));
        for unknown in [&[9][..], &[9, 5], &[8, 4], &[10, 4], &[7, 4], &[7, 4, 8], &[7, 4, 7, 2], &[7, 7, 4]] {
            assert_eq!(found(&group(unknown)), Err(Refusal::Unknown), "{unknown:?}");
        }
        assert_eq!(found(&[]), Err(Refusal::Missing));
        let mut apart = group(&[9, 4]);
        apart[1].address_point += 8;
        assert_eq!(found(&apart), Err(Refusal::Unknown));
        let mut twice = group(&[9, 4]);
        twice.extend(group(&[9, 4]));
        assert_eq!(found(&twice), Err(Refusal::Unknown));
    }

    /// The vtables of another release are none of this one: they may be those of something else.
    #[test]
    fn the_vtables_are_those_of_the_release() {
        let (two, three) = (group(&[9, 4]), group(&[7, 4, 7]));
        let said = |vtables: &[Vtable], version: &str| {
            let (all, release) = (vtables.iter().collect::<Vec<_>>(), Release::of(version).expect("a version"));
            with_emit(&all, &[release]).map(|found| found.len())
        };
        for version in ["13.0.1", "19.1", "20.0.0git", "21.0.0git"] {
            assert_eq!(said(&two, version), Ok(1), "{version}");
        }
        for version in ["20.0.0git", "21.1.1", "24.0.0git"] {
            assert_eq!(said(&three, version), Ok(2), "{version}");
        }
        assert_eq!((said(&two, "12.0.1"), said(&two, "22.1.0")), (Err(Refusal::Unknown), Err(Refusal::Unknown)));
        assert_eq!(said(&three, "19.1.7"), Err(Refusal::Unknown));
        assert_eq!(said(&three, "25.0.0git"), Err(Refusal::TooNew(25)));
    }
}
