//! `JITLISTEN=image` with unmodified tools that know nothing of JITs, each beside the stock process it must differ from.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::door::{self, Door};
use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::story::{self, CHAIN};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{doors, perf, perf_script};

const NUMBA: &str = "numba-0.68.1";

fn with_images(host: Host) -> Host {
    host.variable("JITLISTEN", "image")
}

/// The images of a host's processes.
fn images(host: &Host) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "so");
    let directories = entries(host.scratch("")).filter(|path| path.is_dir());
    directories.flat_map(entries).filter(is_image).collect()
}

fn is_image(object: &str) -> bool {
    object.contains("/image-") && object.ends_with(".so")
}

/// The samples whose leaf is in an image, and how many of them have the whole chain and then one of `callers`.
fn complete(samples: &[Sample], callers: &[&str]) -> (usize, usize) {
    let jit = samples.iter().filter(|sample| sample.frames.first().is_some_and(|leaf| is_image(&leaf.object)));
    let is_complete = |sample: &&Sample| {
        let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
        let mut rest = symbols.iter();
        // The leaf may be gamma, or what it was inlined into.
        let chain = CHAIN[1..].iter().all(|function| rest.any(|symbol| story::names(symbol, function)));
        let named = symbols.first().is_some_and(|leaf| CHAIN.iter().any(|function| story::names(leaf, function)));
        chain && named && rest.any(|symbol| callers.iter().any(|caller| symbol.contains(caller)))
    };
    let jit: Vec<&Sample> = jit.collect();
    (jit.len(), jit.iter().copied().filter(is_complete).count())
}

#[test]
fn perf_report_names_code_without_map_or_inject() {
    for door in [Door::Numba(NUMBA), Door::Lli(14, &["--jit-kind=mcjit"])] {
        let (Some(()), Some(host)) = (perf::is_here(), door.chain(2, &[])) else { continue };
        let host = with_images(host);
        let recording = perf::record(&host, Preload::Library);
        assert_eq!(recording.map, None, "no perf map was asked for");
        let caller = [door.caller_frame(), "runFunction", "main"];
        let (jit, complete) = complete(&recording.samples, &caller);
        assert!(jit >= 300, "{door:?}: only {jit} samples in images\n{}", host.log());
        assert!(complete * 100 >= jit * 95, "{door:?}: {complete} of {jit} stacks are complete");
        doors::seen(door.row(), "image");
    }
}

