//! Relocations of a library: the functions that it imports, and the words that the loader fills in.

use std::io;
use std::mem::offset_of;

use jitlisten::plumbing::{Relocation, is_relative};
use libc::Elf64_Sym;
use object::elf::{self, RelocationType};

use crate::process::library::{FunctionUses, Library, is_defined};
use crate::process::slot::Slot;

/// Type of the relocation that stores the address of a symbol plus an addend.
#[cfg(target_arch = "x86_64")]
const ADDRESS_RELOCATION: RelocationType = elf::R_X86_64_64;
#[cfg(target_arch = "aarch64")]
const ADDRESS_RELOCATION: RelocationType = elf::R_AARCH64_ABS64;

/// Type of the relocation that copies an object of another library into the program, which all libraries then use.
#[cfg(target_arch = "x86_64")]
const COPY_RELOCATION: RelocationType = elf::R_X86_64_COPY;
#[cfg(target_arch = "aarch64")]
const COPY_RELOCATION: RelocationType = elf::R_AARCH64_COPY;

/// Types of the relocations for slots through which functions are called.
#[cfg(target_arch = "x86_64")]
const FUNCTION_SLOTS: [RelocationType; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];
#[cfg(target_arch = "aarch64")]
const FUNCTION_SLOTS: [RelocationType; 2] = [elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT];

/// Maximum size of a copied object that may be a vtable.
const MAX_COPIED_BYTES: usize = 1 << 14;

