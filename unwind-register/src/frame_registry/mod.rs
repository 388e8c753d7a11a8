//! `__register_frame`, which means two things.
//!
//! ```text
//!                        libgcc (libgcc_s.so.1)              LLVM libunwind (libunwind.so.1)
//!   __register_frame(p)  p: a whole section, up to 4 zero    p: one FDE
//!                        bytes
//!   distinguished by     no __unw_add_dynamic_fde            __unw_add_dynamic_fde
//!   a section            __register_frame                    __unw_add_dynamic_eh_frame_section (LLVM >= 13)
//!   does it know pc?     _Unwind_Find_FDE                    _Unwind_Find_FDE
//! ```
//!
//! libgcc: an object must be registered once. Since GCC 13 the registry is a b-tree of address ranges: a second insert
//! of the same start is silently refused, the first deregistration then removes the *other* one, and the second aborts
//! (`gcc_assert` in `__deregister_frame_info_bases`). Ranges that overlap in another way are inserted, and break the
//! search and the removal of their neighbours. Before GCC 13 the objects are a list by start, and the search ends at
//! the first that starts below the address. So (module `registered_groups`): what the host registered (MCJIT does) is
//! not registered again, nor anything between two functions of the host's section; functions are registered in groups
//! that lie side by side; and of ours, the newest wins.
//!
//! LLVM libunwind searches what was registered linearly, under a read-write lock; that is its cost, not ours.
//!
//! Sources: gcc `libgcc/unwind-dw2-fde.c`; llvm
//! `libunwind/src/{UnwindLevel1-gcc-ext.c,libunwind.cpp,UnwindCursor.hpp}`.

use crate::loader::{Exports, Pinned};
use std::ffi::{CStr, CString};

type Section = unsafe extern "C" fn(*const u8);
type FindFde = unsafe extern "C" fn(usize, *mut [usize; 3]) -> usize;

/// How a registry takes a group.
#[derive(Clone, Copy)]
enum Interface {
    /// A pointer to the whole group.
    Group { add: Section, remove: Section },
    /// A pointer to each FDE.
    EachFde { add: Section, remove: Section },
}

/// Which library it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Libgcc,
    Llvm,
}

/// A library with such a registry, as discovery saw it.
pub(crate) struct Found {
    pub(crate) base: usize,
    pub(crate) name: CString,
    pub(crate) kind: Kind,
    register: usize,
    deregister: usize,
    sections: Option<(usize, usize)>,
    find: usize,
}

/// A library with such a registry, that stays loaded.
#[derive(Clone)]
pub(crate) struct FrameRegistry {
    pub(crate) base: usize,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    interface: Interface,
    find: FindFde,
}

impl Found {
    /// `None` for a library without such a registry.
    pub(crate) fn look(exports: &Exports, base: usize, name: &CStr) -> Option<Found> {
        let register = exports.find(c"__register_frame")?;
        let deregister = exports.find(c"__deregister_frame")?;
        let find = exports.find(c"_Unwind_Find_FDE")?;
        let llvm = exports.find(c"__unw_add_dynamic_fde").is_some();
        let add = exports.find(c"__unw_add_dynamic_eh_frame_section");
        let sections = add.zip(exports.find(c"__unw_remove_dynamic_eh_frame_section")).filter(|_| llvm);
        let kind = if llvm { Kind::Llvm } else { Kind::Libgcc };
        Some(Found { base, name: name.to_owned(), kind, register, deregister, sections, find })
    }

    /// Keeps the library loaded. Takes the loader's lock; none of ours may be held.
    pub(crate) fn pin(self) -> Option<FrameRegistry> {
        Pinned::pin(&self.name, self.base)?;
        let (add, remove) = self.sections.unwrap_or((self.register, self.deregister));
        // SAFETY: functions of the pinned library; all four take one pointer and return nothing.
        let add = unsafe { std::mem::transmute::<usize, Section>(add) };
        // SAFETY: a function of the pinned library; all four take one pointer and return nothing.
        let remove = unsafe { std::mem::transmute::<usize, Section>(remove) };
        let interface = match (self.kind, self.sections) {
            (Kind::Llvm, None) => Interface::EachFde { add, remove },
            _ => Interface::Group { add, remove },
        };
        // SAFETY: `const fde *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *)`, three words, in both libraries.
        let find = unsafe { std::mem::transmute::<usize, FindFde>(self.find) };
        let name = self.name.to_string_lossy().into_owned();
        Some(FrameRegistry { base: self.base, name, kind: self.kind, interface, find })
    }
}

impl FrameRegistry {
    /// Whether the unwinder already has rules for `address`.
    ///
    /// Takes the registry's own lock; libgcc built for a glibc before 2.35, and LLVM libunwind, also the loader's.
    pub(crate) fn knows(&self, address: usize) -> bool {
        let mut bases = [0; 3];
        // SAFETY: the signature is that of the pinned function; it only reads and fills `bases`.
        unsafe { (self.find)(address, &raw mut bases) != 0 }
    }

    /// Registers the group at `group`, whose FDEs are at `fdes`.
    ///
    /// # Safety
    ///
    /// The group is well-formed, ends with a terminator, and stays readable until [`FrameRegistry::remove`] has
    /// returned.
    pub(crate) unsafe fn add(&self, group: *const u8, fdes: impl Iterator<Item = *const u8>) {
        match self.interface {
            // SAFETY: the caller's promise is what the function needs.
            Interface::Group { add, .. } => unsafe { add(group) },
            Interface::EachFde { add, .. } => {
                for fde in fdes {
                    // SAFETY: an FDE of the caller's group.
                    unsafe { add(fde) };
                }
            }
        }
    }

    /// Takes back [`FrameRegistry::add`].
    ///
    /// # Safety
    ///
    /// Exactly this group was added, and has not been removed since.
    pub(crate) unsafe fn remove(&self, group: *const u8, fdes: impl Iterator<Item = *const u8>) {
        match self.interface {
            // SAFETY: the caller's promise is what the function needs.
            Interface::Group { remove, .. } => unsafe { remove(group) },
            Interface::EachFde { remove, .. } => {
                for fde in fdes {
                    // SAFETY: an FDE of the caller's group.
                    unsafe { remove(fde) };
                }
            }
        }
    }
}
