//! Records in memory, one after the other.

use wire::perf_data::PERF_RECORD_AUXTRACE;

use super::bytes::Bytes;

/// Size of `struct perf_event_header`.
const HEADER_BYTES: usize = 8;

/// Record without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
}

/// Reason why a run of records ends.
pub(super) enum Break {
    Damaged,
    /// The last record is followed by this many bytes that belong to it.
    TrailingBytes(u64),
}

/// Passes complete records to `visit`, and returns the number of bytes that they occupy.
pub(super) fn records_in(bytes: &[u8], visit: &mut impl FnMut(Record<'_>)) -> (usize, Option<Break>) {
    let mut consumed = 0;
    while let Some((record, size)) = record_at(&bytes[consumed..]) {
        let Some(record) = record else { return (consumed, Some(Break::Damaged)) };
        if bytes.len() - consumed < size {
            break;
        }
        visit(record);
        consumed += size;
        if record.kind == PERF_RECORD_AUXTRACE {
            let trailing = Bytes(record.body).u64().unwrap_or_default();
            return (consumed, Some(Break::TrailingBytes(trailing)));
        }
    }
    (consumed, None)
}

/// Parses the record at the start of `bytes`. Returns the record with its size; the record is `None` if its size is
/// invalid. Returns `None` if `bytes` ends inside the record.
fn record_at(bytes: &[u8]) -> Option<(Option<Record<'_>>, usize)> {
    let mut cursor = Bytes(bytes);
    let (kind, misc, size) = (cursor.u32()?, cursor.u16()?, usize::from(cursor.u16()?));
    if size < HEADER_BYTES {
        return Some((None, 0));
    }
    let body = bytes.get(HEADER_BYTES..size)?;
    Some((Some(Record { kind, misc, body }), size))
}
