//! A live object and its neighbours.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::ledger::{Ledger, LinkedCode, MemoryChanges};
use crate::loaded_object::LineRows;
use crate::name::{self, ReadableName};
use crate::object::{DebugObject, Origin};
use crate::object_id::ObjectId;
use crate::sink::{FinalizedObject, HeaderPadding, Neighbour, Neighbours};
use crate::{Address, AddressRange, LoadedObject};

pub(super) struct Record {
    pub(super) origin: Origin,
    /// Path of the file that contains the copy of LLVM that compiled the object, if known.
    pub(super) library: Option<Arc<str>>,
    pub(super) object: LoadedObject,
    /// True if both channels have reported the object.
    pub(super) in_both_channels: bool,
    pub(super) names: Vec<ReadableName>,
    pub(super) debug_object: DebugObject,
    /// Range of an `.eh_frame` that was ignored, and removed from `object`.
    pub(super) ignored_table: Option<AddressRange>,
    /// Time at which the sinks were notified of *finalized*, by [`clock::monotonic`].
    pub(super) finalized: Option<u64>,
    /// Unwind rules for functions that the object's `.eh_frame` does not cover; empty before *finalized*.
    pub(super) derived_rules: Vec<FunctionRules>,
    /// True if nothing writes to the object's pages from *finalized* to *freeing*, except after a call that the shim
    /// hooks. LLVM's memory managers allocate whole pages for the objects they finalize together. Other producers have
    /// to promise it ([`LoadedCode::owns_pages`](crate::producer::LoadedCode::owns_pages)).
    pub(super) owns_pages: bool,
}

impl Record {
    pub(super) fn as_finalized<'a>(
        &'a self,
        id: ObjectId,
        debug_object: Option<&'a [u8]>,
        find_next_code: &'a dyn Fn(Address) -> Option<Address>,
        neighbours: &'a dyn Fn(AddressRange) -> Neighbours<'a>,
        padding: &'a HeaderPadding,
        snapshot: &'a CodeSnapshot,
    ) -> FinalizedObject<'a> {
        let finalized_at_ns = self.finalized.unwrap_or_default();
        let (object, names, derived_rules) = (&self.object, &*self.names, &*self.derived_rules);
        let origin = self.origin;
        FinalizedObject {
            id,
            object,
            names,
            derived_rules,
            debug_object,
            snapshot,
            finalized_at_ns,
            find_next_code,
            neighbours,
            origin,
            owns_pages: self.owns_pages,
            padding,
        }
    }
}

/// Addresses of `object`, for the ledger.
pub(super) fn linked_code(id: ObjectId, object: &LoadedObject) -> LinkedCode {
    let text = object.text().iter().map(|text| text.range).collect();
    LinkedCode { id, text, eh_frame: object.eh_frame() }
}

/// All objects with text in `range`.
pub(super) fn neighbours<'a>(
    objects: &'a BTreeMap<ObjectId, Record>,
    ledger: &Ledger,
    changes: &MemoryChanges,
    range: AddressRange,
) -> Neighbours<'a> {
    let record = |id: ObjectId| Some((id, objects.get(&id)?));
    let neighbour = |(id, record): (ObjectId, &'a Record)| Neighbour {
        id,
        object: &record.object,
        names: &record.names,
        derived_rules: &record.derived_rules,
        debug_object: &record.debug_object,
        owns_pages: record.owns_pages,
    };
    Neighbours {
        finalized: ledger.owners(range).into_iter().filter_map(record).map(neighbour).collect(),
        has_pending: ledger.is_pending(range),
        is_changing: changes.overlap(range),
    }
}

pub(super) fn readable_names(object: &LoadedObject, debug_object: &[u8]) -> Vec<ReadableName> {
    let functions = object.functions().iter();
    let needs_lines =
        object.has_lines() && functions.clone().any(|function| name::wants_location(&function.linkage_name));
    let rows = needs_lines.then(|| LineRows::parse(debug_object).ok()).flatten().unwrap_or_default();
    let mut reader = name::Reader::for_object(functions.clone().map(|function| &*function.linkage_name));
    functions.map(|function| reader.readable(&function.linkage_name, rows.find(function.range.start()))).collect()
}
