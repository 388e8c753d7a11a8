//! `perf`, `addr2line` and `llvm-symbolizer` on images, without a perf map, `perf inject` or `-k`.
//!
//! Tests of lines set `NUMBA_DEBUGINFO=1`, which disables inlining, so Numba generates different code from the code
//! that users run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, Function, count_complete, with_images};
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::perf_lines::{self, LinePercentages};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{paths, perf, perf_map};

const NUMBA: &str = "numba-0.68.1";

#[test]
fn perf_attached_to_a_running_process_names_whole_chains() {
    let (Some(()), Some(host)) = (perf::is_available(), Integration::Numba(NUMBA).chain(300, &[])) else { return };
    let host = with_images(host);
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    // On a busy machine, the process gets little CPU time in two seconds.
    let mut samples = Vec::new();
    for seconds in [2, 8, 32] {
        samples = perf::attach(&running, seconds, &host.scratch("perf.data"));
        if samples.len() >= 200 {
            break;
        }
    }
    assert_eq!(perf_map::take(running.pid()), None, "no perf map was asked for");
    // Depending on the C compiler, Numba's dispatcher consists of one or two functions.
    let (jit_count, complete_count) = count_complete(&samples, &["Dispatcher_call", "call_cfunc"]);
    assert!(jit_count >= 150, "only {jit_count} samples in images\n{}", host.log());
    assert!(complete_count * 100 >= jit_count * 95, "{complete_count} of {jit_count} stacks are complete");
}

fn find_line(part: &str) -> u32 {
    let text = std::fs::read_to_string(paths::host("two_loops.py")).expect("the host");
    text.lines().position(|line| line.contains(part)).expect(part) as u32 + 1
}

/// Asserts that the first loop, with three times as many iterations, has three quarters of the samples.
#[track_caller]
fn assert_three_to_one(shares: &LinePercentages) {
    let share = |part: &str| shares.get(&find_line(part)).copied().unwrap_or(0.0);
    let first = share("range(3 * n)") + share("# three of four");
    let second = share("range(n)") + share("# one of four");
    let percent = 100.0 * first / (first + second);
    assert!(first + second >= 30.0 && (percent - 75.0).abs() <= 10.0, "{shares:?}");
    let hottest_line = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|share| *share.0);
    assert_eq!(hottest_line, Some(find_line("# three of four")), "{shares:?}");
}

#[test]
fn perf_annotate_and_report_find_the_hot_line() {
    let (Some(()), Some(host)) = (perf::is_available(), integration::numba(NUMBA, "two_loops.py")) else { return };
    let host = with_images(host.argument("3")).variable("NUMBA_DEBUGINFO", "1");
    let recording = perf::record(&host, Preload::Library);
    assert_eq!(recording.map, None, "no perf map was asked for");
    let (file, kernel) = image::function(&host, "kernel");
    let run_perf = |args: &[&str]| {
        let mut command = Command::new("perf");
        let perf_run = tool::run(command.arg(args[0]).arg("-i").arg(host.scratch("perf.data")).args(&args[1..]));
        String::from_utf8_lossy(&perf_run.stdout).into_owned()
    };
    assert_three_to_one(&perf_lines::parse_annotate(
        &run_perf(&["annotate", "-l", "--stdio", "-s", &kernel.name]),
        "two_loops.py",
    ));
    // Without `--dsos`, perf runs addr2line for every sampled address in libllvmlite, at half a second per address.
    let dso = file.file_name().and_then(|name| name.to_str()).expect("text");
    let report_args = ["report", "--stdio", "--no-children", "-g", "none", "--sort", "sym,srcline", "--dsos", dso];
    assert_three_to_one(&perf_lines::parse_report(&run_perf(&report_args), "two_loops.py"));
}

/// Installed symbolizers, with options that make them read addresses from the command line.
fn symbolizers() -> Vec<(PathBuf, &'static [&'static str])> {
    let candidates: [(_, &[&str], _); 3] = [
        ("addr2line", &["-i", "-f", "-C", "-e"], Absence::FailsInCi),
        ("llvm-symbolizer-14", &["-i", "-f", "-C", "-e"], Absence::FailsInCi),
        ("llvm-symbolizer-22", &["-i", "-f", "-C", "-e"], Absence::IsAllowed),
    ];
    let installed = candidates
        .into_iter()
        .filter_map(|(name, candidates, absence)| Some((tool::require(name, absence)?, candidates)));
    installed.collect()
}

/// Output of a symbolizer for the addresses of a function, with a block of `name at file:line` lines per address.
fn symbolize(program: &Path, args: &[&str], file: &Path, function: &Function) -> Vec<String> {
    let symbolize_address = |address: u64| {
        let mut command = Command::new(program);
        let symbolizer_run = tool::run(command.args(args).arg(file).arg(format!("{address:#x}")));
        assert!(
            symbolizer_run.status.success(),
            "{}: {}",
            program.display(),
            String::from_utf8_lossy(&symbolizer_run.stderr)
        );
        let text = String::from_utf8_lossy(&symbolizer_run.stdout).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        lines.chunks(2).fold(String::new(), |mut block, pair| {
            let _ = writeln!(block, "{}", pair.join(" at "));
            block
        })
    };
    // Every eighth byte suffices, because each statement has several instructions.
    (function.address..function.address + function.size).step_by(8).map(symbolize_address).collect()
}

#[test]
fn symbolizers_find_python_lines() {
    let Some(host) = integration::numba(NUMBA, "two_loops.py") else { return };
    let host = with_images(host.argument("0")).variable("NUMBA_DEBUGINFO", "1");
    let _ = host.run(Preload::Library).expect_success();
    let (file, kernel) = image::function(&host, "kernel");
    for (program, args) in symbolizers() {
        let blocks = symbolize(&program, args, &file, &kernel);
        let show = || format!("{}:\n{}", program.display(), blocks.concat());
        assert!(
            blocks.iter().all(|output| output.contains("kernel") && output.contains("two_loops.py:")),
            "{}",
            show()
        );
        for part in ["# three of four", "# one of four"] {
            let location = format!("{}:{}", paths::host("two_loops.py").display(), find_line(part));
            assert!(blocks.iter().any(|output| output.contains(&location)), "{part} is missing; {}", show());
        }
    }
}

/// Calls that LLVM inlined in an object compiled by clang.
#[test]
fn symbolizers_find_inlined_calls() {
    let Some(host) = integration::lli(14, &["--jit-kind=mcjit"], "inlined.c") else { return };
    let host: Host = with_images(host.argument("0"));
    let _ = host.run(Preload::Library).expect_success();
    let (file, outer) = image::function(&host, "outer");
    for (program, args) in symbolizers() {
        let blocks = symbolize(&program, args, &file, &outer);
        let has_inline_chain = |output: &String| {
            let mut lines = output.lines();
            ["hot at ", "middle at ", "outer at "]
                .iter()
                .all(|name| lines.next().is_some_and(|line| line.starts_with(name) && line.contains("inlined.c:")))
        };
        assert!(blocks.iter().any(has_inline_chain), "{}:\n{}", program.display(), blocks.concat());
    }
}
