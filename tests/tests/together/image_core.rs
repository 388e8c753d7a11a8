//! Core files of a process with images, which contain the images' pages.
//!
//! gdb takes names from LLVM's GDB JIT list, which is in the core file together with the code. eu-stack and pystack
//! take names from the image file and from the copy of its header in the core file. Each tool runs again after the
//! images have been deleted, and must still print a whole, named stack.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, integration, paths, scenario};

const NUMBA: &str = "numba-0.68.1";

/// Runs the chain with a CPU time limit, at which the kernel kills it in the loop. Returns its core file, or `None`
/// after reporting a skip.
fn dump_core(python: &Path) -> Option<(Host, PathBuf)> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('|') || pattern.contains('/') {
        let reason = format!("core files go to {:?} here", pattern.trim());
        tool::skip("a core file of the kernel", &reason, Absence::IsAllowed);
        return None;
    }
    let shell = "cd \"$0\" && ulimit -c unlimited && ulimit -S -t 4 && exec \"$@\"";
    let host = with_images(Host::new("/bin/sh", "core"));
    let directory = host.scratch("");
    let host = host.argument("-c").argument(shell).argument(&directory);
    let host = host.argument(python).argument(paths::host("chain.py")).argument("300");
    let _ = host.run(Preload::Library);
    let deadline = Instant::now() + Duration::from_secs(20);
    let find_core = || fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.path()).find(|path| is_core(path));
    while find_core().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let core = find_core();
    if core.is_none() {
        tool::skip("a core file of the kernel", "it wrote none (a hard limit?)", Absence::IsAllowed);
    }
    Some((host, core?))
}

fn is_core(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("core"))
}

fn output(command: &mut Command) -> String {
    String::from_utf8_lossy(&tool::run(command).stdout).into_owned()
}

#[test]
fn debuggers_find_code_and_names_of_a_dead_process() {
    let Some(python) = integration::python(NUMBA) else { return };
    let (Some(()), Some(elfutils)) = (gdb::is_available(), tool::require("eu-stack", Absence::FailsInCi)) else {
        return;
    };
    let Some((host, core)) = dump_core(&python) else { return };
    let gdb = || {
        let mut command = Command::new("gdb");
        command.args(["-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]);
        output(command.arg(&python).arg(&core).args(["-ex", "bt", "-ex", "echo code\\n", "-ex", "x/8xb $pc"]))
    };
    let eu_stack = || output(Command::new(&elfutils).arg("--core").arg(&core));
    let pystack = || {
        let program = paths::venv("tools").join("bin/pystack");
        output(Command::new(program).arg("core").arg(&core).arg(&python).arg("--native"))
    };

    let code_bytes =
        |text: &str| text.split_once("code\n").map(|(_, bytes)| bytes.trim().to_owned()).unwrap_or_default();
    let has_chain = |text: &str| {
        let mut lines = text.lines();
        scenario::CHAIN.iter().all(|name| lines.any(|line| scenario::names_function(line, name)))
    };
    let (gdb_output, eu_stack_output, pystack_output) = (gdb(), eu_stack(), pystack());
    assert!(has_chain(&gdb_output), "gdb: {gdb_output}");
    let (file, gamma) = image::function(&host, "gamma");
    assert!(
        is_in_function(&code_bytes(&gdb_output), &file, gamma.address, gamma.size),
        "gdb reads other code: {gdb_output}"
    );
    assert!(has_chain(&eu_stack_output), "eu-stack: {eu_stack_output}");
    let in_image = pystack_output.lines().any(|line| line.contains("gamma(") && line.contains("/image-"));
    assert!(in_image, "pystack: {pystack_output}");

    let (old_code, old_stack) = (code_bytes(&gdb_output), eu_stack_output);
    for image in image::files(&host) {
        fs::remove_file(image).expect("it is ours");
    }
    let (gdb_output, eu_stack_output, pystack_output) = (gdb(), eu_stack(), pystack());
    assert!(has_chain(&gdb_output), "gdb has no names: {gdb_output}");
    assert!(parse_bytes(&code_bytes(&gdb_output)) == parse_bytes(&old_code), "gdb reads other code: {gdb_output}");
    let count_frames = |stack: &str| stack.lines().filter(|line| line.starts_with('#')).count();
    assert_eq!(
        count_frames(&eu_stack_output),
        count_frames(&old_stack),
        "eu-stack does not get through the code: {eu_stack_output}"
    );
    assert!(eu_stack_output.contains(" _start"), "eu-stack does not get through the code: {eu_stack_output}");
    assert!(has_chain(&eu_stack_output), "eu-stack has no names: {eu_stack_output}");
    assert!(pystack_output.contains("Dispatcher_call"), "pystack does not get through the code: {pystack_output}");
    assert!(pystack_output.lines().any(|line| line.contains("gamma(")), "pystack has no names: {pystack_output}");
}

/// Returns true if the bytes that gdb printed are part of a function in an image.
fn is_in_function(printed: &str, file: &Path, address: u64, size: u64) -> bool {
    let bytes = parse_bytes(printed);
    let image = fs::read(file).unwrap_or_default();
    let function = &image[address as usize..(address + size) as usize];
    bytes.len() == 8 && function.windows(8).any(|window| window == bytes)
}

/// Bytes that gdb's `x/8xb` printed.
fn parse_bytes(printed: &str) -> Vec<u8> {
    let values = printed.lines().filter_map(|line| line.split_once(":\t")).flat_map(|(_, row)| row.split('\t'));
    values.filter_map(|value| u8::from_str_radix(value.trim().strip_prefix("0x")?, 16).ok()).collect()
}
