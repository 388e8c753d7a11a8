//! Images in the lists that tools inside the process read: `dl_iterate_phdr`, `dladdr`, `_dl_find_object`,
//! `backtrace_symbols`; and names for libunwind.
//!
//! | file | content |
//! | --- | --- |
//! | `hooks.rs` | the functions that replace those of the loader and libc |
//! | `originals.rs` | the original functions |
//! | `symbolize.rs` | the text of `backtrace_symbols` |
//! | `imports.rs` | the relocation slots of libraries that call them, and the libraries that are skipped |
//! | `unwind_names.rs` | `unw_get_proc_name` of each libunwind |
//! | `announce.rs` | invalidates the module lists of memray and heaptrack |
//!
//! The hooks show the list of [`jitlisten::modules`], which the sink `modules` maintains. No function is hooked until
//! the sink is on; afterwards the hooks stay, and only call the original while the list is empty.
//!
//! Unwinding does not change. libgcc, LLVM's libunwind and the runtimes of sanitizers keep the loader's functions,
//! because compiled code is registered with them. A library with its own libgcc (`-static-libgcc`) calls our hooks. It
//! gets unwind tables only of code without personality routines, which the tables of images omit.
//!
//! The hooks take none of our locks. The loader's functions take its lock, as they do without us.

mod announce;
mod hooks;
mod imports;
mod originals;
mod symbolize;
mod unwind_names;

pub(crate) use announce::announce_new_modules;
pub(crate) use imports::Imports;
pub(crate) use unwind_names::hook_library as unwinder_appeared;
