//! Recordings of `hosts/sampled.c`, whose scenarios have known profiles, read with `perf script`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use jitlisten_tests::host::{Host, Preload, assert_same_output};
use jitlisten_tests::sampled::{
    WeightedSample, assert_complete, counters, measured_seconds, read, scenario, scenario_in_shell, seconds_by_thread,
    share, sigma, with_recording,
};
use jitlisten_tests::{paths, tool};
use linux_perf_data::linux_perf_event_reader::EventRecord;
use linux_perf_data::{PerfFileReader, PerfFileRecord};

/// Records a scenario from start to end. Returns the samples and the scenario's output.
fn run(args: &[&str]) -> Option<(Vec<WeightedSample>, String)> {
    let (host, data) = with_recording(scenario(args)?, ",hz=199");
    let outcome = host.run(Preload::Library).expect_success();
    Some((read(&data), String::from_utf8_lossy(&outcome.stdout).into_owned()))
}

/// Runs a scenario that records parts of itself. Returns the host, which owns the scratch directory, and the output.
fn run_self_recording(args: &[&str]) -> Option<(Host, String)> {
    let host = scenario(args)?;
    let directory = host.scratch("");
    let host = host.argument(directory);
    let outcome = host.run(Preload::Library).expect_success();
    let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
    Some((host, stdout))
}

fn seconds(samples: &[WeightedSample]) -> f64 {
    samples.iter().map(|sample| sample.period as f64 / 1e9).sum()
}

/// Records a scenario for so long that three percentage points are almost five sigma, at a rate that the kernel's tick
/// can deliver.
fn run_long(scenario_name: &str) -> Option<Vec<WeightedSample>> {
    let (host, data) = with_recording(scenario(&[scenario_name, "17"])?.timeout_seconds(400), ",hz=249");
    let _ = host.run(Preload::Library).expect_success();
    Some(read(&data))
}

/// Tolerance of three percentage points, or of four sigma if a busy machine took fewer than 4,000 samples.
fn long_run_tolerance(samples: &[WeightedSample]) -> f64 {
    (4.0 * sigma(samples)).max(3.0)
}

/// Tolerance of four sigma plus one percentage point, because the loop iterations do not all take the same time.
fn tolerance(samples: &[WeightedSample]) -> f64 {
    1.0 + 4.0 * sigma(samples)
}

#[test]
fn loops_of_three_to_one() {
    let Some(samples) = run_long("loops") else { return };
    let share = share(&samples, "three_of_four", &["three_of_four", "one_of_four"]);
    assert!((share - 75.0).abs() < long_run_tolerance(&samples), "{share} % of {} samples", samples.len());
    assert!((seconds(&samples) - 17.0).abs() < 0.6, "{} s", seconds(&samples));
}

/// The leaf function is in libm, which keeps no frame pointer; the measured shares are those of the callers.
#[test]
fn exp_called_in_two_places() {
    let Some(samples) = run_long("exps") else { return };
    let libm_sample_count =
        samples.iter().filter(|sample| sample.frames[0].contains("exp") && sample.frames.len() > 3).count();
    assert!(libm_sample_count * 3 > samples.len(), "{libm_sample_count} of {} in libm", samples.len());
    let share = share(&samples, "exp_three", &["exp_three", "exp_one"]);
    assert!((share - 75.0).abs() < long_run_tolerance(&samples), "{share} % of {} samples", samples.len());
    assert_complete(&samples, 99.5);
}

/// With a kernel counter as the event, the recording shows where page faults happen, and how many.
#[test]
fn page_faults_are_counted() {
    let Some(host) = scenario(&["faults", "400"]) else { return };
    let (host, data) = with_recording(host, ",hz=997,event=page-faults");
    let outcome = host.run(Preload::Library).expect_success();
    let faults: f64 = String::from_utf8_lossy(&outcome.stdout).trim().parse().unwrap();
    let samples = read(&data);
    // Page faults inside system calls are attributed to the kernel, and page faults before the start of the recording
    // are not in it.
    let counted_faults: f64 = samples.iter().map(|sample| sample.period as f64).sum();
    assert!(
        counted_faults > 0.95 * 960_000.0 && counted_faults <= faults,
        "{counted_faults} of {faults}\n{}",
        host.log()
    );
    let share = share(&samples, "touch_three", &["touch_three", "touch_one"]);
    assert!((share - 75.0).abs() < tolerance(&samples), "{share} % of {} samples", samples.len());
    assert!(seconds_by_thread(&samples).values().filter(|&&faults| faults * 1e9 > 400_000.0).count() == 2);
}

