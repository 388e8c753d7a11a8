//! Images as modules, for `dl_iterate_phdr`, `dladdr` and similar functions, as if the loader had mapped them.
//!
//! ```text
//!   `modules` sink  --publish, withdraw-->  list  --for_each, find-->  hooks of the shim
//!   session's lock                          atomic                     any thread, any lock, signal handlers
//! ```
//!
//! A reader takes no lock, allocates nothing and never waits ([`Published`](crate::plumbing::Published)), because
//! libunwind calls these functions from signal handlers, and crash handlers call them after a `SIGSEGV`. A withdrawn
//! module is invisible to later readers. Its memory is kept until no reader can use it. The last 1,024 withdrawn
//! modules are kept longer, because callers of `dladdr` may hold on to the returned names indefinitely.

mod list;
mod module;

pub use list::{Counts, Reading};
pub use module::{LinkMap, Module, ModuleSymbol};

pub(crate) use module::NewModule;

use crate::AddressRange;

static LIST: list::ModuleList = list::ModuleList::new();

/// Number of modules added and removed so far. Call this before [`read`]: if the counts are unchanged later, so is the
/// list.
pub fn counts() -> Counts {
    LIST.counts()
}

/// Starts a read. Listed modules stay in memory until the reader is dropped.
pub fn read() -> Reading<'static> {
    LIST.read()
}

/// Lists a module, and withdraws older modules at the same addresses.
pub(crate) fn publish(module: NewModule) {
    LIST.withdraw(module.range());
    LIST.publish(Module::new(module));
}

/// Withdraws every module that overlaps `range`.
pub(crate) fn withdraw(range: AddressRange) {
    LIST.withdraw(range);
}

/// Withdraws all modules.
pub(crate) fn clear() {
    LIST.clear();
}
