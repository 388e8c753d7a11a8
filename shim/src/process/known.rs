//! The known libraries, in the order of the loader's lists, so that each event visits only new ones.
//!
//! The loader appends: new libraries follow the last known entry. Only when a library was closed is the whole list
//! compared with the known libraries, in one pass, because both have the same order.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use crate::process::held::{Held, Identity};
use crate::process::library::Library;

/// The public part of `struct link_map` of `<link.h>`: one entry per library, in a list.
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

/// An entry of the list, which is there during `'l`, as its library is.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'l> {
    pub(crate) identity: Identity,
    name: *const c_char,
    held: PhantomData<&'l ()>,
}

impl<'l> Entry<'l> {
    /// Reads the library's tables.
    pub(crate) fn library(self) -> Option<Library<'l>> {
        if self.name.is_null() || self.identity.dynamic == 0 {
            return None;
        }
        // SAFETY: the entry is there, and owns its name.
        let name = unsafe { CStr::from_ptr(self.name) };
        // SAFETY: the library is in the list, and no library goes during `'l`.
        unsafe { Library::read(self.identity, name) }
    }
}

/// A library that has been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownLibrary {
    pub(crate) identity: Identity,
    /// Its slot in the table of sources, if there is an LLVM in it.
    pub(crate) source: Option<usize>,
}

/// Those of one namespace (`dlmopen(3)`).
pub(crate) struct Namespace {
    /// The address of its record, which stays.
    record: usize,
    /// The address of the last entry that was read.
    last: usize,
    libraries: Vec<KnownLibrary>,
}

#[derive(Default)]
pub(crate) struct KnownLibraries(Vec<Namespace>);

/// A library that is not known yet.
pub(crate) struct Appeared<'l> {
    namespace: usize,
    pub(crate) entry: Entry<'l>,
}

impl Appeared<'_> {
    /// Whether it is in the program's own namespace, whose record comes first.
    pub(crate) fn is_of_program(&self) -> bool {
        self.namespace == 0
    }
}

/// What has changed.
#[derive(Default)]
pub(crate) struct Changes<'l> {
    pub(crate) closed: Vec<KnownLibrary>,
    pub(crate) appeared: Vec<Appeared<'l>>,
}

/// Which part of the lists is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What is behind the last entry that is known: nothing was closed.
    New,
    Whole,
}

impl KnownLibraries {
    /// Reads the list of one namespace.
    ///
    /// # Safety
    /// `record` must be the address of a namespace's record whose list begins with `map`. With [`Extent::New`], no
    /// library must have been closed since the last call.
    pub(crate) unsafe fn read<'l>(
        &mut self,
        _: Held<'l>,
        record: usize,
        map: *const LinkMap,
        extent: Extent,
        changes: &mut Changes<'l>,
    ) {
        let index = self.0.iter().position(|namespace| namespace.record == record).unwrap_or_else(|| {
            self.0.push(Namespace { record, last: 0, libraries: Vec::new() });
            self.0.len() - 1
        });
        let namespace = &mut self.0[index];
        let mut at = match (extent, namespace.last) {
            (Extent::New, last) if last != 0 => {
                // SAFETY: the caller vouches that the last entry is still there.
                unsafe { &*(last as *const LinkMap) }.next
            }
            _ => map,
        };
        let mut known = 0;
        let mut skip = extent == Extent::New && namespace.last != 0;
        while !at.is_null() {
            // SAFETY: an entry of the list, which does not change as long as the libraries are held.
            let link = unsafe { &*at };
            let entry = Entry { identity: link.identity(), name: link.name, held: PhantomData };
            if !skip {
                // Those in front of the one that is met were closed; if it is not met, it is new.
                let found = namespace.libraries[known..].iter().position(|library| library.identity == entry.identity);
                match found {
                    Some(closed) => {
                        changes.closed.extend(namespace.libraries.drain(known..known + closed));
                        known += 1;
                    }
                    None => {
                        changes.closed.extend(namespace.libraries.drain(known..));
                        skip = true;
                    }
                }
            }
            if skip {
                changes.appeared.push(Appeared { namespace: index, entry });
            }
            namespace.last = at as usize;
            at = link.next;
        }
        if !skip {
            changes.closed.extend(namespace.libraries.drain(known..));
        }
    }

    /// Remembers a library that was looked at. In the order of [`Changes::appeared`].
    pub(crate) fn add(&mut self, appeared: &Appeared<'_>, source: Option<usize>) {
        let library = KnownLibrary { identity: appeared.entry.identity, source };
        self.0[appeared.namespace].libraries.push(library);
    }

    /// The library that `address` is in: the one mapped last below it.
    pub(crate) fn owner(&self, address: usize) -> Option<Identity> {
        let all = self.0.iter().flat_map(|namespace| &namespace.libraries).map(|library| library.identity);
        all.filter(|identity| identity.bias <= address).max_by_key(|identity| identity.bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of entries distinguished by their bias, of which `closed` are taken out.
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

    fn read(known: &mut KnownLibraries, list: &[LinkMap], extent: Extent) -> (Vec<usize>, Vec<usize>) {
        let mut changes = Changes::default();
        let first = list.first().map_or(std::ptr::null(), |first| &raw const *first);
        // SAFETY: the list is whole, and stays as it is during the call.
        unsafe { known.read(Held::new(), 1, first, extent, &mut changes) };
        changes.appeared.iter().for_each(|appeared| known.add(appeared, None));
        let closed = changes.closed.iter().map(|library| library.identity.bias).collect();
        (closed, changes.appeared.iter().map(|appeared| appeared.entry.identity.bias).collect())
    }

    #[test]
    fn only_what_is_new_is_reported() {
        let mut known = KnownLibraries::default();
        let mut entries = list(&[1, 2, 3, 4]);
        entries[1].next = std::ptr::null();
        assert_eq!(read(&mut known, &entries, Extent::New), (vec![], vec![1, 2]));
        assert_eq!(read(&mut known, &entries, Extent::New), (vec![], vec![]));
        entries[1].next = &raw const entries[2];
        assert_eq!(read(&mut known, &entries, Extent::New), (vec![], vec![3, 4]));
    }

    #[test]
    fn what_was_closed_is_found_by_the_order() {
        let mut known = KnownLibraries::default();
        assert_eq!(read(&mut known, &list(&[1, 2, 3, 4]), Extent::Whole), (vec![], vec![1, 2, 3, 4]));
        assert_eq!(read(&mut known, &list(&[1, 3, 4]), Extent::Whole), (vec![2], vec![]));
        assert_eq!(read(&mut known, &list(&[1, 3]), Extent::Whole), (vec![4], vec![]));
        assert_eq!(read(&mut known, &list(&[1, 5, 6]), Extent::Whole), (vec![3], vec![5, 6]));
        assert_eq!(read(&mut known, &list(&[5, 6]), Extent::Whole), (vec![1], vec![]));
        assert_eq!(read(&mut known, &list(&[]), Extent::Whole), (vec![5, 6], vec![]));
    }
}