#[test]
fn stacks_below_signal_handlers_and_deep_ones_are_complete() {
    for args in [&["handlers", "2"][..], &["deep", "400", "1"]] {
        let Some((samples, _)) = run(args) else { return };
        assert_complete(&samples, 99.5);
        assert!(samples.iter().all(|sample| sample.contains("main")), "{args:?}");
    }
}

#[test]
fn the_time_of_each_thread_matches_the_kernels() {
    let Some((samples, stdout)) = run(&["threads", "4", "3", "4"]) else { return };
    let sampled_seconds = seconds_by_thread(&samples);
    for line in stdout.lines() {
        let (tid, time) = line.split_once(' ').expect("a thread and its time");
        let (tid, time): (u32, f64) = (tid.parse().unwrap(), time.parse::<f64>().unwrap() / 1e9);
        let sampled_seconds = sampled_seconds.get(&tid).copied().unwrap_or(0.0);
        assert!((sampled_seconds / time - 1.0).abs() < 0.02, "{tid}: {sampled_seconds} of {time} s");
    }
    assert_eq!(stdout.lines().count(), 4);
}

/// 150 threads run for 20 ms each. A periodic scan for threads would miss most of them.
#[test]
fn short_threads_are_seen() {
    let Some(host) = scenario(&["threads", "150", "0.02", "2"]) else { return };
    let (host, data) = with_recording(host, ",hz=199");
    let outcome = host.run(Preload::Library).expect_success();
    let time_of = |line: &str| line.split_once(' ').unwrap().1.parse::<f64>().unwrap() / 1e9;
    let time: f64 = String::from_utf8_lossy(&outcome.stdout).lines().map(time_of).sum();
    let measured = measured_seconds(&data);
    let measured_time: f64 = measured.values().sum();
    assert!((measured_time / time - 1.0).abs() < 0.05, "{measured_time} of {time} s");
    assert!(measured.len() >= 150, "{} of 150 threads", measured.len());
    // 600 samples: 4 sigma are 16 %.
    let sampled_seconds = seconds(&read(&data));
    assert!((sampled_seconds / time - 1.0).abs() < 0.16, "{sampled_seconds} of {time} s");
}

/// 1,000 threads run for 2 ms each, less than the time between two samples, and do nothing afterwards. Their functions
/// get the time; the code that ends them does not.
#[test]
fn threads_without_a_sample_lose_no_time() {
    let Some((samples, stdout)) = run(&["threads", "1000", "0.002", "2"]) else { return };
    let time: f64 = stdout.lines().map(|line| line.split_once(' ').unwrap().1.parse::<f64>().unwrap() / 1e9).sum();
    let in_threads: Vec<WeightedSample> = samples.into_iter().filter(|sample| sample.contains("burn")).collect();
    let tolerance = 4.0 / (in_threads.len() as f64).sqrt();
    let sampled_seconds = seconds(&in_threads);
    assert!((sampled_seconds / time - 1.0).abs() < tolerance, "{sampled_seconds} of {time} s");
}

/// All threads do the same. If all began with a full interval, or the end of each belonged to its last sample, the
/// share would be wrong by up to 75 percentage points, or by 10.
#[test]
fn all_ages_of_short_threads_are_sampled_equally_often() {
    for (options, length) in [
        (",hz=199,event=cpu-clock", "0.006"),
        (",hz=199,event=cpu-clock", "0.008"),
        (",hz=199,wall", "0.006"),
        (",hz=199,wall", "0.025"),
    ] {
        let Some(host) = scenario(&["phases", "4", length]) else { return };
        let (host, data) = with_recording(host, options);
        let _ = host.run(Preload::Library).expect_success();
        let (early, late) = ("burn_early", "burn_late");
        let samples: Vec<_> =
            read(&data).into_iter().filter(|sample| sample.contains(early) || sample.contains(late)).collect();
        let share = share(&samples, early, &[early, late]);
        let error = (share - 75.0).abs();
        assert!(error < tolerance(&samples), "{options} {length}: {share} % of {} samples", samples.len());
    }
}

