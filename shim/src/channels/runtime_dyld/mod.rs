//! `RuntimeDyldELF::loadObject`: MCJIT and ORC's older layer call it for every object, before any of its code runs.
//!
//! ```text
//!   vtable of llvm::RuntimeDyldELF     n slots, see `llvm/releases.rs`
//!     n-6, n-5   destructors           others in RuntimeDyldELFMips
//!     n-4        loadObject            the same in RuntimeDyldELFMips, like all behind it
//!     n-3        isCompatibleFile
//!     n-2        registerEHFrames
//!     n-1        finalizeLoad
//! ```
//!
//! `std::unique_ptr<LoadedObjectInfo> loadObject(const object::ObjectFile &)`: on x86-64 the address of the result
//! comes first, `this` second, the object third; in a library with the second ABI of libc++ (`_LIBCPP_ABI_VERSION=2`:
//! ClickHouse) `this` comes first, the object second, and the result is returned in a register. On aarch64 `this` comes
//! first, the object second, and the address of the result in `x8` (`load_object.rs`); results returned in a register
//! are not observed there.
//!
//! The result's vtable has two destructors, then `getSectionLoadAddress(const SectionRef &)`, which only reads a map.
//! An object is copied from its buffer, and each named section with an address gets it in its header. That equals, byte
//! for byte, the debug object that LLVM makes for its GDB listener (`getObjectForDebug`, which allocates and is not
//! called).
//!
//! # Checks
//! * Before the slot is patched: the number of slots is that of a known release. If no symbol bounds it, the vtable of
//!   `RuntimeDyldELFMips` must end in the same four functions, behind another destructor, or that of
//!   `RuntimeDyldCOFFI386` must be as long.
//! * At each call: `this` has the vtable that was found, the result refers back to `this`, its vtable slots point into
//!   executable pages of the same library, the object has a class, of this library or another, and is an ELF file
//!   within its buffer. Otherwise the call is only passed on, as it is for an object of another machine (BPF).
//! * At the first object, a trial: an unloaded section has no address, and the bytes at the text's address are its
//!   bytes. An LLVM that fails is never tried again. Until one has passed, memory is read with system calls, which
//!   return errors for unmapped memory.
//!
//! The hook passes on more words than `loadObject` has, so it is harmless even in front of another function of the
//! vtable. C++ exceptions and cancellation pass through it.

pub(crate) mod elf_copy;
pub(crate) mod load_object;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use jitlisten::plumbing::mappings_of;
use jitlisten::{Address, AddressRange, log_line};

use crate::doctor::facts::{self, Count};
use crate::hook_table::{LoadObject, SLOTS};
use crate::llvm::releases::{self, Release};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::{patch, plain_words_of, words, words_of};
use crate::process::detour::Callers;
use crate::process::library::Library;
use elf_copy::Sections;

/// Whether a library that says that it is one of `releases` may have a vtable of so many slots.
fn check_slots(slots: usize, releases: &[Release]) -> Result<(), Refusal> {
    let refuse = |too_new: Option<u32>| too_new.map_or(Refusal::UnknownSlots(slots), Refusal::TooNew);
    releases::check(releases, |row| row.has_runtime_dyld(slots)).map_err(refuse)
}

/// `loadObject` counted from the end, and with it the functions that a derived class inherits.
const LAST_SLOTS: usize = 4;

/// Why the linker of an LLVM is not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no RuntimeDyld.
    Missing,
    /// The vtable is there more than once.
    Ambiguous,
    UnknownSlots(usize),
    /// A release that is newer than any that is known.
    TooNew(u32),
    /// Nothing bounds the vtable.
    Unbounded,
    /// `JITLISTEN_LLVM` leaves it out.
    Unwanted,
    /// It could not be changed.
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

/// The vtable of `RuntimeDyldELF` among those of [`CLASSES`](crate::llvm::vtable::CLASSES) in a library that is one of
/// these releases, and the slot of `loadObject` in it.
pub(crate) fn load_object<'a>(vtables: &'a [Vtable], releases: &[Release]) -> Result<(&'a Vtable, usize), Refusal> {
    let of = |class: usize| vtables.iter().filter(move |vtable| vtable.class == class && vtable.offset_to_top == 0);
    let elf = of(0).next().ok_or(Refusal::Missing)?;
    if of(0).any(|other| other.address_point != elf.address_point) {
        return Err(Refusal::Ambiguous);
    }
    let slots = elf.slots.len();
    let has_sibling = of(2).any(|coff| coff.slots.len() == slots);
    if !elf.bounded && !of(1).any(|mips| inherits(&mips.slots, &elf.slots, has_sibling)) {
        return Err(Refusal::Unbounded);
    }
    check_slots(slots, releases)?;
    Ok((elf, slots - LAST_SLOTS))
}

