//! Channel for objects linked by JITLink: ORC calls `llvm::orc::ObjectLinkingLayer::emit` for each of them.
//!
//! ```text
//!   two vtables     9 slots, then 4         destructors (2), dynamicClassID, isA, anchor, add, emit, ...
//!   three vtables   7 slots, then 4 and 7   emit for link graphs in slot 3, emit for objects in slot 6 of the first
//!                                           vtable, and of the third, which serves calls through ObjectLayer
//! ```
//! `llvm/releases.rs` lists the layouts of each release.
//!
//! `void emit(std::unique_ptr<MaterializationResponsibility>, std::unique_ptr<MemoryBuffer>)`: under the C++ ABI, both
//! arguments are addresses of pointers. A `MemoryBuffer` consists of a vtable pointer and two pointers, `begin` and
//! `end`. The object is copied before it is linked, and located later by `trackers/emitted/` and
//! [`placement`](crate::placement). If a host with a debug plugin also registers the object with debuggers later, both
//! reports count as one object.
//!
//! # Why not a plugin
//! Since LLVM 13, a `Plugin` of the layer receives the linked graph, which has exact addresses. But `addPlugin` is
//! inline, so we would have to push the plugin into a private `std::vector`. Its elements are `unique_ptr` in LLVM 14,
//! `shared_ptr` in 19, and another class in 22. The plugin's vtable has a different layout in 22, and one of its
//! functions takes different arguments in 19. In the graph, sections are a `vector` in 14 and a `MapVector` in 19;
//! names are `StringRef` in 19 and `SymbolStringPtr` in 22. A stripped library reveals none of these layouts. `emit`
//! receives an ELF file in every release, so its code is located by its bytes.
//!
//! # Checks
//! The vtables must be adjacent, and their slot counts must match the library's release. At each call, `this` must have
//! a vtable, which may be that of a derived class, and the second pointer must lead to an ELF object. Otherwise the
//! hook only forwards the call and logs that once. Objects for another architecture (BPF) are forwarded silently. The
//! hook modifies none of LLVM's data and forwards more arguments than `emit` takes, so it is harmless even if the slot
//! belongs to another virtual function.

pub(crate) mod hook;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{FileHeader, LE, THIS_MACHINE, file_header};
use jitlisten::{Address, AddressRange, log_line};

use crate::forwarding::{Forwarding, ReturnRegisters};
use crate::hook_table::{EMIT_VTABLES, SLOTS};
use crate::llvm::releases::{self, Release};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::{OBJECT_LINKING_LAYER, patch, read_words, read_words_of_ranges};
use crate::process::detour::Callers;
use crate::process::library::Library;
use crate::process::slot::Slot;

/// Vtable slot of the `emit` overload that takes an object file, in each vtable that has one.
const EMIT_SLOT: usize = 6;

/// Symbol of the `emit` overload that takes an object file, in a library built with libstdc++.
const EMIT_SYMBOL: &str = "_ZN4llvm3orc18ObjectLinkingLayer4emitESt10unique_ptrINS0_29MaterializationResponsibilityE\
                           St14default_deleteIS3_EES2_INS_12MemoryBufferES4_IS7_EE";

/// Size of the offset to top and the typeinfo pointer, which precede the slots of a vtable.
const VTABLE_HEADER_BYTES: u64 = 16;

/// Reason why an LLVM instance's JITLink is not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The library does not contain JITLink.
    Missing,
    /// The vtables match no known release, or match a release other than the one that the library claims to contain.
    Unknown,
    /// The release is newer than all supported ones.
    TooNew(u32),
    /// `JITLISTEN_LLVM` excludes JITLink.
    Unwanted,
    /// A vtable slot could not be patched.
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