/// Unwind tables alone: no frame pointers in the code, and Python has none either.
#[test]
fn perf_walks_by_unwind_tables_from_the_kernel_to_main() {
    let (Some(()), Some(host)) = (perf::is_here(), Door::Numba(NUMBA).chain(2, &[])) else { return };
    let host = with_images(host).variable("JITLISTEN_FRAME_POINTERS", "0");
    let data = host.scratch("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "199", "--call-graph", "dwarf", "-B", "-N", "-o"]).arg(&data);
    assert!(tool::run(record.args(["--", "env"]).args(host.env_words(Preload::Library))).status.success());
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i"]).arg(&data);
    let text = tool::run(&mut script).stdout;
    let samples = perf_script::parse(&String::from_utf8_lossy(&text)).expect("perf prints what it prints");
    let (jit, complete) = complete(&samples, &["__libc_start"]);
    assert!(jit >= 60, "only {jit} samples in images\n{}", host.log());
    assert!(complete * 100 >= jit * 95, "{complete} of {jit} stacks reach main");
}

/// What py-spy says of Python -> Numba -> Python -> Numba, and how many samples it could not make sense of.
fn py_spy(preload: Preload) -> Option<(String, u64)> {
    let host = with_images(door::numba(NUMBA, "callback.py")?.argument("60")).variable("JITLISTEN_FRAME_POINTERS", "0");
    let python = door::python(NUMBA)?;
    let spy = python.with_file_name("py-spy");
    if !spy.is_file() {
        tool::skip("py-spy", "not in the virtual environment", Absence::FailsInCi);
        return None;
    }
    let mut running = host.start(preload);
    running.wait_for_line("running");
    let raw = host.scratch("raw");
    let mut command = Command::new(spy);
    command.args(["record", "--native", "-f", "raw", "-d", "3", "-r", "50", "-o"]).arg(&raw);
    let done = tool::run(command.args(["-p", &running.pid().to_string()]));
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let Some((_, errors)) = said.split_once("Errors: ") else {
        tool::skip("py-spy", &said, Absence::FailsInCi);
        return None;
    };
    let digits: String = errors.chars().take_while(char::is_ascii_digit).collect();
    Some((fs::read_to_string(raw).unwrap_or_default(), digits.parse().expect("a number")))
}

#[test]
fn py_spy_sees_numba_and_python_frames_in_turn() {
    let Some((stacks, errors)) = py_spy(Preload::Library) else { return };
    assert_eq!(errors, 0, "{stacks}");
    let in_turn = |stack: &&str| {
        let mut frames = stack.split(';');
        ["outer(int64)", "outer(", "between", "inner(int64)"]
            .iter()
            .all(|name| frames.any(|frame| frame.contains(name)))
    };
    assert!(stacks.lines().any(|stack| in_turn(&stack)), "{stacks}");
    let stock = py_spy(Preload::Nothing).map(|(stacks, _)| stacks).unwrap_or_default();
    assert!(!stock.lines().any(|stack| in_turn(&stack)), "the judge must be able to say no: {stock}");
}

#[test]
fn judges_of_elf_and_dwarf_find_no_fault() {
    let Some(host) = door::numba(NUMBA, "callback.py") else { return };
    let host = with_images(host.argument("0")).variable("NUMBA_DEBUGINFO", "1");
    let _ = host.run(Preload::Library).well();
    let images = images(&host);
    assert!(images.len() >= 3, "{images:?}\n{}", host.log());
    for (judge, words) in
        [("readelf", &["-aW"][..]), ("llvm-dwarfdump-22", &["--verify"]), ("eu-elflint", &["--gnu-ld"])]
    {
        let Some(program) = tool::require(judge, Absence::IsAllowed) else { continue };
        for image in &images {
            let done = tool::run(Command::new(&program).args(words).arg(image));
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() && stderr.is_empty(), "{judge} {}: {stderr}", image.display());
            let text = String::from_utf8_lossy(&done.stdout);
            assert!(!text.to_lowercase().contains("warning"), "{judge}: {text}");
        }
    }
}

#[test]
fn images_cost_no_mapping() {
    let host = || Some(with_images(door::numba(NUMBA, "many.py")?.argument("500")));
    let mappings = |preload| {
        let host = host()?;
        let stdout = String::from_utf8(host.run(preload).well().stdout).expect("text");
        assert!(stdout.contains("right: 500\n"), "{stdout}");
        let images = images(&host).len();
        Some((stdout.rsplit(' ').next()?.trim().parse::<u64>().expect("a number"), images))
    };
    let (Some((stock, none)), Some((ours, all))) = (mappings(Preload::Nothing), mappings(Preload::Library)) else {
        return;
    };
    assert_eq!(none, 0);
    assert!(all >= 500, "{all} images");
    assert!(ours <= stock + stock / 10, "{ours} mappings instead of {stock}");
}

/// The write is refused in the middle of the first image; nothing else happens.
#[test]
fn a_full_disk_stops_the_sink_and_nothing_else() {
    let Some(python) = door::python(NUMBA) else { return };
    let script = jitlisten_tests::place::host("callback.py");
    let limited = |host: Host| with_images(host.argument("-c").argument("ulimit -f 4; exec \"$@\"").argument("sh"));
    let host = limited(Host::new("/bin/sh", "full")).argument(python).argument(script).argument("0");
    let host = host.variable("JITLISTEN_LOG", "/dev/null");
    let ended = host.run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout).lines().next(), Some("17.0"));
    assert_eq!(images(&host), Vec::<PathBuf>::new());
}
