//! A library of this process, read from memory like the loader does: link map, program headers, dynamic section.

use std::cell::OnceCell;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jitlisten::plumbing::elf::{FileHeader, LE, ProgramHeader as Header};
use jitlisten::plumbing::{DynamicSection, Relocation, checked_read, is_relative};
use jitlisten::{Address, AddressRange};
use libc::Elf64_Sym;
use object::elf;

use crate::llvm::vtable::find::is_import;
use crate::process::detour::page_size;
use crate::process::mapped_proof::{Identity, Mapped};
use crate::process::slot::Slot;

type Rela = elf::Rela64<object::LittleEndian>;
/// Section index of an undefined symbol.
const SHN_UNDEF: u16 = elf::SHN_UNDEF.0;

/// llvmlite's function that returns the version of its LLVM.
pub(crate) const LLVMLITE_VERSION: &str = "LLVMPY_GetVersionInfo";

/// Path of the program, whose name in the link map is empty.
const PROGRAM: &str = "/proc/self/exe";

/// A library that stays mapped during `'l`, and its dynamic section.
pub(crate) struct Library<'l> {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    headers: Vec<Header>,
    section: DynamicSection,
    uses: OnceCell<Uses>,
    mapped: PhantomData<&'l ()>,
}

/// Functions of interest that a library imports or exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) mprotect: bool,
    pub(crate) dlsym: bool,
    /// `__register_frame`, which registers unwind tables. Only imports count, because unwinders export it.
    pub(crate) register_frame: bool,
}

/// Word to which the loader will add the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addend<'l> {
    /// The addend in the relocation table (`DT_RELA`).
    InTable(Slot<'l>),
    /// The relocated word itself (`DT_RELR`).
    InPlace(Slot<'l>),
}

/// One `PT_LOAD` segment, as mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'l> {
    pub(crate) address: usize,
    /// Bytes mapped from the file.
    pub(crate) size: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    mapped: PhantomData<&'l ()>,
}

impl<'l> Segment<'l> {
    /// Bytes of the segment, if it is readable. Only `.data` may be written concurrently; its words are compared and
    /// never followed.
    pub(crate) fn bytes(&self) -> Option<&'l [u8]> {
        // SAFETY: the loader has mapped that many bytes of the file there, and they stay mapped. The size is not zero.
        let bytes = || unsafe { std::slice::from_raw_parts(self.address as *const u8, self.size) };
        (self.readable && self.size > 0).then(bytes)
    }
}