/// Selects the vtables of `ObjectLinkingLayer` that contain `emit`, in a library whose release is one of `releases`.
pub(crate) fn select_emit_vtables<'a>(
    vtables: &[&'a Vtable],
    releases: &[Release],
) -> Result<Vec<&'a Vtable>, Refusal> {
    let mut all = vtables.to_vec();
    all.sort_by_key(|vtable| vtable.address_point);
    let Some((first, rest)) = all.split_first() else { return Err(Refusal::Missing) };
    let end = |vtable: &Vtable| vtable.address_point + vtable.slots.len() as u64 * 8;
    let are_adjacent = all.windows(2).all(|pair| end(pair[0]) + VTABLE_HEADER_BYTES == pair[1].address_point);
    let are_derived = first.offset_to_top == 0 && rest.iter().all(|vtable| vtable.offset_to_top < 0);
    let slots: Vec<usize> = all.iter().map(|vtable| vtable.slots.len()).collect();
    let emit_vtables = match rest {
        _ if !are_adjacent || !are_derived => return Err(Refusal::Unknown),
        [_] => vec![*first],
        [_, second] => vec![*first, second],
        _ => return Err(Refusal::Unknown),
    };
    let checked = releases::check(releases, |row| row.has_jitlink(&slots));
    checked.map(|()| emit_vtables).map_err(|too_new| too_new.map_or(Refusal::Unknown, Refusal::TooNew))
}

/// State of one hook, written before the vtable is patched.
struct HookState {
    /// Function that the hook forwards to.
    original: AtomicUsize,
    /// Address point of the vtable, which objects of the class point to.
    vtable: AtomicUsize,
    /// Distance of the vtable's subobject from the start of the object.
    offset_from_top: AtomicUsize,
    /// True once a call that could not be interpreted has been logged.
    warned: AtomicBool,
}

static HOOK_STATES: [[HookState; EMIT_VTABLES]; SLOTS] = [const {
    [const {
        HookState {
            original: AtomicUsize::new(0),
            vtable: AtomicUsize::new(0),
            offset_from_top: AtomicUsize::new(0),
            warned: AtomicBool::new(false),
        }
    }; EMIT_VTABLES]
}; SLOTS];

/// Hooks JITLink in `library`. `slot` is the library's slot in the table of sources, and `hooks` are the hooks for that
/// slot. `vtables` are those of [`CLASSES`](crate::llvm::vtable::CLASSES), and `releases` the releases that the library
/// claims to contain.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    vtables: &[Vtable],
    releases: &[Release],
    hooks: [Forwarding<ReturnRegisters>; EMIT_VTABLES],
    callers: Callers,
) -> Result<(), Refusal> {
    let states = HOOK_STATES.get(slot).ok_or(Refusal::Missing)?;
    let of_class: Vec<&Vtable> = vtables.iter().filter(|vtable| vtable.class == OBJECT_LINKING_LAYER).collect();
    for (index, vtable) in select_emit_vtables(&of_class, releases)?.into_iter().enumerate() {
        states[index]
            .original
            .store(patch::original_function(library, vtable, EMIT_SLOT).unwrap_or_default(), Ordering::Relaxed);
        states[index].warned.store(false, Ordering::Relaxed);
        states[index].offset_from_top.store(vtable.offset_to_top.unsigned_abs() as usize, Ordering::Relaxed);
        states[index].vtable.store(vtable.address_point as usize, Ordering::Release);
        // SAFETY: the hook for this slot forwards any call, and `callers` tells which threads may be calling through
        // the vtable.
        let patched = unsafe { patch::replace_slot(library, vtable, EMIT_SLOT, hooks[index] as usize, callers) };
        if let Err(error) = patched {
            if index == 0 {
                library.log_unhooked("JITLink", &error);
                return Err(Refusal::Unchanged);
            }
            log_line!(Warn, "{}: could not hook one of JITLink's two vtables: {error}", library.path.display());
            // One vtable slot is already patched, so this slot in the table of sources must not be reused for another
            // library.
            return Ok(());
        }
    }
    Ok(())
}

