//! Memory for code: the hooks of the `mmap(2)` family. What a change of it means for objects, the session's ledger
//! says.

pub(crate) mod allocated;
pub(crate) mod elsewhere;
pub(crate) mod header_padding;
pub(crate) mod other_libraries;
pub(crate) mod overdue;

#[cfg(test)]
pub(crate) fn range(start: u64, end: u64) -> jitlisten::AddressRange {
    jitlisten::AddressRange::new(jitlisten::Address(start), end - start).unwrap()
}