/// `linux-perf-data`, which samply uses to import recordings, reads the same samples as perf.
#[test]
fn a_second_reader_finds_the_same() {
    let Some(host) = scenario(&["deep", "40", "1"]) else { return };
    let (host, data) = with_recording(host, ",hz=199");
    let _ = host.run(Preload::Library).expect_success();
    let file = std::io::BufReader::new(fs::File::open(&data).unwrap());
    let PerfFileReader { mut perf_file, mut record_iter } = PerfFileReader::parse_file(file).unwrap();
    let (mut from_crate, mut has_libc) = (Vec::new(), false);
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        match record.parse().unwrap() {
            // Call chains begin with a context marker.
            EventRecord::Sample(sample) => {
                from_crate.push((
                    sample.tid.unwrap() as u32,
                    sample.period.unwrap(),
                    sample.callchain.unwrap().len() - 1,
                ));
            }
            EventRecord::Mmap2(mapping) => has_libc |= mapping.path.as_slice().ends_with(b"/libc.so.6"),
            _ => {}
        }
    }
    let from_perf: Vec<_> =
        read(&data).into_iter().map(|sample| (sample.tid, sample.period, sample.frames.len())).collect();
    assert!(from_crate.len() > 50 && has_libc);
    assert_eq!(from_crate, from_perf);
}

/// After a crash or kill, perf can read the file, which has the samples and the recording's parameters.
#[test]
fn a_killed_process_leaves_a_file() {
    for (scenario_name, options, event) in
        [("killed", "", "task-clock:u"), ("crashed", "", "task-clock:u"), ("killed", ",wall", "wall-clock")]
    {
        let Some(host) = scenario(&[scenario_name, "1"]) else { return };
        let (host, data) = with_recording(host, options);
        let start = Instant::now();
        let outcome = host.run(Preload::Library);
        assert!(!outcome.status.success());
        let sampled_seconds = seconds(&read(&data));
        // A second of CPU time takes more than a second on a busy machine.
        let max_seconds = if options == ",wall" { start.elapsed().as_secs_f64() } else { 1.1 };
        assert!((0.8..=max_seconds).contains(&sampled_seconds), "{scenario_name}: {sampled_seconds} s");
        let report = tool::run(Command::new("perf").args(["report", "--stdio", "--header", "-i"]).arg(&data));
        let text = String::from_utf8_lossy(&report.stdout);
        let expected =
            [format!("of event '{event}'"), "# hostname : ".to_owned(), format!("sampled {scenario_name} 1")];
        assert!(
            expected.iter().all(|text_part| text.contains(text_part)),
            "{scenario_name}{options}: {expected:?}\n{text}"
        );
    }
}

/// The recording stops before the process exits. The process prints the same and dies of the same signal as without the
/// library.
#[test]
fn a_process_that_a_signal_ends_loses_nothing() {
    for signal in ["6", "11", "15"] {
        let Some(host) = scenario(&["ended-by", signal]) else { return };
        let (host, data) = with_recording(host, "");
        let outcome = assert_same_output(&host);
        assert_eq!(outcome.status.signal(), signal.parse().ok());
        let burn = read(&data).into_iter().filter(|sample| sample.contains("burn")).collect::<Vec<_>>();
        assert!((seconds(&burn) - 0.3).abs() < 0.06, "{signal}: {} s of 0.3", seconds(&burn));
        let time: f64 = measured_seconds(&data).values().sum();
        assert!((0.3..0.5).contains(&time), "{signal}: {time} s");
        // The counter is stored in the last part of the file.
        assert!(counters(&data).samples > 0);
    }
}

#[test]
fn a_program_continues_after_exec() {
    let Some(host) = scenario(&["exec", "1"]) else { return };
    let (host, data) = with_recording(host, ",hz=199");
    let _ = host.run(Preload::Library).expect_success();
    let samples = read(&data);
    let seconds_before =
        samples.iter().filter(|sample| sample.contains("burn")).map(|sample| sample.period).sum::<u64>() as f64 / 1e9;
    let seconds_after = seconds(&samples) - seconds_before;
    assert!(
        (0.8..=1.1).contains(&seconds_before) && (0.8..=1.1).contains(&seconds_after),
        "{seconds_before} and {seconds_after} s\n{}",
        host.log()
    );
}

