//! The `gdb` sink: registers code with the GDB JIT interface if nothing else registers it.
//!
//! MCJIT, and ORC if configured to do so, add every debug object to a list that gdb and lldb read. This sink registers
//! all other code in a list of our own ([`interface`]): code from a JIT without LLVM, code from an ORC layer without a
//! debugger plugin, and code that outlives its engine. The entries are the debug objects exactly as they were reported.
//!
//! ```text
//! JITLISTEN=gdb gdb -p PID      (gdb) backtrace
//! ```

mod interface;

use std::collections::BTreeMap;

use interface::ListEntry;
pub(crate) use interface::show_llvm_list;

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
            self.entries.insert(object.id, ListEntry::link(bytes));
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
