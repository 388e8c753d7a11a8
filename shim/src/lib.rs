//! Finds LLVM inside a running process and listens to it, the way a debugger does, from inside.
//!
//! ```text
//!   _r_debug.r_brk of the loader                 libraries opened and closed   process/loader.rs
//!    or, if a debugger sits there: dlsym         the same, one call later      process/lookup.rs
//!     `-> is there an LLVM in it?                .dynsym, .symtab of the file  process/library.rs, llvm/symbol_file.rs
//!           `-> a Source, in a slot of the table                               llvm/source.rs, hooks.rs
//!                 |- RuntimeDyldELF::loadObject  vtable   loaded               channels/runtime_dyld/
//!                 |- ObjectLinkingLayer::emit    vtable   loaded, when found   channels/jitlink/, placement/
//!                 |- __jit_debug_register_code   detour   loaded, freeing      channels/gdb_list/
//!                 |- mprotect, mmap, munmap      slots    finalized, freeing   memory/
//!                 |- the same, in all libraries  slots    finalized, freeing   memory/other_libraries.rs, elsewhere.rs
//!                 |- LLVMPY_AddModule, ...       .dynsym  frame pointers       frame_pointers/llvmlite.rs
//!                 `- MCJIT, ORC's compilers      vtables  frame pointers       frame_pointers/codegen/
//! ```
//!
//! | folder | |
//! | --- | --- |
//! | `process/` | the loader, its libraries, relocation slots, detours: nothing in it knows LLVM |
//! | `llvm/` | one LLVM: its symbols, its vtables, its release |
//! | `channels/` | the ways an LLVM's objects reach us |
//! | `placement/` | locates linked code by its bytes (pure) |
//! | `memory/` | which memory is executable, and which objects that finalizes or frees |
//! | `frame_pointers/` | frame pointers and unwind tables for compiled modules |
//! | `modules/` | the loader's and libc's functions that list modules |
//! | `doctor/` | what the log, the API and `jitlisten doctor PID` say of the LLVMs |
//! | `state/` | the shim's one lock, and each event under it |
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
//!
//! # How code is noticed
//!
//! 1. **The loader's rendezvous** is detoured. It is called under the loader's lock, before a new library's constructors and,
//!    before glibc 2.41, before the library is relocated.
//! 2. **An LLVM in the library?** `__jit_debug_register_code` and `__jit_debug_descriptor` are looked up in the dynamic symbols
//!    (a distribution's `libLLVM.so`), and else, in a library with more than 4 MiB of code that imports `mprotect`, in the
//!    `.symtab` of its file (the wheels, where they are local). The file is used only if its first 64 KiB are what is mapped. In
//!    the wheel's 174,692 symbols the two are found by searching the string table for the names first.
//! 3. **LLVM's rendezvous** is detoured. Each time it is called, the list is read from its head to the first entry that is known:
//!    `relevant_entry` would lose objects, because ORC links an entry, drops its lock, and calls then. Entries and debug objects
//!    are copied with `process_vm_readv(2)`, which returns an error where a load would be a crash.
//! 4. **Relocation slots** of `mprotect`, `munmap`, `mmap` and `__register_frame`, of that one library, lead to our hooks. For a library
//!    that is not relocated yet, its import symbols get our addresses before the loader looks at them; slots that another tool
//!    (memray) changes again are taken back, and that tool's function is called.
//! 5. **llvmlite's functions**: ctypes finds `LLVMPY_AddModule` and others with `dlsym`. Their value in the library's own dynamic
//!    symbol table is changed before they can have been looked up. Ours gives every function of the module that has a body
//!    `"frame-pointer"="all"` and `uwtable`, with the host's own LLVM-C functions, and goes on to the real one.
//!    `LLVMPY_LLJIT_Link` takes modules as text: they are parsed, changed and printed with the host's LLVM.
//!
//! 6. **LLVM's linkers** are virtual classes. Their vtables are found by symbol or by the name of their type, and one function in each
//!    leads to us, in LLVMs that put nothing into the GDB JIT list, too (`channels/`). What is not laid out as in a release
//!    that is known is left alone. An object that comes by linker and by list is one object.
//! 7. Once there is an LLVM, the slots for memory of **every other library** and of the program lead to hooks that pass on what has nothing to
//!    do with code without a lock (`memory/code_pages.rs`). Code that was copied is found by its bytes, or by the `.eh_frame` that is
//!    registered for its place (`channels/moved_code/`, `placement/`).
//!
//! 8. Where LLVM exports its **C functions**, modules get what llvmlite's get, when code is generated for them: a virtual function of
//!    each engine, found by its symbol, leads to us (`frame_pointers/codegen/`). So does `LLVMTargetMachineEmitToMemoryBuffer`: what the program loads of
//!    that by itself is found by its bytes (`channels/moved_code/self_loaded/`).
//!
//! Where gdb has started the process, its breakpoint is already at the loader's rendezvous: then every library's relocation slot
//! of `dlsym` leads to a piece of assembly that looks at new libraries first (`process/lookup.rs`). `dlopen` would be the nearer choice,
//! but it has returned before there is a library to look at, and it, too, looks at its caller. Where LLVM's rendezvous cannot be
//! detoured, the list is read whenever memory of an LLVM becomes executable, and compared as a whole.
//!
//! # Addresses are not used again at once
//!
//! A perf map has no line for "this code is gone". So, while that sink is on, memory that held code and is unmapped by an LLVM
//! is replaced by an inaccessible reservation: the memory goes back to the system, the addresses stay taken. At most 4,096 ranges
//! are kept, the oldest is given up first.

// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod channels;
mod doctor;
mod fork;
mod frame_pointers;
mod hook_table;
mod hooks;
mod late;
mod llvm;
mod memory;
mod modules;
mod placement;
mod process;
mod start;
mod state;

pub use doctor::discovered::DiscoveredLlvm;
pub use process::duplicate_copy::duplicate_copy;
pub use process::program::is_python;
pub use start::{ending, sinks_changed, start};
pub use state::discovered;
