//! The libraries of this process, and what each of them exports.
//!
//! `dlsym` returns for the first library only, but there is one list of registrations *per copy* of libunwind (a wheel
//! brings its own), so every library is asked by itself: `dl_iterate_phdr` shows the program headers, `PT_DYNAMIC`
//! leads to the hash table of exported symbols ([`dynamic_section`]).
//!
//! Locks: `dl_iterate_phdr` takes the loader's write lock, [`Pinned::pin`] (`dlopen`) its main lock. Nothing here takes
//! a lock of ours.

mod dynamic_section;

pub use dynamic_section::{DynamicSection, RELATIVE, Relocation, is_relative};

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A library as the loader showed it; valid inside the callback of [`libraries`].
pub(crate) struct Library<'a> {
    /// What has to be added to addresses in the file.
    pub(crate) base: usize,
    pub(crate) name: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
}

impl<'a> Library<'a> {
    /// Its exported symbols, if it has a dynamic section that can be read.
    pub(crate) fn exports(&self) -> Option<Exports> {
        let dynamic = self.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let at = self.base.wrapping_add(dynamic.p_vaddr as usize);
        // SAFETY: the loader shows mapped libraries, and keeps them mapped during the callback this value lives in.
        let section = unsafe { DynamicSection::read(self.base, at) };
        section.has_symbols().then_some(Exports(section))
    }
}

/// The symbols one library exports.
pub(crate) struct Exports(DynamicSection);

impl Exports {
    /// The address of a function or variable this library itself defines.
    pub(crate) fn find(&self, name: &CStr) -> Option<usize> {
        // STT_NOTYPE, STT_OBJECT, STT_FUNC; not STT_GNU_IFUNC or STT_TLS
        let is_defined = |symbol: &libc::Elf64_Sym| symbol.st_shndx != 0 && symbol.st_info & 0xf <= 2;
        let symbol = self.0.symbol_at(self.0.find(name.to_bytes(), is_defined)?);
        Some(self.0.bias.wrapping_add(symbol.st_value as usize))
    }

    /// Whether the library looks relocated: its code must not be called before that.
    pub(crate) fn is_relocated(&self) -> bool {
        self.0.is_relocated()
    }
}

/// Calls `each_library` for each library, until it breaks. Under the loader's write lock: no loading, no unwinding in
/// there.
pub(crate) fn libraries(mut each_library: impl FnMut(Library<'_>) -> ControlFlow<()>) {
    let mut callback: &mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()> = &mut |info| {
        // SAFETY: the loader's name is a C string, alive during the callback.
        let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        // SAFETY: the loader's program headers, `dlpi_phnum` of them, alive during the callback.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        each_library(Library { base: info.dlpi_addr as usize, name, headers })
    };
    // SAFETY: `each` casts the pointer back to exactly this type, and is only called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut callback).cast()) };
}

/// How many libraries were ever loaded into this process, and how many of them unloaded. Cheap, and changes whenever
/// [`libraries`] may show something new.
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
    // SAFETY: `each` casts the pointer back to exactly this type, and is only called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut callback).cast()) };
    counts
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, callback: *mut c_void) -> c_int {
    // SAFETY: our callers pass a pointer to exactly this type.
    let callback = unsafe { &mut *callback.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()>>() };
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // No panic may cross the loader. One that happens ends the walk.
    match catch_unwind(AssertUnwindSafe(|| callback(info))) {
        Ok(ControlFlow::Continue(())) => 0,
        _ => 1,
    }
}

/// A library that stays loaded for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned;

impl Pinned {
    /// Keeps the library `name` at `base` loaded. Waits for a `dlopen` of it on another thread to finish (it is
    /// relocated then).
    ///
    /// Tables and function pointers of a library that was unloaded would be the end of the process, so nothing is used
    /// before it is pinned. The main program has an empty name, and cannot be unloaded.
    pub(crate) fn pin(name: &CString, base: usize) -> Option<Pinned> {
        if name.is_empty() {
            return Some(Pinned);
        }
        // SAFETY: with RTLD_NOLOAD no code of the library runs; it can only be found or not.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: glibc documents a handle to be a `struct link_map *` (dlinfo(3), RTLD_DI_LINKMAP); its first word is
        // `l_addr`.
        if unsafe { handle.cast::<usize>().read() } == base {
            return Some(Pinned); // the handle is kept on purpose
        }
        // SAFETY: the handle came from `dlopen` above.
        unsafe { libc::dlclose(handle) };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_there_and_exports_malloc() {
        let mut found = 0;
        libraries(|library| {
            let Some(exports) = library.exports() else { return ControlFlow::Continue(()) };
            assert!(exports.is_relocated(), "{:?}: this process runs", library.name);
            if library.name.to_bytes().windows(7).any(|part| part == b"libc.so") {
                assert_eq!(exports.find(c"malloc"), Some(libc::malloc as *const () as usize));
                assert_eq!(exports.find(c"no_such_function"), None);
                found += 1;
            }
            ControlFlow::Continue(())
        });
        assert_eq!(found, 1);
        assert!(counts().loads > 0);
    }
}
