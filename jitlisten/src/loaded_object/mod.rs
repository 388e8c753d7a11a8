//! Object that LLVM has compiled and loaded, parsed once from its debug object.
//!
//! A *debug object* is the ELF file that LLVM registers in `__jit_debug_descriptor`: relocatable, as written by the
//! compiler, plus the addresses of the loaded sections.
//!
//! ```text
//!   ELF header     ET_REL
//!   .ltext         sh_addr = 0x7f50dc18c000   loaded: text            -> TextRange, Function
//!   .lrodata       sh_addr = 0x7f50dc18d000   loaded: data
//!   .eh_frame      sh_addr = 0x7f50dc18d0b8   loaded: the relocated bytes are at this address, not in the file
//!   .debug_line    sh_addr = 0                not loaded and not relocated                   -> LineRows
//!   .symtab        st_value relative to the start of the symbol's section
//! ```
//!
//! Sources: the ELF gABI (<https://gabi.xinuos.com>), the x86-64 and AArch64 psABI supplements, and LLVM's
//! `RuntimeDyldELF.cpp` (`DyldELFObject`) and `DebugObjectManagerPlugin.cpp`, which write `sh_addr`.
//!
//! To inspect one: `gdb -p PID -batch -ex 'dump memory jit.o SYMFILE SYMFILE+SIZE'`, then `readelf -SWs jit.o`.
//!
//! This module works on bytes alone and reads no process memory. The bytes are not trusted: malformed input returns an
//! [`Error`](crate::Error), and allocations stay proportional to the size of the object.

mod budget;
mod elf;
pub(crate) mod external;
mod functions;
mod line_program;
mod lines;
mod model;
mod parts;
pub(crate) mod relocate;
mod row;
mod text;

pub use lines::LineRows;
pub use model::LoadedObject;
pub use parts::{Function, Machine, TextRange};
pub use row::LineRow;
