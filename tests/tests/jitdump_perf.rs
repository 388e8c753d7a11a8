//! What real perf makes of the jitdump, after `perf inject --jit`.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::perf_inject::{self, Injected};
use jitlisten_tests::{door, perf, perf_map, place, story};

fn dumping(venv: &str, program: &str) -> Option<Host> {
    perf::is_here()?;
    Some(door::numba(venv, program)?.variable("JITLISTEN", "jitdump").variable("NUMBA_DEBUGINFO", "1"))
}

fn line_of(source: &str, part: &str) -> u32 {
    let text = std::fs::read_to_string(place::host(source)).expect("the host");
    text.lines().position(|line| line.contains(part)).expect(part) as u32 + 1
}

/// The name perf shows for the function, for its `-s`.
fn symbol(injected: &Injected, function: &str) -> String {
    let leaves = injected.leaves().into_iter().filter_map(|(name, count)| Some((name?, count)));
    let named = leaves.filter(|(name, _)| story::names(name, function));
    named.max_by_key(|leaf| leaf.1).unwrap_or_else(|| panic!("no sample in {function}")).0.to_owned()
}

/// Two loops of one body, three iterations to one: the hot line is the first's, with three quarters of the samples.
#[test]
fn the_hot_source_line_is_found() {
    for venv in ["numba-0.68.1", "numba-0.57.1"] {
        let Some(host) = dumping(venv, "two_loops.py") else { continue };
        let injected = perf_inject::record(&host.argument("3"), "fp");
        let shares = injected.lines(&symbol(&injected, "kernel"), "two_loops.py");
        let share = |part: &str| shares.get(&line_of("two_loops.py", part)).copied().unwrap_or(0.0);
        let first = share("range(3 * n)") + share("# three of four");
        let second = share("range(n)") + share("# one of four");
        assert!((first - 75.0).abs() <= 10.0 && (second - 25.0).abs() <= 10.0, "{venv}: {shares:?}");
        let hot = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|share| *share.0);
        assert_eq!(hot, Some(line_of("two_loops.py", "# three of four")), "{venv}: {shares:?}");

        let report = injected.perf(&["report", "--stdio", "-g", "none", "--sort", "sym,srcline", "--percent-limit", "2"]);
        let hottest = report.lines().find(|line| line.contains('%') && !line.starts_with('#')).unwrap_or_default();
        let place = format!("two_loops.py:{}", line_of("two_loops.py", "# three of four"));
        assert!(story::names(hottest, "kernel") && hottest.contains(&place), "{venv}: {hottest}");
    }
}

#[test]
fn calls_are_disassembled_with_their_true_targets() {
    let Some(host) = dumping("numba-0.68.1", "chain.py") else { return };
    let injected = perf_inject::record(&host.argument("1"), "fp");
    let caller = injected.dump().named("beta").find(|function| !function.name.contains("::")).expect("beta").clone();
    // perf annotates what has samples; objdump shows the same file's bytes, which is all perf does with the others.
    let file = jitted(&injected, &host_dump(&injected), caller.index);
    let text = objdump(&file);
    let targets: Vec<u64> = injected.dump().named("gamma").map(|function| function.address).collect();
    let shown = targets.iter().any(|target| text.lines().any(|line| line.contains(&format!("${target:#x}"))));
    assert!(shown, "beta does not refer to {targets:x?}:\n{text}");
}