impl<'l> Library<'l> {
    /// Reads the library of a link map entry. `name` is `l_name`, which is empty for the program.
    ///
    /// # Safety
    /// The library must stay mapped during `'l`.
    pub(crate) unsafe fn read(identity: Identity, name: &CStr) -> Option<Library<'l>> {
        let is_program = name.is_empty();
        let path = if is_program { Path::new(PROGRAM) } else { Path::new(OsStr::from_bytes(name.to_bytes())) };
        // SAFETY: the dynamic section of a mapped library ends with DT_NULL.
        let section = unsafe { DynamicSection::read(identity.bias, identity.dynamic) };
        let headers = if is_program { program_headers()? } else { library_headers(identity.bias, &section)? };
        let path = path.to_owned();
        section.has_symbols().then_some(Library {
            identity,
            path,
            headers,
            section,
            uses: OnceCell::new(),
            mapped: PhantomData,
        })
    }

    /// Reads a known library again, by its path.
    pub(crate) fn reopen(mapped: Mapped<'l>, identity: Identity, path: &Path) -> Option<Library<'l>> {
        let name =
            if path == Path::new(PROGRAM) { c"".into() } else { CString::new(path.as_os_str().as_bytes()).ok()? };
        // SAFETY: `mapped` covers this library.
        mapped.covers(identity).then(|| unsafe { Library::read(identity, &name) })?
    }

    /// Proof that this library is mapped.
    pub(crate) fn mapped(&self) -> Mapped<'l> {
        // SAFETY: a `Library<'l>` stays mapped during `'l`.
        unsafe { Mapped::single(self.identity) }
    }

    /// Total size of the executable segments in bytes. An LLVM with a code generator has several megabytes of code.
    pub(crate) fn code_size(&self) -> u64 {
        let is_executable = |header: &&Header| header.p_flags.get(LE).0 & elf::PF_X.0 != 0;
        self.load_segments().filter(is_executable).map(|header| header.p_memsz.get(LE)).sum()
    }

    /// First bytes of the file as mapped (headers, notes, symbol hashes), at most `max_size`.
    pub(crate) fn first_bytes(&self, max_size: u64) -> Option<Vec<u8>> {
        let first_segment = self.load_segments().find(|header| header.p_offset.get(LE) == 0)?;
        if first_segment.p_flags.get(LE).0 & elf::PF_W.0 != 0 {
            return None;
        }
        let size = first_segment.p_filesz.get(LE).min(max_size);
        let start = (self.identity.bias as u64).wrapping_add(first_segment.p_vaddr.get(LE));
        checked_read::copy(AddressRange::new(Address(start), size)?).ok()
    }

    fn load_segments(&self) -> impl Iterator<Item = &Header> {
        self.headers.iter().filter(|header| header.p_type.get(LE) == elf::PT_LOAD)
    }

    /// Returns true if the name of an import or export contains `part`.
    pub(crate) fn has_name_containing(&self, part: &str) -> bool {
        memchr::memmem::find(self.section.strings(), part.as_bytes()).is_some()
    }

    /// Determines once which functions of interest the library uses. Does not read the names of exports, which may be
    /// megabytes.
    pub(crate) fn uses(&self) -> Uses {
        const NAMES: [&str; 3] = ["mprotect", "dlsym", "__register_frame"];
        *self.uses.get_or_init(|| {
            let imported = match self.section.undefined() {
                Some(symbols) => {
                    let mut is_imported = [false; NAMES.len()];
                    for symbol in symbols {
                        let index = NAMES.iter().position(|name| self.section.name_is(&symbol, name.as_bytes()));
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
            // A program built with a sanitizer defines its own `mprotect`.
            Uses { mprotect: mprotect || self.dynamic_symbol(NAMES[0]).is_some(), dlsym, register_frame }
        })
    }

    /// Version of an LLVM whose symbols are versioned (`LLVM_14`, `LLVM_19.1`), as in builds of distributions.
    pub(crate) fn llvm_version(&self) -> Option<String> {
        let strings = self.section.strings();
        memchr::memmem::find_iter(strings, b"\0LLVM_").find_map(|offset| {
            let version = strings[offset + 6..].split(|&byte| byte == 0).next()?;
            let is_version = !version.is_empty() && version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
            is_version.then(|| String::from_utf8_lossy(version).into_owned())
        })
    }

    /// Major version of an LLVM whose symbols are versioned.
    pub(crate) fn llvm_release(&self) -> Option<u32> {
        self.llvm_version()?.split('.').next()?.parse().ok()
    }

    /// Address of the `.dynsym` entry that defines `name`, found through the hash tables.
    pub(crate) fn dynamic_symbol(&self, name: &str) -> Option<usize> {
        self.section.find(name.as_bytes(), |symbol| symbol.st_shndx != SHN_UNDEF)
    }

    /// Returns true if the library exports a function that registers code with an unwinder; see the crate
    /// `unwind-register`.
    pub(crate) fn may_have_unwinder(&self) -> bool {
        ["__register_frame", "_U_dyn_register"].into_iter().any(|name| self.dynamic_symbol(name).is_some())
    }

    /// Returns true for a Python interpreter: it defines or imports `Py_BytesMain` (Python 3.8 or later). Programs that
    /// embed Python (gdb, perf) call other functions.
    pub(crate) fn is_python_launcher(&self) -> bool {
        const MAIN: &str = "Py_BytesMain";
        self.dynamic_symbol(MAIN).is_some() || !self.imported(&[MAIN]).is_empty()
    }

    /// Returns true if the library exports llvmlite's functions.
    pub(crate) fn is_llvmlite(&self) -> bool {
        self.dynamic_symbol(LLVMLITE_VERSION).is_some()
    }

    /// Address of the exported symbol `name`.
    pub(crate) fn dynamic_address(&self, name: &str) -> Option<usize> {
        let symbol = self.section.symbol_at(self.dynamic_symbol(name)?);
        Some(self.identity.bias.wrapping_add(symbol.st_value as usize))
    }

    /// Address and size of the exported symbol `name`.
    pub(crate) fn dynamic_object(&self, name: &str) -> Option<(usize, usize)> {
        let symbol = self.section.symbol_at(self.dynamic_symbol(name)?);
        let address = self.identity.bias.wrapping_add(symbol.st_value as usize);
        Some((address, symbol.st_size as usize))
    }

    /// The library's `PT_LOAD` segments.
    pub(crate) fn segments(&self) -> Vec<Segment<'l>> {
        let segment = |header: &Header| {
            let has = |flag: elf::ProgramFlags| header.p_flags.get(LE).0 & flag.0 != 0;
            Segment {
                address: self.identity.bias.wrapping_add(header.p_vaddr.get(LE) as usize),
                size: header.p_filesz.get(LE) as usize,
                readable: has(elf::PF_R),
                writable: has(elf::PF_W),
                executable: has(elf::PF_X),
                mapped: PhantomData,
            }
        };
        self.load_segments().map(segment).collect()
    }

    /// Data that becomes read-only after relocation (`PT_GNU_RELRO`).
    pub(crate) fn relro_range(&self) -> Option<std::ops::Range<usize>> {
        let header = self.headers.iter().find(|header| header.p_type.get(LE) == elf::PT_GNU_RELRO)?;
        let start = self.identity.bias.wrapping_add(header.p_vaddr.get(LE) as usize);
        Some(start..start.saturating_add(header.p_memsz.get(LE) as usize))
    }

    /// Address range of `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
    pub(crate) fn unwind_header(&self) -> Option<std::ops::Range<usize>> {
        let header = self.headers.iter().find(|header| header.p_type.get(LE) == elf::PT_GNU_EH_FRAME)?;
        let start = self.identity.bias.wrapping_add(header.p_vaddr.get(LE) as usize);
        Some(start..start.saturating_add(header.p_filesz.get(LE) as usize))
    }

    /// Address ranges of the symbol names and relocation tables that the dynamic section refers to.
    pub(crate) fn dynamic_tables(&self) -> Vec<std::ops::Range<usize>> {
        let DynamicSection { strtab, strsz, rela, relasz, jmprel, pltrelsz, .. } = self.section;
        let tables = [(strtab, strsz), (rela, relasz), (jmprel, pltrelsz)];
        tables.into_iter().filter(|table| table.0 != 0).map(|(start, size)| start..start.saturating_add(size)).collect()
    }

    /// Address ranges of exported objects of at least `min_size` bytes: tables of data.
    pub(crate) fn large_objects(&self, min_size: usize) -> Vec<std::ops::Range<usize>> {
        let DynamicSection { symtab, strtab, .. } = self.section;
        // The number of symbols is recorded nowhere, and other tables may follow the symbols. A candidate counts only
        // if a lookup of its name leads back to it.
        let bytes = strtab.saturating_sub(symtab);
        let containing_segment =
            self.segments().into_iter().find(|segment| symtab.wrapping_sub(segment.address) < segment.size);
        let is_mapped = containing_segment
            .is_some_and(|segment| segment.readable && symtab + bytes <= segment.address + segment.size);
        if !is_mapped || !symtab.is_multiple_of(align_of::<Elf64_Sym>()) {
            return Vec::new();
        }
        let object = |entry: usize| {
            let symbol = self.section.symbol_at(entry);
            if (symbol.st_size as usize) < min_size || symbol.st_info & 0xf != elf::STT_OBJECT.0 {
                return None;
            }
            let name = self.section.strings().get(symbol.st_name as usize..)?.split(|&byte| byte == 0).next()?;
            let is_symbol = self.section.find(name, |candidate| candidate.st_shndx != SHN_UNDEF) == Some(entry);
            let start = self.identity.bias.wrapping_add(symbol.st_value as usize);
            is_symbol.then(|| start..start.saturating_add(symbol.st_size as usize))
        };
        (symtab..strtab - size_of::<Elf64_Sym>()).step_by(size_of::<Elf64_Sym>()).filter_map(object).collect()
    }

    /// `DT_RELA` relocations: offset, type and symbol, addend.
    pub(crate) fn relocations(&self) -> &[Relocation] {
        self.section.relocations()
    }

    /// Returns true once the loader has relocated the library.
    pub(crate) fn is_relocated(&self) -> bool {
        self.section.is_relocated()
    }

    /// `DT_RELR` relocations, see [`DynamicSection::packed_relocations`].
    pub(crate) fn packed_relocations(&self) -> impl Iterator<Item = usize> {
        self.section.packed_relocations()
    }

    /// Word to which the loader will add the bias to produce the value at `address`: an addend in the relocation table,
    /// or the word at `address` itself.
    pub(crate) fn relative_addend(&self, address: usize) -> Option<Addend<'l>> {
        let offset = address.wrapping_sub(self.identity.bias);
        let mut matching = self.relocations().iter().filter(|relocation| relocation[0] == offset as u64);
        match (matching.next(), matching.next()) {
            (Some(relocation), None) if is_relative(relocation[1]) => {
                self.slot(&raw const relocation[2] as usize).map(Addend::InTable)
            }
            (None, _) if self.packed_relocations().any(|packed| packed == offset) => {
                self.slot(address).map(Addend::InPlace)
            }
            _ => None,
        }
    }

    /// Function of this library that the loader will store at `address`, unless another library interposes its symbol.
    /// Returns its address, and the slot with the symbol's value.
    pub(crate) fn defined_by_symbol(&self, address: usize) -> Option<(usize, Slot<'l>)> {
        let offset = address.wrapping_sub(self.identity.bias) as u64;
        let mut matching = self.relocations().iter().filter(|relocation| relocation[0] == offset);
        let (Some(&[_, info, addend]), None) = (matching.next(), matching.next()) else { return None };
        if !is_import(info, addend) {
            return None;
        }
        let entry = self.section.entry((info >> 32) as usize);
        let symbol = self.section.symbol_at(entry);
        let function = self.identity.bias.wrapping_add(symbol.st_value as usize);
        let is_code = self
            .segments()
            .iter()
            .any(|segment| segment.executable && (segment.address..segment.address + segment.size).contains(&function));
        let is_function = symbol.st_shndx != SHN_UNDEF && symbol.st_info & 0xf == elf::STT_FUNC.0 && is_code;
        let value = self.slot(entry + std::mem::offset_of!(Elf64_Sym, st_value))?;
        is_function.then_some((function, value))
    }

    /// Points the dynamic symbol `name` to `function`, at any address. Returns `None` if the library does not define
    /// `name`.
    ///
    /// # Safety
    /// `function` must be callable in place of the symbol of this name while the library is mapped.
    pub(crate) unsafe fn redefine(&self, name: &str, function: usize) -> Option<io::Result<()>> {
        let value = self.slot(self.dynamic_symbol(name)? + std::mem::offset_of!(Elf64_Sym, st_value))?;
        // SAFETY: the word is the value of this symbol. The loader adds the bias, which yields the caller's function.
        Some(unsafe { value.write(function.wrapping_sub(self.identity.bias)) })
    }

    /// The slot at `address`, if that is aligned and within a segment of the library.
    pub(crate) fn slot(&self, address: usize) -> Option<Slot<'l>> {
        let end = |header: &Header| header.p_vaddr.get(LE).saturating_add(header.p_memsz.get(LE)) as usize;
        // A non-PIE program needs no relocation: every nonzero value is an address.
        let min_address = if self.identity.bias == 0 { 1 } else { self.load_segments().map(end).max()? };
        // SAFETY: only an address within a segment of this library has a protection.
        unsafe { Slot::new(self.identity, address, self.protection(address)?, min_address) }
    }

    /// Relocation slots of the import `name`.
    pub(crate) fn import_slots(&self, name: &str) -> Vec<Slot<'l>> {
        let address = |relocation: &Rela| self.identity.bias.wrapping_add(relocation.r_offset.get(LE) as usize);
        self.imports(name).filter_map(|relocation| self.slot(address(relocation))).collect()
    }

    /// Relocation slots of the imports in `names`, each with the index of its name. Takes one pass for all names.
    pub(crate) fn slots_of_imports<const N: usize>(&self, names: [&str; N]) -> Vec<(Slot<'l>, usize)> {
        let slots = self.function_relocations().filter_map(|relocation| {
            let symbol = self.section.symbol_at(self.symbol_entry(relocation));
            let index = names.iter().position(|name| self.section.name_is(&symbol, name.as_bytes()))?;
            let address = self.identity.bias.wrapping_add(relocation.r_offset.get(LE) as usize);
            Some((self.slot(address)?, index))
        });
        slots.collect()
    }

    /// Data words that hold one of `values` because the loader stored an import's address there, each with the index of
    /// the value. These are relocation slots, and vtable slots for functions that other libraries define.
    pub(crate) fn slots_holding(&self, values: &[usize]) -> Vec<(Slot<'l>, usize)> {
        let slots = self.symbolic_relocations(is_address_slot).filter_map(|relocation| {
            let slot = self.slot(self.identity.bias.wrapping_add(relocation.r_offset.get(LE) as usize))?;
            Some((slot, values.iter().position(|&value| value == slot.value())?))
        });
        slots.collect()
    }

    /// Two words of each symbol table entry of the import `name`: the value, and the word with the visibility.
    pub(crate) fn import_symbols(&self, name: &str) -> Vec<(Slot<'l>, Slot<'l>)> {
        let mut entries: Vec<usize> = self.imports(name).map(|relocation| self.symbol_entry(relocation)).collect();
        entries.sort_unstable();
        entries.dedup();
        entries.retain(|&entry| self.section.symbol_at(entry).st_shndx == SHN_UNDEF);
        let value_offset = std::mem::offset_of!(Elf64_Sym, st_value);
        entries.into_iter().filter_map(|entry| self.slot(entry + value_offset).zip(self.slot(entry))).collect()
    }

    /// The elements of `names` that the library imports as functions. Takes one pass over the relocations.
    pub(crate) fn imported<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        let mut matches = Vec::new();
        for relocation in self.function_relocations() {
            let symbol = self.section.symbol_at(self.symbol_entry(relocation));
            if symbol.st_shndx != SHN_UNDEF {
                continue;
            }
            let name = names.iter().find(|name| self.section.name_is(&symbol, name.as_bytes()));
            matches.extend(name.filter(|name| !matches.contains(*name)));
        }
        matches
    }

    /// Returns true for the program itself.
    pub(crate) fn is_program(&self) -> bool {
        self.path == Path::new(PROGRAM)
    }

    /// Returns true for the library that contains this code. It must not be taken for an LLVM, whose symbol names it
    /// contains, and its memory calls must not be hooked, because the hooks make them.
    pub(crate) fn is_jitlisten(&self) -> bool {
        self.range().contains(&(Library::is_jitlisten as *const () as usize))
    }

    /// Address range of all segments.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let end = |header: &Header| header.p_vaddr.get(LE).saturating_add(header.p_memsz.get(LE)) as usize;
        let start = |header: &Header| header.p_vaddr.get(LE) as usize;
        let [start, end] =
            [self.load_segments().map(start).min(), self.load_segments().map(end).max()].map(Option::unwrap_or_default);
        self.identity.bias.wrapping_add(start)..self.identity.bias.wrapping_add(end)
    }

    fn symbol_entry(&self, relocation: &Rela) -> usize {
        self.section.entry(relocation.r_sym(LE, false) as usize)
    }

    /// Relocations of the import `name`.
    fn imports(&self, name: &str) -> impl Iterator<Item = &'l Rela> {
        self.function_relocations().filter(move |relocation| {
            self.section.name_is(&self.section.symbol_at(self.symbol_entry(relocation)), name.as_bytes())
        })
    }

    /// Relocations of slots that hold the address of an import.
    fn function_relocations(&self) -> impl Iterator<Item = &'l Rela> {
        self.symbolic_relocations(is_function_slot)
    }

    /// Symbolic relocations whose type `is_wanted` accepts.
    fn symbolic_relocations(&self, is_wanted: impl Fn(elf::RelocationType) -> bool) -> impl Iterator<Item = &'l Rela> {
        let size = size_of::<Rela>();
        let skipped_bytes = self.section.relacount * size;
        let rela = (self.section.rela + skipped_bytes, self.section.relasz.saturating_sub(skipped_bytes));
        let tables = [(self.section.jmprel, self.section.pltrelsz), rela];
        let relocations = tables.into_iter().filter(|table| table.0 != 0).flat_map(move |(start, bytes)| {
            // SAFETY: DT_JMPREL/DT_PLTRELSZ and DT_RELA/DT_RELASZ of a mapped library describe mapped tables.
            unsafe { std::slice::from_raw_parts(start as *const Rela, bytes / size) }
        });
        relocations.filter(move |relocation| is_wanted(relocation.r_type(LE, false)))
    }

    /// Protection of the page at `address` after relocation.
    fn protection(&self, address: usize) -> Option<i32> {
        let file_address = address.wrapping_sub(self.identity.bias) as u64;
        let contains_address = |header: &&Header| {
            let start = header.p_vaddr.get(LE);
            (start..start.saturating_add(header.p_memsz.get(LE))).contains(&file_address)
        };
        let flags = self.load_segments().find(contains_address)?.p_flags.get(LE);
        let relro = self.headers.iter().find(|header| header.p_type.get(LE) == elf::PT_GNU_RELRO);
        let is_sealed = relro.is_some_and(|header| {
            // The loader seals whole pages only, and rounds both ends down.
            let page_start = |address: u64| address & !(page_size() as u64 - 1);
            let start = header.p_vaddr.get(LE);
            (page_start(start)..page_start(start.saturating_add(header.p_memsz.get(LE)))).contains(&file_address)
        });
        let protection_bit = |flag: elf::ProgramFlags, protection| if flags.0 & flag.0 != 0 { protection } else { 0 };
        let writable = if is_sealed { 0 } else { protection_bit(elf::PF_W, libc::PROT_WRITE) };
        Some(protection_bit(elf::PF_R, libc::PROT_READ) | writable | protection_bit(elf::PF_X, libc::PROT_EXEC))
    }
}

