//! A module, with the structures of `<link.h>`, `<dlfcn.h>` and `<elf.h>` that describe it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use object::elf;

use crate::{Address, AddressRange};

/// Public part of `struct link_map` in `<link.h>`.
#[derive(Debug)]
#[repr(C)]
pub struct LinkMap {
    /// Load bias: difference between the addresses in memory and in the file.
    pub addr: u64,
    /// Path of the file.
    pub name: *const c_char,
    /// Address of the dynamic section, which is always empty.
    pub ld: *const [u64; 2],
    /// Always null, because the entry is not in the loader's list.
    pub next: *const LinkMap,
    /// Always null, like `next`.
    pub prev: *const LinkMap,
}

const _: () = assert!(size_of::<LinkMap>() == 40);

/// Dynamic section of every module: a single `DT_NULL`, for readers that walk it.
static NO_DYNAMIC_SECTION: [u64; 2] = [0, 0];

#[derive(Debug)]
pub(crate) struct NewModule {
    /// Address range of the mapped part of the file.
    pub(crate) mapped: AddressRange,
    /// Load bias: address of byte 0 of the file, if all of it were mapped.
    pub(crate) bias: u64,
    pub(crate) path: CString,
    /// Program headers that describe the mapping.
    pub(crate) headers: Vec<libc::Elf64_Phdr>,
    /// Address of `.eh_frame_hdr`, if unwinders may use it.
    pub(crate) eh_frame_hdr: Option<u64>,
    pub(crate) functions: Vec<(AddressRange, CString)>,
}

impl NewModule {
    pub(crate) fn range(&self) -> AddressRange {
        self.mapped
    }
}

/// A listed module. Its strings and structures do not move while it exists.
#[derive(Debug)]
pub struct Module {
    mapped: AddressRange,
    path: CString,
    headers: Vec<libc::Elf64_Phdr>,
    eh_frame_hdr: Option<u64>,
    /// Range and name of each function, sorted by address.
    functions: Vec<(AddressRange, CString)>,
    /// ELF symbol of each function, in the same order.
    symbols: Vec<libc::Elf64_Sym>,
    link_map: LinkMap,
    withdrawn: AtomicBool,
}

// SAFETY: the pointers refer to data that the module owns, or to a static, and are never written through.
unsafe impl Send for Module {}
// SAFETY: only the flag is mutable, and it is atomic.
unsafe impl Sync for Module {}

/// A function of a module.
#[derive(Debug)]
pub struct ModuleSymbol<'a> {
    /// Code range of the function.
    pub range: AddressRange,
    /// Name of the function.
    pub name: &'a CStr,
    /// ELF symbol of the function.
    pub entry: &'a libc::Elf64_Sym,
}

impl Module {
    pub(super) fn new(new: NewModule) -> Module {
        const GLOBAL_FUNCTION: u8 = elf::STB_GLOBAL.0 << 4 | elf::STT_FUNC.0;
        let NewModule { mapped, bias, path, headers, eh_frame_hdr, mut functions } = new;
        functions.sort_by_key(|function| function.0.start());
        let symbol = |(range, _): &(AddressRange, CString)| libc::Elf64_Sym {
            st_name: 0,
            st_info: GLOBAL_FUNCTION,
            st_other: 0,
            st_shndx: elf::SHN_ABS.0,
            st_value: range.start().0.wrapping_sub(bias),
            st_size: range.size(),
        };
        let symbols = functions.iter().map(symbol).collect();
        let link_map = LinkMap {
            addr: bias,
            name: path.as_ptr(),
            ld: &raw const NO_DYNAMIC_SECTION,
            next: ptr::null(),
            prev: ptr::null(),
        };
        let withdrawn = AtomicBool::new(false);
        Module { mapped, path, headers, eh_frame_hdr, functions, symbols, link_map, withdrawn }
    }

    /// Address range of the mapped part of the file.
    pub fn mapped(&self) -> AddressRange {
        self.mapped
    }

    /// Path of the file.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// Load bias: difference between the addresses in memory and in the file.
    pub fn bias(&self) -> u64 {
        self.link_map.addr
    }

    /// Program headers of the file.
    pub fn headers(&self) -> &[libc::Elf64_Phdr] {
        &self.headers
    }

    /// Address of `.eh_frame_hdr`, if the module has one that unwinders may use.
    pub fn eh_frame_hdr(&self) -> Option<u64> {
        self.eh_frame_hdr
    }

    /// Link map entry of the module. It is not linked into the loader's list.
    pub fn link_map(&self) -> &LinkMap {
        &self.link_map
    }

    /// Function that contains `address`.
    pub fn symbol(&self, address: Address) -> Option<ModuleSymbol<'_>> {
        let next_index = self.functions.partition_point(|function| function.0.start() <= address);
        let index = next_index.checked_sub(1)?;
        let (range, name) = self.functions.get(index).filter(|function| function.0.contains(address))?;
        Some(ModuleSymbol { range: *range, name, entry: self.symbols.get(index)? })
    }

    pub(super) fn is_listed(&self) -> bool {
        !self.withdrawn.load(Ordering::Acquire)
    }

    /// Withdraws the module; returns true if it was still listed.
    pub(super) fn withdraw(&self) -> bool {
        !self.withdrawn.swap(true, Ordering::SeqCst)
    }
}
