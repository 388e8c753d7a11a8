//! Finds LLVM inside the running process and observes it the way a debugger would, but from within the process.
//!
//! ```text
//!   _r_debug.r_brk of the loader                 libraries opened and closed   process/loader.rs
//!    or, if a debugger occupies it: dlsym        seen at the next dlsym call   process/lookup.rs
//!     `-> does the library contain LLVM?         .dynsym, .symtab of the file  llvm/{recognise,symbol_file}.rs
//!           `-> a Source, in a slot of the table                               source/, hooks/
//!                 |- RuntimeDyldELF::loadObject  vtable   loaded               channels/runtime_dyld/
//!                 |- ObjectLinkingLayer::emit    vtable   loaded, when found   channels/jitlink/, placement/
//!                 |- __jit_debug_register_code   detour   loaded, freeing      channels/gdb_list/
//!                 |- mprotect, mmap, munmap      slots    finalized, freeing   memory/
//!                 |- and in all other libraries  slots    finalized, freeing   memory/, hooks/unlocked.rs
//!                 |- LLVMPY_AddModule, ...       .dynsym  frame pointers       frame_pointers/llvmlite.rs
//!                 `- MCJIT, ORC's compilers      vtables  frame pointers       frame_pointers/codegen/
//! ```
//!
//! | directory | contents |
//! | --- | --- |
//! | `process/` | the loader, its libraries, relocation slots, detours: independent of LLVM |
//! | `llvm/` | what a library with LLVM contains: symbols, vtables, release |
//! | `channels/` | the hooks that report an LLVM instance's objects |
//! | `source/` | an observed LLVM instance and its channels |
//! | `trackers/` | objects that were reported but are not yet located or not yet final |
//! | `placement/` | locates linked code by its bytes (no side effects) |
//! | `hooks/` | the functions that the host calls in place of the original ones |
//! | `memory/` | import slots, allocated ranges and header padding, for the memory hooks |
//! | `frame_pointers/` | frame pointers and unwind tables for compiled modules |
//! | `remarks.rs` | remarks of LLVM's loop vectoriser |
//! | `modules/` | the loader's and libc's functions that list modules |
//! | `doctor/` | facts about the LLVM instances, for the log, the API and `jitlisten doctor PID` |
//! | `state/` | the shim's only lock, and the events handled under it |
//!
//! All code that patches the process is in this crate. It follows these rules:
//!
//! * **Lock order**: the loader's locks come first, then LLVM's, then ours. Under our lock, nothing calls the loader or
//!   the host, and no thread-local variable is used for the first time, because that may take the loader's lock if our
//!   library was opened with `dlopen`. This rules out `HashMap` with random keys.
//! * **Mapped libraries** are tracked by the type system (`process/mapped_proof.rs`): data read from a library borrows
//!   from a token which proves that the library stays mapped. Data kept for later can be used again only with such a
//!   token.
//! * **Detours** are written atomically, so a thread that executes the code sees the old or the new instruction, never
//!   a mix. Code is patched only if its bytes are as expected.
//! * **Recursion**: a hook may trigger another hook in the same thread. For example, the loader announces a change
//!   during one of our calls, or a `fork` handler opens a library while we hold our locks. In that case,
//!   `hooks::guarded` makes the inner hook only call the original function.
//! * **Hooks** never panic into the host, never print, and leave `errno` as the real function left it.
//! * **Closed libraries** are dropped by identity, without touching their memory.
//!
//! # How code is detected
//!
//! 1. **`_r_debug.r_brk`** of the loader is hooked. The loader calls it under its lock, before the constructors of a
//!    new library and, before glibc 2.41, before the library is relocated.
//! 2. **Detection of LLVM**: `__jit_debug_register_code` and `__jit_debug_descriptor` are looked up in the dynamic
//!    symbols (a distribution's `libLLVM.so`). In the llvmlite wheels, both symbols are local. If a library has more
//!    than 4 MiB of code and imports `mprotect`, the symbols are therefore also looked up in the `.symtab` of its file,
//!    provided that the first 64 KiB of the file equal the mapping. The wheel's library has 174,692 symbols, so the
//!    string table is searched for the two names first.
//! 3. **`__jit_debug_register_code`** of LLVM is hooked. Each call reads the GDB JIT list from its head to the first
//!    known entry. `relevant_entry` would lose objects, because ORC links an entry, drops its lock, and only then calls
//!    the function. Entries and debug objects are copied with `process_vm_readv(2)`, which returns an error where a
//!    load would crash.
//! 4. **Relocation slots** of `mprotect`, `munmap`, `mmap` and `__register_frame` of a library with LLVM point to our
//!    hooks. If the library is not relocated yet, its import symbols get our addresses before the loader reads them. If
//!    another tool (memray) overwrites a slot later, we take it back and call that tool's function.
//! 5. **llvmlite's functions**: ctypes finds `LLVMPY_AddModule` and others with `dlsym`. The symbol values of these
//!    functions in the library's dynamic symbol table are changed before any lookup. Our hook gives every function with
//!    a body `"frame-pointer"="all"` and `uwtable` through the host's own LLVM-C functions, and calls the original.
//!    `LLVMPY_LLJIT_Link` takes modules as text, which the host's LLVM parses and prints again after the change.
//! 6. **LLVM's linkers** are classes with virtual functions. Their vtables are found by symbol or by RTTI name, and one
//!    slot of each is changed to point to our hook (`channels/`). This works even if that LLVM instance registers
//!    nothing in the GDB JIT list. A vtable whose layout matches no known release is ignored. An object reported by
//!    both a linker and the list counts as one object.
//! 7. Once LLVM is detected, the memory slots of **every other library** and of the program point to hooks. These hooks
//!    forward calls that do not concern code without taking a lock (`hooks/unlocked.rs`). Copied code is found
//!    by its bytes, or by the `.eh_frame` registered for its address (`trackers/`, `placement/`).
//! 8. If LLVM exports its **C functions**, modules get the same attributes as llvmlite's when code is generated. For
//!    that purpose, one vtable slot of each engine, found by the function's symbol, is changed to point to our hook
//!    (`frame_pointers/codegen/`), as is the symbol of `LLVMTargetMachineEmitToMemoryBuffer`. If the program then loads
//!    the code itself, the code is found by its bytes (`trackers/self_loaded/`).
//!
//! If gdb has started the process, its breakpoint occupies `_r_debug.r_brk`. In that case, every library's relocation
//! slot of `dlsym` is changed to point to an assembly stub that first scans for new libraries (`process/lookup.rs`).
//! Hooking `dlopen` would not suffice, because a new library can be examined only after `dlopen` returns, and `dlopen`
//! inspects its caller. If `__jit_debug_register_code` cannot be hooked, the whole list is read and compared whenever
//! that LLVM instance makes memory executable.
//!
//! # Freed addresses are quarantined
//!
//! A perf map cannot express that code was freed. While the perf map sink is on and LLVM unmaps code, we replace the
//! mapping with an inaccessible reservation: the memory is freed, but its addresses stay reserved. At most 4,096 ranges
//! stay reserved; the oldest is released first.

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
mod source;
mod start;
mod state;
mod trackers;

pub use doctor::discovered::DiscoveredLlvm;
pub use process::host::{duplicate_copy, is_python};
pub use start::{ending, sinks_changed, start};
pub use state::discovered;
