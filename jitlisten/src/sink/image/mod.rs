//! Images: every finalized object as an ELF shared object on disk, mapped over the very pages it was loaded into.
//!
//! ```text
//!   before   7f41..000-7f41..000 rw-p                          room in front, if somebody has reserved it
//!            7f41..000-7f41..000 r-xp                          code, anonymous
//!   after    7f41..000-7f41..000 r-xp 00000000 object-3.so     the same bytes at the same addresses, with a name
//! ```
//!
//! Whoever looks at `/proc/PID/maps` (or at mmap events) and opens what stands there needs to know nothing of JITs: perf,
//! py-spy, pystack, bpftrace, uprobes, addr2line, gdb on a core file. See it with
//! `JITLISTEN=image LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! | file | says |
//! | --- | --- |
//! | `layout.rs` | where everything lies in the file, and why |
//! | `content.rs`, `encode.rs`, `sections.rs`, `symbols.rs`, `unwind.rs`, `debug.rs` | the bytes; pure |
//! | `directory.rs`, `salt.rs` | where files go, how long they stay, what tells them apart |
//! | `pages.rs`, `mappings.rs` | how pages are exchanged under running code |
//! | `sink.rs` | when |
//!
//! Mappings: an image takes the place of one that LLVM has made, so a process has as many as without. Objects that share a
//! page with another object get none: a page has one file. LLVM shares pages only between objects that are finalized
//! together.
//!
//! valgrind opens a file only when it has seen a writable mapping of it too; under valgrind each image has one more mapping.
//!
//! The kernel and tools keep `object-3.so` apart from the code only by its pages; when LLVM frees and uses them again, the
//! new object's image takes its place. In between they are writable, and nobody looks for code there.

mod content;
mod debug;
mod directory;
mod encode;
mod layout;
mod mappings;
mod pages;
mod salt;
mod sections;
mod sink;
mod symbols;
#[cfg(test)]
mod tests;
mod unwind;

pub(crate) use sink::Image;
