//! Images: every finalized object as an ELF shared object on disk, mapped over the pages it was loaded into.
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
//! | `content.rs`, `encode.rs`, `sections.rs`, `symbols.rs` | the bytes; pure |
//! | `unwind.rs`, `cfi_entry.rs`, `debug.rs` | the same |
//! | `directory.rs`, `salt.rs` | where files go, how long they stay, what distinguishes them |
//! | `pages.rs` | how pages are exchanged under running code, and when that is safe |
//! | `group.rs` | which objects have to go together |
//! | `headers.rs`, `module.rs` | what the loader would say of an image |
//! | `in_core.rs` | the header in memory, for readers of core files |
//! | `images.rs`, `refusal.rs` | mappings and files; pages without an image |
//! | `sink.rs` | when |
//!
//! Mappings: an image takes the place of one that LLVM has made, so a process has as many as without. Objects that
//! share a page get one image together, when the last of them is final: a page has one file. It has the symbols, unwind
//! tables and DWARF of all of them.
//!
//! valgrind opens a file only when it has seen a writable mapping of it too; under valgrind each image has one more
//! mapping.
//!
//! A name must not outlive its code. When LLVM makes pages writable, or takes the right to execute them, and when a
//! producer frees the last code in them, they become the anonymous memory they were before that call, with the same
//! bytes, in one step (`mremap`). The new object gets an image of its own.
//!
//! A core file has the pages of an image, as it had those of LLVM: one byte of each mapping is written over itself,
//! because the kernel leaves out what it can read from a file. That costs a page of memory; LLVM's own pages are freed.
//! In that page, the header, stand the names, too, for tools that read a core file when the images are gone
//! (`in_core.rs`).
//!
//! `mremap` would not do for the way in: it sends perf no event.
//!
//! The ELF header with the unwind sections lies in front of the code, because behind it data follows. To have space
//! there, private anonymous read-write `mmap`s of LLVM are made larger at the front while images are on: one page, and
//! an eighth of what was asked for if that is more than eight pages. Where there is no padding (code from before us,
//! JITLink), the tables go into the zeros behind the text.
//!
//! LLVM's `SectionMemoryManager` shares pages between objects that are finalized in one go (several modules added to an
//! MCJIT engine before `finalizeObject`), and trims the rest to whole pages then; llvmlite's own memory manager and
//! ORC never share. Such objects are finalized one after the other, and the last one finds all of them final: then one
//! file is written, linked as a linker does it, by giving each debug section a place behind those of its name before
//! relocations are applied. If an object of the group never becomes final, the others go without an image.
//!
//! Unwind entries are copied with new heads. Personality routines and LSDAs are left out: only the unwinder inside the
//! process runs them, and it reads the live section. In code far from its runtime they lie further away than 2 GiB.
//!
//! Code is not packed into fewer mappings: it would mean to choose the addresses for LLVM, which has to reach its data
//! from there. The sink stops when seven eighths of `vm.max_map_count` are in use. What the system may refuse (a
//! `noexec` place, no space, no mapping left, a security module) stops the sink at the first image or at a later one;
//! mappings stay. They outlive the sink: while it is off, pages keep their images, and lose
//! them when they change.

mod cfi_entry;
mod content;
mod debug;
mod directory;
mod encode;
#[cfg(test)]
mod exchange_model;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod group;
mod headers;
mod images;
mod in_core;
mod layout;
mod module;
mod pages;
mod refusal;
mod salt;
mod sections;
mod sink;
mod symbols;
#[cfg(test)]
mod tests;
mod unwind;

pub(crate) use images::Images;
pub(crate) use module::runs_of;
pub(crate) use sink::Image;