/// Whether `derived` ends as the vtable of a class derived from that of `base` does. Linkers may fold equal destructors
/// into one: then a sibling must have as many slots.
fn inherits(derived: &[u64], base: &[u64], has_sibling: bool) -> bool {
    let slots = base.len();
    if derived.len() != slots || slots < LAST_SLOTS + 2 {
        return false;
    }
    let inherited = slots - LAST_SLOTS;
    let destructors = inherited - 2..inherited;
    derived[inherited..] == base[inherited..] && (has_sibling || derived[destructors.clone()] != base[destructors])
}

/// What a hook needs. Written before the vtable is changed.
struct Hooked {
    original: AtomicUsize,
    /// What objects of the class point at.
    vtable: AtomicUsize,
    /// Where the library is.
    library: Part,
    /// Where its code is.
    code: [Part; CODE_PARTS],
    trust: AtomicU8,
    /// How many calls have loaded nothing, as long as nothing is trusted.
    nothing: AtomicU8,
    /// Whether results were returned in a register.
    in_register: AtomicBool,
    /// The vtable of what it returns that was found to be in order, and `getSectionLoadAddress` in it.
    info_vtable: AtomicUsize,
    section_address: AtomicUsize,
    /// The vtable of an object that was found to be in order.
    object_vtable: AtomicUsize,
}

