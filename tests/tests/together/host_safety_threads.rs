//! Sixteen threads compile, run and free code, while the signal handler of a profiler walks their stacks a thousand
//! times a second and another thread switches sinks off and on. No thread hangs or crashes, and no function is lost,
//! reported twice or torn.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::{jitdump_reader, safety_host};

/// Duration of the run in seconds, as long as CI can afford.
const DURATION_SECONDS: &str = "60";

/// Numbers on the output line `word number word number ...` that begins with `first_word`.
fn numbers(text: &str, first_word: &str) -> Vec<u64> {
    let line =
        text.lines().find(|line| line.starts_with(first_word)).unwrap_or_else(|| panic!("no {first_word}: {text}"));
    line.split(' ').skip(1).step_by(2).map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn a_minute_of_everything_at_once() {
    let builder = Host::new("", "safety-threads-program");
    let program: PathBuf = builder.scratch("program");
    if safety_host::build("safety_threads.c", &["-lunwind"], &program).is_none() {
        return;
    }
    let host =
        Host::new(program, "safety-threads").argument(DURATION_SECONDS).variable("JITLISTEN", "perfmap,jitdump,unwind");
    let outcome = host.run(Preload::Library).expect_success();
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let [compiled, freed, walks, frames] = numbers(&text, "compiled")[..] else { panic!("{text}") };
    assert!(compiled >= 500 && walks >= 100 && frames > walks, "too little for a minute: {text}");
    assert_eq!(numbers(&text, "loaded"), [compiled, compiled, freed, 0, compiled], "{text}\n{}", host.log());
    assert_eq!(numbers(&text, "failures"), [0], "{}", host.log());
    let map = PerfMap::parse(&outcome.map.expect("a map")).expect("every line is whole");
    assert!(map.entries.iter().all(|entry| entry.name.starts_with("worker_")), "{}", map.names());
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert!(dumps.len() >= 10, "the sink was switched on {} times", dumps.len());
    for path in dumps {
        let dump = jitdump_reader::read(&path);
        let names: BTreeSet<&str> = dump.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names.len(), dump.functions.len(), "{}: a function is reported twice", path.display());
    }
}
