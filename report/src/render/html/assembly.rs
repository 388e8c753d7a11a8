//! Instructions of compiled code by source line, with the samples of each.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::machine::{Machine, Step};
use crate::profile::{Count, stack_counts};
use crate::recording::Recording;
use crate::symbols::Roots;
use crate::symbols::{ImageCode, Symbols};

/// Maximum number of instructions shown per source line.
const MAX_INSTRUCTIONS_PER_LINE: usize = 300;
/// Maximum number of instructions in the whole report.
const MAX_INSTRUCTIONS: usize = 60_000;

/// Address in the image, samples, and text of an instruction.
type Instruction = (u64, Count, String);

/// Instructions by path and line, in blocks by function.
pub(crate) struct Assembly {
    lines: FxHashMap<(String, u32), BTreeMap<String, Vec<Instruction>>>,
    /// Reason why the instructions are missing, if they are.
    unavailable: Option<&'static str>,
}

impl Assembly {
    pub(crate) fn new(recording: &Recording, symbols: &Symbols, roots: &Roots) -> Assembly {
        let mut assembly = Assembly { lines: FxHashMap::default(), unavailable: None };
        let mut remaining = MAX_INSTRUCTIONS;
        for (file, addresses) in sampled_addresses(recording, symbols) {
            let Some(mut code) = ImageCode::open(roots, &recording.files[file as usize]) else { continue };
            match code.machine() {
                Some(machine) => assembly.add_image(&mut code, machine, &addresses, &mut remaining),
                None => assembly.unavailable = Some("no disassembler for this architecture"),
            }
        }
        assembly
    }

    fn add_image(
        &mut self,
        code: &mut ImageCode,
        machine: Machine,
        addresses: &BTreeMap<u64, Count>,
        remaining: &mut usize,
    ) {
        // Samples have file offsets; the image's functions have addresses.
        let counts: BTreeMap<u64, Count> =
            addresses.iter().filter_map(|(offset, count)| Some((code.address(*offset)?, *count))).collect();
        for (name, range) in code.functions_at(counts.keys()) {
            let bytes = code.bytes(&range);
            for Step { address, end, .. } in machine.steps(&bytes, range.start) {
                *remaining = match remaining.checked_sub(1) {
                    Some(remaining) => remaining,
                    None => return,
                };
                let Some((file, line)) = code.line(address) else { continue };
                let text = machine.text(&bytes[(address - range.start) as usize..], address);
                let count = counts.range(address..end.max(address)).map(|(_, count)| count).sum();
                let block = self.lines.entry((file, line)).or_default().entry(name.clone()).or_default();
                block.push((address, count, text));
            }
        }
    }

    /// Returns the instructions of a line for the page, in blocks that start with a function name. Without
    /// instructions, returns a sentence that gives the reason. Returns `None` if the line has no code.
    pub(crate) fn line(&self, path: &str, line: u32) -> Option<Value> {
        let Some(blocks) = self.lines.get(&(path.to_owned(), line)) else {
            return self.unavailable.map(|why| json!(why));
        };
        let blocks = blocks.iter().map(|(name, instructions)| {
            let instruction_values: Vec<Value> = instructions
                .iter()
                .take(MAX_INSTRUCTIONS_PER_LINE)
                .map(|(address, count, text)| json!([format!("{address:x}"), count.weight, text]))
                .collect();
            json!([name, instruction_values])
        });
        Some(blocks.collect())
    }
}

/// Returns the sampled leaf addresses, as file offsets, with their sample counts, for each image.
fn sampled_addresses(recording: &Recording, symbols: &Symbols) -> BTreeMap<u32, BTreeMap<u64, Count>> {
    let mut offsets_by_file: BTreeMap<u32, BTreeMap<u64, Count>> = BTreeMap::new();
    for (stack, count) in stack_counts(&recording.samples) {
        let Some(leaf) = recording.stacks.get(stack).first() else { continue };
        let has_source = symbols.frames(*leaf).first().is_some_and(|frame| frame.source.is_some());
        let Some(position) = recording.locations[*leaf as usize].position.filter(|_| has_source) else { continue };
        *offsets_by_file.entry(position.file).or_default().entry(position.offset).or_default() += count;
    }
    offsets_by_file
}
