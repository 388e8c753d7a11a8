//! Hosts that link with JITLink and register nothing with debuggers. The library finds every function in memory by
//! comparing bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent, ObjectCounts};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{embedder, gdb, image, walk};

const MODULE_COUNT: usize = 12;

/// Functions of each module that the host calls.
const CALLED_FUNCTIONS: [&str; 5] = ["chain", "middle", "leaf", "twin", "same"];

/// Installed LLVM releases whose LLJIT uses JITLink by default.
const LLVMS: [(u32, &str); 2] = [(19, "libLLVM.so.19.1"), (22, "libLLVM.so.22.1")];

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = scratch.join("orc_objects");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"];
    tool::compile(&compiler, &flags, &paths::host("orc_objects.c"), &program);
    Some(program)
}

fn library(llvm: u32, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/usr/lib/llvm-{llvm}/lib/{name}"));
    if !path.is_file() {
        tool::skip(name, "not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    Some(path)
}

fn run(host: &Host, preload: Preload, inspect: impl FnOnce(&Host, u32)) -> Outcome {
    let mut running = host.start(preload);
    running.wait_for_line("running");
    inspect(host, running.pid());
    running.send_newline();
    running.wait().expect_success()
}

/// Functions whose addresses the host looked up, with these addresses.
fn read_addresses(host: &Host) -> Vec<(String, u64)> {
    let lines = fs::read_to_string(host.scratch("addresses")).expect("written");
    let parse_line = |line: &str| {
        let (name, address) = line.split_once(' ')?;
        Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
    };
    lines.lines().map(|line| parse_line(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// Returns true if the perf map has this function at this address.
fn is_mapped_at(map: &PerfMap, name: &str, address: u64) -> bool {
    map.named(name).any(|entry| entry.start == address)
}

/// Asserts that every object is detected once, that the perf map names every called function once, and that the program
/// prints the same.
fn check_every_function(path: &PathBuf, args: &[&str], copies: usize) -> Option<String> {
    let scratch = Scratch::new("jitlink");
    let host = Host::new(program(&scratch)?, "jitlink").argument(path).argument(MODULE_COUNT.to_string());
    let host = host.arguments(args);
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let stock = run(&host, Preload::Nothing, |_, _| {});
    let mut images = 0;
    let outcome = run(&host, Preload::Library, |host, pid| {
        let log = host.log();
        let ObjectCounts { loaded, finalized, .. } = ObjectCounts::in_log(&log);
        assert_eq!([loaded, finalized], [copies * MODULE_COUNT; 2], "{log}");
        images = image::count_mappings(pid);
    });
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    let map = outcome.perf_map();
    for number in 0..MODULE_COUNT {
        for name in CALLED_FUNCTIONS {
            let name = format!("{name}{number}");
            assert_eq!(map.named(&name).count(), copies, "{name}:\n{}\n{}", map.names(), host.log());
        }
        assert_eq!(map.named(&format!("unused{number}")).count(), 0, "JITLink leaves it out");
    }
    let addresses = read_addresses(&host);
    assert!(addresses.len() >= copies * MODULE_COUNT * CALLED_FUNCTIONS.len());
    for (name, address) in &addresses {
        // Objects of a single function may be identical. In that case either all or none of them have names, and every
        // name is correct.
        let is_named = map.named(name).count() > 0 || !name.starts_with("tiny");
        assert!(
            !is_named || is_mapped_at(&map, name, *address),
            "{name} at {address:x}:\n{}\n{}",
            map.names(),
            host.log()
        );
    }
    // Closing a library frees the code that it compiled.
    let live_images = if args.contains(&"frees") { 1 } else { MODULE_COUNT };
    assert_eq!(images, live_images, "mappings of images\n{}", host.log());
    Some(host.log())
}

#[test]
fn objects_without_a_debug_plugin() {
    for (llvm, name) in LLVMS {
        let Some(path) = library(llvm, name) else { continue };
        check_every_function(&path, &[], 1);
    }
}

/// The vtable that such a program uses is not the one in LLVM's library; see `cpp/own_linker.cpp`.
#[test]
fn a_program_that_makes_its_own_linker() {
    let builds =
        [(14, "-pie", "-fPIE"), (19, "-no-pie", "-fno-pie"), (22, "-pie", "-fPIE"), (22, "-no-pie", "-fno-pie")];
    for (llvm, link_flag, code_flag) in builds {
        let scratch = Scratch::new("own-linker");
        let Some(program) = embedder::build_without_us(llvm, "own_linker.cpp", &[link_flag, code_flag], &scratch)
        else {
            continue;
        };
        for mode in ["default", "plain", "derived", "overriding"] {
            let host = Host::new(&program, "own-linker").argument(mode);
            let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "debug:log");
            let outcome = host.run(Preload::Library).expect_success();
            assert_eq!(outcome.stdout, b"22\n");
            let map = PerfMap::parse(outcome.map.as_deref().unwrap_or_default()).expect("it obeys the rules");
            for name in ["inner", "outer"] {
                assert_eq!(map.named(name).count(), 1, "LLVM {llvm}, {link_flag}, {mode}: {name}\n{}", host.log());
            }
        }
    }
}

/// No hook sees the objects of such a program, and the log says so.
#[test]
fn an_llvm_that_compiles_without_a_report_is_a_warning() {
    let scratch = Scratch::new("own-linker");
    let Some(program) = embedder::build_without_us(19, "own_linker.cpp", &["-ldl"], &scratch) else { return };
    let host = Host::new(&program, "own-linker").argument("unhooked");
    let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "warn:log");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("22");
    // The check waits for a second, because a report may come later.
    thread::sleep(Duration::from_millis(1200));
    running.send_newline();
    running.wait().expect_success();
    let log = host.log();
    let is_silent = |event: &LogEvent<'_>| matches!(event, LogEvent::Silent { .. });
    assert_eq!(log::count(&log, is_silent), 1, "{log}");
}

#[test]
fn a_library_that_looks_for_mprotect_in_itself_first() {
    let Some(path) = library(LLVMS[0].0, LLVMS[0].1) else { return };
    check_every_function(&path, &["deepbind"], 1);
}

#[test]
fn objects_of_two_threads() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    check_every_function(&path, &["threads"], 1);
}

/// The only object of a program is found while its memory becomes executable, and runs next.
#[test]
fn libunwind_knows_the_first_object() {
    for (llvm, name) in LLVMS {
        let Some(path) = library(llvm, name) else { continue };
        let scratch = Scratch::new("jitlink");
        let Some(program) = program(&scratch) else { return };
        let host = Host::new(program, "jitlink").argument(&path).argument("1").argument("second");
        let host = host.variable("JITLISTEN", "unwind").variable("JITLISTEN_FRAME_POINTERS", "0");
        let Some(walked) = walk::run_with_walker(host, "libunwind", Preload::Library) else { return };
        // Some samples are in LLVM, from whose code libunwind does not always find the caller.
        assert!(walked.samples >= 100 && 10 * walked.complete >= 9 * walked.samples, "LLVM {llvm}: {walked:?}");
    }
}

/// Only our library registers these objects with debuggers.
#[test]
fn gdb_names_functions_and_their_callers() {
    for (llvm, name) in LLVMS {
        let (Some(()), Some(path)) = (gdb::is_available(), library(llvm, name)) else { continue };
        let scratch = Scratch::new("jitlink");
        let Some(program) = program(&scratch) else { return };
        let host = Host::new(program, "jitlink").argument(&path).argument(MODULE_COUNT.to_string()).argument("loops");
        let host = host.variable("JITLISTEN", "perfmap,gdb").variable("JITLISTEN_LOG", "debug:log");
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let last = MODULE_COUNT - 1;
        let session = gdb::attach_at(&format!("leaf{last}"), &running);
        let frames = &session.backtrace.frames;
        // One function of the chain has debug information.
        let chain = format!("chain{last} () at source{last}.x:42");
        let expected = [format!("leaf{last} ()"), format!("middle{last} ()"), chain, "main ()".to_owned()];
        assert_eq!(frames.get(..4), Some(&expected[..]), "LLVM {llvm}: {}\n{}", session.output, host.log());
    }
}

/// A disabled source detects nothing. This host registers nothing with debuggers, so only JITLink's hooks report its
/// objects.
#[test]
fn what_is_left_out_is_not_listened_to() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    let scratch = Scratch::new("jitlink");
    let Some(program) = program(&scratch) else { return };
    let count_objects = |llvm: &str| {
        let host = Host::new(&program, "jitlink").argument(&path).argument(MODULE_COUNT.to_string());
        let host = host.variable("JITLISTEN_LLVM", llvm).variable("JITLISTEN_LOG", "debug:log");
        let _ = run(&host, Preload::Library, |_, _| {});
        ObjectCounts::in_log(&host.log()).loaded
    };
    assert_eq!(["all", "jitlink", "runtimedyld,list", "off"].map(count_objects), [MODULE_COUNT, MODULE_COUNT, 0, 0]);
}

/// Freed objects are reported immediately, because their addresses are reused.
#[test]
fn engines_that_are_disposed_of() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    let Some(log) = check_every_function(&path, &["frees"], 1) else { return };
    assert_eq!(ObjectCounts::in_log(&log).freed, MODULE_COUNT - 1, "{log}");
}