/// Addresses from `start` on and before `end`; none where both are zero.
struct Part {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Part {
    const fn none() -> Part {
        Part { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn set(&self, range: Range<usize>) {
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
    }

    fn contains(&self, address: usize) -> bool {
        (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

/// A library has one part with code; some linkers make more. Those behind are not called.
const CODE_PARTS: usize = 4;

/// So many calls may load nothing before one that does: a linker whose results are somewhere else never seems to load
/// anything.
const MOST_NOTHING: u8 = 8;

const UNREADABLE: &str = "memory that cannot be read";
const OTHER_CLASS: &str = "its linker is of another class";

const UNTRIED: u8 = 0;
const TRUSTED: u8 = 1;
const REFUSED: u8 = 2;

static TABLE: [Hooked; SLOTS] = [const {
    Hooked {
        original: AtomicUsize::new(0),
        vtable: AtomicUsize::new(0),
        library: Part::none(),
        code: [const { Part::none() }; CODE_PARTS],
        trust: AtomicU8::new(UNTRIED),
        nothing: AtomicU8::new(0),
        in_register: AtomicBool::new(false),
        info_vtable: AtomicUsize::new(0),
        section_address: AtomicUsize::new(0),
        object_vtable: AtomicUsize::new(0),
    }
}; SLOTS];

/// Listens to the RuntimeDyld of `library`, if it has one that is recognised. `slot` is its place in the table of
/// sources, and `hook` that place's; `vtables` are those of [`CLASSES`](crate::llvm::vtable::CLASSES), found under the
/// same hold of the loader's lock, and `releases` what the library says of itself.
/// Nothing may have called the functions of an earlier library at the same place of the table.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    vtables: &[Vtable],
    releases: &[Release],
    hook: LoadObject,
    callers: Callers,
) -> Result<patch::Patched, Refusal> {
    let Some(hooked) = TABLE.get(slot) else { return Err(Refusal::Missing) };
    let (vtable, index) = load_object(vtables, releases)?;
    let mut code = library.segments().into_iter().filter(|segment| segment.executable);
    for part in &hooked.code {
        part.set(code.next().map_or(0..0, |segment| segment.address..segment.address.saturating_add(segment.size)));
    }
    hooked.library.set(library.range());
    hooked.original.store(patch::original(library, vtable, index).unwrap_or_default(), Ordering::Relaxed);
    hooked.vtable.store(vtable.address_point as usize, Ordering::Relaxed);
    hooked.info_vtable.store(0, Ordering::Relaxed);
    hooked.section_address.store(0, Ordering::Relaxed);
    hooked.object_vtable.store(0, Ordering::Relaxed);
    hooked.nothing.store(0, Ordering::Relaxed);
    hooked.in_register.store(false, Ordering::Relaxed);
    hooked.trust.store(UNTRIED, Ordering::Release);
    // SAFETY: this slot's hook passes on whatever it is called with; `callers` says whose thread this is.
    unsafe { patch::exchange(library, vtable, index, hook as usize, callers) }
        .inspect_err(|error| log_line!(Info, "{}: could not hook RuntimeDyld: {error}", library.path.display()))
        .map_err(|_| Refusal::Unchanged)
}

/// Whether the objects of the source in this place of the table are understood, as far as they have been tried.
pub(crate) fn is_trusted(slot: usize) -> bool {
    TABLE.get(slot).is_some_and(|hooked| hooked.trust.load(Ordering::Relaxed) != REFUSED)
}

/// The original function of this slot's hook. Written before the vtable points to the hook.
pub(crate) fn original(slot: usize) -> usize {
    TABLE[slot].original.load(Ordering::Acquire)
}

/// Lets the hook of this slot replace a function of a test.
#[cfg(test)]
pub(crate) fn stand_for(slot: usize, function: usize) {
    TABLE[slot].original.store(function, Ordering::Release);
}

/// A call of `loadObject`.
struct Call {
    this: usize,
    /// What was returned.
    info: usize,
    object: usize,
    /// The first words of the object.
    binary: [usize; 4],
}

/// What was observed of a call of `loadObject`.
pub(crate) enum Observed {
    /// The object that was just loaded, with its addresses.
    Object(Vec<u8>),
    /// Nothing.
    Nothing,
    /// An object that is not understood, and why.
    Ignored(&'static str),
    /// The same, and this LLVM is no longer observed.
    Refused(&'static str),
}

/// After a call with these words that has returned `returned`.
pub(crate) fn loaded(slot: usize, call: [usize; 3], returned: usize) -> Observed {
    let Some(hooked) = TABLE.get(slot) else { return Observed::Nothing };
    let was_refused = hooked.trust.load(Ordering::Acquire) == REFUSED;
    if was_refused {
        return Observed::Nothing;
    }
    match hooked.loaded(call, returned) {
        Ok(Some(bytes)) => {
            facts::count(slot, Count::RuntimeDyld);
            Observed::Object(bytes)
        }
        Ok(None) => Observed::Nothing,
        Err(what) if hooked.trust.load(Ordering::Acquire) == REFUSED => Observed::Refused(what),
        Err(what) => Observed::Ignored(what),
    }
}

impl Hooked {
    /// The object that was just loaded, with its addresses, if everything is as it should be.
    fn loaded(&self, call: [usize; 3], returned: usize) -> Result<Option<Vec<u8>>, &'static str> {
        let read = self.read(call, returned);
        match &read {
            // Where nothing was loaded, nothing was tried.
            Ok(None) => {}
            Ok(Some(_)) => self.trust.store(TRUSTED, Ordering::Release),
            // One object that is odd says nothing against the others, once there were others.
            Err(_) if self.trust.load(Ordering::Acquire) == TRUSTED => {}
            Err(_) => self.trust.store(REFUSED, Ordering::Release),
        }
        read
    }

    /// `first` is the address of a result in memory, or `this`; behind it are `this`, or the object, and the object.
    ///
    /// What was called, with what, and what came of it: by the calling convention that shows the linker where it must
    /// be.
    fn call(&self, [first, second, third]: [usize; 3], returned: usize) -> Result<Call, &'static str> {
        let vtable = self.vtable.load(Ordering::Relaxed);
        // `Binary { vtable, unsigned, MemoryBufferRef { { data, size }, name } }`
        let places = [(second, 1), (first, 1), (third, 4)];
        let in_memory = if self.is_known() {
            // SAFETY: this is `loadObject`, as an earlier call has shown: these are what it has just worked with.
            Some(unsafe { plain_words_of::<6>(&places) })
        } else {
            words_of::<6>(&places)
        };
        if let Some([class, info, binary @ ..]) = in_memory
            && class == vtable
        {
            return Ok(Call { this: second, info, object: third, binary });
        }
        if cfg!(target_arch = "aarch64") {
            return Err(if in_memory.is_none() { UNREADABLE } else { OTHER_CLASS });
        }
        match words_of::<5>(&[(first, 1), (second, 4)]) {
            Some([class, binary @ ..]) if class == vtable => {
                self.in_register.store(true, Ordering::Relaxed);
                Ok(Call { this: first, info: returned, object: second, binary })
            }
            _ if in_memory.is_none() => Err(UNREADABLE),
            _ => Err(OTHER_CLASS),
        }
    }

    /// `Ok(None)` where nothing was loaded, or nothing for this machine.
    fn read(&self, call: [usize; 3], returned: usize) -> Result<Option<Vec<u8>>, &'static str> {
        let Call { this, info, object, binary: [class, _, data, size] } = self.call(call, returned)?;
        if info == 0 {
            return self.loaded_nothing();
        }
        // `{ vtable, RuntimeDyldImpl &, map }`
        let read = if self.is_known() {
            // SAFETY: `loadObject` has just returned this, as an earlier call has shown; it is not null.
            Some(unsafe { plain_words_of(&[(info, 2)]) })
        } else {
            words(info)
        };
        let [vtable, linker] = read.ok_or(UNREADABLE)?;
        if linker != this {
            return Err("what was returned does not refer to its linker");
        }
        let get_address = self.section_address_function(vtable)?;
        if !self.is_class_of_objects(class) {
            return Err("no object file");
        }
        let Some(mut sections) = Sections::read(data, size)? else { return Ok(None) };
        let trusted = self.trust.load(Ordering::Acquire) == TRUSTED;
        // SAFETY: the checks above: `info` is what this linker has returned, for an object with these sections.
        let address = |section: usize| unsafe { section_address(get_address, info, section, object) };
        if !trusted && address(data + sections.header_offset(0)) != 0 {
            return Err("the absent section has an address");
        }
        for index in 1..sections.count() {
            if sections.has_name(index) {
                let at = address(data + sections.header_offset(index));
                if at != 0 {
                    sections.set_address(index, at as u64);
                }
            }
        }
        if !trusted && !sections.are_where_they_say() {
            return Err("its bytes are not where they are said to be");
        }
        Ok(Some(sections.into_bytes()))
    }

    /// Whether an earlier call has shown that this is `loadObject`, and that its result comes in memory.
    fn is_known(&self) -> bool {
        self.trust.load(Ordering::Acquire) == TRUSTED && !self.in_register.load(Ordering::Relaxed)
    }

    /// A link that fails has no result. Before there was any, that may as well be a result that is somewhere else.
    fn loaded_nothing(&self) -> Result<Option<Vec<u8>>, &'static str> {
        let is_trusted = self.trust.load(Ordering::Acquire) == TRUSTED;
        if !is_trusted && self.nothing.fetch_add(1, Ordering::Relaxed) == MOST_NOTHING {
            return Err("nothing is returned, time and again");
        }
        Ok(None)
    }

    fn is_here(&self, address: usize) -> bool {
        self.library.contains(address)
    }

    fn is_code_here(&self, address: usize) -> bool {
        self.code.iter().any(|part| part.contains(address))
    }

    /// Whether this is the vtable of a class, which begins with two destructors. A product may have LLVM's object files
    /// in another library (`libLLVMObject.so`).
    fn is_class_of_objects(&self, vtable: usize) -> bool {
        if vtable != 0 && vtable == self.object_vtable.load(Ordering::Relaxed) {
            return true;
        }
        if !vtable.is_multiple_of(size_of::<usize>()) || !(self.is_here(vtable) || is_of_file(vtable, false)) {
            return false;
        }
        let Some(destructors) = words::<2>(vtable) else { return false };
        let is_one = destructors.iter().all(|&slot| self.is_code_here(slot) || is_of_file(slot, true));
        if is_one {
            self.object_vtable.store(vtable, Ordering::Relaxed);
        }
        is_one
    }

    /// Slot 2 of the vtable of a `LoadedObjectInfo`, whose first six are functions of the library.
    fn section_address_function(&self, vtable: usize) -> Result<usize, &'static str> {
        if vtable != 0 && vtable == self.info_vtable.load(Ordering::Acquire) {
            return Ok(self.section_address.load(Ordering::Relaxed));
        }
        if !self.is_here(vtable) || !vtable.is_multiple_of(size_of::<usize>()) {
            return Err("what was returned has no vtable");
        }
        let slots: [usize; 6] = words(vtable).ok_or("a vtable that cannot be read")?;
        if slots.iter().all(|&slot| self.is_code_here(slot)) {
            // Where two threads come by with different ones, the addresses could be mixed up: the first stays.
            let first = self.section_address.compare_exchange(0, slots[2], Ordering::Relaxed, Ordering::Relaxed);
            if first.is_ok() {
                self.info_vtable.store(vtable, Ordering::Release);
            }
            Ok(slots[2])
        } else {
            Err("a vtable with functions of others")
        }
    }
}

/// Whether the memory at `address` is that of a file, and code or not.
fn is_of_file(address: usize, is_code: bool) -> bool {
    let byte = AddressRange::new(Address(address as u64), 1);
    let found = byte.and_then(|byte| mappings_of(byte).ok().flatten()).unwrap_or_default();
    found.first().is_some_and(|mapping| mapping.of_file && mapping.executable == is_code)
}

/// `uint64_t LoadedObjectInfo::getSectionLoadAddress(const object::SectionRef &) const`: 0 where the section was not
/// loaded.
///
/// # Safety
/// `function` must be that function, `info` an object of its class, `section` the address of a section header of
/// `object`.
unsafe fn section_address(function: usize, info: usize, section: usize, object: usize) -> usize {
    // `SectionRef { DataRefImpl, const ObjectFile * }`
    let section = [section, object];
    type GetSectionLoadAddress = unsafe extern "C" fn(usize, *const [usize; 2]) -> usize;
    // SAFETY: that function, which only reads a map, with an object of its class and a section of its object.
    unsafe { std::mem::transmute::<usize, GetSectionLoadAddress>(function)(info, &raw const section) }
}

#[cfg(test)]
mod tests;
