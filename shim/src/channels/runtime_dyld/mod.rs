//! Channel for objects that RuntimeDyld loads: MCJIT and ORC's older layer call `RuntimeDyldELF::loadObject` for every
//! object, before any of the object's code runs.
//!
//! ```text
//!   vtable of llvm::RuntimeDyldELF     n slots, see `llvm/releases.rs`
//!     n-6, n-5   destructors           different in RuntimeDyldELFMips
//!     n-4        loadObject            the same in RuntimeDyldELFMips, like all later slots
//!     n-3        isCompatibleFile
//!     n-2        registerEHFrames
//!     n-1        finalizeLoad
//! ```
//!
//! `std::unique_ptr<LoadedObjectInfo> loadObject(const object::ObjectFile &)`: on x86-64 the address of the result
//! comes first, `this` second, the object third; in a library with the second ABI of libc++ (`_LIBCPP_ABI_VERSION=2`:
//! ClickHouse) `this` comes first, the object second, and the result is returned in a register. On aarch64 `this` comes
//! first, the object second, and the address of the result in `x8` (`load_object.rs`); on aarch64, calls that return
//! the result in a register are not observed.
//!
//! The result's vtable has two destructors, then `getSectionLoadAddress(const SectionRef &)`, which only reads a map.
//! The object is copied from its buffer, and the load address of each named section is written into its section header.
//! The copy equals, byte for byte, the debug object that LLVM makes for its GDB listener (`getObjectForDebug`, which
//! allocates and is not called).
//!
//! # Checks
//! * Before the slot is patched: the number of slots must be that of a known release. If no symbol bounds the vtable,
//!   the vtable of `RuntimeDyldELFMips` must end in the same four functions after different destructors. Equal
//!   destructors are accepted if the vtable of `RuntimeDyldCOFFI386` has the same length.
//! * At each call: `this` must have the known vtable, and the result must refer back to `this`. The result's vtable
//!   slots must point into executable pages of the same library. The object must have a vtable, in this library or
//!   another, and contain an ELF file within its buffer. Otherwise the call is only forwarded, as is a call for an
//!   object for another architecture (BPF).
//! * At the first object: a section that does not exist must have no address, and the bytes at the text's address must
//!   be those of the text. An LLVM instance that fails these checks is never tried again. Until one object has passed,
//!   memory is read with system calls, which return errors for unmapped memory.
//!
//! The hook forwards more arguments than `loadObject` takes, so it is harmless even if the slot belongs to another
//! virtual function. C++ exceptions and thread cancellation pass through the hook.

pub(crate) mod load_object;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use jitlisten::plumbing::mappings_in;
use jitlisten::{Address, AddressRange};
use wire::facts::Count;

use crate::doctor::facts;
use crate::forwarding::Forwarding;
use crate::hook_table::SLOTS;
use crate::llvm::elf_copy::Sections;
use crate::llvm::releases::{self, Release};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::{patch, read_mapped_words, read_words, read_words_of_ranges};
use crate::process::detour::Callers;
use crate::process::library::Library;

/// Checks that `RuntimeDyldELF` has this number of vtable slots in one of `releases`.
fn check_slots(slots: usize, releases: &[Release]) -> Result<(), Refusal> {
    let refuse = |too_new: Option<u32>| too_new.map_or(Refusal::UnknownSlots(slots), Refusal::TooNew);
    releases::check(releases, |row| row.has_runtime_dyld(slots)).map_err(refuse)
}

/// Number of slots from `loadObject` to the end of the vtable; a derived class inherits them.
const INHERITED_SLOTS: usize = 4;

/// Reason why an LLVM instance's RuntimeDyld is not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The library does not contain RuntimeDyld.
    Missing,
    /// The library has more than one vtable that could be that of `RuntimeDyldELF`.
    Ambiguous,
    /// The vtable's slot count does not match the LLVM release.
    UnknownSlots(usize),
    /// The release is newer than all supported ones.
    TooNew(u32),
    /// The end of the vtable is unknown.
    Unbounded,
    /// `JITLISTEN_LLVM` excludes RuntimeDyld.
    Unwanted,
    /// The vtable slot could not be patched.
    Unchanged,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Missing => write!(f, "no vtable of RuntimeDyldELF"),
            Refusal::Ambiguous => write!(f, "more than one vtable of RuntimeDyldELF"),
            Refusal::UnknownSlots(slots) => {
                write!(f, "unknown release: {slots} slots in the vtable of RuntimeDyldELF")
            }
            Refusal::TooNew(release) => write!(f, "unsupported release LLVM {release}"),
            Refusal::Unbounded => write!(f, "the end of the vtable of RuntimeDyldELF is uncertain"),
            Refusal::Unwanted => write!(f, "switched off"),
            Refusal::Unchanged => write!(f, "its vtable could not be patched"),
        }
    }
}

