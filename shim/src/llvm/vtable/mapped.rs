//! A mapped library, as slices for `find.rs`.
//!
//! Type names are searched only in a library that could contain LLVM: with more than 4 MiB of code, and `mprotect` or a
//! name of LLVM among its dynamic symbols. That reads its pointers once, and twice more if the names are found; of a
//! program at fixed addresses, its constants. Excluded are tables with a known place: those for unwinding and for the
//! loader, and exported objects of megabytes (ICU's).

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{RELATIVE, Relocation};

use crate::llvm::symbol_file::{SymbolFile, VTABLE};
use crate::llvm::vtable::find::{self, Segment, Symbol, View, Vtable};
use crate::llvm::vtable::release::{self, Release};
use crate::llvm::vtable::unwind_tables;
use crate::process::library::Library;
use crate::process::search;

/// Below this much code a library cannot hold LLVM with a code generator (Debian's smallest is past 40 MB).
pub(crate) const SMALLEST_LLVM: u64 = 4 << 20;

/// Whether an LLVM may be in `library`, as far as is cheap to see: nearly every library is ruled out here.
pub(crate) fn may_have_llvm(library: &Library) -> bool {
    library.code_size() >= SMALLEST_LLVM && (library.mentions_mprotect() || library.mentions("N4llvm"))
}

/// Whether a library whose linkers cannot be found may compile code: it also registers unwind tables.
pub(crate) fn may_compile(library: &Library) -> bool {
    const REGISTER: &str = "__register_frame";
    may_have_llvm(library) && library.mentions(REGISTER) && !library.imported(&[REGISTER]).is_empty()
}

/// Every vtable of the classes called `names` (see [`find::by_type_name`]) that `library` has: by the dynamic symbols
/// of those that have one, those in `file` if it is given, and else by the names of the types. One library, one search:
/// ask for all classes at once.
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

/// The vtables of the classes that have a symbol in the file.
///
/// # Safety
/// As for [`vtables`].
pub(crate) unsafe fn hidden_vtables(library: &Library, names: &[&str], file: &SymbolFile) -> Vec<Vtable> {
    let symbols = hidden_symbols(library, names, file);
    if symbols.is_empty() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    find::by_symbol(&unsafe { view(library) }, &symbols)
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
    let mut is_there = false;
    let mut look = |bytes: &[u8]| {
        search::each(bytes, &MESSAGES, |_, _| {
            is_there = true;
            false
        });
    };
    constants.iter().for_each(|part| look(part.bytes));
    is_there
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
    let (address, size) = library.dynamic_object(&format!("{VTABLE}{name}"))?;
    Some(Symbol { class, address: address as u64, size: size as u64 })
}

/// The symbols of the file that are not exported.
fn hidden_symbols(library: &Library, names: &[&str], file: &SymbolFile) -> Vec<Symbol> {
    let symbol = |(class, name): (usize, &&str)| {
        let &(value, size) = file.llvm_symbols().get(&format!("{VTABLE}{name}"))?;
        Some(Symbol { class, address: (library.identity.bias as u64).wrapping_add(value), size })
    };
    names.iter().enumerate().filter_map(symbol).collect()
}

/// # Safety
/// The library must be mapped, and stay so for the life of the view.
unsafe fn view(library: &Library) -> View<'_> {
    // SAFETY: the caller's promise; so below.
    let relocated = unsafe { library.is_relocated() };
    // A program at fixed addresses has its vtables among the constants.
    let fixed = library.identity.bias == 0;
    // SAFETY: as above. Only of a program at fixed addresses are they searched.
    let constants = unsafe { if fixed { constants(library) } else { read_only(library) } };
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

/// What is as large and has a symbol is a table of data. ICU's has thirty megabytes.
const LARGE_OBJECT: usize = 1 << 20;

/// Where names of types and messages may be that are searched for: not in large objects, nor in tables for unwinding
/// and for the loader. Of code there may be hundreds of megabytes that are not read yet. Where nothing is neither
/// written nor run, all of it: `.rodata` is beside code, or, in programs that gold has linked with Swift in them, in
/// data that is written.
///
/// # Safety
/// As for [`segments`].
unsafe fn constants(library: &Library) -> Vec<Segment<'_>> {
    // SAFETY: the caller's promise; so below.
    let constants = match unsafe { apart(library) } {
        // SAFETY: as above.
        constants if constants.is_empty() => unsafe { segments(library, |_| true) },
        constants => constants,
    };
    let mut tables = library.tables();
    tables.extend(library.large_objects(LARGE_OBJECT));
    if let Some(header) = library.unwind_header() {
        let segment = constants.iter().find(|segment| segment.word_at(header.start as u64).is_some());
        tables.extend(segment.into_iter().flat_map(|segment| unwind_tables::ranges(segment, header.clone())));
    }
    tables.iter().fold(constants, without)
}

