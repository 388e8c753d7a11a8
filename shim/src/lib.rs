//! Finds LLVM inside a running process and observes it as a debugger does, from inside.
//!
//! ```text
//!   _r_debug.r_brk of the loader                 libraries opened and closed   process/loader.rs
//!    or, if a debugger occupies it: dlsym        the same, one call later      process/lookup.rs
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
//! | `channels/` | the hooks that report an LLVM's objects |
//! | `placement/` | locates linked code by its bytes (pure) |
//! | `memory/` | the hooks that report changes of memory to the session |
//! | `frame_pointers/` | frame pointers and unwind tables for compiled modules |
//! | `remarks.rs` | what LLVM's loop vectoriser says of loops |
//! | `modules/` | the loader's and libc's functions that list modules |
//! | `doctor/` | facts about the LLVMs for the log, the API and `jitlisten doctor PID` |
//! | `state/` | the shim's one lock, and each event under it |
//!
//! All process surgery of jitlisten lives in this crate. Its rules:
//!
//! * **Locks**: the loader's, then LLVM's, then ours. Under our lock nothing calls the loader or the host, and no
//!   thread-local variable is used for the first time: that may take the loader's lock, if the library was opened with
//!   `dlopen`. Therefore no `HashMap` with random keys.
//! * **Mapped libraries** are types (`process/held.rs`): what is read of a library borrows from the evidence that it
//!   stays mapped. What is remembered of it becomes usable again only with such evidence.
//! * **Detours** are written so that a thread executing there sees the old or the new instruction, never a mix, and
//!   only where the bytes are as expected.
//! * **Recursion**: a hook may trigger a hook in the same thread (the loader announces a change during a call of ours,
//!   a `fork` handler opens a library while we hold our locks). The inner hook only calls the original function:
//!   `hooks::guarded`.
//! * **Hooks** never panic into the host, never print, and leave `errno` as the real function left it.
//! * A library that was closed is dropped by identity; its memory is not touched.
//!
//! # How code is detected
//!
//! 1. **`_r_debug.r_brk`** of the loader is hooked. The loader calls it under its lock, before the constructors of a
//!    new library and, before glibc 2.41, before the library is relocated.
//! 2. **Is there an LLVM in the library?** `__jit_debug_register_code` and `__jit_debug_descriptor` are looked up in
//!    the dynamic symbols (a distribution's `libLLVM.so`). In a library with more than 4 MiB of code that imports
//!    `mprotect`, they are also looked up in the `.symtab` of its file (the wheels, where they are local), if its first
//!    64 KiB equal the mapping. In the wheel's 174,692 symbols the two are found by searching the string table for the
//!    names first.
//! 3. **`__jit_debug_register_code`** of LLVM is hooked. Each call reads the GDB JIT list from its head to the first
//!    known entry. `relevant_entry` would lose objects, because ORC links an entry, drops its lock, and then calls.
//!    Entries and debug objects are copied with `process_vm_readv(2)`, which returns an error where a load would crash.
//! 4. **Relocation slots** of `mprotect`, `munmap`, `mmap` and `__register_frame` of that library point to our hooks.
//!    If a library is not relocated yet, its import symbols get our addresses before the loader reads them. If another
//!    tool (memray) changes a slot again, we take it back and call that tool's function.
//! 5. **llvmlite's functions**: ctypes finds `LLVMPY_AddModule` and others with `dlsym`. Their values in the library's
//!    dynamic symbol table are changed before anyone can look them up. Ours gives every function with a body
//!    `"frame-pointer"="all"` and `uwtable`, with the host's own LLVM-C functions, and calls the real one.
//!    `LLVMPY_LLJIT_Link` takes modules as text: they are parsed, changed and printed with the host's LLVM.
//! 6. **LLVM's linkers** are virtual classes. Their vtables are found by symbol or by RTTI name, and one slot of each
//!    points to our hook, also in LLVMs that register nothing in the GDB JIT list (`channels/`). A layout that differs
//!    from the known releases is ignored. An object that comes from linker and list is one object.
//! 7. As soon as there is an LLVM, the memory slots of **every other library** and of the program point to hooks, which
//!    pass on calls that do not concern code without a lock (`memory/elsewhere.rs`). Copied code is found by its
//!    bytes, or by the `.eh_frame` registered for its address (`channels/moved_code/`, `placement/`).
//! 8. Where LLVM exports its **C functions**, modules get the same attributes as llvmlite's when code is generated: a
//!    virtual function of each engine, found by its symbol, points to our hook (`frame_pointers/codegen/`), as does
//!    `LLVMTargetMachineEmitToMemoryBuffer`. Code that the program then loads itself is found by its bytes
//!    (`channels/moved_code/self_loaded/`).
//!
//! If gdb has started the process, its breakpoint occupies `_r_debug.r_brk`. Then every library's relocation slot of
//! `dlsym` points to assembly that looks for new libraries first (`process/lookup.rs`). `dlopen` returns before there
//! is a library to look at, and it inspects its caller, too. If `__jit_debug_register_code` cannot be hooked, the list
//! is read whenever memory of an LLVM becomes executable, and compared as a whole.
//!
//! # Addresses are not reused at once
//!
//! A perf map cannot express that code was freed. While that sink is on, memory with code that an LLVM unmaps is
//! replaced with an inaccessible reservation: the memory is freed, the addresses stay reserved. At most 4,096 ranges
//! are kept; the oldest is released first.

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
mod remarks;
mod start;
mod state;

pub use doctor::discovered::DiscoveredLlvm;
pub use process::host::{duplicate_copy, is_python};
pub use start::{ending, sinks_changed, start};
pub use state::discovered;
