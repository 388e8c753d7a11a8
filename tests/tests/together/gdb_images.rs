//! Function names in gdb from images alone, with the commands in docs/gdb.md: gdb 15 does not see LLVM's GDB JIT list.

use std::fs;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration::Integration;
use jitlisten_tests::tool;
use jitlisten_tests::{gdb, scenario};

/// gdb commands that load the symbols of each image whose first page is mapped.
fn image_commands(pid: u32) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the host runs");
    let command = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, "r-xp", "00000000", _, _, path] = words[..] else { return None };
        let (start, _) = range.split_once('-')?;
        path.contains("/object-").then(|| format!("add-symbol-file {path} -o 0x{start}\n"))
    };
    maps.lines().filter_map(command).collect()
}

/// Frames in a gdb that reads no library symbols and therefore finds no GDB JIT list.
fn gdb_frames(host: &Host, pid: u32, with_images: bool) -> Vec<String> {
    let script = host.scratch("images.gdb");
    fs::write(&script, if with_images { image_commands(pid) } else { String::new() }).expect("it can be written");
    let settings = ["auto-load off", "debuginfod enabled off", "auto-solib-add off"];
    let settings = settings.iter().flat_map(|setting| ["-iex".to_owned(), format!("set {setting}")]);
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).args(settings).args(["-p", &pid.to_string(), "-ex", "bt 8", "-x"]);
    let output = tool::run(gdb.arg(&script).args(["-ex", "bt 8"])).stdout;
    let output = String::from_utf8_lossy(&output).into_owned();
    let last_backtrace =
        output.rsplit_once("\n#0 ").map_or_else(String::new, |(_, last_backtrace)| format!("#0 {last_backtrace}"));
    last_backtrace.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn images_name_compiled_functions_for_a_gdb_without_the_list() {
    let (Some(()), Some(host)) = (gdb::is_available(), Integration::Numba("numba-0.68.1").chain(300, &[])) else {
        return;
    };
    let host = host.variable("JITLISTEN", "image,unwind");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let has_chain = |frames: &[String]| {
        let mut frames = frames.iter();
        scenario::CHAIN.iter().all(|name| frames.any(|frame| scenario::names_function(frame, name)))
    };
    let without_images = gdb_frames(&host, running.pid(), false);
    assert!(!has_chain(&without_images), "it has the names without images: this proves nothing: {without_images:#?}");
    // gdb may stop the host while it reads the clock.
    let mut backtraces = Vec::new();
    while backtraces.len() < 5 && !backtraces.last().is_some_and(|frames: &Vec<String>| has_chain(frames)) {
        backtraces.push(gdb_frames(&host, running.pid(), true));
    }
    assert!(backtraces.last().is_some_and(|frames| has_chain(frames)), "{backtraces:#?}");
}
