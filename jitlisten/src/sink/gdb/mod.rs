//! The `gdb` sink: registers code with the GDB JIT interface if nothing else registers it.
//!
//! MCJIT, and ORC if configured to do so, add every debug object to a list that gdb and lldb read. This sink registers
//! all other code in a list of our own ([`interface`]): code from a JIT without LLVM, code from an ORC layer without a
//! debugger plugin, and code that outlives its engine. The entries are the debug objects as they were reported, but
//! with the unwind tables in memory ([`unwind_tables`]).
//!
//! ```text
//! JITLISTEN=gdb gdb -p PID      (gdb) backtrace
//! ```

mod interface;
mod unwind_tables;

use std::collections::BTreeMap;

use interface::ListEntry;
pub(crate) use interface::show_llvm_list;
use unwind_tables::UnwindTables;

use super::{FinalizedObject, Sink, SinkError, SinkState};
use crate::ObjectId;

#[derive(Default)]
pub(crate) struct Gdb {
    entries: BTreeMap<ObjectId, ListEntry>,
}

impl Sink for Gdb {
    fn wants_debug_object(&self) -> bool {
        true
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        if let (false, Some(bytes)) = (object.origin.registers_with_debuggers(), object.debug_object) {
            let live = object.object.eh_frame().and_then(|range| Some((range, object.snapshot.get(range)?)));
            let tables = UnwindTables::new(live, object.derived_rules, object.object.machine());
            let with_tables = tables.and_then(|tables| tables.add_to(bytes));
            self.entries.insert(object.id, ListEntry::link(with_tables.as_deref().unwrap_or(bytes)));
        }
        Ok(0)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        self.entries.remove(&object.id);
        Ok(())
    }

    /// Keeps the entries, because the child has a copy of the list.
    fn forked(&mut self) -> SinkState {
        SinkState::Kept
    }
}
