//! A mapped library as `find.rs` looks at it.
//!
//! Type names are searched for only in a library that could hold LLVM: with more than 4 MiB of code, that mentions `mprotect` or
//! a name of LLVM's among its dynamic symbols. The search reads its read-only data once (jaxlib: 60 MB) and its pointers twice.

use std::borrow::Cow;

use jitlisten::{RELATIVE, Relocation};

use super::find::{self, Segment, Symbol, View, Vtable};
use super::release::{self, Release};
use crate::library::Library;
use crate::symbol_file::SymbolFile;

/// Below this much code a library cannot hold LLVM with a code generator (Debian's smallest is past 40 MB).
const SMALLEST_LLVM: u64 = 4 << 20;

/// Whether an LLVM may be in `library`, as far as is cheap to see: nearly every library is ruled out here.
pub(crate) fn may_have_llvm(library: &Library) -> bool {
    library.code_size() >= SMALLEST_LLVM && (library.mentions("mprotect") || library.mentions("N4llvm"))
}

/// Every vtable of the classes called `names` (see [`find::by_type_name`]) that `library` has: by the dynamic symbols of those
/// that have one, those in `file` if it is given, and else by the names of the types. One library, one search: ask for all classes at once.
///
/// # Safety
/// The library must be mapped, and stay so during the call. It need not be relocated.
pub(crate) unsafe fn vtables(library: &Library, names: &[&str], file: Option<&SymbolFile>) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| symbol(library, class, name));
    let mut symbols: Vec<Symbol> = symbols.collect();
    if let (true, Some(file)) = (symbols.is_empty(), file) {
        symbols = hidden_symbols(library, names, file);
    }
    let may_have_llvm = may_have_llvm(library);
    if symbols.is_empty() && !may_have_llvm {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let view = unsafe { view(library) };
    let mut vtables = find::by_symbol(&view, &symbols);
    let without: Vec<usize> =
        (0..names.len()).filter(|class| vtables.iter().all(|vtable| vtable.class != *class)).collect();
    // Those between the first and the last only bound the first, where no symbol does.
    let is_enough = |class: &usize| *class != 0 && *class + 1 != names.len();
    if !without.iter().all(is_enough) && may_have_llvm {
        let wanted: Vec<&str> = without.iter().map(|&class| names[class]).collect();
        let found = find::by_type_name(&view, &wanted);
        vtables.extend(found.into_iter().map(|vtable| Vtable { class: without[vtable.class], ..vtable }));
    }
    vtables
}

/// Messages of RuntimeDyld and JITLink, in every release from 10 to 22.
const MESSAGES: [&[u8]; 2] = [b"Unable to allocate memory for common symbols!", b"Generic JITLink error"];

/// Whether one of LLVM's linkers seems to be in `library`, although no vtable shows it.
///
/// # Safety
/// As for [`vtables`].
pub(crate) unsafe fn seems_to_have_linker(library: &Library) -> bool {
    if !may_have_llvm(library) {
        return false;
    }
    // SAFETY: the caller's promise.
    let constants = unsafe { constants(library) };
    let has = |message: &[u8]| constants.iter().any(|part| memchr::memmem::find(part.bytes, message).is_some());
    MESSAGES.into_iter().any(has)
}

/// What a library that has a linker says of its release: nothing, or one, seldom more.
///
/// # Safety
/// As for [`vtables`].
pub(crate) unsafe fn releases(library: &Library) -> Vec<Release> {
    match library.llvm_version().and_then(|version| Release::of(&version)) {
        Some(release) => vec![release],
        // SAFETY: the caller's promise.
        None => release::said(&unsafe { constants(library) }),
    }
}

/// The vtables of classes that have a dynamic symbol.
///
/// # Safety
/// As for [`vtables`].
pub(crate) unsafe fn exported_vtables(library: &Library, names: &[&str]) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| symbol(library, class, name));
    let symbols: Vec<Symbol> = symbols.collect();
    if symbols.is_empty() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    find::by_symbol(&unsafe { view(library) }, &symbols)
}

/// The dynamic symbol of a class's vtables.
fn symbol(library: &Library, class: usize, name: &str) -> Option<Symbol> {
    let (address, size) = library.dynamic_object(&format!("_ZTV{name}"))?;
    Some(Symbol { class, address: address as u64, size: size as u64 })
}

/// The symbols of the file that are not exported.
fn hidden_symbols(library: &Library, names: &[&str], file: &SymbolFile) -> Vec<Symbol> {
    let full: Vec<String> = names.iter().map(|name| format!("_ZTV{name}")).collect();
    let found = file.find_sized("_ZTVN4llvm", &full.iter().map(String::as_str).collect::<Vec<_>>());
    let symbol = |(class, name): (usize, &String)| {
        let &(value, size) = found.get(name.as_str())?;
        Some(Symbol { class, address: (library.identity.bias as u64).wrapping_add(value), size })
    };
    full.iter().enumerate().filter_map(symbol).collect()
}

/// # Safety
/// The library must be mapped, and stay so for the life of the view.
unsafe fn view(library: &Library) -> View<'_> {
    // SAFETY: the caller's promise; so below.
    let relocated = unsafe { library.is_relocated() };
    // A program at fixed addresses has its vtables among the constants.
    let fixed = library.identity.bias == 0;
    // SAFETY: as above.
    let constants = unsafe { constants(library) };
    // SAFETY: as above.
    let data = unsafe { segments(library, |segment| segment.writable || fixed && !segment.executable) };
    let data = match library.sealed() {
        Some(sealed) if !fixed => data.into_iter().filter_map(|segment| cut(segment, &sealed)).collect(),
        _ => data,
    };
    let code = library.segments().into_iter().filter(|segment| segment.executable);
    let code = code.map(|segment| segment.address as u64..segment.address as u64 + segment.size as u64).collect();
    let bias = library.identity.bias as u64;
    let relocations = (!relocated).then(|| to_come(library, &data));
    View { bias, constants, data, relocations, relocated: library.relocations(), code }
}

