//! Objects whose text shares pages have one image together, with everything in it that each would have alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, faults, names, with_images};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const COUNT: usize = 8;

/// Which file each function of `hosts/modules.py` is mapped from; looks into every file.
fn files(venv: &str, words: [&str; 2]) -> Option<BTreeMap<String, String>> {
    let host = integration::numba(venv, "modules.py")?.argument(COUNT.to_string());
    let host = words.iter().fold(host, |host, word| host.argument(word));
    let host = with_images(host);
    let ended = host.run(Preload::Library).well();
    let stdout = String::from_utf8(ended.stdout).expect("text");
    let mut lines = stdout.lines();
    assert_eq!(lines.next(), Some("right: 8"));
    let found: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(' ')).map(|(name, file)| (name.into(), file.into())).collect();
    assert_eq!(found.len(), COUNT);
    for (name, file) in &found {
        assert!(file.contains("/image-") && file.ends_with(".so"), "{words:?}: {name} is in {file}\n{}", host.log());
        let there = names(file.as_ref());
        for expected in [name.clone(), name.replace('f', "g")] {
            assert!(there.contains(&expected), "{words:?}: no {expected} in {file}: {there:?}");
        }
    }
    assert_eq!(faults(&image::files(&host)[0]), [""; 0]);
    Some(found)
}

fn distinct(files: &BTreeMap<String, String>) -> usize {
    files.values().collect::<BTreeSet<_>>().len()
}

#[test]
fn what_is_finalized_together_shares_pages_and_an_image() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(files) = files(venv, ["together", "LLVM"]) else { continue };
        assert!(distinct(&files) < COUNT, "LLVM shares pages: {files:?}");
    }
}

#[test]
fn what_is_finalized_apart_has_images_of_its_own() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(files) = files(venv, ["apart", "LLVM"]) else { continue };
        assert_eq!(distinct(&files), COUNT);
    }
}

/// `NUMBA_USE_LLVMLITE_MEMORY_MANAGER=1`: one allocation for each object, code first.
#[test]
fn llvmlites_own_memory_manager_shares_nothing() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        for how in ["together", "apart"] {
            let Some(files) = files(venv, [how, "llvmlite"]) else { continue };
            assert_eq!(distinct(&files), COUNT);
        }
    }
}

/// Numba itself with that memory manager.
#[test]
fn numba_with_llvmlites_memory_manager() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(host) = integration::numba(venv, "callback.py") else { continue };
        let host = with_images(host.argument("0")).variable("NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "1");
        let ended = host.run(Preload::Library).well();
        assert!(String::from_utf8_lossy(&ended.stdout).starts_with("17.0\n"));
        let all: BTreeSet<String> = image::files(&host).iter().flat_map(|image| names(image)).collect();
        for name in ["inner(int64)", "outer(int64)"] {
            assert!(all.iter().any(|function| function.contains(name)), "{venv}: no {name} in {all:?}\n{}", host.log());
        }
        let log = host.log();
        assert!(!log.contains("no image") && !log.contains("stops"), "{log}");
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
    let two = host.scratch("inlined_two.bc");
    let one = host.scratch("inlined_one.bc");
    let host = host.argument(format!("--jit-kind={kind}")).argument(format!("--extra-module={}", two.display()));
    Some(with_images(host.argument(one)))
}

/// What `addr2line -i -f` says of every byte of a function: where it stands inlined, the callee first.
fn said_of(image: &Path, function: &str) -> Vec<String> {
    let symbols = tool::run(Command::new("nm").arg("-S").arg(image)).stdout;
    let symbols = String::from_utf8_lossy(&symbols).into_owned();
    let line = symbols.lines().find(|line| line.ends_with(&format!(" T {function}"))).expect("it is there");
    let mut numbers = line.split(' ').map_while(|word| u64::from_str_radix(word, 16).ok());
    let (start, size) = (numbers.next().expect("an address"), numbers.next().expect("a size"));
    let addresses = (start..start + size).map(|address| format!("{address:#x}"));
    let mut command = Command::new("addr2line");
    let said = tool::run(command.args(["-i", "-f", "-s", "-e"]).arg(image).args(addresses)).stdout;
    String::from_utf8_lossy(&said).lines().map(str::to_owned).collect()
}

/// Debug information of several objects is linked: each function has its own file and lines, inlined calls included.
#[test]
fn two_modules_have_their_lines_and_inlined_calls_in_one_image() {
    for (version, kind, shared) in [(14, "mcjit", true), (22, "mcjit", true), (14, "orc", false)] {
        let Some(host) = lli(version, kind) else { continue };
        let _ = host.run(Preload::Library).well();
        let images = image::files(&host);
        let with = |name| images.iter().find(|image| names(image).contains(name)).expect(name);
        assert_eq!(with("one") == with("two"), shared, "lli-{version} {kind}: {images:?}");
        for (function, callee, file) in [("one", "deep", "inlined_one.c:"), ("two", "deeper", "inlined_two.c:")] {
            let said = said_of(with(function), function);
            let inlined = |lines: &[String]| {
                (lines[0].as_str(), lines[2].as_str()) == (callee, function) && lines[1].starts_with(file)
            };
            assert!(said.windows(4).any(inlined), "lli-{version} {kind}: {said:?}");
        }
        assert_eq!(images.iter().flat_map(|image| faults(image)).collect::<Vec<_>>(), [""; 0]);
        assert!(!host.log().contains("image"), "{}", host.log());
    }
}