/// Starts the program as `jitlisten record` does. The recording remains that of this program, even if the program
/// starts others or is itself started by a shell.
#[test]
fn a_started_program_does_not_take_over_the_recording() {
    for start in [scenario, scenario_in_shell] {
        let Some(host) = start(&["commands", "2"]) else { return };
        let (host, data) =
            with_recording(host.variable("JITLISTEN_RUN", format!("program:{}", paths::library().display())), "");
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(outcome.stdout, b"done\n");
        let samples = read(&data);
        assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
        assert!(samples.iter().filter(|sample| sample.contains("burn")).count() * 100 > samples.len() * 95);
    }
}

/// A forked child is not sampled unless it starts its own recording.
#[test]
fn children_of_a_fork() {
    let Some(host) = scenario(&["forks"]) else { return };
    let directory = host.scratch("");
    let (host, data) = with_recording(host.argument(directory), "");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(outcome.stdout, b"0\n", "the child's status");
    let (parent, child) = (read(&data), read(&host.scratch("child.data")));
    assert!(parent.iter().all(|sample| sample.tid == outcome.pid) && (0.3..=0.5).contains(&seconds(&parent)));
    assert!(child.iter().all(|sample| sample.tid != outcome.pid) && (0.2..=0.4).contains(&seconds(&child)));
}

#[test]
fn children_of_a_fork_have_files_of_their_own_if_asked() {
    let Some(host) = scenario(&["forks"]) else { return };
    let directory = host.scratch("elsewhere-");
    let (host, data) = with_recording(host.argument(directory), ",children");
    let outcome = host.run(Preload::Library);
    // The child's own recording is refused, because a recording is running.
    assert!(String::from_utf8_lossy(&outcome.stdout).trim() == "512", "{}", String::from_utf8_lossy(&outcome.stdout));
    let [child] = &child_files(&data)[..] else { panic!("one file of the child") };
    let child = read(child);
    assert!((0.2..=0.4).contains(&seconds(&child)), "{} s", seconds(&child));
}

/// Recordings of the children, `FILE.PID` next to `FILE`.
fn child_files(data: &Path) -> Vec<PathBuf> {
    let name = data.file_name().unwrap().to_str().unwrap().to_owned() + ".";
    let is_child_file = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_string_lossy();
        file.strip_prefix(&name).is_some_and(|pid| pid.parse::<u32>().is_ok())
    };
    fs::read_dir(data.parent().unwrap()).unwrap().flatten().map(|entry| entry.path()).filter(is_child_file).collect()
}

/// Children are recorded however they end. A process that exits waits for the writer, so its samples are recorded. On a
/// busy machine, fewer ticks of the kernel find a child, but its time is measured. A killed process cannot wait, but its
/// first samples are written immediately. A failed `exec` counts no time twice.
#[test]
fn children_of_20_ms_are_recorded() {
    let waiting_ends = ["exits", "as-c", "quickly", "executes", "fails", "terminated", "aborts", "crashes"];
    for (end, min_ms) in waiting_ends.map(|end| (end, 400)).into_iter().chain([("killed", 200)]) {
        let Some(host) = scenario(&["short-lived", end]) else { return };
        let (host, data) = with_recording(host, ",children");
        let _ = host.run(Preload::Library).expect_success();
        let children: Vec<_> = child_files(&data).iter().flat_map(|child| read(child)).collect();
        let burn_ns = children.iter().filter(|sample| sample.contains("burn")).map(|sample| sample.period).sum::<u64>();
        assert!((min_ms * 1_000_000..960_000_000).contains(&burn_ns), "{end}: {burn_ns} ns of 800,000,000");
        let measured: f64 = child_files(&data).iter().flat_map(|child| measured_seconds(child).into_values()).sum();
        // A program that is executed afterwards has its own time.
        let min_seconds =
            [("killed", 0.0), ("executes", 0.6)].iter().find(|(other, _)| *other == end).map_or(0.76, |(_, min)| *min);
        assert!(measured >= min_seconds, "{end}: {measured} s of 0.8");
    }
}

/// A vfork child shares its parent's memory, so the child's exit could end the parent's recording.
#[test]
fn the_child_of_a_vfork_leaves_alone() {
    let Some((samples, _)) = run(&["vforks", "0.5"]) else { return };
    assert!((0.3..=0.7).contains(&seconds(&samples)), "{} s", seconds(&samples));
}

