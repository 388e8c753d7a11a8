//! Adds images to the module lists that tools inside the process read through `dl_iterate_phdr`, `dladdr`,
//! `_dl_find_object` and `backtrace_symbols`, and provides names for libunwind.
//!
//! | file | content |
//! | --- | --- |
//! | `hooks.rs` | the functions that replace those of the loader and libc |
//! | `originals.rs` | the original functions |
//! | `symbolize.rs` | the output of `backtrace_symbols` |
//! | `imports.rs` | the import slots of libraries that call these functions, and the libraries that are skipped |
//! | `unwind_names.rs` | the hook of `unw_get_proc_name` in each copy of libunwind |
//! | `announce.rs` | invalidates the module lists of memray and heaptrack |
//!
//! The hooks add the entries of `jitlisten::plumbing::modules`, which the `modules` sink maintains. No function is
//! hooked until the sink is enabled. The hooks then stay installed, and only call the original function while the list
//! is empty.
//!
//! Unwinding does not change. libgcc, LLVM's libunwind and the sanitizer runtimes keep calling the loader's functions,
//! because compiled code is registered with these unwinders. A library with its own libgcc (`-static-libgcc`) calls our
//! hooks. It gets unwind tables without personality routines, because the tables in images omit these.
//!
//! The hooks take none of our locks. The loader's functions still take the loader's lock.

mod announce;
mod hooks;
mod imports;
mod originals;
mod symbolize;
mod unwind_names;

pub(crate) use announce::announce_new_modules;
pub(crate) use imports::Imports;
pub(crate) use unwind_names::hook_library as unwinder_appeared;
