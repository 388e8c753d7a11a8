//! One module, in the shapes of `<link.h>`, `<dlfcn.h>` and `<elf.h>`.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use object::elf;

use crate::{Address, AddressRange};

/// The public part of `struct link_map` of `<link.h>`.
#[derive(Debug)]
#[repr(C)]
pub struct LinkMap {
    /// What is added to addresses in the file.
    pub addr: u64,
    /// The file.
    pub name: *const c_char,
    /// The dynamic section: an empty one.
    pub ld: *const [u64; 2],
    /// Not in the loader's list.
    pub next: *const LinkMap,
    /// Likewise.
    pub prev: *const LinkMap,
}

const _: () = assert!(size_of::<LinkMap>() == 40);

/// `DT_NULL`, for readers that look for something in the dynamic section of a link map entry.
static NO_DYNAMIC_SECTION: [u64; 2] = [0, 0];

/// What a module is made of.
#[derive(Debug)]
pub(crate) struct NewModule {
    /// The mapped part of the file.
    pub(crate) mapped: AddressRange,
    /// Address of byte 0 of the file, if all of it were mapped.
    pub(crate) bias: u64,
    /// The file.
    pub(crate) path: CString,
    /// Program headers that describe the mapping.
    pub(crate) headers: Vec<libc::Elf64_Phdr>,
    /// Address of `.eh_frame_hdr`, if unwinders may use it.
    pub(crate) eh_frame_hdr: Option<u64>,
    /// Functions: where, and their name.
    pub(crate) functions: Vec<(AddressRange, CString)>,
}

impl NewModule {
    pub(crate) fn range(&self) -> AddressRange {
        self.mapped
    }
}

/// A listed module. Its strings and structures stay where they are for as long as it lives.
#[derive(Debug)]
pub struct Module {
    mapped: AddressRange,
    path: CString,
    headers: Vec<libc::Elf64_Phdr>,
    eh_frame_hdr: Option<u64>,
    /// Sorted by address.
    functions: Vec<(AddressRange, CString)>,
    /// Of the same functions.
    symbols: Vec<libc::Elf64_Sym>,
    link_map: LinkMap,
    withdrawn: AtomicBool,
}

// SAFETY: its pointers lead to what it owns and to a static, and are only handed out.
unsafe impl Send for Module {}
// SAFETY: nothing but the flag changes, which is atomic.
unsafe impl Sync for Module {}

/// A function of a module.
#[derive(Debug)]
pub struct ModuleSymbol<'a> {
    /// Where it is.
    pub range: AddressRange,
    /// What it is called.
    pub name: &'a CStr,
    /// Its symbol.
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

    /// The mapped part of its file.
    pub fn mapped(&self) -> AddressRange {
        self.mapped
    }

    /// Its file.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// What is added to addresses in the file.
    pub fn bias(&self) -> u64 {
        self.link_map.addr
    }

    /// Its program headers.
    pub fn headers(&self) -> &[libc::Elf64_Phdr] {
        &self.headers
    }

    /// Where its `.eh_frame_hdr` is, if it has one that unwinders may use.
    pub fn eh_frame_hdr(&self) -> Option<u64> {
        self.eh_frame_hdr
    }

    /// An entry as of the loader's list, which is in no list.
    pub fn link_map(&self) -> &LinkMap {
        &self.link_map
    }

    /// The function that `address` is in.
    pub fn symbol(&self, address: Address) -> Option<ModuleSymbol<'_>> {
        let after = self.functions.partition_point(|function| function.0.start() <= address);
        let at = after.checked_sub(1)?;
        let (range, name) = self.functions.get(at).filter(|function| function.0.contains(address))?;
        Some(ModuleSymbol { range: *range, name, entry: self.symbols.get(at)? })
    }

    pub(super) fn is_listed(&self) -> bool {
        !self.withdrawn.load(Ordering::Acquire)
    }

    /// Returns whether it was listed.
    pub(super) fn withdraw(&self) -> bool {
        !self.withdrawn.swap(true, Ordering::SeqCst)
    }
}
