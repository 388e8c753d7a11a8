//! Iteration over the records of a file, with a buffer of bounded size.

use std::io::{self, Read, Seek, SeekFrom};

use wire::perf_data::{PERF_RECORD_COMPRESSED, PERF_RECORD_COMPRESSED2};

use super::bytes::Bytes;
use super::compressed::Decompressor;
use super::record::{Break, Record, records_in};

const BUFFER_BYTES: usize = 1 << 20;
/// Size limit of a record, whose size field has 16 bits.
const MAX_RECORD_BYTES: usize = 1 << 16;

/// Reason why reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The last record is complete.
    Whole,
    /// The file ends inside a record, at this offset.
    CutOff(u64),
    /// An invalid record is at this offset.
    Damaged(u64),
    /// The last record is complete, but some compressed records cannot be read.
    CompressedDamaged,
}

/// Calls `visit` for every record in `range` of the file, including those in compressed records.
pub(super) fn for_each(
    file: &mut (impl Read + Seek),
    range: std::ops::Range<u64>,
    mut visit: impl FnMut(Record<'_>),
) -> io::Result<End> {
    let mut decompressor = Decompressor::new();
    let end = visit_file(file, range, |record| match record.kind {
        PERF_RECORD_COMPRESSED => decompressor.add(record.body, &mut visit),
        PERF_RECORD_COMPRESSED2 => {
            let mut body = Bytes(record.body);
            let size = body.u64().and_then(|size| usize::try_from(size).ok());
            // The size excludes the padding. A wrong size would damage the stream.
            decompressor.add(size.and_then(|size| body.take(size)).unwrap_or(body.0), &mut visit);
        }
        _ => visit(record),
    })?;
    let readable = decompressor.finish(&mut visit);
    Ok(if end == End::Whole && !readable { End::CompressedDamaged } else { end })
}

fn visit_file(
    file: &mut (impl Read + Seek),
    mut range: std::ops::Range<u64>,
    mut visit: impl FnMut(Record<'_>),
) -> io::Result<End> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match visit_until_stop(file, range.clone(), &mut buffer, &mut visit)? {
            Stop::End(end) => return Ok(end),
            Stop::Skip(next) if next >= range.end => return Ok(End::Whole),
            Stop::Skip(next) => range.start = next,
        }
    }
}

/// Reason why a run of records stopped: the end of reading, or an offset at which to continue.
enum Stop {
    End(End),
    Skip(u64),
}

fn visit_until_stop(
    file: &mut (impl Read + Seek),
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
    visit: &mut impl FnMut(Record<'_>),
) -> io::Result<Stop> {
    file.seek(SeekFrom::Start(range.start))?;
    let mut input = file.take(range.end.saturating_sub(range.start));
    let (mut filled, mut offset) = (0, range.start);
    loop {
        let mut consumed = 0;
        loop {
            let (size, break_reason) = records_in(&buffer[consumed..filled], visit);
            consumed += size;
            let position = offset.saturating_add(consumed as u64);
            match break_reason {
                Some(Break::Damaged) => return Ok(Stop::End(End::Damaged(position))),
                // Bytes that are already in the buffer are not read again.
                Some(Break::TrailingBytes(count)) if count <= (filled - consumed) as u64 => consumed += count as usize,
                Some(Break::TrailingBytes(count)) => return Ok(Stop::Skip(position.saturating_add(count))),
                None => break,
            }
        }
        offset += consumed as u64;
        buffer.copy_within(consumed..filled, 0);
        filled -= consumed;
        debug_assert!(buffer.len() - filled >= MAX_RECORD_BYTES);
        match input.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(Stop::End(if filled == 0 { End::Whole } else { End::CutOff(offset) })),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
