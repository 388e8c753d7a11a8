//! The `image` sink: writes each finalized object to disk as an ELF shared object, and maps the file over the object's
//! pages.
//!
//! ```text
//!   before   7f41..000-7f41..000 rw-p                          header padding, if it was reserved
//!            7f41..000-7f41..000 r-xp                          code, anonymous
//!   after    7f41..000-7f41..000 r-xp 00000000 object-3.so     the same bytes at the same addresses, with a name
//! ```
//!
//! Tools that read `/proc/PID/maps` (or mmap events) and open the listed files need no knowledge of JITs. Examples are
//! perf, py-spy, pystack, bpftrace, uprobes, addr2line, and gdb with a core file. Try it with `JITLISTEN=image
//! LD_PRELOAD=... perf record -g python program.py && perf report`.
//!
//! | file | content |
//! | --- | --- |
//! | `layout.rs` | offsets of everything in the file, and their rationale |
//! | `content.rs`, `encode.rs`, `sections.rs`, `symbols.rs` | encoder of the file, without I/O |
//! | `unwind.rs`, `debug.rs` | encoder of unwind tables and DWARF, without I/O |
//! | `callees.rs` | encoder of the names of functions outside of the image, without I/O |
//! | `directory.rs`, `build_ids.rs` | directory of the files, how long they are kept, and their build-ids |
//! | `pages.rs` | how pages are exchanged under running code, and when that is safe |
//! | `group.rs` | objects that must share an image |
//! | `headers.rs`, `module.rs` | an image as the loader would describe it |
//! | `core_header.rs` | the header in memory, for readers of core files |
//! | `images.rs`, `refusal.rs` | mappings and files; reasons for pages without an image |
//! | `sink.rs` | event handlers |
//!
//! An image replaces a mapping made by LLVM, so the number of mappings stays the same. A page can only be mapped from
//! one file. Objects that share a page therefore get a common image when the last of them is final. It contains the
//! symbols, unwind tables and DWARF of all of them.
//!
//! valgrind reads the debug information of a file only after it has seen both an executable and a writable mapping of
//! the file. Under valgrind, each image therefore has an additional, writable mapping.
//!
//! A name must not outlive its code. When LLVM makes pages writable or non-executable, or a producer frees the last
//! code in them, the pages become anonymous memory again, with the same bytes, in one atomic step (`mremap`). New code
//! in these pages gets a new image.
//!
//! A core file contains the pages of an image, just as it would contain LLVM's own pages. The kernel omits pages that
//! can be read from a file, unless they were written to. Therefore we overwrite one page of each mapping. This costs a
//! page of memory, but LLVM's own pages are freed. With header padding, the overwritten page is the header, which in
//! memory also contains the function names, for tools that read a core file after the images were removed
//! (`core_header.rs`).
//!
//! `mremap` cannot be used to install an image, because perf gets no event for it.
//!
//! The ELF header and the unwind sections lie before the code, because data follows the code. While the image sink is
//! enabled, LLVM's requests for private anonymous read-write memory (`mmap`) are extended at the front to make space:
//! by one page, or by an eighth of the requested size if it exceeds eight pages. Without this header padding (in code
//! from JITLink, or mapped before we were loaded), the tables go into the zeros after the text.
//!
//! LLVM's `SectionMemoryManager` shares pages between objects that are finalized together (for example, several modules
//! added to an MCJIT engine before `finalizeObject`), and then trims the rest to whole pages. llvmlite's own memory
//! manager and ORC never share pages. Objects that share pages are finalized one after the other. When the last one is
//! final, we write one file. As in a linker, each debug section is placed after those of the same name before
//! relocations are applied. If an object of the group never becomes final, the others get no image.
//!
//! Unwind entries are copied with new headers. Personality routines and LSDAs are omitted, because only the unwinder
//! inside the process needs them, and it reads the live section. They may also be out of reach of a 32-bit offset, if
//! the code is far from its runtime.
//!
//! Code is not moved to save mappings: we would have to choose its addresses for LLVM, and the code must be able to
//! reach its data. The sink stops when seven eighths of `vm.max_map_count` mappings are in use. It also stops if the
//! system refuses an image (`noexec`, full disk, mapping limit, security module). Mappings outlive the sink: while it
//! is off, pages keep their images until they change.

mod build_ids;
mod callees;
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
pub(crate) use pages::page_size;
pub(crate) use sink::Image;
