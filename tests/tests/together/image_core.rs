//! A core file of a process with images, which has their pages.
//!
//! gdb has its names from LLVM's JIT interface, which is in the core as the code is; eu-stack and pystack have names
//! from the image, and from its header in the core. Each is asked again when the images are gone: every stack is whole
//! still, and named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, integration, paths, scenario};

const NUMBA: &str = "numba-0.68.1";

/// Runs the chain until it has used up its processor time, which makes the kernel kill it in the loop, and returns its
/// core file, or `None` after a loud skip.
fn dump(python: &Path) -> Option<(Host, PathBuf)> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('|') || pattern.contains('/') {
        let why = format!("core files go to {:?} here", pattern.trim());
        tool::skip("a core file of the kernel", &why, Absence::IsAllowed);
        return None;
    }
    let shell = "cd \"$0\" && ulimit -c unlimited && ulimit -S -t 4 && exec \"$@\"";
    let host = with_images(Host::new("/bin/sh", "core"));
    let directory = host.scratch("");
    let host = host.argument("-c").argument(shell).argument(&directory);
    let host = host.argument(python).argument(paths::host("chain.py")).argument("300");
    let _ = host.run(Preload::Library);
    let deadline = Instant::now() + Duration::from_secs(20);
    let find = || fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.path()).find(|path| is_core(path));
    while find().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let core = find();
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
    let (Some(()), Some(elfutils)) = (gdb::is_here(), tool::require("eu-stack", Absence::FailsInCi)) else { return };
    let Some((host, core)) = dump(&python) else { return };
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

    let code = |said: &str| said.split_once("code\n").map(|(_, bytes)| bytes.trim().to_owned()).unwrap_or_default();
    let named = |said: &str| {
        let mut lines = said.lines();
        scenario::CHAIN.iter().all(|name| lines.any(|line| scenario::names(line, name)))
    };
    let (said, stack, python_stack) = (gdb(), eu_stack(), pystack());
    assert!(named(&said), "gdb: {said}");
    let (file, gamma) = image::function(&host, "gamma");
    assert!(is_in(&code(&said), &file, gamma.address, gamma.size), "gdb reads other code: {said}");
    assert!(named(&stack), "eu-stack: {stack}");
    let in_image = python_stack.lines().any(|line| line.contains("gamma(") && line.contains("/image-"));
    assert!(in_image, "pystack: {python_stack}");

    let (code_before, stack_before) = (code(&said), stack);
    for image in image::files(&host) {
        fs::remove_file(image).expect("it is ours");
    }
    let (said, stack, python_stack) = (gdb(), eu_stack(), pystack());
    assert!(named(&said), "gdb has no names: {said}");
    assert!(bytes_of(&code(&said)) == bytes_of(&code_before), "gdb reads other code: {said}");
    let frames = |stack: &str| stack.lines().filter(|line| line.starts_with('#')).count();
    assert_eq!(frames(&stack), frames(&stack_before), "eu-stack does not get through the code: {stack}");
    assert!(stack.contains(" _start"), "eu-stack does not get through the code: {stack}");
    assert!(named(&stack), "eu-stack has no names: {stack}");
    assert!(python_stack.contains("Dispatcher_call"), "pystack does not get through the code: {python_stack}");
    assert!(python_stack.lines().any(|line| line.contains("gamma(")), "pystack has no names: {python_stack}");
}

/// Whether the bytes gdb printed are somewhere in a function of an image.
fn is_in(printed: &str, file: &Path, address: u64, size: u64) -> bool {
    let bytes = bytes_of(printed);
    let image = fs::read(file).unwrap_or_default();
    let function = &image[address as usize..(address + size) as usize];
    bytes.len() == 8 && function.windows(8).any(|window| window == bytes)
}

/// What gdb's `x/8xb` has printed.
fn bytes_of(printed: &str) -> Vec<u8> {
    let values = printed.lines().filter_map(|line| line.split_once(":\t")).flat_map(|(_, row)| row.split('\t'));
    values.filter_map(|value| u8::from_str_radix(value.trim().strip_prefix("0x")?, 16).ok()).collect()
}
