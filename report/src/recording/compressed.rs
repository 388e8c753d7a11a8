//! Decompressor for the records of `perf record -z`.
//!
//! All compressed records together form one zstd stream (RFC 8878), whose frame perf never closes. A block, or a record
//! in it, may begin in one compressed record and end in the next.
//!
//! Four bytes can expand to 128 KB, so a small file could take hours and all memory. Blocks are decoded one by one, and
//! a stream that expands more than real recordings do counts as damaged.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::record::{Record, records_in};

/// Maximum size of a zstd frame header in bytes.
const MAX_FRAME_HEADER_BYTES: usize = 18;
/// Window size of level 22, the highest level of `-z`.
const MAX_WINDOW_BYTES: u64 = 128 << 20;
/// Maximum expansion per input byte; `FREE_EXPANSION` bytes are allowed in addition. Recordings of an idle machine
/// reach about 50.
const MAX_EXPANSION: u64 = 256;
const FREE_EXPANSION: u64 = 16 << 20;
/// Empty last block and a checksum. The decoder ignores the last four bytes if the frame lacks a checksum.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

pub(super) struct Decompressor {
    decoder: FrameDecoder,
    in_frame: bool,
    /// Start of a block whose end has not been added yet.
    input: Vec<u8>,
    /// Start of a record whose end has not been decoded yet.
    output: Vec<u8>,
    /// Number of bytes that the decoder may still produce.
    budget: u64,
    damaged: bool,
}

impl Decompressor {
    pub(super) fn new() -> Decompressor {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        let (input, output) = (Vec::new(), Vec::new());
        Decompressor { decoder, in_frame: false, input, output, budget: FREE_EXPANSION, damaged: false }
    }

    /// Adds the data of one compressed record, and calls `visit` for every record that is now complete.
    pub(super) fn add(&mut self, data: &[u8], visit: &mut impl FnMut(Record<'_>)) {
        if !self.damaged {
            self.input.extend_from_slice(data);
            self.budget += data.len() as u64 * MAX_EXPANSION;
            self.damaged = self.decode(visit).is_none();
        }
    }

    /// Flushes data that the decoder held back because a later block could refer to it. Returns false if the stream is
    /// damaged.
    pub(super) fn finish(mut self, visit: &mut impl FnMut(Record<'_>)) -> bool {
        if self.in_frame && !self.damaged {
            self.damaged = self.decode_block(&LAST_BLOCK, visit).is_none();
        }
        !self.damaged
    }

    fn decode(&mut self, visit: &mut impl FnMut(Record<'_>)) -> Option<()> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while self.in_frame || rest.len() >= MAX_FRAME_HEADER_BYTES {
            if !self.in_frame {
                self.decoder.reset(&mut rest).ok()?;
                self.in_frame = true;
            }
            let Some(block) = block_size(rest).and_then(|size| rest.get(..size)) else { break };
            self.decode_block(block, visit)?;
            rest = &rest[block.len()..];
        }
        self.input = rest.to_vec();
        Some(())
    }

    fn decode_block(&mut self, block: &[u8], visit: &mut impl FnMut(Record<'_>)) -> Option<()> {
        self.in_frame = !self.decoder.decode_blocks(block, BlockDecodingStrategy::UptoBlocks(1)).ok()?;
        let old_length = self.output.len();
        self.decoder.collect_to_writer(&mut self.output).ok()?;
        self.budget = self.budget.checked_sub((self.output.len() - old_length) as u64)?;
        let (consumed, stop) = records_in(&self.output, visit);
        self.output.drain(..consumed);
        stop.is_none().then_some(())
    }
}

/// Parses `Block_Header`: last block (1 bit), type (2 bits), size (21 bits). A block that repeats one byte contains
/// only that byte.
fn block_size(block: &[u8]) -> Option<usize> {
    let header = u32::from_le_bytes([*block.first()?, *block.get(1)?, *block.get(2)?, 0]);
    let repeated = header >> 1 & 3 == 1;
    Some(3 + if repeated { 1 } else { (header >> 3) as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a zstd frame with a window of 8 MB and blocks that each expand to 128 KB.
    fn bomb(blocks: usize) -> Vec<u8> {
        let mut data = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
        for _ in 0..blocks {
            data.extend_from_slice(&(((128 << 10) << 3 | 1 << 1) as u32).to_le_bytes()[..3]);
            // The content is a record of 0x0808 bytes with an invalid kind.
            data.push(8);
        }
        data
    }

    #[test]
    fn a_small_record_does_not_expand_to_gigabytes() {
        let mut decompressor = Decompressor::new();
        let (mut records, mut max_capacity) = (0_u64, 0);
        for part in bomb(40_000).chunks(65_000) {
            decompressor.add(part, &mut |record| records += record.body.len() as u64);
            max_capacity = max_capacity.max(decompressor.output.capacity());
        }
        assert!(decompressor.damaged && records > FREE_EXPANSION / 2, "{records}");
        assert!(
            records < FREE_EXPANSION + 160_000 * MAX_EXPANSION && max_capacity < 32 << 20,
            "{records}, {max_capacity}"
        );
    }
}
