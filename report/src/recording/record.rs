//! Records in memory, one after the other.

use perf_format::PERF_RECORD_AUXTRACE;

use super::bytes::Bytes;

/// `struct perf_event_header`
const HEADER_SIZE: usize = 8;

/// One record, without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
}

/// What ends a run of records.
pub(super) enum Break {
    Damaged,
    /// So many bytes behind the last record belong to it.
    Behind(u64),
}

/// Hands on the records that are whole; returns how many bytes they have.
pub(super) fn records_in(bytes: &[u8], each: &mut impl FnMut(Record<'_>)) -> (usize, Option<Break>) {
    let mut used = 0;
    while let Some((record, size)) = record_at(&bytes[used..]) {
        let Some(record) = record else { return (used, Some(Break::Damaged)) };
        if bytes.len() - used < size {
            break;
        }
        each(record);
        used += size;
        if record.kind == PERF_RECORD_AUXTRACE {
            let behind = Bytes(record.body).u64().unwrap_or_default();
            return (used, Some(Break::Behind(behind)));
        }
    }
    (used, None)
}

/// The record at the beginning of `bytes` and its size; no record where its size cannot be right, nothing where `bytes`
/// end.
fn record_at(bytes: &[u8]) -> Option<(Option<Record<'_>>, usize)> {
    let mut cursor = Bytes(bytes);
    let (kind, misc, size) = (cursor.u32()?, cursor.u16()?, usize::from(cursor.u16()?));
    if size < HEADER_SIZE {
        return Some((None, 0));
    }
    let body = bytes.get(HEADER_SIZE..size)?;
    Some((Some(Record { kind, misc, body }), size))
}