/// ORC finishes linking an object inside the call that links another one, and not in the order the links began.
#[test]
fn objects_that_are_linked_while_others_are() {
    for (llvm, name) in LLVMS {
        let Some(path) = library(llvm, name) else { continue };
        check_every_function(&path, &["nested"], 1);
    }
}

/// LLVM functions that the host calls.
#[cfg(target_arch = "x86_64")]
const CALLED_LLVM_FUNCTIONS: [&str; 24] = [
    "LLVMContextCreate",
    "LLVMContextDispose",
    "LLVMCreateMemoryBufferWithMemoryRangeCopy",
    "LLVMCreateTargetMachine",
    "LLVMDisposeMessage",
    "LLVMDisposeModule",
    "LLVMDisposeTargetMachine",
    "LLVMGetDefaultTargetTriple",
    "LLVMGetErrorMessage",
    "LLVMGetTargetFromTriple",
    "LLVMInitializeX86AsmPrinter",
    "LLVMInitializeX86Target",
    "LLVMInitializeX86TargetInfo",
    "LLVMInitializeX86TargetMC",
    "LLVMOrcCreateLLJIT",
    "LLVMOrcDisposeLLJIT",
    "LLVMOrcLLJITAddObjectFile",
    "LLVMOrcLLJITGetMainJITDylib",
    "LLVMOrcLLJITLookup",
    "LLVMParseIRInContext",
    "LLVMTargetMachineEmitToMemoryBuffer",
    "llvm_orc_deregisterEHFrameSectionWrapper",
    "llvm_orc_registerEHFrameSectionWrapper",
    "llvm_orc_registerJITLoaderGDBWrapper",
];

