//! A mapped library as slices for `find.rs`.
//!
//! Type names are searched only in a library that could contain LLVM: it has more than 4 MiB of code, and `mprotect` or
//! a name of LLVM among its dynamic symbols. The search reads the library's pointers once, and twice more if the names
//! are found; in a program at a fixed address it reads the constants. Tables with a known address are excluded: those
//! for unwinding and for the loader, and exported objects of megabytes (ICU's).

use std::borrow::Cow;
use std::ops::Range;

use jitlisten::plumbing::{RELATIVE, Relocation};

use crate::llvm::releases::{self, Release};
use crate::llvm::symbol_file::{SymbolFile, VTABLE_PREFIX};
use crate::llvm::vtable::find::{self, Segment, Symbol, View, Vtable};
use crate::llvm::vtable::unwind_tables;
use crate::process::library::{self, Library};
use crate::process::search;

/// Minimum code size of a library with LLVM and a code generator (Debian's smallest has more than 40 MB).
pub(crate) const MIN_LLVM_CODE_BYTES: u64 = 4 << 20;

/// Returns true if `library` may contain LLVM. This cheap test excludes nearly every library.
pub(crate) fn may_have_llvm(library: &Library<'_>) -> bool {
    library.code_size() >= MIN_LLVM_CODE_BYTES && (library.uses().mprotect || library.has_name_containing("N4llvm"))
}

/// Returns true if a library may compile code although no linkers are found in it: it also registers unwind tables.
pub(crate) fn may_compile(library: &Library<'_>) -> bool {
    may_have_llvm(library) && library.uses().register_frame
}

/// Names of functions that programs look up: functions of LLVM's C API that compile, and the function that IREE's
/// runtime looks up in each ELF file that it loads from memory.
const LOOKED_UP_NAMES: [&[u8]; 4] = [
    b"\0LLVMCreateMCJITCompilerForModule\0",
    b"\0LLVMOrcCreateLLJIT\0",
    b"\0LLVMTargetMachineEmitToMemoryBuffer\0",
    b"\0iree_hal_executable_library_query\0",
];
/// Prefixes of [`LOOKED_UP_NAMES`], so that two searches find all of them.
const LOOKED_UP_PREFIXES: [&[u8]; 2] = [b"\0LLVM", b"\0iree_hal_"];

/// Returns true if a library makes memory executable and looks up one of [`LOOKED_UP_NAMES`] (drjit, IREE): it may load
/// cached code without a linker. Such libraries are smaller than an LLVM (some 2 MB of code). Larger ones are not
/// searched, because libjvm.so, node and many others also import both functions.
pub(crate) fn may_load_code(library: &Library<'_>) -> bool {
    let uses = library.uses();
    let is_small = library.code_size() < MIN_LLVM_CODE_BYTES;
    // Python imports `mprotect` and `dlsym` since 3.12.
    if !uses.mprotect || !uses.dlsym || !is_small || library.is_python_launcher() || library.is_jitlisten() {
        return false;
    }
    let mut is_present = false;
    for segment in
        separate_constants(library).iter().filter(|segment| segment.bytes.len() as u64 <= MIN_LLVM_CODE_BYTES)
    {
        search::for_each_match(segment.bytes, &LOOKED_UP_PREFIXES, |_, offset| {
            is_present |= LOOKED_UP_NAMES.iter().any(|name| segment.bytes[offset..].starts_with(name));
            !is_present
        });
    }
    is_present
}

