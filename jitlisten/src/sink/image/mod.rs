//! Images: every finalized object as an ELF shared object on disk, mapped over the very pages it was loaded into.
//!
//! ```text
//!   before   7f41..000-7f41..000 rw-p                          header padding, if it was reserved
//!            7f41..000-7f41..000 r-xp                          code, anonymous
//!   after    7f41..000-7f41..000 r-xp 00000000 object-3.so     the same bytes at the same addresses, with a name
//! ```
//!
//! A tool that reads `/proc/PID/maps` (or mmap events) and opens what stands there needs to know nothing of JITs: perf,
//! py-spy, pystack, bpftrace, uprobes, addr2line, gdb on a core file. See it with
//! `JITLISTEN=image LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! | file | says |
//! | --- | --- |
//! | `layout.rs` | where everything lies in the file, and why |
//! | `content.rs`, `encode.rs`, `sections.rs`, `symbols.rs`, `unwind.rs`, `cfi_entry.rs`, `debug.rs` | the bytes; pure |
//! | `directory.rs`, `salt.rs` | where files go, how long they stay, what distinguishes them |
//! | `pages.rs`, `mappings.rs` | how pages are exchanged under running code |
//! | `group.rs` | which objects have to go together |
//! | `images.rs`, `refusal.rs` | what is mapped and what is on disk; what has no image |
//! | `sink.rs` | when |
//!
//! Mappings: an image takes the place of one that LLVM has made, so a process has as many as without. Objects that share
//! a page get one image together, when the last of them is final: a page has one file. It has the symbols, unwind tables and
//! DWARF of all of them.
//!
//! valgrind opens a file only when it has seen a writable mapping of it too; under valgrind each image has one more mapping.
//!
//! A name must not outlive its code. When LLVM makes pages writable, or takes the right to execute them, they become the
//! anonymous memory they were before that call, with the same bytes, in one step (`mremap`). The new object gets an image of
//! its own.

mod cfi_entry;
mod content;
mod debug;
mod directory;
mod encode;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod group;
mod images;
mod layout;
mod mappings;
mod pages;
mod refusal;
mod salt;
mod sections;
mod sink;
mod symbols;
#[cfg(test)]
mod tests;
mod unwind;

pub(super) use directory::{DEAD, found_dead, private};
pub(crate) use images::Images;
pub(crate) use sink::Image;