/// Links a library that contains LLVM and can be unloaded, because Debian's libLLVM is linked with `-z nodelete`.
#[cfg(target_arch = "x86_64")]
fn closable_library(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let llvm_config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let query_config = |args: &[&str]| {
        let output = tool::run(Command::new(&llvm_config).arg("--link-static").args(args));
        String::from_utf8(output.stdout).expect("text").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let exports: String = CALLED_LLVM_FUNCTIONS.map(|name| format!("{name};")).concat();
    let (script, source, library) = (scratch.join("exported"), scratch.join("empty.c"), scratch.join("libclosable.so"));
    fs::write(&script, format!("{{ global: {exports} local: *; }};\n")).expect("written");
    fs::write(&source, "").expect("written");
    let mut command = Command::new(compiler);
    command.args(["-shared", "-s", "-Wl,--gc-sections", "-Wl,-Bsymbolic"]);
    command.arg(format!("-Wl,--version-script={}", script.display())).arg(source);
    command
        .args(CALLED_LLVM_FUNCTIONS.map(|name| format!("-Wl,-u,{name}")))
        .arg(format!("-L{}", query_config(&["--libdir"])[0]));
    command
        .args(query_config(&["--libs", "orcjit", "x86", "irreader"]))
        .args(query_config(&["--system-libs"]))
        .arg("-lstdc++");
    let link_run = tool::run(command.arg("-o").arg(&library));
    assert!(link_run.status.success(), "{}", String::from_utf8_lossy(&link_run.stderr));
    Some(library)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_library_that_is_closed_and_opened_again() {
    let scratch = Scratch::new("jitlink");
    let Some(path) = closable_library(&scratch, 19) else { return };
    let Some(log) = check_every_function(&path, &["again"], 2) else { return };
    assert_eq!(log::count(&log, |event| matches!(event, LogEvent::Closed { .. })), 1, "{log}");
}

/// The library detects an object when it is passed to the linker. After the link, lli's debug plugin lists the same
/// object for debuggers, without a function that was dropped.
#[test]
fn an_object_that_is_also_listed_is_one_object() {
    let metadata = "!llvm.dbg.cu = !{!0}\n!llvm.module.flags = !{!2, !3}\n\
        !0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, emissionKind: FullDebug)\n\
        !1 = !DIFile(filename: \"pruned.c\", directory: \"/tmp\")\n!2 = !{i32 2, !\"Dwarf Version\", i32 4}\n\
        !3 = !{i32 2, !\"Debug Info Version\", i32 3}\n\
        !4 = distinct !DISubprogram(name: \"live\", file: !1, line: 40, type: !5, unit: !0, spFlags: \
        DISPFlagDefinition)\n\
        !5 = !DISubroutineType(types: !{})\n!6 = !DILocation(line: 42, column: 3, scope: !4)\n";
    let functions = "define internal i32 @dead(i32 %n) uwtable section \".text.dead\" \
        {\n  %x = mul i32 %n, 77\n  ret i32 %x\n}\n\
        define i32 @live(i32 %n) uwtable section \".text.live\" !dbg !4 \
        {\n  %x = mul i32 %n, 3, !dbg !6\n  ret i32 %x, !dbg !6\n}\n\
        define i32 @main() uwtable section \".text.main\" {\n  %x = call i32 @live(i32 5)\n  ret i32 %x\n}\n";
    for (llvm, _) in LLVMS {
        let Some(lli) = tool::require(&format!("lli-{llvm}"), Absence::FailsInCi) else { continue };
        let host = Host::new(lli, "pruned").argument("--jit-kind=orc").argument("--jit-linker=jitlink");
        let module = host.scratch("pruned.ll");
        std::fs::write(&module, format!("{functions}{metadata}")).expect("written");
        let host =
            host.argument(module).variable("JITLISTEN", "perfmap,image,gdb").variable("JITLISTEN_LOG", "debug:log");
        let (stock, preloaded) = (host.run(Preload::Nothing), host.run(Preload::Library));
        assert_eq!((stock.status.code(), preloaded.status.code()), (Some(15), Some(15)), "{}", preloaded.stderr);
        let (map, log) = (preloaded.perf_map(), host.log());
        let live_entries = map.named("live").collect::<Vec<_>>();
        assert!(live_entries.len() == 1 && map.named("dead").count() == 0, "{}\n{log}", map.names());
        let start = format!("{:#x}..", live_entries[0].start);
        let is_live = |event: &LogEvent<'_>| matches!(event, LogEvent::Loaded { text, .. } if text.contains(&start));
        assert_eq!(log::count(&log, is_live), 1, "{log}");
        let events: Vec<LogEvent<'_>> = log::events(&log).collect();
        let is_freed = |event: &LogEvent<'_>| matches!(event, LogEvent::Freed { .. });
        let (before, after) = events.split_at(events.iter().position(is_freed).unwrap_or(events.len()));
        assert!(before.contains(&LogEvent::ReportedAgain { id: "1" }), "freed when it was listed:\n{log}");
        assert!(!after.iter().any(|event| matches!(event, LogEvent::Loaded { .. })), "loaded again:\n{log}");
    }
}

fn own_memory_program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let llvm_config = tool::require("llvm-config-19", Absence::FailsInCi)?;
    let output = tool::run(Command::new(llvm_config).args(["--includedir", "--libdir"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (include, libdir) = text.trim().split_once('\n').expect("two lines");
    let program = scratch.join("links_in_own_memory");
    let (include, link_path) = (format!("-isystem{include}"), format!("-L{libdir}"));
    let flags =
        ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", &include, &link_path, "-Wl,--no-as-needed", "-lLLVM-19"];
    tool::compile(&compiler, &flags, &paths::root().join("tests/cpp/links_in_own_memory.cpp"), &program);
    Some(program)
}

/// Runs the host, and calls `inspect` at each of its pauses. Returns the outcome, the log and the addresses of the
/// host's functions.
fn run_in_own_memory(
    program: &Path,
    args: &[&str],
    inspect: impl Fn(usize, &Host, u32),
) -> (Outcome, String, Vec<(String, u64)>) {
    let host = Host::new(program, "own").argument(args[0]).argument(MODULE_COUNT.to_string());
    let host = host.arguments(&args[1..]);
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let run = |preload, inspect: &dyn Fn(usize, &Host, u32)| {
        let mut running = host.start(preload);
        for (step, line) in ["running", "one more", "unmapped"].into_iter().enumerate() {
            running.wait_for_line(line);
            inspect(step, &host, running.pid());
            running.send_newline();
        }
        running.wait().expect_success()
    };
    let stock = run(Preload::Nothing, &|_, _, _| {});
    let outcome = run(Preload::Library, &inspect);
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr), "{args:?}");
    (outcome, host.log(), read_addresses(&host))
}

/// Memory is always executable, so no event tells when its code may run. Each object is found no later than the end of
/// its link.
#[test]
fn objects_in_memory_that_may_run_before_they_are_linked() {
    let scratch = Scratch::new("jitlink");
    let Some(program) = own_memory_program(&scratch) else { return };
    for args in [
        &["writable", "tables"][..],
        &["shared", "tables"],
        &["unheard", "tables"],
        &["writable"],
        &["shared"],
        &["unheard"],
        &["writable", "tables", "copied"],
        &["shared", "tables", "copied"],
    ] {
        let (outcome, log, addresses) = run_in_own_memory(&program, args, |step, host, pid| {
            let log = host.log();
            let (loaded, freed) =
                [(MODULE_COUNT, 0), (MODULE_COUNT + 1, 0), (MODULE_COUNT + 1, MODULE_COUNT + 1)][step];
            assert_eq!(ObjectCounts::in_log(&log), ObjectCounts::new(loaded, loaded, freed), "{args:?}: {log}");
            let images = if args[0] == "unheard" { loaded - freed } else { 0 };
            assert_eq!(image::count_mappings(pid), images, "images, {args:?}: {log}");
        });
        let map = outcome.perf_map();
        assert_eq!(addresses.len(), (MODULE_COUNT + 1) * CALLED_FUNCTIONS.len());
        for (name, address) in addresses {
            assert!(is_mapped_at(&map, &name, address), "{args:?}: {name} at {address:x}:\n{}\n{log}", map.names());
            assert_eq!(map.named(&name).count(), 1, "{args:?}: {name}");
        }
    }
}

/// If the same code is in two executable places and no event tells which of them is called, neither gets a name, and
/// the log reports that once.
#[test]
fn objects_in_two_executable_places_get_no_names() {
    let scratch = Scratch::new("jitlink");
    let Some(program) = own_memory_program(&scratch) else { return };
    let (outcome, log, _) = run_in_own_memory(&program, &["writable", "copied"], |step, host, _| {
        assert_eq!(ObjectCounts::in_log(&host.log()).loaded, 0, "{}", host.log());
        if step == 0 {
            thread::sleep(Duration::from_millis(1100));
        }
    });
    assert!(outcome.map.is_none_or(|map| map.is_empty()), "{log}");
    let is_unlocated = |event: &LogEvent<'_>| matches!(event, LogEvent::Unlocated { time: "within a second", .. });
    assert_eq!(log::count(&log, is_unlocated), 1, "{log}");
}
