//! A recorded program ends as it does alone: `hosts/ends.c`.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{read, recorded};
use jitlisten_tests::tool::{self, Absence};

/// The program, compiled with these flags as well; `None` after a loud skip, or where this machine lacks the runtime of
/// a sanitizer.
fn built(scratch: &Scratch, flags: &[&str]) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = scratch.join("ends");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    let built = tool::run(command.arg(paths::host("ends.c")).arg("-o").arg(&program));
    let errors = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() && errors.contains("cannot find") {
        tool::skip(&flags.join(" "), "its runtime is not installed", Absence::IsAllowed);
        return None;
    }
    assert!(built.status.success(), "{errors}");
    Some(program)
}

fn is_root() -> bool {
    tool::run(Command::new("id").arg("-u")).stdout == b"0\n"
}

/// Runs each scenario alone and recorded.
fn end_as_alone(scenarios: &[&str]) {
    let scratch = Scratch::new("ends");
    let Some(program) = built(&scratch, &[]) else { return };
    for scenario in scenarios {
        let host = || Host::new(&program, "ends").argument(scenario);
        let alone = host().run(Preload::Nothing);
        for words in ["", ",wall", ",children"] {
            let (host, data) = recorded(host(), words);
            let ended = host.run(Preload::Library);
            let (expected, status) = (alone.status.into_raw(), ended.status.into_raw());
            assert_eq!((expected, &alone.stdout), (status, &ended.stdout), "{scenario}{words}\n{}", host.log());
            assert_eq!(alone.stderr, ended.stderr, "{scenario}{words}");
            assert!(data.exists(), "{scenario}{words}");
        }
    }
}

/// The writer is a thread of the process as well: the last one would decide the status, and run handlers of `exit`.
#[test]
fn the_last_thread_decides_the_status() {
    end_as_alone(&[
        "main",
        "main by an instruction",
        "group",
        "main, then a worker",
        "main, then a worker returns",
        "a worker, then main",
        "a worker, then main returns",
        "pthread_exit",
        "pthread_exit, then a worker",
        "pthread_exit, then a worker exits",
        "pthread_exit, then workers",
    ]);
    if is_root() {
        end_as_alone(&["no /proc", "no /proc, pthread_exit"]);
    }
}

#[test]
fn a_filter_for_system_calls_ends_no_recorded_program() {
    end_as_alone(&[
        "strict",
        "strict, killed",
        "strict, crashed",
        "filter",
        "filter, crashed",
        "filter of threads",
        "refusing filter",
    ]);
}

#[test]
fn other_ends() {
    end_as_alone(&["daemon", "vfork", "exec", "abort", "crash", "terminated", "threads"]);
}

/// Its file has to be made before it cannot be made any more.
#[test]
fn a_child_that_becomes_another_user_or_gets_another_root_is_recorded() {
    let scratch = Scratch::new("ends-child");
    if !is_root() {
        tool::skip("root", "only root becomes another user", Absence::IsAllowed);
        return;
    }
    let Some(program) = built(&scratch, &[]) else { return };
    for scenario in ["another user", "another root"] {
        let (host, data) = recorded(Host::new(&program, "ends").argument(scenario), ",children");
        let ended = host.run(Preload::Library);
        assert_eq!(ended.status.code(), Some(34), "{scenario}");
        let names: Vec<String> = fs::read_dir(data.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("f.data.") && !name.ends_with(".images"))
            .collect();
        let [child] = &names[..] else { panic!("{scenario}: {names:?}") };
        let time: u64 = read(&data.with_file_name(child)).iter().map(|sample| sample.period).sum();
        assert!(time > 5_000_000, "{scenario}: {time} ns");
    }
}

/// A process that has another one's memory watched: threads begin with a stack for signals that its runtime takes for
/// its own, and races are looked for in the library.
#[test]
fn programs_with_sanitizers_end_as_alone() {
    let builds: [&[&str]; 8] = [
        &["-fsanitize=address"],
        &["-fsanitize=address", "-static-libasan"],
        &["-fsanitize=leak"],
        &["-fsanitize=undefined"],
        &["-fsanitize=undefined", "-static-libubsan"],
        &["-fsanitize=address,undefined"],
        &["-fsanitize=thread"],
        &["-fsanitize=thread", "-static-libtsan"],
    ];
    for flags in builds {
        let scratch = Scratch::new("ends-sanitized");
        let Some(program) = built(&scratch, flags) else { continue };
        let host = || Host::new(&program, "ends-sanitized").argument("threads").variable("JITLISTEN", "unwind");
        let alone = host().run(Preload::Nothing);
        assert_eq!(alone.status.code(), Some(32), "{flags:?}: {}", alone.stderr);
        for words in ["", ",wall"] {
            let (host, data) = recorded(host(), words);
            let ended = host.run(Preload::Library);
            assert_eq!(ended.status.code(), Some(32), "{flags:?}{words}: {}", ended.stderr);
            assert_eq!((&alone.stdout, &alone.stderr), (&ended.stdout, &ended.stderr), "{flags:?}{words}");
            let is_recorded = !flags.contains(&"-fsanitize=thread");
            assert_eq!(data.exists(), is_recorded, "{flags:?}{words}");
            assert_eq!(host.log().contains("ThreadSanitizer cannot be recorded"), !is_recorded, "{}", host.log());
            assert!(!is_recorded || !read(&data).is_empty(), "{flags:?}{words}");
        }
    }
}
