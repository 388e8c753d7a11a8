//! Thousands of functions at once: the last object costs what the first one did, in time and in memory.

use jitlisten_tests::door;
use jitlisten_tests::host::{Ended, Host, Preload};

/// What `scale.py` says.
struct Said {
    /// Processor time for one object in each tenth of the run, in microseconds.
    tenths: Vec<f64>,
    /// Bytes for one object.
    per_object: i64,
    mappings: i64,
}

fn host(objects: u32, functions: u32) -> Option<Host> {
    let host = door::numba("numba-0.68.1", "scale.py")?;
    Some(host.argument(objects.to_string()).argument(functions.to_string()))
}

fn said(ended: &Ended) -> Said {
    let text = String::from_utf8_lossy(&ended.stdout);
    let behind =
        |name: &str| text.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("no {name}: {text}")).1;
    let number = |name: &str| behind(name).split([',', '}']).next().and_then(|digits| digits.parse().ok());
    assert_eq!(number("wrong"), Some(0), "{text}");
    let tenths = behind("tenths").trim_start_matches('[').split(']').next().unwrap_or_default();
    Said {
        tenths: tenths.split(", ").map(|tenth| tenth.parse().expect("a number")).collect(),
        per_object: number("per_object").expect("a number"),
        mappings: number("mappings").expect("a number"),
    }
}

/// With `objects` of `functions` each, every sink on, beside the stock process.
fn costs_no_more_at_the_end(objects: u32, functions: u32) {
    let (Some(stock), Some(ours)) = (host(objects, functions), host(objects, functions)) else { return };
    let stock = said(&stock.run(Preload::Nothing).well());
    let ours = ours.variable("JITLISTEN", "all");
    let ended = ours.run(Preload::Library).well();
    let told = said(&ended);
    let lines = ended.perf_map().entries.len();
    assert!(lines >= (objects * functions) as usize, "{lines} lines in the perf map");
    assert_eq!(ours.log(), "");
    // Others compute at the same time, so the quietest of three tenths counts.
    let quietest = |tenths: &[f64]| tenths.iter().copied().fold(f64::MAX, f64::min);
    let (first, last) = (quietest(&told.tenths[..3]), quietest(&told.tenths[7..]));
    assert!(last <= 2.0 * first, "{first} us at the beginning, {last} us at the end");
    let ours_per_function = (told.per_object - stock.per_object) / i64::from(functions);
    assert!(ours_per_function < 8 << 10, "{ours_per_function} bytes for a function");
    assert!(
        told.mappings <= stock.mappings + stock.mappings / 10 + 64,
        "{} mappings, {}",
        told.mappings,
        stock.mappings
    );
}

#[test]
fn several_functions_to_an_object() {
    costs_no_more_at_the_end(200, 25);
}

#[test]
fn an_object_for_each_function() {
    costs_no_more_at_the_end(1500, 1);
}