/// Finds every vtable of the classes `names` (see [`find::vtables_by_type_name`]) in `library`: by dynamic symbols, or else by
/// symbols in `file` if given, or else by RTTI. Pass all classes in one call, because each call searches the library.
/// The library need not be relocated.
pub(crate) fn vtables(library: &Library<'_>, names: &[&str], file: Option<&SymbolFile>) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| exported_symbol(library, class, name));
    let mut symbols: Vec<Symbol> = symbols.collect();
    if let (true, Some(file)) = (symbols.is_empty(), file) {
        symbols = hidden_symbols(library, names, file);
    }
    let may_have_llvm = may_have_llvm(library);
    if symbols.is_empty() && !may_have_llvm {
        return Vec::new();
    }
    let view = view(library);
    let mut vtables = find::vtables_by_symbol(&view, &symbols);
    let missing_classes: Vec<usize> =
        (0..names.len()).filter(|class| vtables.iter().all(|vtable| vtable.class != *class)).collect();
    // Classes between the first and the last only bound the first one if it has no symbol.
    let is_optional = |class: &usize| *class != 0 && *class + 1 != names.len();
    if !missing_classes.iter().all(is_optional) && may_have_llvm {
        let missing_names: Vec<&str> = missing_classes.iter().map(|&class| names[class]).collect();
        let vtables_by_name = find::vtables_by_type_name(&view, &missing_names);
        vtables.extend(
            vtables_by_name.into_iter().map(|vtable| Vtable { class: missing_classes[vtable.class], ..vtable }),
        );
    }
    vtables
}

/// Finds the vtables of classes that have a symbol in the file.
pub(crate) fn hidden_vtables(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Vtable> {
    let symbols = hidden_symbols(library, names, file);
    if symbols.is_empty() {
        return Vec::new();
    }
    find::vtables_by_symbol(&view(library), &symbols)
}

/// Messages of RuntimeDyld and JITLink that occur in every release from 10 to 22.
const LINKER_MESSAGES: [&[u8]; 2] = [b"Unable to allocate memory for common symbols!", b"Generic JITLink error"];

/// Returns true if `library` seems to contain one of LLVM's linkers, although no vtable was found.
pub(crate) fn seems_to_have_linker(library: &Library<'_>) -> bool {
    if !may_have_llvm(library) {
        return false;
    }
    let constants = constants(library);
    let mut is_present = false;
    let mut search_bytes = |bytes: &[u8]| {
        search::for_each_match(bytes, &LINKER_MESSAGES, |_, _| {
            is_present = true;
            false
        });
    };
    constants.iter().for_each(|segment| search_bytes(segment.bytes));
    is_present
}

/// Returns the releases that a library with a linker contains: rarely more than one.
pub(crate) fn releases(library: &Library<'_>) -> Vec<Release> {
    match library.llvm_version().and_then(|version| Release::parse(&version)) {
        Some(release) => vec![release],
        None => releases::find_in_constants(&constants(library)),
    }
}

/// Finds the vtables of classes that have a dynamic symbol.
pub(crate) fn exported_vtables(library: &Library<'_>, names: &[&str]) -> Vec<Vtable> {
    let symbols = names.iter().enumerate().filter_map(|(class, name)| exported_symbol(library, class, name));
    let symbols: Vec<Symbol> = symbols.collect();
    if symbols.is_empty() {
        return Vec::new();
    }
    find::vtables_by_symbol(&view(library), &symbols)
}

/// Dynamic symbol of a class's vtables.
fn exported_symbol(library: &Library<'_>, class: usize, name: &str) -> Option<Symbol> {
    let (address, size) = library.dynamic_object(&format!("{VTABLE_PREFIX}{name}"))?;
    Some(Symbol { class, address: address as u64, size: size as u64 })
}

/// Symbols of the classes in the library's file.
fn hidden_symbols(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Symbol> {
    let symbol = |(class, name): (usize, &&str)| {
        let &(value, size) = file.llvm_symbols().get(&format!("{VTABLE_PREFIX}{name}"))?;
        Some(Symbol { class, address: (library.identity.bias as u64).wrapping_add(value), size })
    };
    names.iter().enumerate().filter_map(symbol).collect()
}

/// Collects the parts of a library in which to search for vtables.
fn view<'a>(library: &'a Library<'_>) -> View<'a> {
    let is_relocated = library.is_relocated();
    // A program at a fixed address has its vtables among the constants.
    let is_fixed = library.identity.bias == 0;
    // Constants are searched only in a program at a fixed address.
    let constants = if is_fixed { constants(library) } else { read_only(library) };
    let data = segments(library, |segment| segment.writable || is_fixed && !segment.executable);
    let data = match library.relro_range() {
        Some(sealed) if !is_fixed => data.into_iter().filter_map(|segment| clip(segment, &sealed)).collect(),
        _ => data,
    };
    let code = library.segments().into_iter().filter(|segment| segment.executable);
    let code = code.map(|segment| segment.address as u64..segment.address as u64 + segment.size as u64).collect();
    let bias = library.identity.bias as u64;
    let relocations = (!is_relocated).then(|| pending_relocations(library, &data));
    View { bias, constants, data, relocations, applied_relocations: library.relocations(), code }
}

/// Relocations that the loader has yet to apply to `data`: those of `DT_RELA`, and the packed ones (`DT_RELR`).
fn pending_relocations<'a>(library: &'a Library<'_>, data: &[Segment<'_>]) -> Cow<'a, [Relocation]> {
    let bias = library.identity.bias as u64;
    let packed = library.packed_relocations().filter_map(|offset| {
        let addend = data.iter().find_map(|segment| segment.word_at(bias.wrapping_add(offset as u64)))?;
        Some([offset as u64, RELATIVE, addend])
    });
    let packed: Vec<Relocation> = packed.collect();
    if packed.is_empty() { library.relocations().into() } else { [library.relocations(), &packed].concat().into() }
}

