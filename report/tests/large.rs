//! Test of the cost of reading 1,000,000 samples of 64 threads: at most two seconds of CPU time and 300 MB.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{find_program, skip};

#[test]
fn a_million_samples_of_64_threads_are_read_in_two_seconds_and_300_megabytes() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let command = crate_directory.join("../target/release/jitlisten");
    let (Some(python), true) = (find_program("python3"), command.exists()) else {
        return skip("python3 and target/release/jitlisten (cargo build --release)");
    };
    let output = Command::new(python)
        .arg(crate_directory.join("benches/large.py"))
        .arg(command)
        .args(["--rounds", "1", "--only", "lines", "--most", "2,300"])
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    println!("{output_text}");
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output_text.contains("1,000,000 samples, 64 threads"), "{output_text}");
}
