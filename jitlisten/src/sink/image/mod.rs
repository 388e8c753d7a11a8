//! The image sink: each finalized object as an ELF shared object on disk, mapped over the pages it was loaded into.
//!
//! ```text
//!   before   7f41..000-7f41..000 rw-p                          header padding, if it was reserved
//!            7f41..000-7f41..000 r-xp                          code, anonymous
//!   after    7f41..000-7f41..000 r-xp 00000000 object-3.so     the same bytes at the same addresses, with a name
//! ```
//!
//! A tool that reads `/proc/PID/maps` (or mmap events) and opens the listed files needs no knowledge of JITs: perf,
//! py-spy, pystack, bpftrace, uprobes, addr2line, gdb on a core file. Try it with `JITLISTEN=image LD_PRELOAD=... perf
//! record -g python program.py && perf report`.
//!
//! | file | content |
//! | --- | --- |
//! | `layout.rs` | offsets of everything in the file, and the reasons for them |
//! | `content.rs`, `encode.rs`, `sections.rs`, `symbols.rs` | encoder of the file; pure |
//! | `unwind.rs`, `cfi_entry.rs`, `debug.rs` | encoder of unwind tables and DWARF; pure |
//! | `directory.rs`, `build_ids.rs` | where files are written, how long they are kept, and their build-ids |
//! | `pages.rs` | the exchange of pages under running code, and when it is safe |
//! | `group.rs` | objects that must share an image |
//! | `headers.rs`, `module.rs` | an image as the loader would describe it |
//! | `core_header.rs` | the header in memory, for readers of core files |
//! | `images.rs`, `refusal.rs` | mappings and files; reasons for pages without an image |
//! | `sink.rs` | the events |
//!
//! Mappings: an image replaces a mapping that LLVM has made, so the number of mappings stays the same. A page can only
//! be mapped from one file. Objects that share a page therefore get one image together, when the last of them is final.
//! It has the symbols, unwind tables and DWARF of all of them.
//!
//! valgrind opens a file only after it has also seen a writable mapping of it; under valgrind each image has one more
//! mapping.
//!
//! A name must not outlive its code. Pages become the anonymous memory that they were, with the same bytes, in one
//! atomic step (`mremap`). That happens when LLVM makes them writable or non-executable, and when a producer frees the
//! last code in them. The new object gets an image of its own.
//!
//! A core file has the pages of an image, as it had those of LLVM. The kernel omits pages that can be read from a file,
//! unless they were written to; therefore we overwrite one byte of each mapping with itself. That costs a page of
//! memory; LLVM's own pages are freed. That page, the header, also has the names, for tools that read a core file after
//! the images were removed (`core_header.rs`).
//!
//! `mremap` cannot install an image: it sends perf no event.
//!
//! The ELF header and the unwind sections lie before the code, because data follows the code. To have space there,
//! LLVM's private anonymous read-write `mmap`s are extended at the front while the image sink is on: by one page, or by
//! an eighth of the requested size if that is more than eight pages. Without padding (code from before we were loaded,
//! JITLink), the tables go into the zeros after the text.
//!
//! LLVM's `SectionMemoryManager` shares pages between objects that are finalized together (several modules added to an
//! MCJIT engine before `finalizeObject`), and then trims the rest to whole pages. llvmlite's own memory manager and ORC
//! never share pages. Objects that do are finalized one after the other, and at the last one all are final. Then we
//! write one file. It is linked as a linker would do it: each debug section is placed after those with the same name,
//! before relocations are applied. If an object of the group never becomes final, the others get no image.
//!
//! Unwind entries are copied with new headers. Personality routines and LSDAs are omitted: only the unwinder inside the
//! process runs them, and it reads the live section. If code is far from its runtime, they are out of reach of a 32-bit
//! offset.
//!
//! Code is not packed into fewer mappings: we would have to choose the addresses for LLVM, which has to reach its data
//! from there. The sink stops when seven eighths of `vm.max_map_count` are in use. It also stops if the system refuses
//! an image (`noexec`, disk full, no mapping left, a security module). Mappings outlive the sink: while it is off,
//! pages keep their images, and lose them when they change.

mod build_ids;
mod cfi_entry;
mod content;
mod core_header;
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
mod layout;
mod module;
mod pages;
mod refusal;
mod sections;
mod sink;
mod symbols;
#[cfg(test)]
mod tests;
mod unwind;

pub(crate) use images::Images;
pub(crate) use module::object_page_runs;
pub(crate) use sink::Image;
