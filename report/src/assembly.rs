//! The instructions of compiled code, by source line, with the samples of each.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, Formatter as _, GasFormatter};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::profile::Count;
use crate::recording::Recording;
use crate::roots::Roots;
use crate::symbols::{ImageCode, Symbols};

/// More of a function is not disassembled.
const LONGEST_FUNCTION: u64 = 64 << 10;
/// More instructions of one line are not shown, nor of a whole report.
const MOST_OF_A_LINE: usize = 300;
const MOST: usize = 60_000;

/// An instruction: its address in the image, its samples, its text.
type Instruction = (u64, Count, String);

/// Instructions by path and line, in blocks for each function.
pub(crate) struct Assembly {
    lines: FxHashMap<(String, u32), BTreeMap<String, Vec<Instruction>>>,
    /// Why there is none, where there is none.
    unavailable: Option<&'static str>,
}

impl Assembly {
    pub(crate) fn new(recording: &Recording, symbols: &Symbols, roots: &Roots) -> Assembly {
        let mut assembly = Assembly { lines: FxHashMap::default(), unavailable: None };
        let mut left = MOST;
        for (file, addresses) in sampled_addresses(recording, symbols) {
            let Some(mut code) = ImageCode::open(roots, &recording.files[file as usize]) else { continue };
            if !code.is_x86_64() {
                assembly.unavailable = Some("there is no disassembler for this architecture here");
                continue;
            }
            assembly.image(&mut code, &addresses, &mut left);
        }
        assembly
    }

    fn image(&mut self, code: &mut ImageCode, addresses: &BTreeMap<u64, Count>, left: &mut usize) {
        // By offset in the file; functions are known by address.
        let counts: BTreeMap<u64, Count> =
            addresses.iter().filter_map(|(offset, count)| Some((code.address(*offset)?, *count))).collect();
        let mut done = 0;
        for address in counts.keys() {
            let Some((name, range)) = code.function(*address).filter(|_| *address >= done) else { continue };
            done = range.end;
            let length = (range.end - range.start).min(LONGEST_FUNCTION);
            let bytes = code.bytes(range.start, length as usize);
            let mut decoder = Decoder::with_ip(64, &bytes, range.start, DecoderOptions::NONE);
            let mut formatter = GasFormatter::new();
            while decoder.can_decode() && *left != 0 {
                *left -= 1;
                let instruction = decoder.decode();
                let mut text = String::new();
                formatter.format(&instruction, &mut text);
                let Some((file, line)) = code.line(instruction.ip()) else { continue };
                let end = instruction.ip().saturating_add(instruction.len() as u64);
                let count = counts.range(instruction.ip()..end);
                let mut sum = Count::default();
                count.for_each(|(_, count)| sum += *count);
                let block = self.lines.entry((file, line)).or_default().entry(name.clone()).or_default();
                block.push((instruction.ip(), sum, text));
            }
        }
    }

    /// For the page: blocks of a name and instructions, or a sentence; nothing where the line has no code.
    pub(crate) fn line(&self, path: &str, line: u32) -> Option<Value> {
        let Some(blocks) = self.lines.get(&(path.to_owned(), line)) else {
            return self.unavailable.map(|why| json!(why));
        };
        let blocks = blocks.iter().map(|(name, instructions)| {
            let shown: Vec<Value> = instructions
                .iter()
                .take(MOST_OF_A_LINE)
                .map(|(address, count, text)| json!([format!("{address:x}"), count.weight, text]))
                .collect();
            json!([name, shown])
        });
        Some(blocks.collect())
    }
}

/// Of each image, the offsets of leafs with their samples.
fn sampled_addresses(recording: &Recording, symbols: &Symbols) -> BTreeMap<u32, BTreeMap<u64, Count>> {
    let mut found: BTreeMap<u32, BTreeMap<u64, Count>> = BTreeMap::new();
    for sample in &recording.samples {
        let Some(leaf) = recording.stacks.get(sample.stack).first() else { continue };
        let compiled = symbols.frames(*leaf).first().is_some_and(|frame| frame.source.is_some());
        let Some(place) = recording.locations[*leaf as usize].place.filter(|_| compiled) else { continue };
        *found.entry(place.file).or_default().entry(place.offset).or_default() +=
            Count { weight: sample.weight, samples: 1 };
    }
    found
}
