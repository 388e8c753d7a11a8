//! Thousands of functions at once: the last object costs what the first one did, in time and in memory.
//!
//! With `JITLISTEN_SCALE=full` as many as in BENCHMARKS.md: 100,000 functions, and 30,000 objects of one; ten minutes.

use std::fs;
use std::io::{self, Write as _};

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::image;
use jitlisten_tests::integration;
use jitlisten_tests::jitdump_reader;

/// What `scale.py` says.
struct Said {
    /// Processor time for one object in each tenth of the run, in microseconds.
    tenths: Vec<f64>,
    /// Bytes for one object in each tenth.
    bytes: Vec<f64>,
    /// Bytes for one object in all.
    per_object: i64,
    mappings: i64,
}

fn host(objects: u32, functions: u32) -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "scale.py")?;
    Some(host.argument(objects.to_string()).argument(functions.to_string()).patience(900))
}

fn said(ended: &Ended) -> Said {
    let text = String::from_utf8_lossy(&ended.stdout);
    let behind =
        |name: &str| text.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("no {name}: {text}")).1;
    let number = |name: &str| behind(name).split([',', '}']).next().and_then(|digits| digits.parse().ok());
    assert_eq!(number("wrong"), Some(0), "{text}");
    let list = |name: &str| -> Vec<f64> {
        let list = behind(name).trim_start_matches('[').split(']').next().unwrap_or_default();
        list.split(", ").map(|tenth| tenth.parse().expect("a number")).collect()
    };
    Said {
        tenths: list("tenths"),
        bytes: list("bytes"),
        per_object: number("per_object").expect("a number"),
        mappings: number("mappings").expect("a number"),
    }
}

fn is_full() -> bool {
    std::env::var_os("JITLISTEN_SCALE").is_some_and(|scale| scale == "full")
}

/// So many mappings are left to the program: `jitlisten/src/sink/image/images.rs`.
fn most_mappings_for_images() -> i64 {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    limit.trim().parse::<i64>().expect("a number") / 8 * 7
}

/// Every object has an image, or so many that the others would have been too many mappings: then the sink has said so,
/// once.
fn has_images(host: &Host, reported: &Said, objects: usize) {
    let found = image::files(host).len();
    if reported.mappings < most_mappings_for_images() {
        assert_eq!((found, host.log().as_str()), (objects, ""));
        return;
    }
    let log = host.log();
    assert!(log.lines().count() == 1 && log.contains("image sink stops") && log.contains("vm.max_map_count"), "{log}");
    assert!(found * 10 >= objects * 9 && found < objects, "{found} images of {objects} objects");
}

/// With `objects` of `functions` each, every sink on, beside the stock process.
fn costs_no_more_at_the_end(objects: u32, functions: u32) {
    let (Some(stock), Some(ours)) = (host(objects, functions), host(objects, functions)) else { return };
    let stock = said(&stock.run(Preload::Nothing).well());
    let ours = ours.variable("JITLISTEN", "all");
    let ended = ours.run(Preload::Library).well();
    let reported = said(&ended);
    let all = format!(
        "stock: us {:?}, bytes {:?}, {} each, {} mappings\nours: us {:?}, bytes {:?}, {} each, {} mappings",
        stock.tenths,
        stock.bytes,
        stock.per_object,
        stock.mappings,
        reported.tenths,
        reported.bytes,
        reported.per_object,
        reported.mappings
    );
    // For BENCHMARKS.md, with --nocapture.
    let _ = writeln!(
        io::stdout(),
        "{objects} objects of {functions} functions, {} images\n{all}",
        image::files(&ours).len()
    );
    let lines = ended.perf_map().entries.len();
    assert!(lines >= (objects * functions) as usize, "{lines} lines in the perf map");
    let dumps = jitdump_reader::find(&ours.scratch("."));
    assert_eq!(jitdump_reader::read(&dumps[0]).functions.len(), (objects * functions) as usize);
    has_images(&ours, &reported, objects as usize);
    // Others compute at the same time, so the quietest of three tenths counts.
    let quietest = |tenths: &[f64]| tenths.iter().copied().fold(f64::MAX, f64::min);
    let (first, last) = (quietest(&reported.tenths[..3]), quietest(&reported.tenths[7..]));
    assert!(last <= 1.5 * first, "{first} us at the beginning, {last} us at the end: {all}");
    // What grows by doubling comes in steps.
    let mean = |tenths: &[f64]| tenths.iter().sum::<f64>() / tenths.len() as f64;
    let (first, last) = (mean(&reported.bytes[1..4]), mean(&reported.bytes[7..]));
    assert!(last <= 2.0 * first, "{first} bytes at the beginning, {last} at the end: {all}");
    let ours_per_function = (reported.per_object - stock.per_object) / i64::from(functions);
    // One page of it is the image's own, for core files (`image/pages.rs` of the sink); 8.4 KB were measured.
    assert!(ours_per_function < 10 << 10, "{ours_per_function} bytes for a function");
    assert!(reported.mappings <= stock.mappings + stock.mappings / 100 + 64, "{all}");
}

#[test]
fn several_functions_to_an_object() {
    if is_full() { costs_no_more_at_the_end(2000, 50) } else { costs_no_more_at_the_end(200, 25) }
}

/// Of MCJIT's two mappings for each, 30,000 take nine tenths of what a process may have.
#[test]
fn an_object_for_each_function() {
    costs_no_more_at_the_end(if is_full() { 30_000 } else { 1500 }, 1);
}
