//! Groups of objects that share pages. A page can only be mapped from one file, so each group gets one image.
//!
//! LLVM places the text of objects that it finalizes together on shared pages (`SectionMemoryManager` uses the rest of
//! a page for the next section). The objects are finalized one after the other, and the image is made for the last of
//! them.

use std::borrow::Cow;

use super::content::{Part, page_runs};
use crate::name::ReadableName;
use crate::process::checked_read;
use crate::sink::{FinalizedObject, Neighbour};
use crate::{AddressRange, Function, ObjectId};

/// Objects with shared pages, and the range of these pages.
pub(super) struct Group<'a> {
    pub(super) pages: AddressRange,
    /// True if another thread's system call is changing the pages right now.
    pub(super) is_changing: bool,
    pub(super) owns_pages: bool,
    id: ObjectId,
    neighbours: Vec<Neighbour<'a>>,
}

impl<'a> Group<'a> {
    /// Returns the group of objects that share pages with `run`, a page run of `object`; `None` if one of them is not
    /// final.
    pub(super) fn containing(object: &FinalizedObject<'a>, run: AddressRange, page_size: u64) -> Option<Group<'a>> {
        let mut pages = run;
        loop {
            let nearby = (object.neighbours)(pages);
            if nearby.has_pending {
                return None;
            }
            let runs = nearby.finalized.iter().flat_map(|neighbour| page_runs(neighbour.object, page_size));
            let grown = runs.filter(|run| run.overlaps(pages)).fold(pages, AddressRange::hull);
            if grown == pages {
                let owns_pages = nearby.finalized.iter().all(|neighbour| neighbour.owns_pages) && object.owns_pages;
                let other_neighbours = nearby.finalized.into_iter().filter(|neighbour| neighbour.id != object.id);
                let (id, is_changing, neighbours) = (object.id, nearby.is_changing, other_neighbours.collect());
                return Some(Group { pages, is_changing, owns_pages, id, neighbours });
            }
            pages = grown;
        }
    }

    pub(super) fn object_ids(&self) -> impl Iterator<Item = ObjectId> {
        std::iter::once(self.id).chain(self.neighbours.iter().map(|neighbour| neighbour.id))
    }

    /// Functions of all objects, with their names.
    pub(super) fn functions<'b>(
        &'b self,
        object: &'b FinalizedObject<'_>,
    ) -> impl Iterator<Item = (&'b Function, &'b ReadableName)> {
        let neighbours = self.neighbours.iter().map(|neighbour| (neighbour.object, neighbour.names));
        let objects = std::iter::once((object.object, object.names)).chain(neighbours);
        objects.flat_map(|(object, names)| object.functions().iter().zip(names))
    }

    /// Debug objects of the group, beginning with that of `object`; `None` for each that is no longer available.
    pub(super) fn debug_objects<'b>(&'b self, object: &'b FinalizedObject<'_>) -> Vec<Option<Cow<'b, [u8]>>> {
        let own = std::iter::once(object.debug_object.map(Cow::Borrowed));
        own.chain(self.neighbours.iter().map(|neighbour| neighbour.debug_object.bytes(neighbour.object))).collect()
    }

    /// Parts of the image: one per object, each with its debug object.
    pub(super) fn parts<'b>(
        &'b self,
        object: &'b FinalizedObject<'_>,
        debug_objects: &'b [Option<Cow<'b, [u8]>>],
    ) -> Vec<Part<'b>> {
        let own_part = Part {
            object: object.object,
            names: object.names,
            eh_frame: object.object.eh_frame().and_then(|range| Some((range, object.snapshot.get(range)?.into()))),
            derived_rules: object.derived_rules,
            debug_object: None,
        };
        let other_parts = self.neighbours.iter().map(|neighbour| Part {
            object: neighbour.object,
            names: neighbour.names,
            eh_frame: neighbour
                .object
                .eh_frame()
                .and_then(|range| Some((range, checked_read::copy(range).ok()?.into()))),
            derived_rules: neighbour.derived_rules,
            debug_object: None,
        });
        let parts = std::iter::once(own_part).chain(other_parts).zip(debug_objects);
        parts.map(|(part, debug_object)| Part { debug_object: debug_object.as_deref(), ..part }).collect()
    }
}
