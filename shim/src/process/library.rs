//! A library of this process, read from memory the way the loader reads it: from the link map, the program headers and
//! the dynamic section.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::{CStr, CString, OsStr};
use std::fmt::Display;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jitlisten::log_line;
use jitlisten::plumbing::{DynamicSection, LogEvent};
use libc::Elf64_Sym;
use object::elf;

use crate::process::mapped_proof::{Identity, Mapped};
use crate::process::segments::Segments;
use crate::process::slot::Slot;

/// Path used for the program, whose name in the link map is empty.
const PROGRAM_PATH: &str = "/proc/self/exe";

/// A library that stays mapped for `'l`. Its relocations are read in `relocations.rs`.
pub(crate) struct Library<'l> {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    pub(crate) segments: Segments<'l>,
    pub(crate) section: DynamicSection,
    pub(super) uses: OnceCell<FunctionUses>,
}

/// Tells which functions of interest a library imports or exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FunctionUses {
    pub(crate) mprotect: bool,
    pub(crate) dlsym: bool,
    /// True if the library imports `__register_frame`, which registers unwind tables. Exports do not count, because
    /// unwinders export this function.
    pub(crate) register_frame: bool,
}

pub(super) fn is_defined(symbol: &Elf64_Sym) -> bool {
    symbol.st_shndx != elf::SHN_UNDEF.0
}

impl<'l> Library<'l> {
    /// Reads the library of a link map entry. `name` is `l_name`, which is empty for the program.
    ///
    /// # Safety
    /// The library must stay mapped for `'l`.
    pub(crate) unsafe fn read(identity: Identity, name: &CStr) -> Option<Library<'l>> {
        let is_program = name.is_empty();
        let path = if is_program { Path::new(PROGRAM_PATH) } else { Path::new(OsStr::from_bytes(name.to_bytes())) };
        // SAFETY: the dynamic section of a mapped library ends with `DT_NULL`.
        let section = unsafe { DynamicSection::read(identity.bias, identity.dynamic) };
        // SAFETY: the caller keeps the library mapped, and only the program's entry has an empty name.
        let segments = unsafe {
            match is_program {
                true => Segments::of_program(identity.bias),
                false => Segments::of_library(identity.bias, section.first_table()),
            }
        }?;
        let path = path.to_owned();
        section.has_symbols().then_some(Library { identity, path, segments, section, uses: OnceCell::new() })
    }

    /// Reads a known library again, given its path.
    pub(crate) fn reopen(mapped: Mapped<'l>, identity: Identity, path: &Path) -> Option<Library<'l>> {
        let name = if path == Path::new(PROGRAM_PATH) {
            c"".into()
        } else {
            CString::new(path.as_os_str().as_bytes()).ok()?
        };
        // SAFETY: `mapped` covers this library.
        mapped.covers(identity).then(|| unsafe { Library::read(identity, &name) })?
    }

    /// Returns the path of this library as text.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        self.path.to_string_lossy()
    }

    /// Logs that a function of this library could not be hooked.
    pub(crate) fn log_unhooked(&self, function: &str, error: &impl Display) {
        let (library, error) = (self.name(), error.to_string());
        log_line!(Info, "{}", LogEvent::FunctionUnhooked { library: &library, function, error: &error });
    }

    /// Returns proof that this library is mapped.
    pub(crate) fn mapped(&self) -> Mapped<'l> {
        // SAFETY: a `Library<'l>` stays mapped for `'l`.
        unsafe { Mapped::single(self.identity) }
    }

    pub(crate) fn is_program(&self) -> bool {
        self.path == Path::new(PROGRAM_PATH)
    }

    /// Returns true for the library that contains this code. It must not be mistaken for LLVM, although it contains
    /// LLVM's symbol names. Its memory calls must not be hooked, because the hooks make these calls.
    pub(crate) fn is_jitlisten(&self) -> bool {
        self.range().contains(&(Library::is_jitlisten as *const () as usize))
    }

    /// Address range of all segments.
    pub(crate) fn range(&self) -> Range<usize> {
        self.segments.range()
    }

    /// Address of the `.dynsym` entry that defines `name`, found through the hash tables.
    pub(super) fn symbol_entry(&self, name: &str) -> Option<usize> {
        self.section.find(name.as_bytes(), is_defined)
    }

    /// Returns true if the library exports the symbol `name`.
    pub(crate) fn exports(&self, name: &str) -> bool {
        self.symbol_entry(name).is_some()
    }

    /// Address of the exported symbol `name`.
    pub(crate) fn dynamic_address(&self, name: &str) -> Option<usize> {
        self.dynamic_object(name).map(|(address, _)| address)
    }

    /// Address and size of the exported symbol `name`.
    pub(crate) fn dynamic_object(&self, name: &str) -> Option<(usize, usize)> {
        let symbol = self.section.symbol_at(self.symbol_entry(name)?);
        Some((self.address_of(&symbol), symbol.st_size as usize))
    }

    /// Address of a symbol that the library defines.
    pub(super) fn address_of(&self, symbol: &Elf64_Sym) -> usize {
        self.identity.bias.wrapping_add(symbol.st_value as usize)
    }

    /// Address ranges of exported objects of at least `min_size` bytes, which must be tables of data.
    pub(crate) fn large_objects(&self, min_size: usize) -> Vec<Range<usize>> {
        // Other tables may follow the symbols in memory. A candidate counts only if looking up its name leads back to
        // it.
        let table = self.section.symbol_table();
        let is_mapped = self
            .segments
            .all()
            .find(|segment| segment.range().contains(&table.start))
            .is_some_and(|segment| segment.readable && table.end.max(table.start) <= segment.range().end);
        if !is_mapped || !table.start.is_multiple_of(align_of::<Elf64_Sym>()) {
            return Vec::new();
        }
        let object = |entry: usize| {
            let symbol = self.section.symbol_at(entry);
            if (symbol.st_size as usize) < min_size || symbol.st_info & 0xf != elf::STT_OBJECT.0 {
                return None;
            }
            let name = self.section.strings().get(symbol.st_name as usize..)?.split(|&byte| byte == 0).next()?;
            let is_symbol = self.section.find(name, is_defined) == Some(entry);
            let start = self.address_of(&symbol);
            is_symbol.then(|| start..start.saturating_add(symbol.st_size as usize))
        };
        let last = table.end.saturating_sub(size_of::<Elf64_Sym>());
        (table.start..last).step_by(size_of::<Elf64_Sym>()).filter_map(object).collect()
    }

    /// Returns the slot at `address`, provided that it is aligned and within a segment of the library.
    pub(crate) fn slot(&self, address: usize) -> Option<Slot<'l>> {
        // A non-PIE program needs no relocation, so every nonzero value is already an address.
        let bias = self.identity.bias;
        let min_address = if bias == 0 { 1 } else { self.range().end.wrapping_sub(bias) };
        // SAFETY: the address has a protection only if it is within a segment of this library.
        unsafe { Slot::new(self.identity, address, self.segments.protection(address)?, min_address) }
    }
}