/// Puts the hooks of the LLVM instance in `slot` into the words of another, relocated library that hold its `emit`.
/// These are vtables that a program copied (`R_X86_64_COPY`: a program that includes the class's header), vtables of
/// derived classes, and import slots through which derived classes call `emit`.
pub(crate) fn patch_words_of_library(
    library: &Library<'_>,
    slot: usize,
    hooks: [Forwarding<ReturnRegisters>; EMIT_VTABLES],
) {
    let Some(states) = HOOK_STATES.get(slot) else { return };
    let originals = states.each_ref().map(|state| state.original.load(Ordering::Acquire));
    let vtables: Vec<usize> = (0..EMIT_VTABLES).filter(|&vtable| originals[vtable] != 0).collect();
    let values: Vec<usize> = vtables.iter().map(|&vtable| originals[vtable]).collect();
    let bound = library.slots_holding(&values).into_iter().map(|(word, index)| (word, vtables[index]));
    for (word, vtable) in bound.chain(unbound_import_slots(library, slot)) {
        // SAFETY: the word holds the function that this hook forwards to, or the loader would store it there at the
        // first call.
        if let Err(error) = unsafe { word.write(hooks[vtable] as usize) } {
            library.log_unhooked("its calls of JITLink", &error);
        }
    }
}

/// Import slots for `emit` that the loader binds at the first call, each with the index of its vtable. Only found if
/// they cannot belong to another LLVM.
fn unbound_import_slots<'l>(library: &Library<'l>, slot: usize) -> Vec<(Slot<'l>, usize)> {
    let has_original = |state: &HookState| state.original.load(Ordering::Relaxed) != 0;
    let is_only_llvm =
        HOOK_STATES.iter().enumerate().all(|(other, [first, ..])| (other == slot) == has_original(first));
    if !is_only_llvm {
        return Vec::new();
    }
    let offset = HOOK_STATES[slot][1].offset_from_top.load(Ordering::Relaxed);
    let thunk = format!("_ZThn{offset}_{}", EMIT_SYMBOL.trim_start_matches("_Z"));
    let mut slots = library.slots_of_imports([EMIT_SYMBOL, &thunk]);
    // Before the first call, a slot leads to the library's own code, which calls the loader.
    slots.retain(|(slot, _)| library.range().contains(&slot.value()));
    slots
}

const MIN_ELF_BYTES: usize = size_of::<FileHeader>();

impl HookState {
    /// Returns true on the first call only, so that ignored objects are logged once.
    fn should_warn(&self) -> bool {
        !self.warned.swap(true, Ordering::Relaxed)
    }

