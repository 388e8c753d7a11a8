//! Finds LLVM inside a running process and listens to it, the way a debugger does, from inside.
//!
//! ```text
//!   loader's rendezvous (_r_debug.r_brk)         a library came or went            loader.rs
//!    or, where a debugger sits there: dlsym          about to look into a new one     lookup.rs
//!     `-> is there an LLVM in it?                .dynsym, .symtab of the file      library.rs, symbol_file.rs
//!           `-> a Source, in a slot of the table                                   source.rs, hooks.rs
//!                 |- __jit_debug_register_code   detoured     loaded, freeing      descriptor.rs
//!                 |- mprotect, mmap, munmap      slots        finalized, freeing   memory.rs
//!                 `- LLVMPY_AddModule, ...       .dynsym      frame pointers       llvmlite.rs, attributes.rs
//! ```
//!
//! All process surgery of jitlisten lives in this crate. Its rules:
//!
//! * **Locks**: the loader's, then LLVM's, then ours. Holding ours, nothing here calls the loader or the host. That includes
//!   thread-local variables: the first use of one in a thread may take the loader's lock, when the library came by `dlopen`.
//!   So no `HashMap` with its random keys here.
//! * **Detours** are written so that a thread executing there sees the old or the new instruction, never a mix, and only
//!   where the bytes are the ones expected.
//! * **Re-entry**: what a hook does may call a hook in the same thread (the loader announces a change while we ask it, a handler
//!   of `fork` opens a library while we hold our locks). The inner one only passes through: `hooks::guarded`.
//! * **Hooks** never panic into the host, never print, and leave `errno` as the real function left it.
//! * A library that has gone is dropped by identity; its memory is not touched.

mod attributes;
mod descriptor;
mod detour;
mod front_room;
mod hooks;
mod known;
mod library;
mod llvmlite;
mod loader;
mod lookup;
mod memory;
mod next;
mod relocation_slot;
mod source;
mod state;
mod symbol_file;
mod twin;
mod unregistered;

pub use state::start;
pub use twin::twin;