/// Minimum size of an exported object to exclude: a table of data. ICU's table has 30 MB.
const MIN_LARGE_OBJECT_BYTES: usize = 1 << 20;

/// Constants that may contain type names or messages, without large objects and without tables for unwinding and for
/// the loader. Code is excluded, because hundreds of megabytes of it may be not yet read. If no segment is both
/// read-only and not executable, everything is included: `.rodata` may be next to code, or in writable data (programs
/// with Swift that gold has linked).
fn constants<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    let constants = match separate_constants(library) {
        constants if constants.is_empty() => segments(library, |_| true),
        constants => constants,
    };
    let mut tables = library.dynamic_tables();
    tables.extend(library.large_objects(MIN_LARGE_OBJECT_BYTES));
    if let Some(header) = library.unwind_header() {
        let segment = constants.iter().find(|segment| segment.word_at(header.start as u64).is_some());
        tables.extend(segment.into_iter().flat_map(|segment| unwind_tables::ranges(segment, header.clone())));
    }
    tables.iter().fold(constants, exclude)
}

/// Segments that are neither writable nor executable.
fn separate_constants<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    segments(library, |segment| !segment.writable && !segment.executable)
}

/// Segments with constants: all segments that are neither writable nor executable, or if there are none, all that are
/// not writable.
fn read_only<'l>(library: &Library<'l>) -> Vec<Segment<'l>> {
    match separate_constants(library) {
        constants if constants.is_empty() => segments(library, |segment| !segment.writable),
        constants => constants,
    }
}

/// Removes `range` from the segments.
fn exclude<'a>(segments: Vec<Segment<'a>>, range: &Range<usize>) -> Vec<Segment<'a>> {
    let pieces = |segment: Segment<'a>| {
        let Some(overlap) = clip(segment, range) else { return [Some(segment), None] };
        let before = segment.address as usize..overlap.address as usize;
        let end = overlap.address as usize + overlap.bytes.len();
        [clip(segment, &before), clip(segment, &(end..segment.address as usize + segment.bytes.len()))]
    };
    segments.into_iter().flat_map(pieces).flatten().collect()
}

/// Part of a segment inside `range`.
fn clip<'a>(segment: Segment<'a>, range: &Range<usize>) -> Option<Segment<'a>> {
    let end = segment.address + segment.bytes.len() as u64;
    let (start, end_in_range) = (segment.address.max(range.start as u64), end.min(range.end as u64));
    let bytes = segment
        .bytes
        .get(start.checked_sub(segment.address)? as usize..end_in_range.checked_sub(segment.address)? as usize)?;
    (!bytes.is_empty()).then_some(Segment { address: start, bytes })
}

