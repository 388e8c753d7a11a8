//! `memray run --native` with the wheel's own copy of libunwind: the native frames of arrays made in compiled code.

use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::{integration, paths, tool};

const VENV: &str = "numba-0.60.0";

/// (large allocations, those whose native stack is whole)
fn recorded(preload: Preload) -> Option<(u32, u32)> {
    let python = integration::python(VENV)?;
    let host = Host::new(&python, VENV);
    let output = host.scratch("memray.bin");
    let host = ["-m", "memray", "run", "--native", "-q", "-o"].iter().fold(host, |host, word| host.argument(word));
    let host = host.argument(&output).argument(paths::host("allocates.py"));
    let _ = host.run(preload).well();
    let read = tool::run(Command::new(python).arg(paths::host("memray_stacks.py")).arg(&output));
    let said = String::from_utf8_lossy(&read.stdout).into_owned();
    let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [large, whole] = numbers[..] else { panic!("{said}{}", String::from_utf8_lossy(&read.stderr)) };
    assert!(large >= 400, "{large} of 400 allocations were recorded");
    Some((large, whole))
}

#[test]
fn native_frames_are_back() {
    let (Some((_, stock)), Some((large, ours))) = (recorded(Preload::Nothing), recorded(Preload::Library)) else {
        return;
    };
    assert_eq!(stock, 0, "memray sees these frames on its own: this proves nothing");
    assert_eq!(ours, large, "stacks that end in compiled code");
}
