//! gdb by images alone, as for gdb 15, which does not see LLVM's list: the commands of docs/gdb.md.

use std::fs;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration::Integration;
use jitlisten_tests::tool;
use jitlisten_tests::{gdb, scenario};

/// One command for each image that is mapped from its beginning.
fn commands(pid: u32) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the host runs");
    let command = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, "r-xp", "00000000", _, _, path] = words[..] else { return None };
        let (start, _) = range.split_once('-')?;
        path.contains("/object-").then(|| format!("add-symbol-file {path} -o 0x{start}\n"))
    };
    maps.lines().filter_map(command).collect()
}

/// The frames that a gdb has which reads no library's symbols, and so no list of LLVM's.
fn frames(host: &Host, pid: u32, with_images: bool) -> Vec<String> {
    let script = host.scratch("images.gdb");
    fs::write(&script, if with_images { commands(pid) } else { String::new() }).expect("it can be written");
    let settings = ["auto-load off", "debuginfod enabled off", "auto-solib-add off"];
    let settings = settings.iter().flat_map(|setting| ["-iex".to_owned(), format!("set {setting}")]);
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).args(settings).args(["-p", &pid.to_string(), "-ex", "bt 8", "-x"]);
    let said = tool::run(gdb.arg(&script).args(["-ex", "bt 8"])).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let last = said.rsplit_once("\n#0 ").map_or_else(String::new, |(_, last)| format!("#0 {last}"));
    last.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn images_name_compiled_functions_for_a_gdb_without_the_list() {
    let (Some(()), Some(host)) = (gdb::is_here(), Integration::Numba("numba-0.68.1").chain(300, &[])) else { return };
    let host = host.variable("JITLISTEN", "image,unwind");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let in_chain = |frames: &[String]| {
        let mut frames = frames.iter();
        scenario::CHAIN.iter().all(|name| frames.any(|frame| scenario::names(frame, name)))
    };
    let without = frames(&host, running.pid(), false);
    assert!(!in_chain(&without), "it has the names without images: this proves nothing: {without:#?}");
    // It may stop while the host reads the clock.
    let mut seen = Vec::new();
    while seen.len() < 5 && !seen.last().is_some_and(|frames: &Vec<String>| in_chain(frames)) {
        seen.push(frames(&host, running.pid(), true));
    }
    assert!(seen.last().is_some_and(|frames| in_chain(frames)), "{seen:#?}");
}
