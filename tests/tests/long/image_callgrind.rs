//! Exact instruction counts for every Python source line of a Numba program, from `valgrind --tool=callgrind`.
//!
//! With `NUMBA_DEBUGINFO=1` Numba generates different code from the code that users run. To reproduce by hand:
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

/// Importing Numba alone takes some 20 s under valgrind.
const VALGRIND_TIMEOUT: Duration = Duration::from_secs(900);

/// Instruction counts of `two_loops.py`, keyed by the text of the source line.
fn count_instructions() -> Option<BTreeMap<String, u64>> {
    let valgrind = tool::require("valgrind", Absence::FailsInCi)?;
    let host = with_images(integration::numba("numba-0.68.1", "two_loops.py")?.argument("0"));
    let host = host.variable("NUMBA_DEBUGINFO", "1").variable("PYTHONHASHSEED", "0");
    let profile = host.scratch("callgrind.out");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    command.args(host.command_line()).envs(host.variables(Preload::Library));
    let output = tool::run_with_timeout(VALGRIND_TIMEOUT, &mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut annotate = Command::new("callgrind_annotate");
    annotate.args(["--threshold=100", "--auto=no", "--show-percs=no", "--tree=none"]).arg(&profile);
    // `callgrind_annotate` strips its working directory from file names, except from those given as arguments.
    let output = tool::run(annotate.arg(paths::host("two_loops.py")).current_dir("/"));
    let text = String::from_utf8_lossy(&output.stdout);
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
    let runs =
        [thread::spawn(count_instructions), thread::spawn(count_instructions)].map(|run| run.join().expect("no panic"));
    let [Some(first), Some(second)] = runs else { return };
    assert_eq!(first, second);
    let count_of_line = |part: &str| first.iter().find(|(text, _)| text.contains(part)).map_or(0, |(_, count)| *count);
    // The loops have thirty and ten iterations. An instruction that LLVM hoists out of a loop counts only once.
    let (three_count, one_count) = (count_of_line("# three of four"), count_of_line("# one of four"));
    assert!(
        one_count >= 30 && (2.6..=3.4).contains(&(three_count as f64 / one_count as f64)),
        "{three_count} and {one_count}: {first:#?}"
    );
}
