//! The known libraries, in the order of the loader's lists, so that each event visits only new ones.
//!
//! The loader appends: new libraries follow the last known entry. Only when a library was closed is the whole list
//! compared with the known libraries, in one pass, because both have the same order.

use crate::process::library::Identity;
use crate::process::link_map::{Entry, LinkMap};

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
pub(crate) struct Appeared {
    namespace: usize,
    pub(crate) entry: Entry,
}

impl Appeared {
    /// Whether it is in the program's own namespace, whose record comes first.
    pub(crate) fn is_of_program(&self) -> bool {
        self.namespace == 0
    }
}

/// What has changed.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) closed: Vec<KnownLibrary>,
    pub(crate) appeared: Vec<Appeared>,
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
    /// `record` must be the address of a namespace's record whose list begins with `map`, under the loader's lock. With
    /// [`Extent::New`], no library must have been closed since the last call.
    pub(crate) unsafe fn read(&mut self, record: usize, map: *const LinkMap, extent: Extent, changes: &mut Changes) {
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
            // SAFETY: the caller vouches that the list does not change.
            let link = unsafe { &*at };
            let entry = link.entry();
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
    pub(crate) fn add(&mut self, appeared: &Appeared, source: Option<usize>) {
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
        let mut list: Vec<LinkMap> = biases.iter().map(|&bias| LinkMap::fake(bias)).collect();
        for index in 1..list.len() {
            list[index - 1].next = &raw const list[index];
        }
        list
    }

    fn read(known: &mut KnownLibraries, list: &[LinkMap], extent: Extent) -> (Vec<usize>, Vec<usize>) {
        let mut changes = Changes::default();
        let first = list.first().map_or(std::ptr::null(), |first| &raw const *first);
        // SAFETY: the list is whole, and stays as it is during the call.
        unsafe { known.read(1, first, extent, &mut changes) };
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
