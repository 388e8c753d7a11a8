//! perf's reports on jitdumps after `perf inject --jit`.

use jitlisten_tests::host::Host;
use jitlisten_tests::perf_inject::{self, Injected};
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::{integration, paths, perf, scenario, support_table};

fn dumping_host(venv: &str, program: &str) -> Option<Host> {
    perf::is_available()?;
    Some(integration::numba(venv, program)?.variable("JITLISTEN", "jitdump").variable("NUMBA_DEBUGINFO", "1"))
}

fn find_line(source: &str, part: &str) -> u32 {
    let text = std::fs::read_to_string(paths::host(source)).expect("the host");
    text.lines().position(|line| line.contains(part)).expect(part) as u32 + 1
}

/// Symbol name that perf shows for the function, for perf's option `-s`.
fn find_symbol(injected: &Injected, function: &str) -> String {
    let leaves = injected.count_leaves().into_iter().filter_map(|(name, count)| Some((name?, count)));
    let candidates = leaves.filter(|(name, _)| scenario::names_function(name, function));
    candidates.max_by_key(|leaf| leaf.1).unwrap_or_else(|| panic!("no sample in {function}")).0.to_owned()
}

/// Two loops have the same body and a 3:1 ratio of iterations. The first loop has the hottest line and three quarters
/// of the samples.
#[test]
fn the_hot_source_line_is_found() {
    for venv in ["numba-0.68.1", "numba-0.57.1"] {
        let Some(host) = dumping_host(venv, "two_loops.py") else { continue };
        let injected = perf_inject::record(host.argument("3"), 997, "fp");
        let shares = injected.lines(&find_symbol(&injected, "kernel"), "two_loops.py");
        let share = |part: &str| shares.get(&find_line("two_loops.py", part)).copied().unwrap_or(0.0);
        let first_share = share("range(3 * n)") + share("# three of four");
        let second_share = share("range(n)") + share("# one of four");
        assert!((first_share - 75.0).abs() <= 10.0 && (second_share - 25.0).abs() <= 10.0, "{venv}: {shares:?}");
        let hottest_line = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|share| *share.0);
        assert_eq!(hottest_line, Some(find_line("two_loops.py", "# three of four")), "{venv}: {shares:?}");

        // perf starts addr2line for every address that it prints, so the report is limited to one file.
        let index =
            injected.dump().named("kernel").find(|function| !function.name.contains("::")).expect("kernel").index;
        let file = format!("jitted-{}-{index}.so", injected.dump().pid);
        let args = ["report", "--stdio", "--no-children", "-g", "none", "--sort", "sym,srcline", "--dsos", &file];
        let report = injected.perf(&args);
        let hottest = report.lines().find(|line| line.contains('%') && !line.starts_with('#')).unwrap_or_default();
        let location = format!("two_loops.py:{}", find_line("two_loops.py", "# three of four"));
        assert!(scenario::names_function(hottest, "kernel") && hottest.contains(&location), "{venv}: {hottest}");
    }
}

#[test]
fn calls_are_disassembled_with_their_true_targets() {
    let Some(host) = dumping_host("numba-0.68.1", "object_per_function.py") else { return };
    let injected = perf_inject::record(host.argument("2"), 997, "fp");
    let gamma = injected.dump().named("gamma").next().expect("gamma").address;
    let text = injected.perf(&["annotate", "--stdio", "-s", "beta"]);
    assert!(text.contains(&format!("${gamma:#x}")), "beta does not call {gamma:#x}:\n{text}");
}

/// With one object per function, each function is followed by space for its unwind table, and no stack is truncated.
#[test]
fn unwind_tables_lead_out_of_the_code() {
    for policy in ["1", "0"] {
        let Some(host) = dumping_host("numba-0.68.1", "object_per_function.py") else { continue };
        let host = host.variable("JITLISTEN_FRAME_POINTERS", policy).argument("2");
        let injected = perf_inject::record(host, 997, "dwarf,4096");
        let dump = injected.dump();
        for name in scenario::CHAIN {
            assert!(dump.named(name).all(|function| function.unwinding.is_some()), "{name} has no table");
        }
        let gamma_samples =
            injected.samples.iter().filter(|sample| is_in_function(sample, 0, "gamma")).collect::<Vec<_>>();
        let whole_stacks = gamma_samples
            .iter()
            .filter(|sample| is_in_function(sample, 1, "beta") && is_in_function(sample, 2, "alpha"));
        let through_libffi =
            whole_stacks.filter(|sample| sample.frames.iter().any(|frame| frame.object.contains("libffi"))).count();
        assert!(
            gamma_samples.len() >= 300 && through_libffi * 100 >= gamma_samples.len() * 95,
            "{through_libffi} of {} stacks",
            gamma_samples.len()
        );
    }
}

fn is_in_function(sample: &Sample, depth: usize, function: &str) -> bool {
    let symbol = sample.frames.get(depth).and_then(|frame| frame.symbol.as_deref());
    symbol.is_some_and(|symbol| scenario::names_function(symbol, function))
}

/// Adjacent functions leave no space for tables, so only the last function of an object has an unwind table; perf would
/// place the other tables over the neighbouring functions. DWARF unwinding then ends at the function, whereas
/// `--call-graph fp` finds all callers.
#[test]
fn without_space_a_function_goes_without_its_table() {
    let Some(host) = dumping_host("numba-0.68.1", "chain.py") else { return };
    let injected = perf_inject::record(host.argument("1"), 997, "dwarf,4096");
    let gamma = injected.dump().named("gamma").find(|function| !function.name.contains("::")).expect("gamma");
    assert_eq!(gamma.unwinding, None);
    let gamma_samples: Vec<_> = injected.samples.iter().filter(|sample| is_in_function(sample, 0, "gamma")).collect();
    assert!(
        gamma_samples.len() >= 100 && gamma_samples.iter().all(|sample| sample.frames.len() == 1),
        "{:?}",
        gamma_samples.first()
    );
}