/// Selects the vtable of `RuntimeDyldELF` and the slot of `loadObject` in that vtable. `vtables` are those of
/// [`CLASSES`](crate::llvm::vtable::CLASSES) in a library whose release is one of `releases`.
pub(crate) fn find_load_object<'a>(
    vtables: &'a [Vtable],
    releases: &[Release],
) -> Result<(&'a Vtable, usize), Refusal> {
    let vtables_of =
        |class: usize| vtables.iter().filter(move |vtable| vtable.class == class && vtable.offset_to_top == 0);
    let elf = vtables_of(0).next().ok_or(Refusal::Missing)?;
    if vtables_of(0).any(|other| other.address_point != elf.address_point) {
        return Err(Refusal::Ambiguous);
    }
    let slots = elf.slots.len();
    let has_sibling = vtables_of(2).any(|coff| coff.slots.len() == slots);
    if !elf.is_bounded && !vtables_of(1).any(|mips| inherits(&mips.slots, &elf.slots, has_sibling)) {
        return Err(Refusal::Unbounded);
    }
    check_slots(slots, releases)?;
    Ok((elf, slots - INHERITED_SLOTS))
}

/// Returns true if `derived` ends like the vtable of a class derived from the class of `base`. Linkers may fold equal
/// destructors; in that case a sibling class must have as many slots.
fn inherits(derived: &[u64], base: &[u64], has_sibling: bool) -> bool {
    let slots = base.len();
    if derived.len() != slots || slots < INHERITED_SLOTS + 2 {
        return false;
    }
    let inherited = slots - INHERITED_SLOTS;
    let destructors = inherited - 2..inherited;
    derived[inherited..] == base[inherited..] && (has_sibling || derived[destructors.clone()] != base[destructors])
}

/// State of one hook, written before the vtable is patched.
struct HookState {
    /// Function that the hook forwards to.
    original: AtomicUsize,
    /// Address point of the vtable, which objects of the class point to.
    vtable: AtomicUsize,
    library: AtomicRange,
    /// Executable segments of the library.
    code: [AtomicRange; MAX_CODE_SEGMENTS],
    /// Trust in this LLVM instance: [`UNTRIED`], [`TRUSTED`] or [`REFUSED`].
    trust: AtomicU8,
    /// Number of calls that loaded nothing, until the first object is loaded.
    empty_calls: AtomicU8,
    /// True once a call has returned its result in a register.
    returns_in_register: AtomicBool,
    /// Verified vtable of the returned `LoadedObjectInfo`; 0 if none.
    info_vtable: AtomicUsize,
    /// Address of `getSectionLoadAddress`, taken from `info_vtable`.
    section_address: AtomicUsize,
    /// Verified vtable of an object file class; 0 if none.
    object_vtable: AtomicUsize,
}

