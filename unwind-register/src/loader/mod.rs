//! Loaded libraries of this process, and their exported symbols.
//!
//! `dlsym` finds a symbol in the first library only, but *every copy* of libunwind has its own list of registrations (a
//! wheel may contain a copy). We therefore examine each library: `dl_iterate_phdr` provides the program headers, and
//! `PT_DYNAMIC` leads to the hash table of exported symbols ([`dynamic_section`]).
//!
//! Locks: `dl_iterate_phdr` takes the loader's write lock, and [`Pinned::pin`] (`dlopen`) its main lock. This module
//! takes none of our locks.

mod dynamic_section;

pub use dynamic_section::{DynamicSection, RELATIVE, Relocation, is_relative};

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A library as shown by the loader; valid inside the callback of [`for_each_library`].
pub(crate) struct Library<'a> {
    /// Load bias, added to addresses in the file.
    pub(crate) base: usize,
    pub(crate) name: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
}

impl<'a> Library<'a> {
    /// Returns the exported symbols, if the library has a readable dynamic section.
    pub(crate) fn exports(&self) -> Option<Exports> {
        let dynamic = self.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let section_address = self.base.wrapping_add(dynamic.p_vaddr as usize);
        // SAFETY: the loader keeps the library mapped during the callback, which this value does not outlive.
        let section = unsafe { DynamicSection::read(self.base, section_address) };
        section.has_symbols().then_some(Exports(section))
    }
}

/// Exported symbols of one library.
pub(crate) struct Exports(DynamicSection);

impl Exports {
    /// Returns the address of a function or variable that the library itself defines.
    pub(crate) fn find(&self, name: &CStr) -> Option<usize> {
        // Types STT_NOTYPE, STT_OBJECT and STT_FUNC, but not STT_GNU_IFUNC or STT_TLS.
        let is_defined = |symbol: &libc::Elf64_Sym| symbol.st_shndx != 0 && symbol.st_info & 0xf <= 2;
        let symbol = self.0.symbol_at(self.0.find(name.to_bytes(), is_defined)?);
        Some(self.0.bias.wrapping_add(symbol.st_value as usize))
    }

    /// Returns true if the library seems to be relocated. Before that, its code must not be called.
    pub(crate) fn is_relocated(&self) -> bool {
        self.0.is_relocated()
    }
}

/// Calls `visit` for each library until it breaks. Runs under the loader's write lock: `visit` must not load libraries
/// or unwind.
pub(crate) fn for_each_library(mut visit: impl FnMut(Library<'_>) -> ControlFlow<()>) {
    let mut callback: &mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()> = &mut |info| {
        // SAFETY: the loader's name is a C string that lives until the callback returns.
        let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        // SAFETY: the loader's `dlpi_phnum` program headers live until the callback returns.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        visit(Library { base: info.dlpi_addr as usize, name, headers })
    };
    // SAFETY: `call_visitor` casts the pointer back to this type, and is not called after `dl_iterate_phdr` returns.
    unsafe { libc::dl_iterate_phdr(Some(call_visitor), (&raw mut callback).cast()) };
}

/// Numbers of libraries ever loaded and ever unloaded. Cheap to read; a change means that [`for_each_library`] may show
/// a new library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
}

pub(crate) fn counts() -> Counts {
    let mut counts = Counts::default();
    let mut callback: &mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()> = &mut |info| {
        counts = Counts { loads: info.dlpi_adds, unloads: info.dlpi_subs };
        ControlFlow::Break(())
    };
    // SAFETY: `call_visitor` casts the pointer back to this type, and is not called after `dl_iterate_phdr` returns.
    unsafe { libc::dl_iterate_phdr(Some(call_visitor), (&raw mut callback).cast()) };
    counts
}

unsafe extern "C" fn call_visitor(info: *mut libc::dl_phdr_info, _size: usize, callback: *mut c_void) -> c_int {
    // SAFETY: our callers pass a pointer to exactly this type.
    let callback = unsafe { &mut *callback.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>() };
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // A panic must not unwind through the loader; it ends the iteration instead.
    match catch_unwind(AssertUnwindSafe(|| callback(info))) {
        Ok(ControlFlow::Continue(())) => 0,
        _ => 1,
    }
}

/// Proof that a library stays loaded permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned;

impl Pinned {
    /// Pins the library `name` at `base`. Waits until a `dlopen` of it on another thread has finished and relocated it.
    ///
    /// Tables and function pointers of an unloaded library would crash the process, so nothing is used before it is
    /// pinned. The main program has an empty name and cannot be unloaded.
    pub(crate) fn pin(name: &CString, base: usize) -> Option<Pinned> {
        if name.is_empty() {
            return Some(Pinned);
        }
        // SAFETY: with RTLD_NOLOAD, the call only looks up the library and runs none of its code.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: glibc documents that a handle is a `struct link_map *` (dlinfo(3), RTLD_DI_LINKMAP); its first word
        // is `l_addr`.
        if unsafe { handle.cast::<usize>().read() } == base {
            return Some(Pinned); // the handle is leaked on purpose
        }
        // SAFETY: the handle comes from the `dlopen` above.
        unsafe { libc::dlclose(handle) };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_there_and_exports_malloc() {
        let mut libc_count = 0;
        for_each_library(|library| {
            let Some(exports) = library.exports() else { return ControlFlow::Continue(()) };
            assert!(exports.is_relocated(), "{:?}: this process runs", library.name);
            if library.name.to_bytes().windows(7).any(|part| part == b"libc.so") {
                assert_eq!(exports.find(c"malloc"), Some(libc::malloc as *const () as usize));
                assert_eq!(exports.find(c"no_such_function"), None);
                libc_count += 1;
            }
            ControlFlow::Continue(())
        });
        assert_eq!(libc_count, 1);
        assert!(counts().loads > 0);
    }
}
