//! The instructions of compiled code, by source line, with the samples of each.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::machine::{Machine, Step};
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
            match code.machine() {
                Some(machine) => assembly.image(&mut code, machine, &addresses, &mut left),
                None => assembly.unavailable = Some("no disassembler for this architecture"),
            }
        }
        assembly
    }

    fn image(&mut self, code: &mut ImageCode, machine: Machine, addresses: &BTreeMap<u64, Count>, left: &mut usize) {
        // By offset in the file; functions are known by address.
        let counts: BTreeMap<u64, Count> =
            addresses.iter().filter_map(|(offset, count)| Some((code.address(*offset)?, *count))).collect();
        let mut done = 0;
        for address in counts.keys() {
            let Some((name, range)) = code.function(*address).filter(|_| *address >= done) else { continue };
            done = range.end;
            let length = (range.end - range.start).min(LONGEST_FUNCTION);
            let bytes = code.bytes(range.start, length as usize);
            for Step { address, end, .. } in machine.steps(&bytes, range.start) {
                *left = match left.checked_sub(1) {
                    Some(left) => left,
                    None => return,
                };
                let Some((file, line)) = code.line(address) else { continue };
                let text = machine.text(&bytes[(address - range.start) as usize..], address);
                let count = counts.range(address..end.max(address));
                let mut sum = Count::default();
                count.for_each(|(_, count)| sum += *count);
                let block = self.lines.entry((file, line)).or_default().entry(name.clone()).or_default();
                block.push((address, sum, text));
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
