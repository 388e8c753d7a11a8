//! An object that is alive, and its neighbours.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::State;
use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::loaded_object::LineRows;
use crate::name::{self, ReadableName};
use crate::object::{DebugObject, Origin};
use crate::object_id::ObjectId;
use crate::sink::{FinalizedObject, HeaderPadding, Neighbour, Neighbours};
use crate::{Address, AddressRange, LoadedObject};

pub(super) struct Record {
    pub(super) origin: Origin,
    pub(super) object: LoadedObject,
    /// Whether the other channel has reported it, too.
    pub(super) from_both: bool,
    pub(super) names: Vec<ReadableName>,
    pub(super) debug_object: DebugObject,
    /// When it was finalized, by [`clock::monotonic`].
    pub(super) finalized: Option<u64>,
    /// Unwind rules for functions its `.eh_frame` lacks; empty before *finalized*.
    pub(super) made_rules: Vec<FunctionRules>,
}

impl Record {
    pub(super) fn as_finalized<'a>(
        &'a self,
        id: ObjectId,
        debug_object: Option<&'a [u8]>,
        next_code: &'a dyn Fn(Address) -> Option<Address>,
        neighbours: &'a dyn Fn(AddressRange) -> Neighbours<'a>,
        padding: &'a HeaderPadding,
        snapshot: &'a CodeSnapshot,
    ) -> FinalizedObject<'a> {
        let since = self.finalized.unwrap_or_default();
        let (object, names, made_rules) = (&self.object, &*self.names, &*self.made_rules);
        let origin = self.origin;
        FinalizedObject {
            id,
            object,
            names,
            made_rules,
            debug_object,
            snapshot,
            since,
            next_code,
            neighbours,
            origin,
            padding,
        }
    }

    pub(super) fn text_starts(&self) -> impl Iterator<Item = u64> {
        self.object.text().iter().map(|text| text.range.start().0)
    }
}

impl State {
    /// The finalized objects that have a byte in `range`.
    pub(super) fn owners(&self, range: AddressRange) -> Vec<ObjectId> {
        let (start, end) = (range.start().0, range.end().0);
        let below = self.text.range(..end).rev();
        below.take_while(|(_, (text_end, _))| *text_end > start).map(|(_, &(_, owner))| owner).collect()
    }
}

/// All objects that have text in `range`.
pub(super) fn neighbours<'a>(
    objects: &'a BTreeMap<ObjectId, Record>,
    text: &BTreeMap<u64, (u64, ObjectId)>,
    pending: &BTreeMap<u64, ObjectId>,
    range: AddressRange,
) -> Neighbours<'a> {
    let (start, end) = (range.start().0, range.end().0);
    let mut ids: Vec<ObjectId> =
        text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start).map(|(_, (_, id))| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let record = |id: ObjectId| Some((id, objects.get(&id)?));
    let neighbour = |(id, record): (ObjectId, &'a Record)| Neighbour {
        id,
        object: &record.object,
        names: &record.names,
        made_rules: &record.made_rules,
        debug_object: &record.debug_object,
    };
    let has_text = |record: &Record| record.object.text().iter().any(|text| text.range.overlaps(range));
    let last_pending = pending.range(..end).next_back().and_then(|(_, id)| objects.get(id));
    Neighbours {
        finalized: ids.into_iter().filter_map(record).map(neighbour).collect(),
        unfinished: last_pending.is_some_and(has_text),
    }
}

pub(super) fn names(object: &LoadedObject, debug_object: &[u8]) -> Vec<ReadableName> {
    let functions = object.functions().iter();
    let wanted = object.has_lines() && functions.clone().any(|function| name::wants_location(&function.linkage_name));
    let rows = wanted.then(|| LineRows::parse(debug_object).ok()).flatten().unwrap_or_default();
    let mut reader = name::Reader::of_object(functions.clone().map(|function| &*function.linkage_name));
    functions.map(|function| reader.readable(&function.linkage_name, rows.find(function.range.start()))).collect()
}
