//! The records of a recording, one after the other, in a buffer of bounded size.

use std::io::{self, Read, Seek, SeekFrom};

use super::bytes::Bytes;

/// `struct perf_event_header`
const HEADER_SIZE: usize = 8;
const BUFFER: usize = 1 << 20;
/// A record's size has sixteen bits.
const LONGEST_RECORD: usize = 1 << 16;

/// `PERF_RECORD_AUXTRACE` has bytes behind it that its size does not count.
const PERF_RECORD_AUXTRACE: u32 = 71;

/// One record, without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
}

/// How the reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the last record.
    Whole,
    /// In the middle of one, at this offset.
    CutOff(u64),
    /// At a record that cannot be one, at this offset.
    Damaged(u64),
}

/// Calls `each` for every record in `range` of the file.
pub(super) fn for_each(
    file: &mut (impl Read + Seek),
    mut range: std::ops::Range<u64>,
    mut each: impl FnMut(Record<'_>),
) -> io::Result<End> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match records_until_a_stop(file, range.clone(), &mut buffer, &mut each)? {
            Stop::End(end) => return Ok(end),
            Stop::Skip(next) if next >= range.end => return Ok(End::Whole),
            Stop::Skip(next) => range.start = next,
        }
    }
}

/// Why the reading stopped: there is no more, or it goes on at an offset.
enum Stop {
    End(End),
    Skip(u64),
}

fn records_until_a_stop(
    file: &mut (impl Read + Seek),
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
    each: &mut impl FnMut(Record<'_>),
) -> io::Result<Stop> {
    file.seek(SeekFrom::Start(range.start))?;
    let mut input = file.take(range.end.saturating_sub(range.start));
    let (mut filled, mut offset) = (0, range.start);
    loop {
        let mut used = 0;
        loop {
            let (more, break_) = records_in(&buffer[used..filled], each);
            used += more;
            let at = offset.saturating_add(used as u64);
            match break_ {
                Some(Break::Damaged) => return Ok(Stop::End(End::Damaged(at))),
                // What is here already is not read again.
                Some(Break::Behind(count)) if count <= (filled - used) as u64 => used += count as usize,
                Some(Break::Behind(count)) => return Ok(Stop::Skip(at.saturating_add(count))),
                None => break,
            }
        }
        offset += used as u64;
        buffer.copy_within(used..filled, 0);
        filled -= used;
        debug_assert!(buffer.len() - filled >= LONGEST_RECORD);
        match input.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(Stop::End(if filled == 0 { End::Whole } else { End::CutOff(offset) })),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What ends a run of records.
enum Break {
    Damaged,
    /// So many bytes behind the last record belong to it.
    Behind(u64),
}

/// Hands on the records that are whole; returns how many bytes they have.
fn records_in(bytes: &[u8], each: &mut impl FnMut(Record<'_>)) -> (usize, Option<Break>) {
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