    /// Reads the object that is about to be linked, or returns the reason to ignore it. Returns `Ok(None)` for an
    /// object for another architecture, or if memory is short, which the session logs.
    fn read(
        &self,
        this: usize,
        responsibility: usize,
        object: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Result<Option<Vec<u8>>, &'static str> {
        const UNREADABLE: &str = "memory that cannot be read";
        let [class, responsibility_target, buffer] =
            read_words_of_ranges(&[(this, 1), (responsibility, 1), (object, 1)]).ok_or(UNREADABLE)?;
        let is_known = class == self.vtable.load(Ordering::Acquire);
        if !is_known && read_words::<{ EMIT_SLOT + 1 }>(class).is_none_or(|slots| slots[EMIT_SLOT] == 0) {
            return Err("its linker has no vtable");
        }
        if responsibility_target == 0 {
            return Err("nothing is responsible for it");
        }
        // Layout of the class: `MemoryBuffer { vtable, begin, end }`.
        let [_, begin, end] = read_words(buffer).ok_or(UNREADABLE)?;
        let size = end.checked_sub(begin).filter(|&size| size >= MIN_ELF_BYTES).ok_or("too small for an ELF file")?;
        let copy = |size: usize| {
            let range = AddressRange::new(Address(begin as u64), size as u64)?;
            checked_read::copy(range).ok()
        };
        // Read the header first, because `begin` and `end` are arbitrary if the pointer does not lead to an object.
        let header = file_header(&copy(MIN_ELF_BYTES).ok_or(UNREADABLE)?).ok_or("no ELF object")?;
        if header.e_machine.get(LE) != THIS_MACHINE || !has_memory(2 * size) {
            return Ok(None);
        }
        copy(size).ok_or(UNREADABLE).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds adjacent vtables with the given numbers of slots.
    fn adjacent_vtables(slots: &[usize]) -> Vec<Vtable> {
        let mut next = 0x1000;
        let mut vtables = Vec::new();
        for (index, &slots) in slots.iter().enumerate() {
            let (address_point, offset_to_top) = (next + VTABLE_HEADER_BYTES, -8 * index as i64);
            let slots = (0..slots as u64).map(|slot| 0x9000 + slot).collect::<Vec<u64>>();
            next = address_point + slots.len() as u64 * 8;
            vtables.push(Vtable { class: 0, address_point, offset_to_top, slots, is_bounded: false });
        }
        vtables
    }

    fn select(vtables: &[Vtable]) -> Result<Vec<u64>, Refusal> {
        // The result does not depend on the order of the vtables.
        let all: Vec<&Vtable> = vtables.iter().rev().collect();
        select_emit_vtables(&all, &[]).map(|selected| selected.iter().map(|vtable| vtable.address_point).collect())
    }

    #[test]
    fn selects_vtables_of_known_releases_only() {
        assert_eq!(select(&adjacent_vtables(&[9, 4])), Ok(vec![0x1010]));
        let three_vtables = adjacent_vtables(&[7, 4, 7]);
        assert_eq!(select(&three_vtables), Ok(vec![three_vtables[0].address_point, three_vtables[2].address_point]));
        for unknown in [&[9][..], &[9, 5], &[8, 4], &[10, 4], &[7, 4], &[7, 4, 8], &[7, 4, 7, 2], &[7, 7, 4]] {
            assert_eq!(select(&adjacent_vtables(unknown)), Err(Refusal::Unknown), "{unknown:?}");
        }
        assert_eq!(select(&[]), Err(Refusal::Missing));
        let mut separated = adjacent_vtables(&[9, 4]);
        separated[1].address_point += 8;
        assert_eq!(select(&separated), Err(Refusal::Unknown));
        let mut duplicated = adjacent_vtables(&[9, 4]);
        duplicated.extend(adjacent_vtables(&[9, 4]));
        assert_eq!(select(&duplicated), Err(Refusal::Unknown));
    }

    /// Vtables with the layout of another release are refused, because they may belong to a different class.
    #[test]
    fn vtables_must_match_the_release() {
        let (two_vtables, three_vtables) = (adjacent_vtables(&[9, 4]), adjacent_vtables(&[7, 4, 7]));
        let select_for = |vtables: &[Vtable], version: &str| {
            let (all, release) = (vtables.iter().collect::<Vec<_>>(), Release::parse(version).expect("a version"));
            select_emit_vtables(&all, &[release]).map(|selected| selected.len())
        };
        for version in ["13.0.1", "19.1", "20.0.0git", "21.0.0git"] {
            assert_eq!(select_for(&two_vtables, version), Ok(1), "{version}");
        }
        for version in ["20.0.0git", "21.1.1", "24.0.0git"] {
            assert_eq!(select_for(&three_vtables, version), Ok(2), "{version}");
        }
        assert_eq!(
            (select_for(&two_vtables, "12.0.1"), select_for(&two_vtables, "22.1.0")),
            (Err(Refusal::Unknown), Err(Refusal::Unknown))
        );
        assert_eq!(select_for(&three_vtables, "19.1.7"), Err(Refusal::Unknown));
        assert_eq!(select_for(&three_vtables, "25.0.0git"), Err(Refusal::TooNew(25)));
    }
}
