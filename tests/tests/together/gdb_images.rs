//! Function names in gdb from images alone, with the commands in docs/gdb.md: gdb 15 does not see LLVM's GDB JIT list.

use std::fs;
use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration::Integration;
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::{gdb, scenario, tool};

use crate::integration_c::raw_jit;

/// Writes gdb commands that load the symbols of each image to `images.gdb` in `directory`, as docs/gdb.md does.
fn write_image_commands(pid: u32, directory: &Path) {
    let page = fs::read_to_string(paths::root().join("docs/gdb.md")).expect("it is in the repository");
    let start = page.find("while read").expect("the loop over the mappings");
    let end = page[start..].find("> images.gdb").expect("its output") + start;
    let script = format!("pid={pid}; {}> images.gdb", &page[start..end]);
    let status = Command::new("sh").arg("-c").arg(script).current_dir(directory).status();
    assert!(status.expect("there is a shell").success());
}

/// Frames in a gdb that reads no library symbols and therefore finds no GDB JIT list.
fn gdb_frames(host: &Host, pid: u32, with_images: bool) -> Vec<String> {
    let script = host.scratch("images.gdb");
    fs::write(&script, "").expect("it can be written");
    if with_images {
        write_image_commands(pid, script.parent().expect("a directory"));
    }
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
    assert_images_name(&host.variable("JITLISTEN", "image,unwind"), Preload::Library);
}

/// Images of the C API begin at the second page of their file, and the frame pointer register holds 0 in `beta`.
#[test]
fn images_without_header_padding_name_and_unwind_functions() {
    let build_dir = Scratch::new("raw-jit-bin");
    let (Some(()), Some(host)) = (gdb::is_available(), raw_jit("300", "image", &build_dir)) else { return };
    assert_images_name(&host.argument("frameless"), Preload::Nothing);
}

fn assert_images_name(host: &Host, preload: Preload) {
    let mut running = host.start(preload);
    running.wait_for_line("running");
    let has_chain = |frames: &[String]| {
        let mut frames = frames.iter();
        scenario::CHAIN.iter().all(|name| frames.any(|frame| scenario::names_function(frame, name)))
    };
    let without_images = gdb_frames(host, running.pid(), false);
    assert!(!has_chain(&without_images), "it has the names without images: this proves nothing: {without_images:#?}");
    // gdb may stop the host while it reads the clock.
    let mut backtraces = Vec::new();
    while backtraces.len() < 5 && !backtraces.last().is_some_and(|frames: &Vec<String>| has_chain(frames)) {
        backtraces.push(gdb_frames(host, running.pid(), true));
    }
    assert!(backtraces.last().is_some_and(|frames| has_chain(frames)), "{backtraces:#?}");
}