/// A signal handler may call `_exit`, regardless of the interrupted code.
#[test]
fn a_handler_ends_the_process() {
    let Some(host) = scenario(&["leaves"]) else { return };
    let (host, data) = with_recording(host, "");
    assert_eq!(host.run(Preload::Library).status.code(), Some(7));
    assert!(!read(&data).is_empty());
}

/// CPU-time timers do not interrupt system calls, the program's own profiler still counts its signals, and a stack
/// overflow reaches the program's handler.
#[test]
fn the_program_does_not_notice() {
    for args in [&["interrupted", "1"][..], &["overflow", "2"]] {
        let Some(host) = scenario(args) else { return };
        let stock = host.run(Preload::Nothing).expect_success();
        let (host, data) = with_recording(host, ",hz=997");
        let recorded_run = host.run(Preload::Library).expect_success();
        assert_eq!((stock.stdout, stock.stderr), (recorded_run.stdout, recorded_run.stderr), "{args:?}");
        assert!(!read(&data).is_empty(), "{args:?}");
    }
    let Some((samples, stdout)) = run(&["own-profiler", "1"]) else { return };
    let ticks: u32 = stdout.trim().parse().unwrap();
    // A hundred ticks are due. On a busy machine the kernel checks the program's timer late and merges several ticks
    // into one.
    assert!((20..=125).contains(&ticks) && (0.8..=1.1).contains(&seconds(&samples)), "{ticks}, {}", seconds(&samples));
}

#[test]
fn parts_of_a_program_in_files_of_their_own() {
    let Some((host, stdout)) = run_self_recording(&["parts"]) else { return };
    for (part, line) in stdout.lines().enumerate() {
        let samples = read(&host.scratch(&format!("part-{part}.data")));
        let counted_samples: usize = line.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(samples.len(), counted_samples);
        assert!((0.4..=0.6).contains(&seconds(&samples)), "{} s", seconds(&samples));
        assert!(!samples.iter().any(|sample| sample.contains("three_of_four")), "only what was asked for");
    }
    assert_eq!(stdout.lines().count(), 2);
}

#[test]
fn threads_without_a_timer_are_counted() {
    let Some((_, stdout)) = run_self_recording(&["no-timers"]) else { return };
    let without_timer: u64 =
        stdout.lines().last().and_then(|line| line.strip_prefix("without ")).unwrap().parse().unwrap();
    // Forty threads, twenty at a time, share at most four timers. The counter includes the main thread, and timers of
    // other processes count against the same limit.
    assert!((32..=45).contains(&without_timer), "{without_timer}");
}

/// If the file cannot grow, the recording ends there and stays readable, and the program continues.
#[test]
fn a_file_that_cannot_grow() {
    let Some((host, stdout)) = run_self_recording(&["large-file"]) else { return };
    assert_eq!(stdout, "failures 1\n");
    assert!(!read(&host.scratch("full.data")).is_empty());
}

/// Recordings start and stop every tenth of a second while threads fork, exec, raise signals, start, exit, and open and
/// close a library.
#[test]
fn starts_and_stops() {
    let Some(host) = scenario(&["soak", "15"]) else { return };
    let directory = host.scratch("");
    let host = host.argument(directory);
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(outcome.stdout, b"done\n");
    let numbers: Vec<u64> = outcome.stderr.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [recordings, memory_kib] = numbers[..] else { panic!("{}", outcome.stderr) };
    assert!(recordings >= 30 && memory_kib < 200_000, "{}", outcome.stderr);
    let mut roots: BTreeMap<String, usize> = BTreeMap::new();
    let mut samples = Vec::new();
    for number in 0..8 {
        samples.extend(read(&host.scratch(&format!("soak-{number}.data"))));
    }
    // A thread that exits before its first sample has one frame, its entry function.
    samples.retain(|sample| sample.frames.len() > 1);
    for sample in samples.iter().filter(|sample| !sample.is_complete()) {
        *roots.entry(sample.frames.last().cloned().unwrap_or_default()).or_default() += 1;
    }
    assert!(!samples.is_empty(), "no samples");
    let incomplete = samples.iter().filter(|sample| !sample.is_complete()).count();
    assert!(incomplete <= 2 + samples.len() / 20, "{incomplete} of {}: {roots:?}", samples.len());
}
