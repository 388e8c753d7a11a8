//! The list that debuggers read ("JIT Compilation Interface" in the GDB manual), one of our own beside those of the LLVMs in
//! the process.
//!
//! gdb looks for `__jit_debug_descriptor` and `__jit_debug_register_code` in the symbol table of every library, and sets a
//! breakpoint at the latter. Ours must be found there and nowhere else: exported, they would take the place of LLVM's. So both
//! are local symbols, which takes a few lines of assembly, and the library must not be stripped of its symbol table.

use std::ptr;
use std::sync::{Mutex, PoisonError};

/// `struct jit_code_entry`
#[repr(C)]
struct CodeEntry {
    next: *mut CodeEntry,
    prev: *mut CodeEntry,
    symfile_addr: *const u8,
    symfile_size: u64,
}

/// `struct jit_descriptor`
#[repr(C)]
struct Descriptor {
    version: u32,
    action_flag: u32,
    relevant_entry: *mut CodeEntry,
    first_entry: *mut CodeEntry,
}

const _: () = assert!(size_of::<CodeEntry>() == 32 && size_of::<Descriptor>() == 24);

const JIT_NOACTION: u32 = 0;
const JIT_REGISTER_FN: u32 = 1;
const JIT_UNREGISTER_FN: u32 = 2;

// The same in every architecture: data, and a function that returns. The padding behind it leaves space for a jump, as LLVM's has.
// Hidden names lead to the local ones.
std::arch::global_asm!(
    ".pushsection .text.jitlisten_gdb, \"ax\", @progbits",
    ".p2align 4",
    ".globl jitlisten_gdb_rendezvous",
    ".hidden jitlisten_gdb_rendezvous",
    ".type jitlisten_gdb_rendezvous, @function",
    ".type __jit_debug_register_code, @function",
    "jitlisten_gdb_rendezvous:",
    "__jit_debug_register_code:",
    "ret",
    ".p2align 4",
    ".size __jit_debug_register_code, 1",
    ".popsection",
    ".pushsection .data.jitlisten_gdb, \"aw\", @progbits",
    ".p2align 3",
    ".globl jitlisten_gdb_descriptor",
    ".hidden jitlisten_gdb_descriptor",
    ".type jitlisten_gdb_descriptor, @object",
    ".type __jit_debug_descriptor, @object",
    "jitlisten_gdb_descriptor:",
    "__jit_debug_descriptor:",
    ".long 1, 0",
    ".quad 0, 0",
    ".size __jit_debug_descriptor, 24",
    ".popsection",
);

unsafe extern "C" {
    fn jitlisten_gdb_rendezvous();
    static mut jitlisten_gdb_descriptor: Descriptor;
}

/// Whoever changes the list holds this.
static LIST: Mutex<()> = Mutex::new(());

/// A debug object in the list, until it is dropped.
pub(super) struct Entry {
    node: *mut CodeEntry,
    /// What the node points at.
    _debug_object: Box<[u8]>,
}

// SAFETY: the node belongs to the list, which is only changed under `LIST`.
unsafe impl Send for Entry {}

impl Entry {
    /// Puts a copy of the debug object at the head of the list, and notifies an attached debugger.
    pub(super) fn link(debug_object: &[u8]) -> Entry {
        let debug_object: Box<[u8]> = debug_object.into();
        let (symfile_addr, symfile_size) = (debug_object.as_ptr(), debug_object.len() as u64);
        let _guard = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = &raw mut jitlisten_gdb_descriptor;
        // SAFETY: under `LIST`, every node in the list is one of ours and alive.
        unsafe {
            let next = (*descriptor).first_entry;
            let node = Box::into_raw(Box::new(CodeEntry { next, prev: ptr::null_mut(), symfile_addr, symfile_size }));
            if let Some(next) = next.as_mut() {
                next.prev = node;
            }
            (*descriptor).first_entry = node;
            notify(JIT_REGISTER_FN, node);
            Entry { node, _debug_object: debug_object }
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _guard = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = &raw mut jitlisten_gdb_descriptor;
        // SAFETY: as in `link`; the node was made there and leaves the list before it is freed.
        unsafe {
            let CodeEntry { next, prev, .. } = *self.node;
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => (*descriptor).first_entry = next,
            }
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
            notify(JIT_UNREGISTER_FN, self.node);
            drop(Box::from_raw(self.node));
        }
    }
}

/// Says what has changed. A debugger looks at the descriptor inside the call.
///
/// # Safety
/// Under `LIST`.
unsafe fn notify(action: u32, node: *mut CodeEntry) {
    let descriptor = &raw mut jitlisten_gdb_descriptor;
    // SAFETY: the caller holds the lock; volatile, because only a debugger reads it.
    unsafe {
        (&raw mut (*descriptor).relevant_entry).write_volatile(node);
        (&raw mut (*descriptor).action_flag).write_volatile(action);
        jitlisten_gdb_rendezvous();
        (&raw mut (*descriptor).action_flag).write_volatile(JIT_NOACTION);
        (&raw mut (*descriptor).relevant_entry).write_volatile(ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<(u64, u8)> {
        let _guard = LIST.lock().unwrap();
        let mut found = Vec::new();
        // SAFETY: under the lock, every node is alive, and so is what it points at.
        unsafe {
            let mut at = jitlisten_gdb_descriptor.first_entry;
            let mut prev = ptr::null_mut();
            while let Some(node) = at.as_ref() {
                assert_eq!(node.prev, prev);
                found.push((node.symfile_size, *node.symfile_addr));
                prev = at;
                at = node.next;
            }
        }
        found
    }

    #[test]
    fn entries_come_and_go_in_any_order() {
        let [first, second, third] = [b"first".as_slice(), b"second", b"third!!"].map(Entry::link);
        assert_eq!(listed(), [(7, b't'), (6, b's'), (5, b'f')]);
        drop(second);
        assert_eq!(listed(), [(7, b't'), (5, b'f')]);
        drop(third);
        assert_eq!(listed(), [(5, b'f')]);
        drop(first);
        assert_eq!(listed(), []);
    }
}
