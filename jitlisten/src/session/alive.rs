//! Queries for living functions.

#![forbid(unsafe_code)]

use super::Session;
use crate::{AddressRange, LineRows};

/// A function that was finalized and not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveFunction {
    /// Where its code is.
    pub range: AddressRange,
    /// As sinks spell it with readable names.
    pub name: String,
    /// File and line of its first instruction, where they are known.
    pub location: Option<(String, u32)>,
}

impl Session {
    /// Every function that is alive, by address. Reads the line table of each object: not for a busy moment.
    pub fn live_functions(&self) -> Vec<LiveFunction> {
        let state = self.lock_here();
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
