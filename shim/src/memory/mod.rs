//! Memory for code: the reports of the hooks of the `mmap(2)` family, and their meaning for objects.

pub(crate) mod allocated;
pub(crate) mod bookkeeping;
pub(crate) mod code_pages;
pub(crate) mod elsewhere;
pub(crate) mod header_padding;
pub(crate) mod other_libraries;
pub(crate) mod overdue;
pub(crate) mod pending;
pub(crate) mod ranges;
