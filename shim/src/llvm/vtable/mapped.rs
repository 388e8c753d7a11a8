//! A mapped library, as slices for `find.rs`.
//!
//! Type names are searched only in a library that could contain LLVM: with more than 4 MiB of code, and `mprotect` or a
//! name of LLVM among its dynamic symbols. That reads its pointers once, and twice more if the names are found; of a
//! program at fixed addresses, its constants. Excluded are tables with a known place: those for unwinding and for the
//! loader, and exported objects of megabytes (ICU's).

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{RELATIVE, Relocation};

use crate::llvm::releases::{self, Release};
use crate::llvm::symbol_file::{SymbolFile, VTABLE};
use crate::llvm::vtable::find::{self, Segment, Symbol, View, Vtable};
use crate::llvm::vtable::unwind_tables;
use crate::process::library::{self, Library};
use crate::process::search;

/// Below this much code a library cannot hold LLVM with a code generator (Debian's smallest is past 40 MB).
pub(crate) const SMALLEST_LLVM: u64 = 4 << 20;

/// Whether an LLVM may be in `library`, as far as is cheap to see: nearly every library is ruled out here.
pub(crate) fn may_have_llvm(library: &Library<'_>) -> bool {
    library.code_size() >= SMALLEST_LLVM && (library.uses().mprotect || library.mentions("N4llvm"))
}

/// Whether a library whose linkers cannot be found may compile code: it also registers unwind tables.
pub(crate) fn may_compile(library: &Library<'_>) -> bool {
    may_have_llvm(library) && library.uses().register_frame
}

/// Functions of LLVM's C API that compile, by the names by which programs look them up; and what IREE's runtime looks
/// up in each ELF file that it loads from memory.
const LOOKED_UP: [&[u8]; 4] = [
    b"\0LLVMCreateMCJITCompilerForModule\0",
    b"\0LLVMOrcCreateLLJIT\0",
    b"\0LLVMTargetMachineEmitToMemoryBuffer\0",
    b"\0iree_hal_executable_library_query\0",
];
/// They begin with one of these: two searches find them all.
const BEGINNINGS: [&[u8]; 2] = [b"\0LLVM", b"\0iree_hal_"];

/// Whether a library makes memory executable and looks one of those up (drjit, IREE): it may load by itself what it has
/// cached. Such a library is smaller than an LLVM (they have some 2 MB of code): others are not searched, because
/// libjvm.so, node and many more also import both functions.
pub(crate) fn may_load_code(library: &Library<'_>) -> bool {
    let uses = library.uses();
    let is_small = library.code_size() < SMALLEST_LLVM;
    // Python imports both, since 3.12.
    if !uses.mprotect || !uses.dlsym || !is_small || library.starts_python() || library.is_this() {
        return false;
    }
    let mut is_there = false;
    for segment in apart(library).iter().filter(|segment| segment.bytes.len() as u64 <= SMALLEST_LLVM) {
        search::each(segment.bytes, &BEGINNINGS, |_, at| {
            is_there |= LOOKED_UP.iter().any(|name| segment.bytes[at..].starts_with(name));
            !is_there
        });
    }
    is_there
}

