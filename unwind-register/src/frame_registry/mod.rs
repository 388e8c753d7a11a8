//! Registries behind `__register_frame`, a function with two incompatible meanings.
//!
//! ```text
//!                        libgcc (libgcc_s.so.1)              LLVM libunwind (libunwind.so.1)
//!   __register_frame(p)  p: a whole section, up to 4 zero    p: one FDE
//!                        bytes
//!   distinguished by     no __unw_add_dynamic_fde            __unw_add_dynamic_fde
//!   a section            __register_frame                    __unw_add_dynamic_eh_frame_section (LLVM >= 13)
//!   rules for pc?        _Unwind_Find_FDE                    _Unwind_Find_FDE
//! ```
//!
//! libgcc: an object must not be registered twice. Since GCC 13 the registry is a b-tree of address ranges. It silently
//! ignores a second insertion with the same start. The first deregistration then removes the *other* object, and the
//! second aborts (`gcc_assert` in `__deregister_frame_info_bases`). Ranges that overlap in another way are inserted,
//! and break lookups and removals of their neighbours. Before GCC 13 the objects are a list sorted by start, and a
//! lookup stops at the first object that starts below the address.
//!
//! Three rules follow (module `registered_groups`). We do not register functions that the host has registered (MCJIT
//! does so), nor functions between two functions of the host's section. Functions are registered in groups of adjacent
//! functions. Among our own overlapping registrations, the newest wins.
//!
//! LLVM libunwind searches registered sections linearly under a read-write lock. We cannot change that cost.
//!
//! Sources: gcc `libgcc/unwind-dw2-fde.c`; llvm
//! `libunwind/src/{UnwindLevel1-gcc-ext.c,libunwind.cpp,UnwindCursor.hpp}`.

use crate::loader::{Exports, Pinned};
use std::ffi::{CStr, CString};

type RegisterFn = unsafe extern "C" fn(*const u8);
type FindFdeFn = unsafe extern "C" fn(usize, *mut [usize; 3]) -> usize;

/// Interface through which a registry accepts a group.
#[derive(Clone, Copy)]
enum Interface {
    /// Takes a pointer to the whole group.
    Group { add: RegisterFn, remove: RegisterFn },
    /// Takes a pointer to each FDE.
    EachFde { add: RegisterFn, remove: RegisterFn },
}

/// Implementation of a frame registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Libgcc,
    Llvm,
}

/// A library with a frame registry, found by discovery but not pinned yet.
pub(crate) struct Candidate {
    pub(crate) base: usize,
    pub(crate) name: CString,
    pub(crate) kind: Kind,
    register: usize,
    deregister: usize,
    sections: Option<(usize, usize)>,
    find_fde: usize,
}

/// A frame registry whose library is pinned.
#[derive(Clone)]
pub(crate) struct FrameRegistry {
    pub(crate) base: usize,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    interface: Interface,
    find_fde: FindFdeFn,
}

impl Candidate {
    /// Finds the functions of a frame registry. Returns `None` if the library does not have one.
    pub(crate) fn from_exports(exports: &Exports, base: usize, name: &CStr) -> Option<Candidate> {
        let register = exports.find(c"__register_frame")?;
        let deregister = exports.find(c"__deregister_frame")?;
        let find_fde = exports.find(c"_Unwind_Find_FDE")?;
        let is_llvm = exports.find(c"__unw_add_dynamic_fde").is_some();
        let add = exports.find(c"__unw_add_dynamic_eh_frame_section");
        let sections = add.zip(exports.find(c"__unw_remove_dynamic_eh_frame_section")).filter(|_| is_llvm);
        let kind = if is_llvm { Kind::Llvm } else { Kind::Libgcc };
        Some(Candidate { base, name: name.to_owned(), kind, register, deregister, sections, find_fde })
    }

    /// Pins the library. Takes the loader's lock, so the caller must not hold ours.
    pub(crate) fn pin(self) -> Option<FrameRegistry> {
        Pinned::pin(&self.name, self.base)?;
        let (add, remove) = self.sections.unwrap_or((self.register, self.deregister));
        // SAFETY: the library is pinned, and all four functions take one pointer and return nothing.
        let add = unsafe { std::mem::transmute::<usize, RegisterFn>(add) };
        // SAFETY: the library is pinned, and all four functions take one pointer and return nothing.
        let remove = unsafe { std::mem::transmute::<usize, RegisterFn>(remove) };
        let interface = match (self.kind, self.sections) {
            (Kind::Llvm, None) => Interface::EachFde { add, remove },
            _ => Interface::Group { add, remove },
        };
        // SAFETY: the signature is `const fde *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *)`, with three words,
        // in both libraries.
        let find_fde = unsafe { std::mem::transmute::<usize, FindFdeFn>(self.find_fde) };
        let name = self.name.to_string_lossy().into_owned();
        Some(FrameRegistry { base: self.base, name, kind: self.kind, interface, find_fde })
    }
}

impl FrameRegistry {
    /// Returns true if the unwinder already has rules for `address`.
    ///
    /// Takes the registry's own lock. LLVM libunwind, and libgcc built for glibc before 2.35, also take the loader's
    /// lock.
    pub(crate) fn knows(&self, address: usize) -> bool {
        let mut bases = [0; 3];
        // SAFETY: the function is pinned and has this signature. It only reads memory and fills `bases`.
        unsafe { (self.find_fde)(address, &raw mut bases) != 0 }
    }

    /// Registers the group at `group`, which contains the FDEs at `fdes`.
    ///
    /// # Safety
    ///
    /// The group is well-formed, ends with a terminator, and stays readable until [`FrameRegistry::remove`] has
    /// returned.
    pub(crate) unsafe fn add(&self, group: *const u8, fdes: impl Iterator<Item = *const u8>) {
        match self.interface {
            // SAFETY: the caller upholds the requirements of the registration function.
            Interface::Group { add, .. } => unsafe { add(group) },
            Interface::EachFde { add, .. } => {
                for fde in fdes {
                    // SAFETY: `fde` is an FDE in the caller's group.
                    unsafe { add(fde) };
                }
            }
        }
    }

    /// Undoes [`FrameRegistry::add`].
    ///
    /// # Safety
    ///
    /// Exactly this group was added, and has not been removed since.
    pub(crate) unsafe fn remove(&self, group: *const u8, fdes: impl Iterator<Item = *const u8>) {
        match self.interface {
            // SAFETY: the caller upholds the requirements of the deregistration function.
            Interface::Group { remove, .. } => unsafe { remove(group) },
            Interface::EachFde { remove, .. } => {
                for fde in fdes {
                    // SAFETY: `fde` is an FDE in the caller's group.
                    unsafe { remove(fde) };
                }
            }
        }
    }
}
