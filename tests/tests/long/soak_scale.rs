//! Thousands of functions in one process: the last object must cost no more time and memory than the first.
//!
//! `JITLISTEN_SCALE=full` compiles as much as BENCHMARKS.md reports, in ten minutes: 100,000 functions, and 30,000
//! objects of one function each.

use std::fs;
use std::io::{self, Write as _};

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::image;
use jitlisten_tests::integration;
use jitlisten_tests::jitdump_reader;
use jitlisten_tests::log;

/// Measurements that `scale.py` prints.
struct Measurements {
    /// CPU time per object in each tenth of the run, in microseconds.
    us_by_tenth: Vec<f64>,
    /// Bytes per object in each tenth of the run.
    bytes_by_tenth: Vec<f64>,
    /// Bytes per object over the whole run.
    bytes_per_object: i64,
    mappings: i64,
}

fn host(objects: u32, functions: u32) -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "scale.py")?;
    Some(host.argument(objects.to_string()).argument(functions.to_string()).timeout_seconds(900))
}

fn parse_measurements(outcome: &Outcome) -> Measurements {
    let text = String::from_utf8_lossy(&outcome.stdout);
    let text_after =
        |name: &str| text.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("no {name}: {text}")).1;
    let number = |name: &str| text_after(name).split([',', '}']).next().and_then(|digits| digits.parse().ok());
    assert_eq!(number("wrong"), Some(0), "{text}");
    let parse_list = |name: &str| -> Vec<f64> {
        let list = text_after(name).trim_start_matches('[').split(']').next().unwrap_or_default();
        list.split(", ").map(|tenth| tenth.parse().expect("a number")).collect()
    };
    Measurements {
        us_by_tenth: parse_list("tenths"),
        bytes_by_tenth: parse_list("bytes"),
        bytes_per_object: number("per_object").expect("a number"),
        mappings: number("mappings").expect("a number"),
    }
}

fn is_full() -> bool {
    std::env::var_os("JITLISTEN_SCALE").is_some_and(|scale| scale == "full")
}

/// Mapping limit of the image sink, defined in `jitlisten/src/sink/image/images.rs`. The sink leaves the rest of the
/// kernel's limit to the program.
fn max_mappings_for_images() -> i64 {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    limit.trim().parse::<i64>().expect("a number") / 8 * 7
}

/// Asserts that every object has an image, or that the images reached the mapping limit and the log reports that once.
fn check_images(host: &Host, measured: &Measurements, objects: usize) {
    let image_count = image::files(host).len();
    if measured.mappings < max_mappings_for_images() {
        assert_eq!((image_count, host.log().as_str()), (objects, ""));
        return;
    }
    log::assert_one_stop(&host.log(), "image", "vm.max_map_count");
    assert!(image_count * 10 >= objects * 9 && image_count < objects, "{image_count} images of {objects} objects");
}

/// Compiles `objects` objects of `functions` functions each with every sink enabled, and compares the cost with that of
/// a stock process.
fn assert_constant_cost(objects: u32, functions: u32) {
    let (Some(stock), Some(preloaded)) = (host(objects, functions), host(objects, functions)) else { return };
    let stock = parse_measurements(&stock.run(Preload::Nothing).expect_success());
    let preloaded = preloaded.variable("JITLISTEN", "all");
    let outcome = preloaded.run(Preload::Library).expect_success();
    let measured = parse_measurements(&outcome);
    let summary = format!(
        "stock: us {:?}, bytes {:?}, {} each, {} mappings\nours: us {:?}, bytes {:?}, {} each, {} mappings",
        stock.us_by_tenth,
        stock.bytes_by_tenth,
        stock.bytes_per_object,
        stock.mappings,
        measured.us_by_tenth,
        measured.bytes_by_tenth,
        measured.bytes_per_object,
        measured.mappings
    );
    // Print the measurements for BENCHMARKS.md; `--nocapture` shows them.
    let _ = writeln!(
        io::stdout(),
        "{objects} objects of {functions} functions, {} images\n{summary}",
        image::files(&preloaded).len()
    );
    let lines = outcome.perf_map().entries.len();
    assert!(lines >= (objects * functions) as usize, "{lines} lines in the perf map");
    let dumps = jitdump_reader::find(&preloaded.scratch("."));
    assert_eq!(jitdump_reader::read(&dumps[0]).functions.len(), (objects * functions) as usize);
    check_images(&preloaded, &measured, objects as usize);
    // Other processes may be running, so compare the fastest of the first three tenths of the run with that of the
    // last.
    let quietest = |tenths: &[f64]| tenths.iter().copied().fold(f64::MAX, f64::min);
    let (first, last) = (quietest(&measured.us_by_tenth[..3]), quietest(&measured.us_by_tenth[7..]));
    assert!(last <= 1.5 * first, "{first} us at the beginning, {last} us at the end: {summary}");
    // Buffers that double their size make memory use grow in steps, so compare means.
    let mean = |tenths: &[f64]| tenths.iter().sum::<f64>() / tenths.len() as f64;
    let (first, last) = (mean(&measured.bytes_by_tenth[1..4]), mean(&measured.bytes_by_tenth[7..]));
    assert!(last <= 2.0 * first, "{first} bytes at the beginning, {last} at the end: {summary}");
    let extra_per_function = (measured.bytes_per_object - stock.bytes_per_object) / i64::from(functions);
    // An image keeps one page for core files (`image/pages.rs` of the sink). 8.4 KB per function were measured.
    assert!(extra_per_function < 10 << 10, "{extra_per_function} bytes for a function");
    assert!(measured.mappings <= stock.mappings + stock.mappings / 100 + 64, "{summary}");
}

#[test]
fn several_functions_to_an_object() {
    if is_full() { assert_constant_cost(2000, 50) } else { assert_constant_cost(200, 25) }
}

/// MCJIT makes two mappings per object: 30,000 objects take nine tenths of the kernel's limit for a process.
#[test]
fn an_object_for_each_function() {
    assert_constant_cost(if is_full() { 30_000 } else { 1500 }, 1);
}