/// Word that the loader will relocate by adding the load bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addend<'l> {
    /// The relocation's addend in the relocation table (`DT_RELA`).
    InTable(Slot<'l>),
    /// The relocated word itself (`DT_RELR`).
    InPlace(Slot<'l>),
}

/// Returns true if a relocation stores the address of a function that another library may define. References to the C++
/// library's type information classes do not count, because they have an addend.
pub(crate) fn is_import(info: u64, addend: u64) -> bool {
    kind(info) == ADDRESS_RELOCATION && addend == 0
}

fn kind(info: u64) -> RelocationType {
    RelocationType(info as u32)
}

impl<'l> Library<'l> {
    /// Determines in one pass which functions of interest the library uses. Does not read the names of exported
    /// symbols, which may take up megabytes.
    pub(crate) fn uses(&self) -> FunctionUses {
        const NAMES: [&str; 3] = ["mprotect", "dlsym", "__register_frame"];
        *self.uses.get_or_init(|| {
            let imported = match self.section.undefined() {
                Some(symbols) => {
                    let mut is_imported = [false; NAMES.len()];
                    for symbol in symbols {
                        let index = self.position(&symbol, &NAMES);
                        index.into_iter().for_each(|index| is_imported[index] = true);
                    }
                    is_imported
                }
                None => {
                    let imported = self.imported(&NAMES);
                    NAMES.map(|name| imported.contains(&name))
                }
            };
            let [mprotect, dlsym, register_frame] = imported;
            // A program built with a sanitizer defines `mprotect` itself.
            FunctionUses { mprotect: mprotect || self.exports(NAMES[0]), dlsym, register_frame }
        })
    }

    /// Returns those elements of `names` that the library imports as functions. Takes one pass over the relocations.
    pub(crate) fn imported<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        let mut matches = Vec::new();
        for relocation in self.function_relocations() {
            let symbol = self.symbol_of(relocation);
            if is_defined(&symbol) {
                continue;
            }
            let name = self.position(&symbol, names).map(|index| names[index]);
            matches.extend(name.filter(|name| !matches.contains(name)));
        }
        matches
    }

    /// Relocation slots for the imported function `name`.
    pub(crate) fn import_slots(&self, name: &str) -> Vec<Slot<'l>> {
        self.slots_of_imports([name]).into_iter().map(|(slot, _)| slot).collect()
    }

    /// Relocation slots for the imported functions in `names`, each with the index of its name. Takes one pass for all
    /// names.
    pub(crate) fn slots_of_imports<const N: usize>(&self, names: [&str; N]) -> Vec<(Slot<'l>, usize)> {
        let slots = self.function_relocations().filter_map(|relocation| {
            let index = self.position(&self.symbol_of(relocation), &names)?;
            Some((self.relocated_slot(relocation)?, index))
        });
        slots.collect()
    }

    /// Data words that hold one of `values` because the loader stored an imported function's address there, each with
    /// the index of the value. These are import slots, vtable slots for functions that other libraries define, and the
    /// slots of vtables that the program copied from a library.
    pub(crate) fn slots_holding(&self, values: &[usize]) -> Vec<(Slot<'l>, usize)> {
        let relocations = self.section.symbolic_relocations();
        let words = relocations.flat_map(|relocation| {
            let start = self.identity.bias.wrapping_add(relocation[0] as usize);
            let kind = kind(relocation[1]);
            let size = match kind {
                COPY_RELOCATION => (self.symbol_of(relocation).st_size as usize).min(MAX_COPIED_BYTES),
                _ if kind == ADDRESS_RELOCATION || FUNCTION_SLOTS.contains(&kind) => size_of::<usize>(),
                _ => 0,
            };
            (0..size / size_of::<usize>()).map(move |index| start.wrapping_add(index * size_of::<usize>()))
        });
        let slots = words.filter_map(|address| {
            let slot = self.slot(address)?;
            Some((slot, values.iter().position(|&value| value == slot.value())?))
        });
        slots.collect()
    }

    /// Word that the loader will relocate by adding the load bias, which produces the value at `address`. It is an
    /// addend in the relocation table, or the word at `address` itself.
    pub(crate) fn relative_addend(&self, address: usize) -> Option<Addend<'l>> {
        let offset = address.wrapping_sub(self.identity.bias);
        let mut matching = self.section.relocations().iter().filter(|relocation| relocation[0] == offset as u64);
        match (matching.next(), matching.next()) {
            (Some(relocation), None) if is_relative(relocation[1]) => {
                self.slot(&raw const relocation[2] as usize).map(Addend::InTable)
            }
            (None, _) if self.section.packed_relocations().any(|packed| packed == offset) => {
                self.slot(address).map(Addend::InPlace)
            }
            _ => None,
        }
    }

    /// Function of this library that the loader will store at `address`, unless another library interposes its symbol.
    /// Returns the function's address, and the slot that holds the symbol's value.
    pub(crate) fn defined_by_symbol(&self, address: usize) -> Option<(usize, Slot<'l>)> {
        let offset = address.wrapping_sub(self.identity.bias) as u64;
        let mut matching = self.section.relocations().iter().filter(|relocation| relocation[0] == offset);
        let (Some(relocation @ &[_, info, addend]), None) = (matching.next(), matching.next()) else { return None };
        if !is_import(info, addend) {
            return None;
        }
        let symbol = self.symbol_of(relocation);
        let function = self.address_of(&symbol);
        let is_code = self.segments.all().any(|segment| segment.executable && segment.range().contains(&function));
        let is_function = is_defined(&symbol) && symbol.st_info & 0xf == elf::STT_FUNC.0 && is_code;
        let value = self.slot(self.symbol_entry_of(relocation) + offset_of!(Elf64_Sym, st_value))?;
        is_function.then_some((function, value))
    }

    /// Redirects the dynamic symbol `name` to `function`, which may be at any address. Returns `None` if the library
    /// does not define `name`.
    ///
    /// # Safety
    /// `function` must be callable in place of this symbol while the library is mapped.
    pub(crate) unsafe fn redefine(&self, name: &str, function: usize) -> Option<io::Result<()>> {
        let value = self.slot(self.symbol_entry(name)? + offset_of!(Elf64_Sym, st_value))?;
        // SAFETY: the word is the value of this symbol. The loader adds the load bias, which yields the address of the
        // caller's function.
        Some(unsafe { value.write(function.wrapping_sub(self.identity.bias)) })
    }

    /// Makes the loader bind the imported function `name` to `function` when it relocates the library, which must not
    /// have happened yet. The import symbol gets the address of `function` and hidden visibility, so that the loader
    /// does not search other libraries for it (`elf/dl-reloc.c`, `elf/dl-runtime.c`). A weak import is bound only if
    /// `also_weak` is true.
    ///
    /// # Safety
    /// `function` must be callable in place of this import while the library is mapped.
    pub(crate) unsafe fn bind_before_relocation(&self, name: &str, function: usize, also_weak: bool) -> io::Result<()> {
        for (value, visibility) in self.import_symbols(name) {
            let target = function.wrapping_sub(self.identity.bias);
            let word = visibility.value();
            // The upper half of `st_info` holds the binding.
            if !also_weak && word >> 36 & 0xf == usize::from(elf::STB_WEAK.0) {
                continue;
            }
            // SAFETY: the loader reads an import's value to bind calls of that name, and the caller vouches for
            // `function`.
            unsafe { value.write(target) }?;
            // `st_other` is the byte after `st_name` and `st_info`.
            let hidden_word = word & !(0x3 << 40) | usize::from(elf::STV_HIDDEN.0) << 40;
            // SAFETY: only the visibility changes, so the loader binds the import to the value written above.
            unsafe { visibility.write(hidden_word) }?;
        }
        Ok(())
    }

    /// Finds two words of each symbol table entry for the import `name`: the value, and the word that contains the
    /// visibility.
    fn import_symbols(&self, name: &str) -> Vec<(Slot<'l>, Slot<'l>)> {
        let is_named = |entry: &usize| {
            let symbol = self.section.symbol_at(*entry);
            !is_defined(&symbol) && self.section.name_is(&symbol, name.as_bytes())
        };
        let entries = self.function_relocations().map(|relocation| self.symbol_entry_of(relocation)).filter(is_named);
        let mut entries: Vec<usize> = entries.collect();
        entries.sort_unstable();
        entries.dedup();
        let value_offset = offset_of!(Elf64_Sym, st_value);
        entries.into_iter().filter_map(|entry| self.slot(entry + value_offset).zip(self.slot(entry))).collect()
    }

    /// Relocations for slots that hold the address of a function, usually an imported one.
    fn function_relocations(&self) -> impl Iterator<Item = &Relocation> {
        self.section.symbolic_relocations().filter(|relocation| FUNCTION_SLOTS.contains(&kind(relocation[1])))
    }

    fn relocated_slot(&self, relocation: &Relocation) -> Option<Slot<'l>> {
        self.slot(self.identity.bias.wrapping_add(relocation[0] as usize))
    }

    /// Address of the symbol table entry that a relocation refers to.
    fn symbol_entry_of(&self, relocation: &Relocation) -> usize {
        self.section.entry((relocation[1] >> 32) as usize)
    }

    fn symbol_of(&self, relocation: &Relocation) -> Elf64_Sym {
        self.section.symbol_at(self.symbol_entry_of(relocation))
    }

    fn position(&self, symbol: &Elf64_Sym, names: &[&str]) -> Option<usize> {
        names.iter().position(|name| self.section.name_is(symbol, name.as_bytes()))
    }
}
