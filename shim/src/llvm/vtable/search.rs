//! Search for vtables in a mapped library.
//!
//! Type names are searched for only in a library that could contain LLVM ([`may_have_llvm`]). The search reads the
//! library's pointers once, and twice more if the names are found. In a program at a fixed address, it also reads the
//! constants. Tables with a known address are excluded: unwind tables, the loader's tables, and exported objects of
//! several megabytes (such as ICU's).

use crate::llvm::recognise::may_have_llvm;
use crate::llvm::symbol_file::{SymbolFile, VTABLE_PREFIX};
use crate::llvm::vtable::find::{self, Symbol, Vtable};
use crate::llvm::vtable::mapped::view;
use crate::process::library::Library;

/// Finds every vtable of the classes `names` (see [`find::vtables_by_type_name`]) in `library`. Tries dynamic symbols
/// first, then symbols in `file` if given, then RTTI. Pass all classes in one call, because each call searches the
/// whole library. The library need not be relocated.
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
    // The classes between the first and the last are needed only to bound the first class's vtable, if that lacks a
    // symbol.
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

/// Finds the vtables of classes that have a symbol in the file's `.symtab`.
pub(crate) fn hidden_vtables(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Vtable> {
    let symbols = hidden_symbols(library, names, file);
    if symbols.is_empty() {
        return Vec::new();
    }
    find::vtables_by_symbol(&view(library), &symbols)
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

/// Dynamic symbol that covers the vtables of a class.
fn exported_symbol(library: &Library<'_>, class: usize, name: &str) -> Option<Symbol> {
    let (address, size) = library.dynamic_object(&format!("{VTABLE_PREFIX}{name}"))?;
    Some(Symbol { class, address: address as u64, size: size as u64 })
}

/// Symbols in the library's file that cover the vtables of these classes.
fn hidden_symbols(library: &Library<'_>, names: &[&str], file: &SymbolFile) -> Vec<Symbol> {
    let symbol = |(class, name): (usize, &&str)| {
        let &(value, size) = file.llvm_symbols().get(&format!("{VTABLE_PREFIX}{name}"))?;
        Some(Symbol { class, address: (library.identity.bias as u64).wrapping_add(value), size })
    };
    names.iter().enumerate().filter_map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::llvm::vtable::find::LibraryView;
    use crate::process::known::LinkMap;

    const CLASSES: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];

    /// Opens a library and never closes it.
    fn open(path: &str) -> Option<Library<'static>> {
        let path = CString::new(path).unwrap();
        // SAFETY: this is a system library whose constructors have no harmful effects.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        // SAFETY: a glibc handle points to the link map entry, and the library is never closed.
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
            // Model the state at `_r_debug.r_brk` before glibc 2.41, when the library is not relocated yet. At that
            // point, references to exported typeinfos still use symbols, so only the search by symbol is tested.
            let symbols: Vec<Symbol> =
                (0..2).filter_map(|class| exported_symbol(&library, class, CLASSES[class])).collect();
            let unrelocated = LibraryView { relocations: Some(library.section.relocations().into()), ..view };
            let vtables_before_relocation = find::vtables_by_symbol(&unrelocated, &symbols).into_iter().map(strip);
            let mut vtables_before_relocation: Vec<Vtable> = vtables_before_relocation.collect();
            vtables_before_relocation.sort_by_key(|vtable| vtable.address_point);
            assert_eq!(vtables_before_relocation, vtables_by_name, "{name}");
        }
        assert!(tested_count > 0 || std::env::var_os("CI").is_none(), "no libLLVM here");
    }
}
