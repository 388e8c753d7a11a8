//! Finds LLVM inside a running process and observes it as a debugger does, from inside.
//!
//! ```text
//!   _r_debug.r_brk of the loader                 libraries opened and closed   process/loader.rs
//!    or, if a debugger occupies it: dlsym        seen at the next dlsym call   process/lookup.rs
//!     `-> does the library contain LLVM?         .dynsym, .symtab of the file  llvm/{recognise,symbol_file}.rs
//!           `-> a Source, in a slot of the table                               llvm/source.rs, hooks.rs
//!                 |- RuntimeDyldELF::loadObject  vtable   loaded               channels/runtime_dyld/
//!                 |- ObjectLinkingLayer::emit    vtable   loaded, when found   channels/jitlink/, placement/
//!                 |- __jit_debug_register_code   detour   loaded, freeing      channels/gdb_list/
//!                 |- mprotect, mmap, munmap      slots    finalized, freeing   memory/
//!                 |- and in all other libraries  slots    finalized, freeing   memory/{other_libraries,unlocked_hooks}
//!                 |- LLVMPY_AddModule, ...       .dynsym  frame pointers       frame_pointers/llvmlite.rs
//!                 `- MCJIT, ORC's compilers      vtables  frame pointers       frame_pointers/codegen/
//! ```
//!
//! | folder | |
//! | --- | --- |
//! | `process/` | the loader, its libraries, relocation slots, detours: independent of LLVM |
//! | `llvm/` | one LLVM: its symbols, vtables and release |
//! | `channels/` | the hooks that report an LLVM's objects |
//! | `trackers/` | objects that are reported, and not located or not final yet |
//! | `placement/` | locates linked code by its bytes (pure) |
//! | `memory/` | the hooks that report changes of memory to the session |
//! | `frame_pointers/` | frame pointers and unwind tables for compiled modules |
//! | `remarks.rs` | remarks of LLVM's loop vectoriser |
//! | `modules/` | the loader's and libc's functions that list modules |
//! | `doctor/` | facts about the LLVMs, for the log, the API and `jitlisten doctor PID` |
//! | `state/` | the shim's only lock, and the events handled under it |
//!
//! All patching of the process lives in this crate. Its rules:
//!
//! * **Locks**: the loader's, then LLVM's, then ours. Under our lock nothing calls the loader or the host, and no
//!   thread-local variable is used for the first time: that may take the loader's lock, if the library was opened with
//!   `dlopen`. Therefore no `HashMap` with random keys.
//! * **Mapped libraries** are types (`process/mapped_proof.rs`): data read from a library borrows from a token that
//!   keeps it mapped. Data kept for later is usable again only with such a token.
//! * **Detours** are written atomically: a thread that executes there sees the old or the new instruction, never a mix.
//!   Code is patched only if its bytes are as expected.
//! * **Recursion**: a hook may trigger another hook in the same thread: the loader announces a change during one of our
//!   calls, or a `fork` handler opens a library while we hold our locks. The inner hook only calls the original
//!   function: `hooks::guarded`.
//! * **Hooks** never panic into the host, never print, and leave `errno` as the real function left it.
//! * A closed library is dropped by identity; its memory is not touched.
//!
//! # How code is detected
//!
//! 1. **`_r_debug.r_brk`** of the loader is hooked. The loader calls it under its lock, before the constructors of a
//!    new library and, before glibc 2.41, before the library is relocated.
//! 2. **Detection of LLVM**: `__jit_debug_register_code` and `__jit_debug_descriptor` are looked up in the dynamic
//!    symbols (a distribution's `libLLVM.so`). The wheels keep both symbols local. A library with more than 4 MiB of
//!    code that imports `mprotect` is therefore also looked up in the `.symtab` of its file, if the first 64 KiB of the
//!    file equal the mapping. The wheel has 174,692 symbols; the two are found by searching the string table for the
//!    names first.
//! 3. **`__jit_debug_register_code`** of LLVM is hooked. Each call reads the GDB JIT list from its head to the first
//!    known entry. `relevant_entry` would lose objects, because ORC links an entry, drops its lock, and only then
//!    calls. Entries and debug objects are copied with `process_vm_readv(2)`, which returns an error where a load would
//!    crash.
//! 4. **Relocation slots** of `mprotect`, `munmap`, `mmap` and `__register_frame` of that library point to our hooks.
//!    If a library is not relocated yet, its import symbols get our addresses before the loader reads them. If another
//!    tool (memray) overwrites a slot later, we take it back and call that tool's function.
//! 5. **llvmlite's functions**: ctypes finds `LLVMPY_AddModule` and others with `dlsym`. Their values in the library's
//!    dynamic symbol table are changed before any lookup. Our function gives every function with a body
//!    `"frame-pointer"="all"` and `uwtable` through the host's own LLVM-C functions, and calls the original.
//!    `LLVMPY_LLJIT_Link` takes modules as text: they are parsed, changed and printed with the host's LLVM.
//! 6. **LLVM's linkers** are virtual classes. Their vtables are found by symbol or by RTTI name, and one slot of each
//!    points to our hook, also in LLVMs that register nothing in the GDB JIT list (`channels/`). A layout that differs
//!    from the known releases is ignored. An object reported by both linker and list counts as one object.
//! 7. Once an LLVM is detected, the memory slots of **every other library** and of the program point to hooks. They
//!    forward calls that do not concern code without taking a lock (`memory/unlocked_hooks.rs`). Copied code is found by
//!    its bytes, or by the `.eh_frame` registered for its address (`trackers/`, `placement/`).
//! 8. If LLVM exports its **C functions**, modules get the same attributes as llvmlite's when code is generated: a
//!    virtual function of each engine, found by its symbol, points to our hook (`frame_pointers/codegen/`), as does
//!    `LLVMTargetMachineEmitToMemoryBuffer`. Code that the program then loads itself is found by its bytes
//!    (`trackers/self_loaded/`).
//!
//! If gdb has started the process, its breakpoint occupies `_r_debug.r_brk`. In that case every library's relocation
//! slot of `dlsym` points to assembly that scans for new libraries first (`process/lookup.rs`). Hooking `dlopen` would
//! not do: new libraries can be examined only after it returns, and it inspects its caller. If
//! `__jit_debug_register_code` cannot be hooked, the whole list is read and compared whenever memory of an LLVM becomes
//! executable.
//!
//! # Freed addresses are quarantined
//!
//! A perf map cannot express that code was freed. While that sink is on, memory with code that an LLVM unmaps is
//! replaced with an inaccessible reservation: the memory is freed, the addresses stay reserved. At most 4,096 ranges
//! are kept; the oldest is released first.

// Code in the host's process must not panic; where a panic is impossible, a comment gives the reason.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod channels;
mod doctor;
mod fork;
mod forwarding;
mod frame_pointers;
mod hook_table;
mod hooks;
mod llvm;
mod memory;
mod modules;
mod placement;
mod process;
mod remarks;
mod start;
mod state;
mod trackers;

pub use doctor::discovered::DiscoveredLlvm;
pub use process::host::{duplicate_copy, is_python};
pub use start::{ending, sinks_changed, start};
pub use state::discovered;
