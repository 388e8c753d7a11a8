//! Queries for live functions.

use super::LiveObjects;
use crate::{AddressRange, LineRows};

/// A live function: finalized and not yet freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveFunction {
    /// Code range of the function.
    pub range: AddressRange,
    /// Readable name of the function, as the sinks write it.
    pub name: String,
    /// File and line of the first instruction, if known.
    pub location: Option<(String, u32)>,
}

impl LiveObjects {
    /// All live functions, sorted by address. Slow, because it reads the line table of each object.
    pub fn live_functions(&self) -> Vec<LiveFunction> {
        let state = self.lock_for_this_process();
        let mut functions = Vec::new();
        for record in state.objects.values().filter(|record| record.finalized.is_some()) {
            let bytes = record.object.has_lines().then(|| record.debug_object.bytes(&record.object)).flatten();
            let rows = bytes.and_then(|bytes| LineRows::parse(&bytes).ok()).unwrap_or_default();
            for (function, name) in record.object.functions().iter().zip(&record.names) {
                let location = rows.find(function.range.start()).map(|(file, line)| (file.to_owned(), line));
                functions.push(LiveFunction { range: function.range, name: name.text.clone(), location });
            }
        }
        functions.sort_by_key(|function| function.range.start());
        functions
    }
}