#[test]
fn frame_pointers_lead_out_of_every_function() {
    let Some(host) = dumping_host("numba-0.68.1", "chain.py") else { return };
    let injected = perf_inject::record(host.argument("2"), 997, "fp");
    let gamma_samples: Vec<_> = injected.samples.iter().filter(|sample| is_in_function(sample, 0, "gamma")).collect();
    let whole_stacks = gamma_samples
        .iter()
        .filter(|sample| is_in_function(sample, 1, "beta") && is_in_function(sample, 2, "alpha"))
        .count();
    assert!(
        gamma_samples.len() >= 300 && whole_stacks * 100 >= gamma_samples.len() * 95,
        "{whole_stacks} of {} stacks",
        gamma_samples.len()
    );
    support_table::record_cell("shim, stock wheels", "jitdump");
}

/// Two functions occupy the same address, one after the other. perf must assign samples by time.
#[test]
fn a_function_at_a_reused_address_has_its_own_samples() {
    let Some(host) = dumping_host("numba-0.68.1", "address_reuse.py") else { return };
    let injected = perf_inject::record(host.argument("1"), 997, "fp");
    let [summer, winter] = ["summer", "winter"].map(|name| injected.count_leaves_in(name));
    assert!(summer.min(winter) >= 300, "{summer} and {winter} samples");
    assert!(summer.max(winter) * 4 <= summer.min(winter) * 5, "{summer} and {winter} samples of one second each");
}

/// Samples taken before the sink was enabled have names, too, because the jitdump records when the code was created.
#[test]
fn samples_from_before_the_switch_are_named() {
    let Some(host) = dumping_host("numba-0.68.1", "switched_late.py") else { return };
    let host = host.variable("JITLISTEN", "unwind").argument("1");
    let injected = perf_inject::record(host, 997, "fp");
    assert!(injected.count_leaves_in("kernel") >= 700, "{:?}", injected.count_leaves());
}

/// One report contains the names of Numba's code and of CPython's trampolines, including those created before our first
/// object and after our last.
#[test]
fn python_and_numba_names_in_one_report() {
    for sinks in ["jitdump", "jitdump,perfmap"] {
        let Some(host) = dumping_host("numba-0.68.1-python-3.12", "python_perf_jitdump.py") else { continue };
        let host = host.variable("JITLISTEN", sinks).variable("PYTHONPERFSUPPORT", "1").argument("3");
        let injected = perf_inject::record(host, 9973, "fp");
        for function in ["early_leaf", "late_leaf", "gamma"] {
            assert!(
                injected.count_leaves_in(function) > 0,
                "{sinks}: {function} is missing: {:?}",
                injected.count_leaves()
            );
        }
        let dump = injected.dump();
        assert_eq!(dump.named("gamma").filter(|function| !function.name.contains("::")).count(), 1, "{sinks}");
        assert_eq!(dump.named("late_leaf").count(), 1, "{sinks}");
    }
}

/// If the same code has an image and a jitdump, perf names it and follows the whole chain, both before and after `perf
/// inject`.
#[test]
fn images_and_a_jitdump_do_not_disturb_each_other() {
    let Some(host) = dumping_host("numba-0.68.1", "chain.py") else { return };
    let injected = perf_inject::record(host.variable("JITLISTEN", "image,jitdump").argument("2"), 997, "fp");
    for (stage, samples) in [("before", injected.samples_before_inject()), ("after", injected.samples.clone())] {
        let gamma_samples: Vec<_> = samples.iter().filter(|sample| is_in_function(sample, 0, "gamma")).collect();
        let whole_stacks = gamma_samples
            .iter()
            .filter(|sample| is_in_function(sample, 1, "beta") && is_in_function(sample, 2, "alpha"))
            .count();
        assert!(
            gamma_samples.len() >= 150 && whole_stacks * 100 >= gamma_samples.len() * 95,
            "{stage}: {whole_stacks} of {} stacks",
            gamma_samples.len()
        );
        let nameless_leaves = samples.iter().filter_map(|sample| sample.frames.first()).filter(|leaf| {
            leaf.symbol.is_none() && (leaf.object.contains("/image-") || leaf.object.contains("/jitted-"))
        });
        assert_eq!(nameless_leaves.count(), 0, "{stage}");
    }
}

/// With `-X perf_jit`, CPython 3.13 writes its own jitdump to `/tmp`, so the process has two jitdumps in two
/// directories.
#[test]
fn pythons_jitdump_and_ours_coexist() {
    let Some(host) = dumping_host("numba-0.68.1-python-3.13", "python_perf.py") else { return };
    let injected = perf_inject::record(host.variable("PYTHON_PERF_JIT_SUPPORT", "1").argument("4"), 9973, "fp");
    let pid = injected.dump().pid;
    let python_dump = std::fs::remove_file(format!("/tmp/jit-{pid}.dump"));
    for entry in std::fs::read_dir("/tmp").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("jitted-{pid}-")) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    assert!(python_dump.is_ok(), "CPython wrote no jitdump: {python_dump:?}");
    let leaves = injected.count_leaves();
    let python_functions = leaves.keys().flatten().filter(|name| name.starts_with("py::python_")).count();
    assert!(injected.count_leaves_in("gamma") > 0 && python_functions > 0, "{leaves:?}");
}