/// What the loader will do, as `DT_RELA` says it; also what is packed (`DT_RELR`), as far as it is in `data`.
fn to_come<'a>(library: &'a Library, data: &[Segment<'_>]) -> Cow<'a, [Relocation]> {
    let bias = library.identity.bias as u64;
    let packed = library.packed_relocations().filter_map(|offset| {
        let addend = data.iter().find_map(|segment| segment.word_at(bias.wrapping_add(offset as u64)))?;
        Some([offset as u64, RELATIVE, addend])
    });
    let packed: Vec<Relocation> = packed.collect();
    if packed.is_empty() { library.relocations().into() } else { [library.relocations(), &packed].concat().into() }
}

/// What is neither written nor run, where that is apart: of code there may be hundreds of megabytes that are not read yet. Elsewhere
/// all of it: `.rodata` is beside code, or, in programs that gold has linked with Swift in them, in data that is written.
///
/// # Safety
/// As for [`segments`].
unsafe fn constants(library: &Library) -> Vec<Segment<'_>> {
    // SAFETY: the caller's promise; so below.
    let constants = unsafe { segments(library, |segment| !segment.writable && !segment.executable) };
    if !constants.is_empty() {
        return constants;
    }
    // SAFETY: as above.
    unsafe { segments(library, |_| true) }
}

/// The part of a segment that is in `range`.
fn cut<'a>(segment: Segment<'a>, range: &std::ops::Range<usize>) -> Option<Segment<'a>> {
    let end = segment.address + segment.bytes.len() as u64;
    let (first, last) = (segment.address.max(range.start as u64), end.min(range.end as u64));
    let bytes =
        segment.bytes.get(first.checked_sub(segment.address)? as usize..last.checked_sub(segment.address)? as usize)?;
    (!bytes.is_empty()).then_some(Segment { address: first, bytes })
}

/// # Safety
/// The library must be mapped, and stay so for the life of the slices.
unsafe fn segments(library: &Library, wanted: impl Fn(&crate::library::Segment) -> bool) -> Vec<Segment<'_>> {
    let wanted = library.segments().into_iter().filter(|segment| segment.readable && segment.size > 0).filter(wanted);
    let slice = |segment: crate::library::Segment| {
        // SAFETY: the loader has mapped that much of the file there; the caller vouches that it still is. What is written
        // meanwhile is in `.data`, whose words are compared and never followed.
        let bytes = unsafe { std::slice::from_raw_parts(segment.address as *const u8, segment.size) };
        Segment { address: segment.address as u64, bytes }
    };
    wanted.map(slice).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;
    use crate::library::Identity;
    use crate::link_map::LinkMap;

    const CLASSES: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];

    /// Opens a library for good.
    fn open(path: &str) -> Option<Library> {
        let path = CString::new(path).unwrap();
        // SAFETY: a library of the system, with well-behaved constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        // SAFETY: glibc's handle is the link map entry; the library is never closed.
        let Identity { bias, dynamic } = unsafe { handle.cast::<LinkMap>().as_ref() }?.entry().identity;
        // SAFETY: as above.
        unsafe {
            Library::read(Identity { bias, dynamic }, CStr::from_bytes_with_nul(path.as_bytes_with_nul()).unwrap())
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "no LLVM in miri")]
    fn the_vtables_of_a_real_llvm_are_found_by_symbols_and_by_type_names() {
        let known = [("LLVM-14.so.1", 16), ("LLVM-16.so.1", 17), ("LLVM.so.19.1", 17), ("LLVM.so.22.1", 19)];
        let mut seen = 0;
        for (name, slots) in known {
            let Some(library) = open(&format!("lib{name}")) else { continue };
            seen += 1;
            // SAFETY: the library is never closed.
            let (view, by_symbol) = unsafe { (view(&library), vtables(&library, &CLASSES, None)) };
            assert!(view.relocations.is_none(), "the loader is done with it");
            let strip = |vtable: Vtable| Vtable { bounded: false, ..vtable };
            let mut by_symbol: Vec<Vtable> = by_symbol.into_iter().map(strip).collect();
            let mut by_name = find::by_type_name(&view, &CLASSES);
            by_symbol.sort_by_key(|vtable| vtable.address_point);
            by_name.sort_by_key(|vtable| vtable.address_point);
            assert_eq!(by_symbol, by_name, "{name}");
            let elf: Vec<usize> =
                by_name.iter().filter(|vtable| vtable.class == 0).map(|vtable| vtable.slots.len()).collect();
            assert_eq!(elf, [slots], "{name}");
            // As the loader's rendezvous sees it, before glibc 2.41; references to exported typeinfos are by symbol there.
            let symbols: Vec<Symbol> = (0..2).filter_map(|class| symbol(&library, class, CLASSES[class])).collect();
            let unrelocated = View { relocations: Some(library.relocations().into()), ..view };
            let early = find::by_symbol(&unrelocated, &symbols).into_iter().map(strip);
            let mut early: Vec<Vtable> = early.collect();
            early.sort_by_key(|vtable| vtable.address_point);
            assert_eq!(early, by_name, "{name}");
        }
        assert!(seen > 0 || std::env::var_os("CI").is_none(), "no libLLVM here");
    }
}
