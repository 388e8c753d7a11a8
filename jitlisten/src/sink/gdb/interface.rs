//! GDB JIT list of this library ("JIT Compilation Interface" in the GDB manual). Each LLVM instance in the process has
//! its own list.
//!
//! gdb looks up `__jit_debug_descriptor` and `__jit_debug_register_code` in the symbol table of every library, and sets
//! a breakpoint at the function. If we exported ours, they would replace LLVM's. Therefore both are local symbols,
//! which only assembly can define, and the library must keep its symbol table.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::{Mutex, PoisonError};

/// `struct jit_code_entry` of the GDB manual.
#[repr(C)]
struct CodeEntry {
    next: *mut CodeEntry,
    prev: *mut CodeEntry,
    symfile_addr: *const u8,
    symfile_size: u64,
}

/// `struct jit_descriptor` of the GDB manual.
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

// These directives define data and a function that only returns, so they are valid on every architecture. The padding
// after the function leaves space for a jump, as in LLVM's version. Rust refers to the local symbols through hidden
// aliases.
std::arch::global_asm!(
    ".pushsection .text.jitlisten_gdb, \"ax\", @progbits",
    ".p2align 4",
    ".globl jitlisten_gdb_register_code",
    ".hidden jitlisten_gdb_register_code",
    ".type jitlisten_gdb_register_code, @function",
    ".type __jit_debug_register_code, @function",
    "jitlisten_gdb_register_code:",
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
    fn jitlisten_gdb_register_code();
    static mut jitlisten_gdb_descriptor: Descriptor;
}

/// Heads of the lists. Locked while a list changes.
static LIST: Mutex<ListHeads> = Mutex::new(ListHeads { own_first: ptr::null_mut(), llvm_first: ptr::null_mut() });

/// List heads that the descriptor may point to.
struct ListHeads {
    /// First entry of our list.
    own_first: *mut CodeEntry,
    /// First entry of an LLVM instance's list; see [`show_llvm_list`].
    llvm_first: *mut CodeEntry,
}

// SAFETY: entries of our list are only changed while `LIST` is locked; entries of other lists are never dereferenced.
unsafe impl Send for ListHeads {}

impl ListHeads {
    /// Points the descriptor to our list or, if it is empty, to LLVM's.
    fn update_descriptor(&self) {
        let first_entry = if self.own_first.is_null() { self.llvm_first } else { self.own_first };
        let descriptor = &raw mut jitlisten_gdb_descriptor;
        // SAFETY: the caller holds `LIST`. The write is volatile because only a debugger reads the field.
        unsafe { (&raw mut (*descriptor).first_entry).write_volatile(first_entry) };
    }
}

/// Sets the first entry of the LLVM list that the descriptor shows while our list is empty; 0 for none.
///
/// lldb reads only the list of the first library that defines these symbols. If we are preloaded, that is our list, and
/// an empty list would hide LLVM's. gdb reads all lists, and ignores an entry that it has already seen
/// (`jit_find_objf_with_entry_addr`).
pub(crate) fn show_llvm_list(first_entry: u64) {
    let mut heads = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    heads.llvm_first = first_entry as *mut CodeEntry;
    heads.update_descriptor();
}

/// Debug object registered in our list; removed on drop.
pub(super) struct ListEntry {
    node: *mut CodeEntry,
    /// Debug object that the node points to.
    _debug_object: Box<[u8]>,
}

// SAFETY: the node belongs to the list, which is only changed while `LIST` is locked.
unsafe impl Send for ListEntry {}

impl ListEntry {
    /// Inserts a copy of the debug object at the head of the list, and notifies an attached debugger.
    pub(super) fn link(debug_object: &[u8]) -> ListEntry {
        let debug_object: Box<[u8]> = debug_object.into();
        let (symfile_addr, symfile_size) = (debug_object.as_ptr(), debug_object.len() as u64);
        let mut heads = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `LIST` is locked, so every node in our list is valid.
        unsafe {
            let next = heads.own_first;
            let node = Box::into_raw(Box::new(CodeEntry { next, prev: ptr::null_mut(), symfile_addr, symfile_size }));
            if let Some(next) = next.as_mut() {
                next.prev = node;
            }
            heads.own_first = node;
            heads.update_descriptor();
            notify(JIT_REGISTER_FN, node);
            ListEntry { node, _debug_object: debug_object }
        }
    }
}

impl Drop for ListEntry {
    fn drop(&mut self) {
        let mut heads = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `LIST` is locked, so every node in our list is valid. `link` allocated this node with `Box`, and the
        // node leaves the list before it is freed.
        unsafe {
            let CodeEntry { next, prev, .. } = *self.node;
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => heads.own_first = next,
            }
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
            heads.update_descriptor();
            notify(JIT_UNREGISTER_FN, self.node);
            drop(Box::from_raw(self.node));
        }
    }
}

/// Notifies an attached debugger of a change. The debugger stops in the call and reads the descriptor.
///
/// # Safety
/// The caller must hold `LIST`.
unsafe fn notify(action: u32, node: *mut CodeEntry) {
    let descriptor = &raw mut jitlisten_gdb_descriptor;
    // SAFETY: the caller holds `LIST`. The writes are volatile because only a debugger reads the fields.
    unsafe {
        (&raw mut (*descriptor).relevant_entry).write_volatile(node);
        (&raw mut (*descriptor).action_flag).write_volatile(action);
        jitlisten_gdb_register_code();
        (&raw mut (*descriptor).action_flag).write_volatile(JIT_NOACTION);
        (&raw mut (*descriptor).relevant_entry).write_volatile(ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serialises the tests, because all of them change the list.
    static TEST_LOCK: Mutex<()> = Mutex::new(());

    #[test]
    fn llvms_list_is_shown_while_ours_is_empty() {
        let _test_guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the descriptor is only read.
        let first_entry = || unsafe { (&raw const jitlisten_gdb_descriptor.first_entry).read_volatile() } as u64;
        show_llvm_list(0x1000);
        assert_eq!(first_entry(), 0x1000);
        let entry = ListEntry::link(b"ours");
        assert_ne!(first_entry(), 0x1000);
        drop(entry);
        assert_eq!(first_entry(), 0x1000);
        show_llvm_list(0);
        assert_eq!(first_entry(), 0);
    }

    fn listed() -> Vec<(u64, u8)> {
        let _guard = LIST.lock().unwrap();
        let mut entries = Vec::new();
        // SAFETY: `LIST` is locked, so every node is valid, and so is its debug object.
        unsafe {
            let mut node_ptr = jitlisten_gdb_descriptor.first_entry;
            let mut prev = ptr::null_mut();
            while let Some(node) = node_ptr.as_ref() {
                assert_eq!(node.prev, prev);
                entries.push((node.symfile_size, *node.symfile_addr));
                prev = node_ptr;
                node_ptr = node.next;
            }
        }
        entries
    }

    #[test]
    fn entries_are_added_and_removed_in_any_order() {
        let _test_guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second, third] = [b"first".as_slice(), b"second", b"third!!"].map(ListEntry::link);
        assert_eq!(listed(), [(7, b't'), (6, b's'), (5, b'f')]);
        drop(second);
        assert_eq!(listed(), [(7, b't'), (5, b'f')]);
        drop(third);
        assert_eq!(listed(), [(5, b'f')]);
        drop(first);
        assert_eq!(listed(), []);
    }
}
