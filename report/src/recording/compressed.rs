//! The records in the compressed records of `perf record -z`.
//!
//! All of them together are one stream of zstd (RFC 8878), whose frame perf never ends. A record of either kind may
//! begin in one compressed record and end in the next.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::record::{Record, records_in};

/// The header of a frame has at most so many bytes.
const FRAME_HEADER: usize = 18;
/// The window of level 22, the highest of `-z`.
const LARGEST_WINDOW: u64 = 128 << 20;
/// An empty last block, and a checksum, which is not read where the frame has none.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

pub(super) struct Decompressor {
    decoder: FrameDecoder,
    in_frame: bool,
    /// The beginning of a block.
    input: Vec<u8>,
    /// The beginning of a record.
    output: Vec<u8>,
    damaged: bool,
}

impl Decompressor {
    pub(super) fn new() -> Decompressor {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        Decompressor { decoder, in_frame: false, input: Vec::new(), output: Vec::new(), damaged: false }
    }

    /// Takes the data of one compressed record, and calls `each` for every record that is complete now.
    pub(super) fn add(&mut self, data: &[u8], each: &mut impl FnMut(Record<'_>)) {
        if !self.damaged {
            self.input.extend_from_slice(data);
            self.damaged = self.decode().is_none();
            self.hand_on(each);
        }
    }

    /// Hands on what the decoder kept because a later block could have referred to it. False if the stream is damaged.
    pub(super) fn finish(mut self, each: &mut impl FnMut(Record<'_>)) -> bool {
        if self.in_frame && !self.damaged {
            self.damaged = self.decode_block(&LAST_BLOCK).is_none();
            self.hand_on(each);
        }
        !self.damaged
    }

    fn decode(&mut self) -> Option<()> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while self.in_frame || rest.len() >= FRAME_HEADER {
            if !self.in_frame {
                self.decoder.reset(&mut rest).ok()?;
                self.in_frame = true;
            }
            let Some(block) = block_size(rest).and_then(|size| rest.get(..size)) else { break };
            self.decode_block(block)?;
            rest = &rest[block.len()..];
        }
        self.input = rest.to_vec();
        Some(())
    }

    fn decode_block(&mut self, block: &[u8]) -> Option<()> {
        self.in_frame = !self.decoder.decode_blocks(block, BlockDecodingStrategy::UptoBlocks(1)).ok()?;
        self.decoder.collect_to_writer(&mut self.output).ok()?;
        Some(())
    }

    fn hand_on(&mut self, each: &mut impl FnMut(Record<'_>)) {
        let (used, stop) = records_in(&self.output, each);
        self.output.drain(..used);
        self.damaged |= stop.is_some();
    }
}

/// `Block_Header`: last block (1 bit), type (2 bits), size (21 bits); of a byte that repeats, the block has only that.
fn block_size(block: &[u8]) -> Option<usize> {
    let header = u32::from_le_bytes([*block.first()?, *block.get(1)?, *block.get(2)?, 0]);
    let repeated = header >> 1 & 3 == 1;
    Some(3 + if repeated { 1 } else { (header >> 3) as usize })
}
