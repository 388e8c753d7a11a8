//! Objects whose code shares pages also share an image, which contains everything that separate images would.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, find_faults, function_names, with_images};
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const MODULE_COUNT: usize = 8;

/// Maps each function of `hosts/modules.py` to its image file. Checks the symbols of every file.
fn files(venv: &str, args: [&str; 2]) -> Option<BTreeMap<String, String>> {
    let host = integration::numba(venv, "modules.py")?.argument(MODULE_COUNT.to_string());
    let host = host.arguments(args);
    let host = with_images(host);
    let outcome = host.run(Preload::Library).expect_success();
    let stdout = String::from_utf8(outcome.stdout).expect("text");
    let mut lines = stdout.lines();
    assert_eq!(lines.next(), Some("right: 8"));
    let file_by_function: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(' ')).map(|(name, file)| (name.into(), file.into())).collect();
    assert_eq!(file_by_function.len(), MODULE_COUNT);
    for (name, file) in &file_by_function {
        assert!(file.contains("/image-") && file.ends_with(".so"), "{args:?}: {name} is in {file}\n{}", host.log());
        let symbols = function_names(file.as_ref());
        for expected in [name.clone(), name.replace('f', "g")] {
            assert!(symbols.contains(&expected), "{args:?}: no {expected} in {file}: {symbols:?}");
        }
    }
    assert_eq!(find_faults(&image::files(&host)[0]), [""; 0]);
    Some(file_by_function)
}

fn count_files(files: &BTreeMap<String, String>) -> usize {
    files.values().collect::<BTreeSet<_>>().len()
}

#[test]
fn what_is_finalized_together_shares_pages_and_an_image() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(files) = files(venv, ["together", "LLVM"]) else { continue };
        assert!(count_files(&files) < MODULE_COUNT, "LLVM shares pages: {files:?}");
    }
}

#[test]
fn what_is_finalized_apart_has_images_of_its_own() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(files) = files(venv, ["apart", "LLVM"]) else { continue };
        assert_eq!(count_files(&files), MODULE_COUNT);
    }
}

/// llvmlite's memory manager (`NUMBA_USE_LLVMLITE_MEMORY_MANAGER=1`) makes one allocation per object, starting with the
/// code.
#[test]
fn llvmlites_own_memory_manager_shares_nothing() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        for mode in ["together", "apart"] {
            let Some(files) = files(venv, [mode, "llvmlite"]) else { continue };
            assert_eq!(count_files(&files), MODULE_COUNT);
        }
    }
}

/// Runs Numba itself with llvmlite's memory manager.
#[test]
fn numba_with_llvmlites_memory_manager() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(host) = integration::numba(venv, "callback.py") else { continue };
        let host = with_images(host.argument("0")).variable("NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "1");
        let outcome = host.run(Preload::Library).expect_success();
        assert!(String::from_utf8_lossy(&outcome.stdout).starts_with("17.0\n"));
        let image_names: BTreeSet<String> =
            image::files(&host).iter().flat_map(|image| function_names(image)).collect();
        for name in ["inner(int64)", "outer(int64)"] {
            assert!(
                image_names.iter().any(|function| function.contains(name)),
                "{venv}: no {name} in {image_names:?}\n{}",
                host.log()
            );
        }
        let log = host.log();
        assert_eq!(log::count(&log, is_lost), 0, "{log}");
    }
}

fn lli(version: u32, kind: &str) -> Option<Host> {
    let absence = if version == 14 { Absence::FailsInCi } else { Absence::IsAllowed };
    let lli = tool::require(&format!("lli-{version}"), absence)?;
    let clang = tool::require(&format!("clang-{version}"), absence)?;
    let host = Host::new(lli, &format!("lli-{version}-{kind}"));
    let flags = ["-O1", "-g", "-fasynchronous-unwind-tables", "-emit-llvm", "-c"];
    for module in ["inlined_one", "inlined_two"] {
        let source = paths::host(&format!("{module}.c"));
        tool::compile(&clang, &flags, &source, &host.scratch(&format!("{module}.bc")));
    }
    let second_module = host.scratch("inlined_two.bc");
    let first_module = host.scratch("inlined_one.bc");
    let host =
        host.argument(format!("--jit-kind={kind}")).argument(format!("--extra-module={}", second_module.display()));
    Some(with_images(host.argument(first_module)))
}

/// Output lines of `addr2line -i -f` for every byte of a function. For inlined calls it prints several, the callee's
/// first.
fn symbolize_bytes(image: &Path, function: &str) -> Vec<String> {
    let symbols = tool::run(Command::new("nm").arg("-S").arg(image)).stdout;
    let symbols = String::from_utf8_lossy(&symbols).into_owned();
    let line = symbols.lines().find(|line| line.ends_with(&format!(" T {function}"))).expect("it is there");
    let mut numbers = line.split(' ').map_while(|word| u64::from_str_radix(word, 16).ok());
    let (start, size) = (numbers.next().expect("an address"), numbers.next().expect("a size"));
    let addresses = (start..start + size).map(|address| format!("{address:#x}"));
    let mut command = Command::new("addr2line");
    let output = tool::run(command.args(["-i", "-f", "-s", "-e"]).arg(image).args(addresses)).stdout;
    String::from_utf8_lossy(&output).lines().map(str::to_owned).collect()
}

/// The debug information of several objects is merged, but each function keeps its own file and lines, including those
/// of inlined calls.
#[test]
fn two_modules_have_their_lines_and_inlined_calls_in_one_image() {
    for (version, kind, shared) in [(14, "mcjit", true), (22, "mcjit", true), (14, "orc", false)] {
        let Some(host) = lli(version, kind) else { continue };
        let _ = host.run(Preload::Library).expect_success();
        let images = image::files(&host);
        let find_image = |name| images.iter().find(|image| function_names(image).contains(name)).expect(name);
        assert_eq!(find_image("one") == find_image("two"), shared, "lli-{version} {kind}: {images:?}");
        for (function, callee, file) in [("one", "deep", "inlined_one.c:"), ("two", "deeper", "inlined_two.c:")] {
            let lines = symbolize_bytes(find_image(function), function);
            let is_inlined = |window: &[String]| {
                (window[0].as_str(), window[2].as_str()) == (callee, function) && window[1].starts_with(file)
            };
            assert!(lines.windows(4).any(is_inlined), "lli-{version} {kind}: {lines:?}");
        }
        assert_eq!(images.iter().flat_map(|image| find_faults(image)).collect::<Vec<_>>(), [""; 0]);
        assert_eq!(log::count(&host.log(), is_lost), 0, "{}", host.log());
    }
}

fn is_lost(event: &LogEvent<'_>) -> bool {
    matches!(event, LogEvent::NoImage { .. } | LogEvent::SinkStopped { .. })
}
