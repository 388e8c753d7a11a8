//! The loader's link map: one entry per library, in a list.

use std::ffi::{CStr, c_char};

use crate::process::library::{Identity, Library};

/// The public part of `struct link_map` of `<link.h>`.
#[repr(C)]
pub(crate) struct LinkMap {
    addr: usize,
    name: *const c_char,
    ld: usize,
    pub(crate) next: *const LinkMap,
    prev: *const LinkMap,
}

impl LinkMap {
    pub(crate) fn entry(&self) -> Entry {
        Entry { identity: Identity { bias: self.addr, dynamic: self.ld }, name: self.name }
    }

    #[cfg(test)]
    pub(crate) fn fake(bias: usize) -> LinkMap {
        LinkMap { addr: bias, name: std::ptr::null(), ld: 0, next: std::ptr::null(), prev: std::ptr::null() }
    }
}

const _: () = assert!(std::mem::offset_of!(LinkMap, ld) == 16 && size_of::<LinkMap>() == 40);

/// A link map entry: the name borrows from it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) identity: Identity,
    name: *const c_char,
}

impl Entry {
    /// Reads the library's tables.
    ///
    /// # Safety
    /// As for [`LoaderDebug::libraries`](crate::process::loader::LoaderDebug::libraries), and the lock has not been
    /// released since.
    pub(crate) unsafe fn library(self) -> Option<Library> {
        if self.name.is_null() || self.identity.dynamic == 0 {
            return None;
        }
        // SAFETY: the caller vouches that the link map entry, which owns the name, is there.
        let name = unsafe { CStr::from_ptr(self.name) };
        // SAFETY: and so is the library.
        unsafe { Library::read(self.identity, name) }
    }
}
