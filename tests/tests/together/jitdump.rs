//! Jitdumps of real processes, read by two strict readers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{self, Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::jitdump_reader::{self, Jitdump};
use jitlisten_tests::paths;
use jitlisten_tests::tool::{self, Absence};

const NUMBA: [&str; 4] = ["numba-0.68.1", "numba-0.60.0", "numba-0.57.1", "numba-0.56.4"];

fn dumping_host(venv: &str, program: &str) -> Option<Host> {
    Some(integration::numba(venv, program)?.variable("JITLISTEN", "jitdump").variable("NUMBA_DEBUGINFO", "1"))
}

fn dumps(host: &Host) -> Vec<(PathBuf, Jitdump)> {
    let paths = jitdump_reader::find(&host.scratch("."));
    paths.into_iter().map(|path| (path.clone(), jitdump_reader::read(&path))).collect()
}

fn only_dump(host: &Host) -> Jitdump {
    let mut dumps_with_paths = dumps(host);
    assert_eq!(dumps_with_paths.len(), 1, "{}", host.log());
    dumps_with_paths.remove(0).1
}

#[test]
fn functions_have_their_own_lines_of_files_with_full_names() {
    for venv in NUMBA {
        let Some(host) = dumping_host(venv, "two_loops.py") else { continue };
        let host = host.argument("0");
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(outcome.map, None, "the perf map was not asked for");
        let dump = only_dump(&host);
        assert!(!dump.is_closed, "a process that ends does not close: other threads may still compile");
        let kernel = dump.named("kernel").max_by_key(|function| function.line_numbers().len()).expect("kernel");
        let source = paths::host("two_loops.py");
        let text = fs::read_to_string(&source).expect("the host");
        let find_line = |part: &str| text.lines().position(|line| line.contains(part)).expect(part) as u32 + 1;
        for part in ["range(3 * n)", "# three of four", "range(n)", "# one of four"] {
            assert!(
                kernel.line_numbers().contains(&find_line(part)),
                "{venv}: no code of {part:?}: {:?}",
                kernel.lines
            );
        }
        let first_line = find_line("def kernel");
        for line in kernel.lines.iter().filter(|line| line.line != 0) {
            assert_eq!(line.file, source.to_string_lossy(), "{venv}");
            assert!((first_line..=first_line + 6).contains(&line.line), "{venv}: {line:?}");
        }
    }
}

#[test]
fn bytes_are_relocated() {
    for venv in NUMBA {
        let Some(host) = dumping_host(venv, "chain.py") else { continue };
        let host = host.argument("0");
        let _ = host.run(Preload::Library).expect_success();
        let dump = only_dump(&host);
        for (caller, callee) in [("alpha", "beta"), ("beta", "gamma")] {
            let target_addresses: Vec<u64> = dump.named(callee).map(|function| function.address).collect();
            let calls = dump
                .named(caller)
                .any(|function| target_addresses.iter().any(|&target| contains_address(&function.code, target)));
            assert!(calls, "{venv}: no code of {caller} knows where {callee} is");
        }
    }
}

/// Returns true if the code contains the address as a constant.
fn contains_address(code: &[u8], address: u64) -> bool {
    code.windows(8).any(|bytes| bytes == address.to_le_bytes())
}

#[test]
fn the_program_notices_nothing() {
    let Some(host) = dumping_host(NUMBA[0], "chain.py") else { return };
    let _ = host::assert_same_output(&host.argument("0")).expect_success();
}

#[test]
fn eight_threads_do_not_mix_their_lines() {
    let Some(host) = dumping_host(NUMBA[0], "eight_threads.py") else { return };
    let _ = host::assert_same_output(&host).expect_success();
    let dump = only_dump(&host);
    for worker in 0..8 {
        let name = format!("worker_{worker}");
        let file = format!("/sources/{name}.py");
        let functions: Vec<_> = dump.named(&name).filter(|function| !function.lines.is_empty()).collect();
        assert!(!functions.is_empty(), "{name} has no lines");
        for line in functions.iter().flat_map(|function| &function.lines).filter(|line| line.line != 0) {
            assert_eq!(line.file, file);
            assert!((100 * worker + 1..100 * worker + 20).contains(&line.line), "{name}: {line:?}");
        }
    }
}

#[test]
fn switched_on_late_it_holds_everything_and_switched_off_it_ends() {
    let Some(host) = integration::numba(NUMBA[0], "switched.py") else { return };
    let host = host.variable("JITLISTEN", "perfmap");
    let _ = host.run(Preload::Library).expect_success();
    let mut dumps_by_time: Vec<Jitdump> = dumps(&host).into_iter().map(|dump| dump.1).collect();
    dumps_by_time.sort_by_key(|dump| dump.timestamp);
    let [first_dump, second_dump] = &dumps_by_time[..] else { panic!("{} dumps", dumps_by_time.len()) };
    let has_function = |dump: &Jitdump, name: &str| dump.named(name).next().is_some();
    assert_eq!(["first", "second", "third"].map(|name| has_function(first_dump, name)), [true, true, false]);
    assert_eq!(["first", "second", "third"].map(|name| has_function(second_dump, name)), [true, true, true]);
    assert_eq!((first_dump.is_closed, second_dump.is_closed), (true, false));
    let first_function = first_dump.named("first").next().expect("found above");
    assert!(first_function.timestamp < first_dump.timestamp, "code has the time of its own beginning");
    let second_function = second_dump.named("second").next().expect("found above");
    assert_eq!(first_dump.named("second").next().map(|function| function.timestamp), Some(second_function.timestamp));
}