/// Every vtable of the classes called `names` (see [`find::by_type_name`]) that `library` has: by the dynamic symbols
/// of those that have one, those in `file` if it is given, and else by the names of the types. One library, one search:
/// ask for all classes at once. It need not be relocated.
pub(crate) fn vtables(library: &Library<'_>, names: &[&str], file: Option<&SymbolFile>) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| symbol(library, class, name));
    let mut symbols: Vec<Symbol> = symbols.collect();
    if let (true, Some(file)) = (symbols.is_empty(), file) {
        symbols = hidden_symbols(library, names, file);
    }
    let may_have_llvm = may_have_llvm(library);
    if symbols.is_empty() && !may_have_llvm {
        return Vec::new();
    }
    let view = view(library);
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
pub(crate) fn hidden_vtables(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Vtable> {
    let symbols = hidden_symbols(library, names, file);
    if symbols.is_empty() {
        return Vec::new();
    }
    find::by_symbol(&view(library), &symbols)
}

/// Messages of RuntimeDyld and JITLink, in every release from 10 to 22.
const MESSAGES: [&[u8]; 2] = [b"Unable to allocate memory for common symbols!", b"Generic JITLink error"];

/// Whether one of LLVM's linkers seems to be in `library`, although no vtable shows it.
pub(crate) fn seems_to_have_linker(library: &Library<'_>) -> bool {
    if !may_have_llvm(library) {
        return false;
    }
    let constants = constants(library);
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
pub(crate) fn releases(library: &Library<'_>) -> Vec<Release> {
    match library.llvm_version().and_then(|version| Release::of(&version)) {
        Some(release) => vec![release],
        None => releases::said(&constants(library)),
    }
}

/// The vtables of classes that have a dynamic symbol.
pub(crate) fn exported_vtables(library: &Library<'_>, names: &[&str]) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| symbol(library, class, name));
    let symbols: Vec<Symbol> = symbols.collect();
    if symbols.is_empty() {
        return Vec::new();
    }
    find::by_symbol(&view(library), &symbols)
}

/// The dynamic symbol of a class's vtables.
fn symbol(library: &Library<'_>, class: usize, name: &str) -> Option<Symbol> {
    let (address, size) = library.dynamic_object(&format!("{VTABLE}{name}"))?;
    Some(Symbol { class, address: address as u64, size: size as u64 })
}

/// The symbols of the file that are not exported.
fn hidden_symbols(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Symbol> {
    let symbol = |(class, name): (usize, &&str)| {
        let &(value, size) = file.llvm_symbols().get(&format!("{VTABLE}{name}"))?;
        Some(Symbol { class, address: (library.identity.bias as u64).wrapping_add(value), size })
    };
    names.iter().enumerate().filter_map(symbol).collect()
}

/// What vtables are looked for in.
fn view<'a>(library: &'a Library<'_>) -> View<'a> {
    let relocated = library.is_relocated();
    // A program at fixed addresses has its vtables among the constants.
    let fixed = library.identity.bias == 0;
    // Only of a program at fixed addresses are they searched.
    let constants = if fixed { constants(library) } else { read_only(library) };
    let data = segments(library, |segment| segment.writable || fixed && !segment.executable);
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
fn to_come<'a>(library: &'a Library<'_>, data: &[Segment<'_>]) -> Cow<'a, [Relocation]> {
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
fn constants<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    let constants = match apart(library) {
        constants if constants.is_empty() => segments(library, |_| true),
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
fn apart<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    segments(library, |segment| !segment.writable && !segment.executable)
}

/// What is not written: where constants are not apart from code, that, too.
fn read_only<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    match apart(library) {
        constants if constants.is_empty() => segments(library, |segment| !segment.writable),
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

/// What may be read of it and is wanted.
fn segments<'l>(library: &Library<'l>, wanted: impl Fn(&library::Segment<'l>) -> bool) -> Vec<Segment<'l>> {
    let wanted = library.segments().into_iter().filter(wanted);
    wanted.filter_map(|part| Some(Segment { address: part.address as u64, bytes: part.bytes()? })).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::process::known::LinkMap;

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
    fn open(path: &str) -> Option<Library<'static>> {
        let path = CString::new(path).unwrap();
        // SAFETY: a library of the system, with well-behaved constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        // SAFETY: glibc's handle is the link map entry; the library is never closed.
        unsafe { Library::read(handle.cast::<LinkMap>().as_ref()?.identity(), &path) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "no LLVM in miri")]
    fn the_vtables_of_a_real_llvm_are_found_by_symbols_and_by_type_names() {
        let known = [("LLVM-14.so.1", 16), ("LLVM-16.so.1", 17), ("LLVM.so.19.1", 17), ("LLVM.so.22.1", 19)];
        let mut seen = 0;
        for (name, slots) in known {
            let Some(library) = open(&format!("lib{name}")) else { continue };
            seen += 1;
            let (view, by_symbol) = (view(&library), vtables(&library, &CLASSES, None));
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
