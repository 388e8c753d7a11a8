//! Support for the hooks of the `mmap(2)` family, which report changes of code memory. The session's ledger decides how
//! a change affects objects.

pub(crate) mod allocated;
pub(crate) mod header_padding;
pub(crate) mod import_slots;
pub(crate) mod other_libraries;

#[cfg(test)]
pub(crate) fn range(start: u64, end: u64) -> jitlisten::AddressRange {
    jitlisten::AddressRange::new(jitlisten::Address(start), end - start).unwrap()
}