/// What is neither written nor run.
///
/// # Safety
/// As for [`segments`].
unsafe fn apart(library: &Library) -> Vec<Segment<'_>> {
    // SAFETY: the caller's promise.
    unsafe { segments(library, |segment| !segment.writable && !segment.executable) }
}

/// What is not written: where constants are not apart from code, that, too.
///
/// # Safety
/// As for [`segments`].
unsafe fn read_only(library: &Library) -> Vec<Segment<'_>> {
    // SAFETY: the caller's promise; so below.
    match unsafe { apart(library) } {
        // SAFETY: as above.
        constants if constants.is_empty() => unsafe { segments(library, |segment| !segment.writable) },
        constants => constants,
    }
}

/// What is not in `range`.
fn without<'a>(segments: Vec<Segment<'a>>, range: &Range<usize>) -> Vec<Segment<'a>> {
    let pieces = |segment: Segment<'a>| {
        let Some(inside) = cut(segment, range) else { return [Some(segment), None] };
        let before = segment.address as usize..inside.address as usize;
        let end = inside.address as usize + inside.bytes.len();
        [cut(segment, &before), cut(segment, &(end..segment.address as usize + segment.bytes.len()))]
    };
    segments.into_iter().flat_map(pieces).flatten().collect()
}

/// The part of a segment that is in `range`.
fn cut<'a>(segment: Segment<'a>, range: &Range<usize>) -> Option<Segment<'a>> {
    let end = segment.address + segment.bytes.len() as u64;
    let (first, last) = (segment.address.max(range.start as u64), end.min(range.end as u64));
    let bytes =
        segment.bytes.get(first.checked_sub(segment.address)? as usize..last.checked_sub(segment.address)? as usize)?;
    (!bytes.is_empty()).then_some(Segment { address: first, bytes })
}

/// # Safety
/// The library must be mapped, and stay so for the life of the slices.
unsafe fn segments(library: &Library, wanted: impl Fn(&crate::process::library::Segment) -> bool) -> Vec<Segment<'_>> {
    let wanted = library.segments().into_iter().filter(|segment| segment.readable && segment.size > 0).filter(wanted);
    let slice = |segment: crate::process::library::Segment| {
        // SAFETY: the loader has mapped that much of the file there; the caller vouches that it still is. What is
        // written meanwhile is in `.data`, whose words are compared and never followed.
        let bytes = unsafe { std::slice::from_raw_parts(segment.address as *const u8, segment.size) };
        Segment { address: segment.address as u64, bytes }
    };
    wanted.map(slice).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;
    use crate::process::library::Identity;
    use crate::process::link_map::LinkMap;

    const CLASSES: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];

    #[test]
    fn what_is_left_out_of_segments() {
        let bytes: Vec<u8> = (0..100).collect();
        let left = |ranges: &[Range<usize>]| {
            let all =
                vec![Segment { address: 1000, bytes: &bytes[..50] }, Segment { address: 1050, bytes: &bytes[50..] }];
            let left = ranges.iter().fold(all, without);
            left.iter().for_each(|part| assert_eq!(u64::from(part.bytes[0]) + 1000, part.address));
            left.iter().map(|part| (part.address, part.bytes.len())).collect::<Vec<_>>()
        };
        assert_eq!(left(&[]), [(1000, 50), (1050, 50)]);
        assert_eq!(left(&[10..20, 1000..1000, 1100..1200, 2000..usize::MAX]), [(1000, 50), (1050, 50)]);
        assert_eq!(left(&[1010..1020, 1040..1060]), [(1000, 10), (1020, 20), (1060, 40)]);
        assert_eq!(left(&[900..1001, 1099..usize::MAX]), [(1001, 49), (1050, 49)]);
        assert_eq!(left(&[0..1060, 1050..usize::MAX]), []);
    }

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
            // As at `_r_debug.r_brk` before glibc 2.41; references to exported typeinfos use symbols there.
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
