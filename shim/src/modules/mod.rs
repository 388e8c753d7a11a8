//! Images in the lists that tools inside the process read: `dl_iterate_phdr`, `dladdr`, `_dl_find_object`,
//! `backtrace_symbols`; and names for libunwind.
//!
//! | file | says |
//! | --- | --- |
//! | `hooks.rs` | the functions that replace those of the loader and libc |
//! | `real.rs` | those functions themselves |
//! | `symbolize.rs` | the text of `backtrace_symbols` |
//! | `imports.rs` | the relocation slots of libraries that call them, and the libraries that are skipped |
//! | `unwind_names.rs` | `unw_get_proc_name` of each libunwind |
//! | `stale_list.rs` | how memray and heaptrack learn that their own list is old |
//!
//! What is shown is the list of [`jitlisten::modules`], which the sink of the same name keeps. While the sink is off, nothing is
//! hooked; once hooked, a function stays so, and passes on what it is asked while the list is empty.
//!
//! Unwinding does not change. libgcc, LLVM's libunwind and the runtimes of sanitizers keep the loader's own functions: they know
//! compiled code because it is registered with them. A library with a libgcc of its own (`-static-libgcc`) asks our hooks, and is
//! shown unwind tables only of code without personality routines, which the tables of images leave out.
//!
//! Locks: the hooks take none of ours. The loader's functions take its lock, as without us.

mod hooks;
mod imports;
mod real;
mod stale_list;
mod symbolize;
mod unwind_names;

pub(crate) use imports::Imports;
pub(crate) use stale_list::announce;
pub(crate) use unwind_names::library_appeared as unwinder_appeared;
