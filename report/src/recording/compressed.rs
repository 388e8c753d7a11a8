//! The records in the compressed records of `perf record -z`.
//!
//! All of them together are one stream of zstd (RFC 8878), whose frame perf never ends. A record of either kind may
//! begin in one compressed record and end in the next.
//!
//! Four bytes can expand to 128 KB, so a small file could take hours and all memory. Blocks are handed on one by one,
//! and a stream that expands more than recordings do is damaged.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::record::{Record, records_in};

/// The header of a frame has at most so many bytes.
const FRAME_HEADER: usize = 18;
/// The window of level 22, the highest of `-z`.
const LARGEST_WINDOW: u64 = 128 << 20;
/// The expansion that is believed, for each byte and altogether. Recordings of an idle machine reach about 50.
const MAX_EXPANSION: u64 = 256;
const FREE_EXPANSION: u64 = 16 << 20;
/// An empty last block, and a checksum, which is not read where the frame has none.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

pub(super) struct Decompressor {
    decoder: FrameDecoder,
    in_frame: bool,
    /// The beginning of a block.
    input: Vec<u8>,
    /// The beginning of a record.
    output: Vec<u8>,
    /// Bytes that may still come out.
    budget: u64,
    damaged: bool,
}

impl Decompressor {
    pub(super) fn new() -> Decompressor {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        let (input, output) = (Vec::new(), Vec::new());
        Decompressor { decoder, in_frame: false, input, output, budget: FREE_EXPANSION, damaged: false }
    }

    /// Takes the data of one compressed record, and calls `each` for every record that is complete now.
    pub(super) fn add(&mut self, data: &[u8], each: &mut impl FnMut(Record<'_>)) {
        if !self.damaged {
            self.input.extend_from_slice(data);
            self.budget += data.len() as u64 * MAX_EXPANSION;
            self.damaged = self.decode(each).is_none();
        }
    }

    /// Hands on what the decoder kept because a later block could have referred to it. False if the stream is damaged.
    pub(super) fn finish(mut self, each: &mut impl FnMut(Record<'_>)) -> bool {
        if self.in_frame && !self.damaged {
            self.damaged = self.decode_block(&LAST_BLOCK, each).is_none();
        }
        !self.damaged
    }

    fn decode(&mut self, each: &mut impl FnMut(Record<'_>)) -> Option<()> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while self.in_frame || rest.len() >= FRAME_HEADER {
            if !self.in_frame {
                self.decoder.reset(&mut rest).ok()?;
                self.in_frame = true;
            }
            let Some(block) = block_size(rest).and_then(|size| rest.get(..size)) else { break };
            self.decode_block(block, each)?;
            rest = &rest[block.len()..];
        }
        self.input = rest.to_vec();
        Some(())
    }

    fn decode_block(&mut self, block: &[u8], each: &mut impl FnMut(Record<'_>)) -> Option<()> {
        self.in_frame = !self.decoder.decode_blocks(block, BlockDecodingStrategy::UptoBlocks(1)).ok()?;
        let before = self.output.len();
        self.decoder.collect_to_writer(&mut self.output).ok()?;
        self.budget = self.budget.checked_sub((self.output.len() - before) as u64)?;
        let (used, stop) = records_in(&self.output, each);
        self.output.drain(..used);
        stop.is_none().then_some(())
    }
}

/// `Block_Header`: last block (1 bit), type (2 bits), size (21 bits); of a byte that repeats, the block has only that.
fn block_size(block: &[u8]) -> Option<usize> {
    let header = u32::from_le_bytes([*block.first()?, *block.get(1)?, *block.get(2)?, 0]);
    let repeated = header >> 1 & 3 == 1;
    Some(3 + if repeated { 1 } else { (header >> 3) as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a window of 8 MB and blocks that repeat one byte 128 KB long.
    fn bomb(blocks: usize) -> Vec<u8> {
        let mut data = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
        for _ in 0..blocks {
            data.extend_from_slice(&(((128 << 10) << 3 | 1 << 1) as u32).to_le_bytes()[..3]);
            // A record of 0x0808 bytes, whose kind is nonsense.
            data.push(8);
        }
        data
    }

    #[test]
    fn a_small_record_does_not_become_gigabytes() {
        let mut decompressor = Decompressor::new();
        let (mut records, mut most) = (0_u64, 0);
        for part in bomb(40_000).chunks(65_000) {
            decompressor.add(part, &mut |record| records += record.body.len() as u64);
            most = most.max(decompressor.output.capacity());
        }
        assert!(decompressor.damaged && records > FREE_EXPANSION / 2, "{records}");
        assert!(records < FREE_EXPANSION + 160_000 * MAX_EXPANSION && most < 32 << 20, "{records}, {most}");
    }
}
