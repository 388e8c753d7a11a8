//! A recording of 1,000,000 samples of 64 threads, read by the command: at most two seconds of processor time and 300
//! MB.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{find, skip};

#[test]
fn a_million_samples_of_64_threads_are_read_in_two_seconds_and_300_megabytes() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let command = here.join("../target/release/jitlisten");
    let (Some(python), true) = (find("python3"), command.exists()) else {
        return skip("python3 and target/release/jitlisten (cargo build --release)");
    };
    let output = Command::new(python)
        .arg(here.join("benches/large.py"))
        .arg(command)
        .args(["--rounds", "1", "--only", "lines", "--most", "2,300"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1,000,000 samples, 64 threads"), "{said}");
}
