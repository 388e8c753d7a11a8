//! Known libraries, in the order of the loader's lists, which each loader event compares with them.
//!
//! The loader appends to its lists, so new libraries follow the known ones. One pass suffices, because both have the
//! same order. No entry is remembered: another thread may close its library between two reads.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use crate::process::library::Library;
use crate::process::mapped_proof::{Held, Identity};

/// The public part of `struct link_map` in `<link.h>`: one list entry per library.
#[repr(C)]
pub(crate) struct LinkMap {
    addr: usize,
    name: *const c_char,
    ld: usize,
    next: *const LinkMap,
    prev: *const LinkMap,
}

const _: () = assert!(std::mem::offset_of!(LinkMap, ld) == 16 && size_of::<LinkMap>() == 40);

impl LinkMap {
    pub(crate) fn identity(&self) -> Identity {
        Identity { bias: self.addr, dynamic: self.ld }
    }
}

/// A link map entry that, like its library, stays valid for `'l`.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'l> {
    pub(crate) identity: Identity,
    name: *const c_char,
    held: PhantomData<&'l ()>,
}

impl<'l> Entry<'l> {
    /// Reads the library's program headers and dynamic section.
    pub(crate) fn library(self) -> Option<Library<'l>> {
        if self.name.is_null() || self.identity.dynamic == 0 {
            return None;
        }
        // SAFETY: the entry is valid, and the string that `name` points to lives as long as the entry.
        let name = unsafe { CStr::from_ptr(self.name) };
        // SAFETY: the library is in the loader's list, and no library is unloaded for `'l`.
        unsafe { Library::read(self.identity, name) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownLibrary {
    pub(crate) identity: Identity,
    /// Slot in the table of sources, if the library contains LLVM.
    pub(crate) source: Option<usize>,
}

/// Known libraries of one namespace (`dlmopen(3)`).
pub(crate) struct Namespace {
    /// Address of the namespace's `r_debug` record, which is never freed.
    record: usize,
    libraries: Vec<KnownLibrary>,
}

/// The known libraries of all namespaces, the program's namespace first.
#[derive(Default)]
pub(crate) struct KnownLibraries(Vec<Namespace>);

/// A library that is in the loader's lists but not known yet.
pub(crate) struct NewLibrary<'l> {
    /// Index in [`KnownLibraries`] of the library's namespace.
    namespace: usize,
    pub(crate) entry: Entry<'l>,
}

impl NewLibrary<'_> {
    /// Returns true if the library is in the program's own namespace, whose record comes first.
    pub(crate) fn is_in_program_namespace(&self) -> bool {
        self.namespace == 0
    }
}

/// Libraries closed and opened since the lists were last read.
#[derive(Default)]
pub(crate) struct Changes<'l> {
    pub(crate) closed: Vec<KnownLibrary>,
    pub(crate) opened: Vec<NewLibrary<'l>>,
}

impl KnownLibraries {
    /// Reads the list of one namespace, and adds the changes to `changes`.
    ///
    /// # Safety
    /// `record` must be the address of a namespace's record whose list begins with `map`.
    pub(crate) unsafe fn read<'l>(
        &mut self,
        _: Held<'l>,
        record: usize,
        map: *const LinkMap,
        changes: &mut Changes<'l>,
    ) {
        let index = self.0.iter().position(|namespace| namespace.record == record).unwrap_or_else(|| {
            self.0.push(Namespace { record, libraries: Vec::new() });
            self.0.len() - 1
        });
        let namespace = &mut self.0[index];
        let (mut cursor, mut next_known, mut is_new) = (map, 0, false);
        while !cursor.is_null() {
            // SAFETY: `cursor` points to an entry of the list, which cannot change while the libraries are held.
            let link = unsafe { &*cursor };
            let entry = Entry { identity: link.identity(), name: link.name, held: PhantomData };
            if !is_new {
                // Any known libraries before the match were closed. Without a match, the entry is new, and all
                // remaining known libraries were closed.
                let position =
                    namespace.libraries[next_known..].iter().position(|library| library.identity == entry.identity);
                match position {
                    Some(closed_count) => {
                        changes.closed.extend(namespace.libraries.drain(next_known..next_known + closed_count));
                        next_known += 1;
                    }
                    None => {
                        changes.closed.extend(namespace.libraries.drain(next_known..));
                        is_new = true;
                    }
                }
            }
            if is_new {
                changes.opened.push(NewLibrary { namespace: index, entry });
            }
            cursor = link.next;
        }
        if !is_new {
            changes.closed.extend(namespace.libraries.drain(next_known..));
        }
    }

    /// Adds an examined library. Libraries must be added in the order of [`Changes::opened`].
    pub(crate) fn add(&mut self, library: &NewLibrary<'_>, source: Option<usize>) {
        self.0[library.namespace].libraries.push(KnownLibrary { identity: library.entry.identity, source });
    }

    /// Returns the library that contains `address`, which is the one with the highest load bias that does not exceed
    /// it.
    pub(crate) fn library_at(&self, address: usize) -> Option<Identity> {
        let identities = self.0.iter().flat_map(|namespace| &namespace.libraries).map(|library| library.identity);
        identities.filter(|identity| identity.bias <= address).max_by_key(|identity| identity.bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a link map whose entries differ only in their bias.
    fn list(biases: &[usize]) -> Vec<LinkMap> {
        let null = std::ptr::null();
        let entry =
            |&bias: &usize| LinkMap { addr: bias, name: null, ld: 0, next: std::ptr::null(), prev: std::ptr::null() };
        let mut list: Vec<LinkMap> = biases.iter().map(entry).collect();
        for index in 1..list.len() {
            list[index - 1].next = &raw const list[index];
        }
        list
    }

    fn read(known: &mut KnownLibraries, list: &[LinkMap]) -> (Vec<usize>, Vec<usize>) {
        let mut changes = Changes::default();
        let first = list.first().map_or(std::ptr::null(), |first| &raw const *first);
        // SAFETY: the list is complete and does not change during the call.
        unsafe { known.read(Held::new(), 1, first, &mut changes) };
        changes.opened.iter().for_each(|library| known.add(library, None));
        let closed = changes.closed.iter().map(|library| library.identity.bias).collect();
        (closed, changes.opened.iter().map(|library| library.entry.identity.bias).collect())
    }

    #[test]
    fn reports_only_new_libraries() {
        let mut known = KnownLibraries::default();
        let mut entries = list(&[1, 2, 3, 4]);
        entries[1].next = std::ptr::null();
        assert_eq!(read(&mut known, &entries), (vec![], vec![1, 2]));
        assert_eq!(read(&mut known, &entries), (vec![], vec![]));
        entries[1].next = &raw const entries[2];
        assert_eq!(read(&mut known, &entries), (vec![], vec![3, 4]));
    }

    #[test]
    fn detects_closed_libraries_by_order() {
        let mut known = KnownLibraries::default();
        assert_eq!(read(&mut known, &list(&[1, 2, 3, 4])), (vec![], vec![1, 2, 3, 4]));
        assert_eq!(read(&mut known, &list(&[1, 3, 4])), (vec![2], vec![]));
        assert_eq!(read(&mut known, &list(&[1, 3])), (vec![4], vec![]));
        assert_eq!(read(&mut known, &list(&[1, 5, 6])), (vec![3], vec![5, 6]));
        assert_eq!(read(&mut known, &list(&[5, 6])), (vec![1], vec![]));
        assert_eq!(read(&mut known, &list(&[])), (vec![5, 6], vec![]));
    }
}
