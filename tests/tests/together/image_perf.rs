//! `perf`, `addr2line` and `llvm-symbolizer` on images: no map, no `perf inject`, no `-k`.
//!
//! Line results need `NUMBA_DEBUGINFO=1`, with which Numba compiles other code than users run (it forbids inlining).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, Function, complete, with_images};
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::perf_lines::{self, Shares};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{paths, perf, perf_map};

const NUMBA: &str = "numba-0.68.1";

#[test]
fn perf_attached_to_a_running_process_names_whole_chains() {
    let (Some(()), Some(host)) = (perf::is_here(), Integration::Numba(NUMBA).chain(300, &[])) else { return };
    let host = with_images(host);
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    // On a busy machine, two seconds of the clock are few of the processor.
    let mut samples = Vec::new();
    for seconds in [2, 8, 32] {
        samples = perf::attach(&running, seconds, &host.scratch("perf.data"));
        if samples.len() >= 200 {
            break;
        }
    }
    assert_eq!(perf_map::take(running.pid()), None, "no perf map was asked for");
    // What a compiler made of Numba's dispatcher is one function or two.
    let (jit, complete) = complete(&samples, &["Dispatcher_call", "call_cfunc"]);
    assert!(jit >= 150, "only {jit} samples in images\n{}", host.log());
    assert!(complete * 100 >= jit * 95, "{complete} of {jit} stacks are complete");
}

fn line_of(part: &str) -> u32 {
    let text = std::fs::read_to_string(paths::host("two_loops.py")).expect("the host");
    text.lines().position(|line| line.contains(part)).expect(part) as u32 + 1
}

/// Three iterations to one: three quarters of the samples are the first loop's.
#[track_caller]
fn three_to_one(shares: &Shares) {
    let share = |part: &str| shares.get(&line_of(part)).copied().unwrap_or(0.0);
    let first = share("range(3 * n)") + share("# three of four");
    let second = share("range(n)") + share("# one of four");
    let percent = 100.0 * first / (first + second);
    assert!(first + second >= 30.0 && (percent - 75.0).abs() <= 10.0, "{shares:?}");
    let hot = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|share| *share.0);
    assert_eq!(hot, Some(line_of("# three of four")), "{shares:?}");
}

#[test]
fn perf_annotate_and_report_find_the_hot_line() {
    let (Some(()), Some(host)) = (perf::is_here(), integration::numba(NUMBA, "two_loops.py")) else { return };
    let host = with_images(host.argument("3")).variable("NUMBA_DEBUGINFO", "1");
    let recording = perf::record(&host, Preload::Library);
    assert_eq!(recording.map, None, "no perf map was asked for");
    let (file, kernel) = image::function(&host, "kernel");
    let perf = |words: &[&str]| {
        let mut command = Command::new("perf");
        let done = tool::run(command.arg(words[0]).arg("-i").arg(host.scratch("perf.data")).args(&words[1..]));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    three_to_one(&perf_lines::annotate(&perf(&["annotate", "-l", "--stdio", "-s", &kernel.name]), "two_loops.py"));
    // Without --dsos, perf asks addr2line for every address it has met in libllvmlite, which takes half a second each.
    let dso = file.file_name().and_then(|name| name.to_str()).expect("text");
    let words = ["report", "--stdio", "--no-children", "-g", "none", "--sort", "sym,srcline", "--dsos", dso];
    three_to_one(&perf_lines::report(&perf(&words), "two_loops.py"));
}

/// The symbolizers that are here, each with the words that make it read addresses from the command line.
fn symbolizers() -> Vec<(PathBuf, &'static [&'static str])> {
    let words: [(_, &[&str], _); 3] = [
        ("addr2line", &["-i", "-f", "-C", "-e"], Absence::FailsInCi),
        ("llvm-symbolizer-14", &["-i", "-f", "-C", "-e"], Absence::FailsInCi),
        ("llvm-symbolizer-22", &["-i", "-f", "-C", "-e"], Absence::IsAllowed),
    ];
    let found = words.into_iter().filter_map(|(name, words, absence)| Some((tool::require(name, absence)?, words)));
    found.collect()
}

/// What a symbolizer says of every byte of a function, one block of `name at file:line` for each.
fn symbolize(program: &Path, words: &[&str], file: &Path, function: &Function) -> Vec<String> {
    let ask = |address: u64| {
        let mut command = Command::new(program);
        let done = tool::run(command.args(words).arg(file).arg(format!("{address:#x}")));
        assert!(done.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&done.stderr));
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        lines.chunks(2).fold(String::new(), |mut block, pair| {
            let _ = writeln!(block, "{}", pair.join(" at "));
            block
        })
    };
    // Every eighth byte: each statement has more than one instruction.
    (function.address..function.address + function.size).step_by(8).map(ask).collect()
}

#[test]
fn symbolizers_find_python_lines() {
    let Some(host) = integration::numba(NUMBA, "two_loops.py") else { return };
    let host = with_images(host.argument("0")).variable("NUMBA_DEBUGINFO", "1");
    let _ = host.run(Preload::Library).well();
    let (file, kernel) = image::function(&host, "kernel");
    for (program, words) in symbolizers() {
        let returns = symbolize(&program, words, &file, &kernel);
        let show = || format!("{}:\n{}", program.display(), returns.concat());
        assert!(
            returns.iter().all(|output| output.contains("kernel") && output.contains("two_loops.py:")),
            "{}",
            show()
        );
        for part in ["# three of four", "# one of four"] {
            let place = format!("{}:{}", paths::host("two_loops.py").display(), line_of(part));
            assert!(returns.iter().any(|output| output.contains(&place)), "{part} is missing; {}", show());
        }
    }
}

/// Calls that LLVM inlined, in an object from clang.
#[test]
fn symbolizers_find_inlined_calls() {
    let Some(host) = integration::lli(14, &["--jit-kind=mcjit"], "inlined.c") else { return };
    let host: Host = with_images(host.argument("0"));
    let _ = host.run(Preload::Library).well();
    let (file, outer) = image::function(&host, "outer");
    for (program, words) in symbolizers() {
        let returns = symbolize(&program, words, &file, &outer);
        let in_turn = |output: &String| {
            let mut lines = output.lines();
            ["hot at ", "middle at ", "outer at "]
                .iter()
                .all(|name| lines.next().is_some_and(|line| line.starts_with(name) && line.contains("inlined.c:")))
        };
        assert!(returns.iter().any(in_turn), "{}:\n{}", program.display(), returns.concat());
    }
}