/// Readable segments that `is_wanted` accepts.
fn segments<'l>(library: &Library<'l>, is_wanted: impl Fn(&library::Segment<'l>) -> bool) -> Vec<Segment<'l>> {
    let segments = library.segments().into_iter().filter(is_wanted);
    segments.filter_map(|segment| Some(Segment { address: segment.address as u64, bytes: segment.bytes()? })).collect()
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
        let remaining = |ranges: &[Range<usize>]| {
            let segments =
                vec![Segment { address: 1000, bytes: &bytes[..50] }, Segment { address: 1050, bytes: &bytes[50..] }];
            let remaining = ranges.iter().fold(segments, exclude);
            remaining.iter().for_each(|segment| assert_eq!(u64::from(segment.bytes[0]) + 1000, segment.address));
            remaining.iter().map(|segment| (segment.address, segment.bytes.len())).collect::<Vec<_>>()
        };
        assert_eq!(remaining(&[]), [(1000, 50), (1050, 50)]);
        assert_eq!(remaining(&[10..20, 1000..1000, 1100..1200, 2000..usize::MAX]), [(1000, 50), (1050, 50)]);
        assert_eq!(remaining(&[1010..1020, 1040..1060]), [(1000, 10), (1020, 20), (1060, 40)]);
        assert_eq!(remaining(&[900..1001, 1099..usize::MAX]), [(1001, 49), (1050, 49)]);
        assert_eq!(remaining(&[0..1060, 1050..usize::MAX]), []);
    }

    /// Opens a library without ever closing it.
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
        let releases_and_slots =
            [("LLVM-14.so.1", 16), ("LLVM-16.so.1", 17), ("LLVM.so.19.1", 17), ("LLVM.so.22.1", 19)];
        let mut tested_count = 0;
        for (name, slots) in releases_and_slots {
            let Some(library) = open(&format!("lib{name}")) else { continue };
            tested_count += 1;
            let (view, vtables_by_symbol) = (view(&library), vtables(&library, &CLASSES, None));
            assert!(view.relocations.is_none(), "the loader is done with it");
            let strip = |vtable: Vtable| Vtable { is_bounded: false, ..vtable };
            let mut vtables_by_symbol: Vec<Vtable> = vtables_by_symbol.into_iter().map(strip).collect();
            let mut vtables_by_name = find::vtables_by_type_name(&view, &CLASSES);
            vtables_by_symbol.sort_by_key(|vtable| vtable.address_point);
            vtables_by_name.sort_by_key(|vtable| vtable.address_point);
            assert_eq!(vtables_by_symbol, vtables_by_name, "{name}");
            let slot_counts: Vec<usize> =
                vtables_by_name.iter().filter(|vtable| vtable.class == 0).map(|vtable| vtable.slots.len()).collect();
            assert_eq!(slot_counts, [slots], "{name}");
            // Model the state at `_r_debug.r_brk` before glibc 2.41. References to exported typeinfos use symbols at
            // that point, so only the search by symbol is tested.
            let symbols: Vec<Symbol> =
                (0..2).filter_map(|class| exported_symbol(&library, class, CLASSES[class])).collect();
            let unrelocated = View { relocations: Some(library.relocations().into()), ..view };
            let vtables_before_relocation = find::vtables_by_symbol(&unrelocated, &symbols).into_iter().map(strip);
            let mut vtables_before_relocation: Vec<Vtable> = vtables_before_relocation.collect();
            vtables_before_relocation.sort_by_key(|vtable| vtable.address_point);
            assert_eq!(vtables_before_relocation, vtables_by_name, "{name}");
        }
        assert!(tested_count > 0 || std::env::var_os("CI").is_none(), "no libLLVM here");
    }
}
