//! Objects that share pages: a page has one file, so they get one image.
//!
//! LLVM puts the text of objects that it finalizes together on common pages (`SectionMemoryManager` gives the rest of a
//! page to the next section). They are finalized one after the other; the image is made with the last one.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use super::content::{Part, runs};
use crate::name::ReadableName;
use crate::process::checked_read;
use crate::sink::{FinalizedObject, Neighbour};
use crate::{AddressRange, Function, ObjectId};

/// Objects, and the pages that their text shares.
pub(super) struct Group<'a> {
    pub(super) pages: AddressRange,
    /// True if a system call of another thread changes them at this moment.
    pub(super) is_changing: bool,
    /// True if all members own their pages.
    pub(super) owns_pages: bool,
    id: ObjectId,
    neighbours: Vec<Neighbour<'a>>,
}

impl<'a> Group<'a> {
    /// The group that `run`, some pages of `object`, is in; `None` while one of its members is not final.
    pub(super) fn around(object: &FinalizedObject<'a>, run: AddressRange, page: u64) -> Option<Group<'a>> {
        let mut pages = run;
        loop {
            let found = (object.neighbours)(pages);
            if found.unfinished {
                return None;
            }
            let runs = found.finalized.iter().flat_map(|neighbour| runs(neighbour.object, page));
            let grown = runs.filter(|run| run.overlaps(pages)).fold(pages, AddressRange::hull);
            if grown == pages {
                let owns_pages = found.finalized.iter().all(|neighbour| neighbour.owns_pages) && object.owns_pages;
                let others = found.finalized.into_iter().filter(|neighbour| neighbour.id != object.id);
                let (id, is_changing, neighbours) = (object.id, found.is_changing, others.collect());
                return Some(Group { pages, is_changing, owns_pages, id, neighbours });
            }
            pages = grown;
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ObjectId> {
        std::iter::once(self.id).chain(self.neighbours.iter().map(|neighbour| neighbour.id))
    }

    /// The functions of all members, with their names.
    pub(super) fn functions<'b>(
        &'b self,
        object: &'b FinalizedObject<'_>,
    ) -> impl Iterator<Item = (&'b Function, &'b ReadableName)> {
        let neighbours = self.neighbours.iter().map(|neighbour| (neighbour.object, neighbour.names));
        let all = std::iter::once((object.object, object.names)).chain(neighbours);
        all.flat_map(|(object, names)| object.functions().iter().zip(names))
    }

    /// The debug objects of all members, as far as they are still to be had; the first is that of `object`.
    pub(super) fn debug_objects<'b>(&'b self, object: &'b FinalizedObject<'_>) -> Vec<Option<Cow<'b, [u8]>>> {
        let own = std::iter::once(object.debug_object.map(Cow::Borrowed));
        own.chain(self.neighbours.iter().map(|neighbour| neighbour.debug_object.bytes(neighbour.object))).collect()
    }

    /// All members, each with its debug object.
    pub(super) fn parts<'b>(
        &'b self,
        object: &'b FinalizedObject<'_>,
        debug_objects: &'b [Option<Cow<'b, [u8]>>],
    ) -> Vec<Part<'b>> {
        let own = Part {
            object: object.object,
            names: object.names,
            eh_frame: object.object.eh_frame().and_then(|range| Some((range, object.snapshot.get(range)?.into()))),
            made_rules: object.made_rules,
            debug_object: None,
        };
        let others = self.neighbours.iter().map(|neighbour| Part {
            object: neighbour.object,
            names: neighbour.names,
            eh_frame: neighbour
                .object
                .eh_frame()
                .and_then(|range| Some((range, checked_read::copy(range).ok()?.into()))),
            made_rules: neighbour.made_rules,
            debug_object: None,
        });
        let parts = std::iter::once(own).chain(others).zip(debug_objects);
        parts.map(|(part, debug_object)| Part { debug_object: debug_object.as_deref(), ..part }).collect()
    }
}