/// Address range from `start` to `end`; empty if both are zero.
struct AtomicRange {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl AtomicRange {
    const fn empty() -> AtomicRange {
        AtomicRange { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn set(&self, range: Range<usize>) {
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
    }

    fn contains(&self, address: usize) -> bool {
        (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

/// Maximum number of executable segments of a library. Most libraries have one, but some linkers create more. Functions
/// in any further segments are not called.
const MAX_CODE_SEGMENTS: usize = 4;

/// Maximum number of calls that may load nothing before the first object. Under an unknown calling convention, every
/// call would seem to load nothing.
const MAX_EMPTY_CALLS: u8 = 8;

const UNREADABLE: &str = "memory that cannot be read";
const OTHER_CLASS: &str = "its linker is of another class";

/// Trust in an LLVM instance that has not loaded an object yet.
const UNTRIED: u8 = 0;
/// Trust in an LLVM instance whose first object has passed all checks.
const TRUSTED: u8 = 1;
/// Trust in an LLVM instance whose first object has failed a check.
const REFUSED: u8 = 2;

static HOOK_STATES: [HookState; SLOTS] = [const {
    HookState {
        original: AtomicUsize::new(0),
        vtable: AtomicUsize::new(0),
        library: AtomicRange::empty(),
        code: [const { AtomicRange::empty() }; MAX_CODE_SEGMENTS],
        trust: AtomicU8::new(UNTRIED),
        empty_calls: AtomicU8::new(0),
        returns_in_register: AtomicBool::new(false),
        info_vtable: AtomicUsize::new(0),
        section_address: AtomicUsize::new(0),
        object_vtable: AtomicUsize::new(0),
    }
}; SLOTS];

/// Hooks RuntimeDyld in `library`, if its vtable is recognised. `slot` is the library's slot in the table of sources,
/// and `hook` the hook for that slot. `vtables` are those of [`CLASSES`](crate::llvm::vtable::CLASSES), found since the
/// loader's lock was taken. `releases` are the releases that the library claims to contain. If an earlier library used
/// this slot, its functions must no longer be called.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    vtables: &[Vtable],
    releases: &[Release],
    hook: Forwarding,
    callers: Callers,
) -> Result<patch::PatchedSlot, Refusal> {
    let Some(state) = HOOK_STATES.get(slot) else { return Err(Refusal::Missing) };
    let (vtable, index) = find_load_object(vtables, releases)?;
    let mut code = library.segments.all().filter(|segment| segment.executable);
    for part in &state.code {
        part.set(code.next().map_or(0..0, |segment| segment.range()));
    }
    state.library.set(library.range());
    state.original.store(patch::original_function(library, vtable, index).unwrap_or_default(), Ordering::Relaxed);
    state.vtable.store(vtable.address_point as usize, Ordering::Relaxed);
    state.info_vtable.store(0, Ordering::Relaxed);
    state.section_address.store(0, Ordering::Relaxed);
    state.object_vtable.store(0, Ordering::Relaxed);
    state.empty_calls.store(0, Ordering::Relaxed);
    state.returns_in_register.store(false, Ordering::Relaxed);
    state.trust.store(UNTRIED, Ordering::Release);
    // SAFETY: the hook for this slot forwards any call, and `callers` tells which threads may be calling through the
    // vtable.
    unsafe { patch::replace_slot(library, vtable, index, hook as usize, callers) }
        .inspect_err(|error| library.log_unhooked("RuntimeDyld", error))
        .map_err(|_| Refusal::Unchanged)
}

/// Returns false if an object from this slot's LLVM instance has failed the checks.
pub(crate) fn is_trusted(slot: usize) -> bool {
    HOOK_STATES.get(slot).is_some_and(|state| state.trust.load(Ordering::Relaxed) != REFUSED)
}

/// Original function of this slot's hook. It is stored before the vtable points to the hook.
pub(crate) fn original(slot: usize) -> usize {
    HOOK_STATES[slot].original.load(Ordering::Acquire)
}

/// Sets the function that this slot's hook forwards to.
#[cfg(test)]
pub(crate) fn set_original(slot: usize, function: usize) {
    HOOK_STATES[slot].original.store(function, Ordering::Release);
}

/// Arguments and result of one call of `loadObject`.
struct Call {
    this: usize,
    /// Address of the returned `LoadedObjectInfo`; 0 if nothing was loaded.
    info: usize,
    object: usize,
    /// First words of the object.
    binary: [usize; 4],
}

pub(crate) enum LoadOutcome {
    /// An object was loaded; its copy contains the section addresses.
    Object(Vec<u8>),
    /// No object was loaded.
    Nothing,
    /// The object could not be interpreted, for this reason.
    Ignored(&'static str),
    /// The object could not be interpreted, for this reason, and this LLVM instance is no longer observed.
    Refused(&'static str),
}

/// Reads the object that a call of `loadObject` has loaded. `call` holds the arguments, and `returned` the result.
pub(crate) fn observe_call(slot: usize, call: [usize; 3], returned: usize) -> LoadOutcome {
    let Some(state) = HOOK_STATES.get(slot) else { return LoadOutcome::Nothing };
    let was_refused = state.trust.load(Ordering::Acquire) == REFUSED;
    if was_refused {
        return LoadOutcome::Nothing;
    }
    match state.evaluate(call, returned) {
        Ok(Some(bytes)) => {
            facts::count(slot, Count::RuntimeDyld);
            LoadOutcome::Object(bytes)
        }
        Ok(None) => LoadOutcome::Nothing,
        Err(reason) if state.trust.load(Ordering::Acquire) == REFUSED => LoadOutcome::Refused(reason),
        Err(reason) => LoadOutcome::Ignored(reason),
    }
}

impl HookState {
    /// Reads the object that was just loaded, and updates the trust in this LLVM instance.
    fn evaluate(&self, call: [usize; 3], returned: usize) -> Result<Option<Vec<u8>>, &'static str> {
        let object = self.read_object(call, returned);
        match &object {
            // Nothing was loaded, so there was nothing to check.
            Ok(None) => {}
            Ok(Some(_)) => self.trust.store(TRUSTED, Ordering::Release),
            // A malformed object does not affect the trust that an earlier object has established.
            Err(_) if self.trust.load(Ordering::Acquire) == TRUSTED => {}
            Err(_) => self.trust.store(REFUSED, Ordering::Release),
        }
        object
    }

    /// Identifies `this`, the object and the result of a call. The calling convention is the one under which `this` has
    /// the known vtable. `first` is either the address of a result in memory, followed by `this` and the object, or
    /// `this`, followed by the object.
    fn identify_call(&self, [first, second, third]: [usize; 3], returned: usize) -> Result<Call, &'static str> {
        let vtable = self.vtable.load(Ordering::Relaxed);
        // Layout of the class: `Binary { vtable, unsigned, MemoryBufferRef { { data, size }, name } }`.
        let reads = [(second, 1), (first, 1), (third, 4)];
        let in_memory = if self.is_verified() {
            // SAFETY: an earlier call has shown that this function is `loadObject`, and it has just accessed these
            // objects itself.
            Some(unsafe { read_mapped_words::<6>(&reads) })
        } else {
            read_words_of_ranges::<6>(&reads)
        };
        if let Some([class, info, binary @ ..]) = in_memory
            && class == vtable
        {
            return Ok(Call { this: second, info, object: third, binary });
        }
        if cfg!(target_arch = "aarch64") {
            return Err(if in_memory.is_none() { UNREADABLE } else { OTHER_CLASS });
        }
        match read_words_of_ranges::<5>(&[(first, 1), (second, 4)]) {
            Some([class, binary @ ..]) if class == vtable => {
                self.returns_in_register.store(true, Ordering::Relaxed);
                Ok(Call { this: first, info: returned, object: second, binary })
            }
            _ if in_memory.is_none() => Err(UNREADABLE),
            _ => Err(OTHER_CLASS),
        }
    }

    /// Reads the object that was just loaded. Returns `Ok(None)` if nothing was loaded, or if the object is for another
    /// architecture.
    fn read_object(&self, call: [usize; 3], returned: usize) -> Result<Option<Vec<u8>>, &'static str> {
        let Call { this, info, object, binary: [class, _, data, size] } = self.identify_call(call, returned)?;
        if info == 0 {
            return self.check_empty_call();
        }
        // Layout of the class: `LoadedObjectInfo { vtable, RuntimeDyldImpl &, map }`.
        let info_words = if self.is_verified() {
            // SAFETY: an earlier call has shown that this function is `loadObject`. It has just returned this address,
            // which is not null.
            Some(unsafe { read_mapped_words(&[(info, 2)]) })
        } else {
            read_words(info)
        };
        let [vtable, linker] = info_words.ok_or(UNREADABLE)?;
        if linker != this {
            return Err("what was returned does not refer to its linker");
        }
        let address_function = self.section_address_function(vtable)?;
        if !self.is_object_vtable(class) {
            return Err("no object file");
        }
        let Some(mut sections) = Sections::read(data, size)? else { return Ok(None) };
        let trusted = self.trust.load(Ordering::Acquire) == TRUSTED;
        // SAFETY: the checks above have shown that this linker returned `info` for an object with these sections.
        let address = |section: usize| unsafe { section_address(address_function, info, section, object) };
        if !trusted && address(data + sections.header_offset(0)) != 0 {
            return Err("the absent section has an address");
        }
        for index in 1..sections.count() {
            if sections.has_name(index) {
                let load_address = address(data + sections.header_offset(index));
                if load_address != 0 {
                    sections.set_address(index, load_address as u64);
                }
            }
        }
        if !trusted && !sections.texts_match_memory() {
            return Err("its bytes are not where they are said to be");
        }
        Ok(Some(sections.into_bytes()))
    }

    /// Returns true if an earlier call has shown that this function is `loadObject` and returns its result in memory.
    fn is_verified(&self) -> bool {
        self.trust.load(Ordering::Acquire) == TRUSTED && !self.returns_in_register.load(Ordering::Relaxed)
    }

    /// Counts a call without a result. Either the link failed or, before the first object, the calling convention is
    /// unknown.
    fn check_empty_call(&self) -> Result<Option<Vec<u8>>, &'static str> {
        let is_trusted = self.trust.load(Ordering::Acquire) == TRUSTED;
        if !is_trusted && self.empty_calls.fetch_add(1, Ordering::Relaxed) == MAX_EMPTY_CALLS {
            return Err("nothing is returned, time and again");
        }
        Ok(None)
    }

    fn is_in_library(&self, address: usize) -> bool {
        self.library.contains(address)
    }

    /// Returns true if `address` is in an executable segment of the library.
    fn is_in_code(&self, address: usize) -> bool {
        self.code.iter().any(|part| part.contains(address))
    }

    /// Returns true for the vtable of an LLVM object file, which begins with two destructors. These classes may be in
    /// another library of the same product (`libLLVMObject.so`).
    fn is_object_vtable(&self, vtable: usize) -> bool {
        if vtable != 0 && vtable == self.object_vtable.load(Ordering::Relaxed) {
            return true;
        }
        if !vtable.is_multiple_of(size_of::<usize>())
            || !(self.is_in_library(vtable) || is_in_file_mapping(vtable, false))
        {
            return false;
        }
        let Some(destructors) = read_words::<2>(vtable) else { return false };
        let is_valid = destructors.iter().all(|&slot| self.is_in_code(slot) || is_in_file_mapping(slot, true));
        if is_valid {
            self.object_vtable.store(vtable, Ordering::Relaxed);
        }
        is_valid
    }

    /// Finds `getSectionLoadAddress`, which is slot 2 of the vtable of a `LoadedObjectInfo`. The first six slots must
    /// be functions of this library.
    fn section_address_function(&self, vtable: usize) -> Result<usize, &'static str> {
        if vtable != 0 && vtable == self.info_vtable.load(Ordering::Acquire) {
            return Ok(self.section_address.load(Ordering::Relaxed));
        }
        if !self.is_in_library(vtable) || !vtable.is_multiple_of(size_of::<usize>()) {
            return Err("what was returned has no vtable");
        }
        let slots: [usize; 6] = read_words(vtable).ok_or("a vtable that cannot be read")?;
        if slots.iter().all(|&slot| self.is_in_code(slot)) {
            // Keep the first address, because two threads with different vtables could otherwise mix up the addresses.
            let stored = self.section_address.compare_exchange(0, slots[2], Ordering::Relaxed, Ordering::Relaxed);
            if stored.is_ok() {
                self.info_vtable.store(vtable, Ordering::Release);
            }
            Ok(slots[2])
        } else {
            Err("a vtable with functions of others")
        }
    }
}

/// Returns true if `address` is in a file mapping whose execute permission equals `is_code`.
fn is_in_file_mapping(address: usize, is_code: bool) -> bool {
    let byte = AddressRange::new(Address(address as u64), 1);
    let mappings = byte.and_then(|byte| mappings_in(byte).ok().flatten()).unwrap_or_default();
    mappings.first().is_some_and(|mapping| mapping.is_file_backed && mapping.executable == is_code)
}

/// Calls `uint64_t LoadedObjectInfo::getSectionLoadAddress(const object::SectionRef &) const`, which returns 0 for a
/// section that was not loaded.
///
/// # Safety
/// `function` must be the address of `getSectionLoadAddress`, `info` an object of its class, and `section` the address
/// of a section header of `object`.
unsafe fn section_address(function: usize, info: usize, section: usize, object: usize) -> usize {
    // Layout of the class: `SectionRef { DataRefImpl, const ObjectFile * }`.
    let section = [section, object];
    type GetSectionLoadAddress = unsafe extern "C" fn(usize, *const [usize; 2]) -> usize;
    // SAFETY: the caller vouches for the arguments and for the function, which only reads a map.
    unsafe { std::mem::transmute::<usize, GetSectionLoadAddress>(function)(info, &raw const section) }
}

#[cfg(test)]
mod tests;
