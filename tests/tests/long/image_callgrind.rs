//! `valgrind --tool=callgrind` over a Numba program: exact counts for every line of the Python source.
//!
//! With `NUMBA_DEBUGINFO=1` Numba compiles other code than users run. To see it:
//!
//! ```text
//! export NUMBA_DEBUGINFO=1 JITLISTEN=image LD_PRELOAD=libjitlisten.so
//! valgrind --tool=callgrind --callgrind-out-file=profile python program.py
//! callgrind_annotate --threshold=100 profile program.py
//! ```

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::Duration;

use jitlisten_tests::host::Preload;
use jitlisten_tests::image::with_images;
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

/// Importing Numba alone is some twenty seconds of work under valgrind.
const PATIENCE: Duration = Duration::from_secs(900);

/// Instructions per line of `two_loops.py`, by what the line says.
fn counts() -> Option<BTreeMap<String, u64>> {
    let valgrind = tool::require("valgrind", Absence::FailsInCi)?;
    let host = with_images(integration::numba("numba-0.68.1", "two_loops.py")?.argument("0"));
    let host = host.variable("NUMBA_DEBUGINFO", "1").variable("PYTHONHASHSEED", "0");
    let profile = host.scratch("callgrind.out");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    command.args(host.words()).envs(host.variables(Preload::Library));
    let done = tool::run_within(PATIENCE, &mut command);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let mut annotate = Command::new("callgrind_annotate");
    annotate.args(["--threshold=100", "--auto=no", "--show-percs=no", "--tree=none"]).arg(&profile);
    // It takes its working directory off the names of files it is given none of.
    let done = tool::run(annotate.arg(paths::host("two_loops.py")).current_dir("/"));
    let text = String::from_utf8_lossy(&done.stdout);
    let source =
        text.lines().skip_while(|line| !(line.starts_with("-- User-annotated") && line.contains("two_loops.py")));
    let counts = source.filter_map(|line| {
        let (count, text) = line.trim_start().split_once("  ")?;
        Some((text.trim().to_owned(), count.replace(',', "").parse().ok()?))
    });
    Some(counts.collect())
}

#[test]
fn lines_have_exact_counts_that_do_not_change() {
    let runs = [thread::spawn(counts), thread::spawn(counts)].map(|run| run.join().expect("no panic"));
    let [Some(first), Some(second)] = runs else { return };
    assert_eq!(first, second);
    let of = |part: &str| first.iter().find(|(text, _)| text.contains(part)).map_or(0, |(_, count)| *count);
    // Ten rounds after thirty; what LLVM takes out of a loop counts once.
    let (three, one) = (of("# three of four"), of("# one of four"));
    assert!(one >= 30 && (2.6..=3.4).contains(&(three as f64 / one as f64)), "{three} and {one}: {first:#?}");
}
