//! Test that an instruction has the same line in the line table, in the loops of `jitlisten why`, and in the page's
//! assembly.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::Writer;
use jitlisten_report::{Report, to_html};
use serde_json::Value;

const LIBRARY: u64 = 0x5000_0000;
/// Addresses of `__main__.outer` in the image.
const FUNCTION: std::ops::Range<u64> = 0x1000..0x1131;

/// Returns a recording with one sample at each byte of a function. LLVM gave line 0 to the square roots in it, which
/// were inlined from line 7 into line 14.
fn report() -> Report {
    let image = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/inlined/object-2.so");
    let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
    writer.comm(10, 10, "python", true, 1);
    writer.mmap(10, (LIBRARY, LIBRARY + 0x2000), 0, image.to_str().unwrap(), 2);
    for (time, address) in (3..).zip(FUNCTION) {
        writer.sample((10, 10), time, 1, &[LIBRARY + address]);
    }
    common::report(&writer.file())
}

/// Line of each instruction in the page's assembly and weight of its samples, by address.
type Assembly = BTreeMap<u64, (u32, u64)>;

fn assembly(report: &Report) -> Assembly {
    let page = to_html(report);
    let data = page.split_once(r#"type="application/json">"#).unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let mut assembly = Assembly::new();
    for (line, value) in data["files"][0]["lines"].as_object().unwrap() {
        for instruction in value["a"].as_array().unwrap().iter().flat_map(|block| block[1].as_array().unwrap()) {
            let address = u64::from_str_radix(instruction[0].as_str().unwrap(), 16).unwrap();
            assembly.insert(address, (line.parse().unwrap(), instruction[1].as_u64().unwrap()));
        }
    }
    assembly
}

#[test]
fn lines_loops_and_assembly_agree() {
    let report = report();
    let assembly = assembly(&report);
    let [file] = report.profile.files.as_slice() else { panic!("one file") };
    for (number, line) in &file.lines {
        let weight: u64 = assembly.values().filter(|(other, _)| other == number).map(|(_, weight)| weight).sum();
        assert_eq!(line.shares.self_count.weight, weight, "line {number}");
    }
    assert!(!report.loops().is_empty());
    for instruction in report.loops().iter().flat_map(|hot_loop| &hot_loop.instructions) {
        let line = assembly.get(&instruction.address).map_or(0, |(line, _)| *line);
        assert_eq!(instruction.line, line, "{:x}: {}", instruction.address, instruction.text);
    }
    let instructions = report.loops().iter().flat_map(|hot_loop| &hot_loop.instructions);
    let roots = instructions.filter(|instruction| instruction.text.contains("sqrt"));
    let mut lines: Vec<u32> = roots.map(|root| root.line).collect();
    lines.sort_unstable();
    // Line 7 calls np.sqrt. One square root has both located neighbours outside of `inner`, so it gets the line of the
    // call.
    assert_eq!(lines, [7, 7, 7, 7, 7, 7, 7, 7, 14]);
}
