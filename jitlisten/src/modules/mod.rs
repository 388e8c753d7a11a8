//! Images as modules, for `dl_iterate_phdr`, `dladdr` and similar functions, as if the loader had mapped them.
//!
//! ```text
//!   sink `modules`  --publish, withdraw-->  list  --for_each, find-->  hooks of the shim
//!   session's lock                          atomic                     any thread, any lock, signal handlers
//! ```
//!
//! A reader takes no lock, allocates nothing and never waits ([`Published`](crate::plumbing::Published)): libunwind
//! calls from signal handlers, crash handlers from `SIGSEGV`. Later readers do not see a withdrawn module. Its memory
//! is kept until no reader can use it, and that of the last 1,024 longer, because names returned by `dladdr` have no
//! end of life.

mod list;
mod module;

pub use list::{Counts, Reading};
pub use module::{LinkMap, Module, ModuleSymbol};

pub(crate) use module::NewModule;

use crate::AddressRange;

static LIST: list::ModuleList = list::ModuleList::new();

/// How many modules have come and gone so far. Ask before [`read`]: a reader that sees the same counts again has seen
/// the same list.
pub fn counts() -> Counts {
    LIST.counts()
}

/// Holds what is listed while it is looked at.
pub fn read() -> Reading<'static> {
    LIST.read()
}

/// Lists a module; what was listed at its addresses is withdrawn.
pub(crate) fn publish(module: NewModule) {
    LIST.withdraw(module.range());
    LIST.publish(Module::new(module));
}

/// Takes out what has a byte in `range`.
pub(crate) fn withdraw(range: AddressRange) {
    LIST.withdraw(range);
}

/// Takes out everything.
pub(crate) fn clear() {
    LIST.clear();
}