#[test]
fn a_forked_child_writes_a_file_of_its_own() {
    let Some(host) = dumping_host(NUMBA[0], "forks.py") else { return };
    let outcome = host.run(Preload::Library).expect_success();
    let text = String::from_utf8(outcome.stdout).expect("numbers");
    let numbers: Vec<u32> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [parent, child, 0] = numbers[..] else { panic!("{text}") };
    let dumps_with_paths = dumps(&host);
    assert_ne!(dumps_with_paths[0].0.parent(), dumps_with_paths[1].0.parent(), "two directories");
    let by_process: BTreeMap<u32, &Jitdump> = dumps_with_paths.iter().map(|(_, dump)| (dump.pid, dump)).collect();
    let names = |dump: &Jitdump| ["first", "second", "third"].map(|name| dump.named(name).next().is_some());
    assert_eq!(names(by_process[&parent]), [true, true, false]);
    assert_eq!(names(by_process[&child]), [true, false, true]);
    assert!(!by_process[&parent].is_closed && !by_process[&child].is_closed);
}

#[test]
fn file_directory_marker_and_descriptor_are_private() {
    let Some(host) = dumping_host(NUMBA[0], "own_files.py") else { return };
    let outcome = host.run(Preload::Library).expect_success();
    let text = String::from_utf8(outcome.stdout).expect("text");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!((rows[0][0], rows[0][1]), ("map", "r-xp"), "{text}");
    let [_, flags, _] = rows[1][..] else { panic!("{text}") };
    let close_on_exec = 0o2_000_000;
    assert_ne!(u32::from_str_radix(flags, 8).expect("octal") & close_on_exec, 0, "{text}");
    assert_eq!((rows[2][1], rows[3][1]), ("0o600", "0o700"), "{text}");
    assert!(rows[3][2].starts_with(&*host.scratch(".").canonicalize().expect("there").to_string_lossy()), "{text}");
    assert!(rows.len() == 4, "{text}");
}

#[test]
fn without_jitlisten_dir_it_goes_where_other_jits_write() {
    let Some(host) = dumping_host(NUMBA[0], "own_files.py") else { return };
    let home_dir = host.scratch("home");
    let host = host.variable("JITLISTEN_DIR", "").variable("JITDUMPDIR", "").variable("HOME", &home_dir);
    let _ = host.run(Preload::Library).expect_success();
    assert_eq!(jitdump_reader::find(&home_dir.join(".debug/jit")).len(), 1);
    let other_dir = host.scratch("elsewhere");
    let host = host.variable("JITDUMPDIR", &other_dir);
    let _ = host.run(Preload::Library).expect_success();
    assert_eq!(jitdump_reader::find(&other_dir).len(), 1);
}

/// Numba allows only one thread to compile at a time; LLVM allows several.
#[test]
fn eight_threads_of_llvm_do_not_mix_their_lines() {
    for version in [14, 22] {
        let include = format!("/usr/lib/llvm-{version}/include");
        let Some(compiler) = tool::require(&format!("clang-{version}"), Absence::IsAllowed) else { continue };
        if !Path::new(&include).join("llvm-c").exists() {
            tool::skip(&include, "no headers of LLVM's C API", Absence::IsAllowed);
            continue;
        }
        let builder = Host::new("", &format!("threads-llvm-{version}"));
        let program = builder.scratch("program");
        let (include, library) = (format!("-I{include}"), format!("-L/usr/lib/llvm-{version}/lib"));
        let library_name = format!("-lLLVM-{version}");
        let source = paths::host("compiles_in_threads.c");
        let flags = ["-O1", "-pthread", &include, &library];
        let mut command = Command::new(compiler);
        command.args(flags).arg(source).arg(&library_name).arg("-o").arg(&program);
        let compile_run = tool::run(&mut command);
        assert!(compile_run.status.success(), "{}", String::from_utf8_lossy(&compile_run.stderr));
        let host = Host::new(program, &format!("threads-llvm-{version}")).variable("JITLISTEN", "jitdump");
        let _ = host.run(Preload::Library).expect_success();
        let dump = only_dump(&host);
        assert_eq!(dump.functions.len(), 8 * 50, "LLVM {version}");
        for function in &dump.functions {
            let worker = function.name.strip_prefix("worker_").and_then(|rest| rest.split('_').next());
            let first_line = worker.and_then(|worker| worker.parse::<u32>().ok()).expect("a worker") * 100 + 1;
            assert!(
                function.line_numbers().iter().all(|line| (first_line..first_line + 4).contains(line)),
                "{function:?}"
            );
            assert!(!function.lines.is_empty(), "{function:?}");
            let file = format!("/sources/worker_{}.c", first_line / 100);
            assert!(function.lines.iter().all(|line| line.file == file), "{function:?}");
        }
        let tids: std::collections::BTreeSet<u32> = dump.functions.iter().map(|function| function.tid).collect();
        assert_eq!(tids.len(), 8);
    }
}