#[cfg(target_arch = "x86_64")]
fn is_function_slot(kind: elf::RelocationType) -> bool {
    matches!(kind, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT)
}

#[cfg(target_arch = "aarch64")]
fn is_function_slot(kind: elf::RelocationType) -> bool {
    matches!(kind, elf::R_AARCH64_JUMP_SLOT | elf::R_AARCH64_GLOB_DAT)
}

#[cfg(target_arch = "x86_64")]
fn is_address_slot(kind: elf::RelocationType) -> bool {
    is_function_slot(kind) || kind == elf::R_X86_64_64
}

#[cfg(target_arch = "aarch64")]
fn is_address_slot(kind: elf::RelocationType) -> bool {
    is_function_slot(kind) || kind == elf::R_AARCH64_ABS64
}

/// Program headers as passed by the kernel: a non-PIE program has no ELF header at its bias.
fn program_headers() -> Option<Vec<Header>> {
    // SAFETY: getauxval has no precondition.
    let (address, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    copy_headers(address, count)
}

/// Program headers of a shared library, read through its ELF header.
fn library_headers(bias: usize, section: &DynamicSection) -> Option<Vec<Header>> {
    let page = |address: usize| address / page_size();
    let tables_and_headers = [section.first_table(), bias.wrapping_add(size_of::<FirstHeaders>())];
    let first = if tables_and_headers.into_iter().all(|address| page(address) == page(bias)) {
        // SAFETY: the page is mapped, because a symbol table begins in it. Headers consist of integers.
        unsafe { (bias as *const FirstHeaders).read_unaligned() }
    } else {
        // SAFETY: headers consist of integers.
        unsafe { checked_read::copy_struct::<FirstHeaders>(Address(bias as u64)) }.ok()?
    };
    let header = &first.header;
    if header.e_ident.magic != elf::ELFMAG {
        return None;
    }
    let (offset, count) = (header.e_phoff.get(LE), header.e_phnum.get(LE));
    match first.program.get(..count.into()) {
        Some(headers) if offset as usize == size_of_val(header) => Some(headers.to_vec()),
        _ => copy_headers(bias as u64 + offset, count.into()),
    }
}

/// ELF header and program headers, as nearly every library begins: one system call instead of two.
#[derive(Clone, Copy)]
#[repr(C)]
struct FirstHeaders {
    header: FileHeader,
    program: [Header; 16],
}

fn copy_headers(address: u64, count: u64) -> Option<Vec<Header>> {
    // SAFETY: a program header consists of integers.
    unsafe { checked_read::copy_structs(Address(address), count as usize) }.ok()
}
