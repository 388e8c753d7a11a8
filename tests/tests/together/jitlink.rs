//! Hosts that link with JITLink and register nothing with debuggers: every function is found in memory by its bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image};

const COUNT: usize = 12;

/// The functions of each module that are called.
const CALLED: [&str; 5] = ["chain", "middle", "leaf", "twin", "same"];

/// The releases whose LLJIT takes JITLink by itself, and are installed for the tests.
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

fn run(host: &Host, preload: Preload, look: impl FnOnce(&Host, u32)) -> Ended {
    let mut running = host.start(preload);
    running.wait_for_line("running");
    look(host, running.pid());
    running.nod();
    running.end().well()
}

/// The functions whose addresses the host has looked up, and where they were.
fn looked_up(host: &Host) -> Vec<(String, u64)> {
    let lines = fs::read_to_string(host.scratch("addresses")).expect("written");
    let read = |line: &str| {
        let (name, address) = line.split_once(' ')?;
        Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
    };
    lines.lines().map(|line| read(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// Whether a function has its name at this address.
fn is_at(map: &PerfMap, name: &str, address: u64) -> bool {
    map.named(name).any(|entry| entry.start == address)
}

/// Every object is detected once, every function that is called has its name once, and the program prints the same.
fn every_function_is_named(path: &PathBuf, words: &[&str], times: usize) -> Option<String> {
    let scratch = Scratch::new("jitlink");
    let host = Host::new(program(&scratch)?, "jitlink").argument(path).argument(COUNT.to_string());
    let host = words.iter().fold(host, |host, word| host.argument(word));
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let stock = run(&host, Preload::Nothing, |_, _| {});
    let mut images = 0;
    let ended = run(&host, Preload::Library, |host, pid| {
        let log = host.log();
        assert_eq!(log.matches("loaded ObjectId").count(), times * COUNT, "{log}");
        assert_eq!(log.matches("finalized ObjectId").count(), times * COUNT, "{log}");
        images = image::mapped(pid);
    });
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    let map = ended.perf_map();
    for number in 0..COUNT {
        for name in CALLED {
            let name = format!("{name}{number}");
            assert_eq!(map.named(&name).count(), times, "{name}:\n{}\n{}", map.names(), host.log());
        }
        assert_eq!(map.named(&format!("unused{number}")).count(), 0, "JITLink leaves it out");
    }
    let addresses = looked_up(&host);
    assert!(addresses.len() >= times * COUNT * CALLED.len());
    for (name, address) in &addresses {
        // Those of one function each may all be equal: none is named, or each rightly.
        let is_named = map.named(name).count() > 0 || !name.starts_with("tiny");
        assert!(!is_named || is_at(&map, name, *address), "{name} at {address:x}:\n{}\n{}", map.names(), host.log());
    }
    // Closed libraries free what they have made.
    let alive = if words.contains(&"frees") { 1 } else { COUNT };
    assert_eq!(images, alive, "mappings of images\n{}", host.log());
    Some(host.log())
}

#[test]
fn objects_without_a_debug_plugin() {
    for (llvm, name) in LLVMS {
        let Some(path) = library(llvm, name) else { continue };
        every_function_is_named(&path, &[], 1);
    }
}

#[test]
fn a_library_that_looks_for_mprotect_in_itself_first() {
    let Some(path) = library(LLVMS[0].0, LLVMS[0].1) else { return };
    every_function_is_named(&path, &["deepbind"], 1);
}

#[test]
fn objects_of_two_threads() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    every_function_is_named(&path, &["threads"], 1);
}

/// Nothing registers these objects with debuggers but us.
#[test]
fn gdb_names_functions_and_their_callers() {
    for (llvm, name) in LLVMS {
        let (Some(()), Some(path)) = (gdb::is_here(), library(llvm, name)) else { continue };
        let scratch = Scratch::new("jitlink");
        let Some(program) = program(&scratch) else { return };
        let host = Host::new(program, "jitlink").argument(&path).argument(COUNT.to_string()).argument("loops");
        let host = host.variable("JITLISTEN", "perfmap,gdb").variable("JITLISTEN_LOG", "debug:log");
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let last = COUNT - 1;
        let session = gdb::attach_at(&format!("leaf{last}"), &running);
        let frames = &session.backtrace.frames;
        // One of them has debug information.
        let chain = format!("chain{last} () at source{last}.x:42");
        let expected = [format!("leaf{last} ()"), format!("middle{last} ()"), chain, "main ()".to_owned()];
        assert_eq!(frames.get(..4), Some(&expected[..]), "LLVM {llvm}: {}\n{}", session.output, host.log());
    }
}

/// A channel that is switched off observes nothing. This host registers nothing: only JITLink itself says what it
/// links.
#[test]
fn what_is_left_out_is_not_listened_to() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    let scratch = Scratch::new("jitlink");
    let Some(program) = program(&scratch) else { return };
    let objects = |llvm: &str| {
        let host = Host::new(&program, "jitlink").argument(&path).argument(COUNT.to_string());
        let host = host.variable("JITLISTEN_LLVM", llvm).variable("JITLISTEN_LOG", "debug:log");
        let _ = run(&host, Preload::Library, |_, _| {});
        host.log().matches("loaded ObjectId").count()
    };
    assert_eq!(["all", "jitlink", "runtimedyld,list", "off"].map(objects), [COUNT, COUNT, 0, 0]);
}

/// What is freed is freed at once: its addresses are used again.
#[test]
fn engines_that_are_disposed_of() {
    let Some(path) = library(LLVMS[1].0, LLVMS[1].1) else { return };
    let Some(log) = every_function_is_named(&path, &["frees"], 1) else { return };
    assert_eq!(log.matches("freeing ObjectId").count(), COUNT - 1, "{log}");
}

/// ORC ends the link of an object inside the call for another one, and not in the order in which they began.
#[test]
fn objects_that_are_linked_while_others_are() {
    for (llvm, name) in LLVMS {
        let Some(path) = library(llvm, name) else { continue };
        every_function_is_named(&path, &["nested"], 1);
    }
}

/// What the host calls of LLVM's functions.
#[cfg(target_arch = "x86_64")]
const CALLS: [&str; 24] = [
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

/// A library with LLVM in it that can be unloaded; Debian's is linked to stay for ever.
#[cfg(target_arch = "x86_64")]
fn closable_library(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let ask = |words: &[&str]| {
        let output = tool::run(Command::new(&config).arg("--link-static").args(words));
        String::from_utf8(output.stdout).expect("text").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let exported: String = CALLS.map(|name| format!("{name};")).concat();
    let (script, source, library) = (scratch.join("exported"), scratch.join("empty.c"), scratch.join("libclosable.so"));
    fs::write(&script, format!("{{ global: {exported} local: *; }};\n")).expect("written");
    fs::write(&source, "").expect("written");
    let mut command = Command::new(compiler);
    command.args(["-shared", "-s", "-Wl,--gc-sections", "-Wl,-Bsymbolic"]);
    command.arg(format!("-Wl,--version-script={}", script.display())).arg(source);
    command.args(CALLS.map(|name| format!("-Wl,-u,{name}"))).arg(format!("-L{}", ask(&["--libdir"])[0]));
    command.args(ask(&["--libs", "orcjit", "x86", "irreader"])).args(ask(&["--system-libs"])).arg("-lstdc++");
    let done = tool::run(command.arg("-o").arg(&library));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(library)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_library_that_is_closed_and_opened_again() {
    let scratch = Scratch::new("jitlink");
    let Some(path) = closable_library(&scratch, 19) else { return };
    let Some(log) = every_function_is_named(&path, &["again"], 2) else { return };
    assert_eq!(log.matches("an LLVM was closed: ").count(), 1, "{log}");
}

/// One object, heard on its way into the linker, and listed for debuggers by lli's debug plugin when it is linked, with
/// a function left out.
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
        let (stock, ours) = (host.run(Preload::Nothing), host.run(Preload::Library));
        assert_eq!((stock.status.code(), ours.status.code()), (Some(15), Some(15)), "{}", ours.stderr);
        let (map, log) = (ours.perf_map(), host.log());
        let live = map.named("live").collect::<Vec<_>>();
        assert!(live.len() == 1 && map.named("dead").count() == 0, "{}\n{log}", map.names());
        let start = format!("Address({})", live[0].start);
        let loaded = log.lines().filter(|line| line.contains("debug: loaded ObjectId(") && line.contains(&start));
        assert_eq!(loaded.count(), 1, "{log}");
        let listed = log.find("ObjectId(0) was reported again").expect("it is listed");
        let freed = log.find("freeing ObjectId(").unwrap_or(log.len());
        let last = log.rfind("loaded ObjectId(").expect("objects");
        assert!(listed < freed && last < freed, "freed when it was listed:\n{log}");
    }
}

fn own_memory_program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let config = tool::require("llvm-config-19", Absence::FailsInCi)?;
    let output = tool::run(Command::new(config).args(["--includedir", "--libdir"]));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (include, libraries) = said.trim().split_once('\n').expect("two lines");
    let program = scratch.join("links_in_own_memory");
    let (include, libraries) = (format!("-isystem{include}"), format!("-L{libraries}"));
    let flags =
        ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", &include, &libraries, "-Wl,--no-as-needed", "-lLLVM-19"];
    tool::compile(&compiler, &flags, &paths::root().join("tests/cpp/links_in_own_memory.cpp"), &program);
    Some(program)
}

/// Runs the host, with `look` at each of its waits. Returns its end, and the log.
fn in_own_memory(
    program: &Path,
    words: &[&str],
    look: impl Fn(usize, &Host, u32),
) -> (Ended, String, Vec<(String, u64)>) {
    let host = Host::new(program, "own").argument(words[0]).argument(COUNT.to_string());
    let host = words[1..].iter().fold(host, |host, word| host.argument(word));
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let run = |preload, look: &dyn Fn(usize, &Host, u32)| {
        let mut running = host.start(preload);
        for (place, line) in ["running", "one more", "unmapped"].into_iter().enumerate() {
            running.wait_for_line(line);
            look(place, &host, running.pid());
            running.nod();
        }
        running.end().well()
    };
    let stock = run(Preload::Nothing, &|_, _, _| {});
    let ended = run(Preload::Library, &look);
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr), "{words:?}");
    (ended, host.log(), looked_up(&host))
}

/// In memory that may run all the time, nothing says that it may. Each object is found by the time its link has ended.
#[test]
fn objects_in_memory_that_may_run_before_they_are_linked() {
    let scratch = Scratch::new("jitlink");
    let Some(program) = own_memory_program(&scratch) else { return };
    for words in [
        &["writable", "tables"][..],
        &["shared", "tables"],
        &["unheard", "tables"],
        &["writable"],
        &["shared"],
        &["unheard"],
        &["writable", "tables", "copied"],
        &["shared", "tables", "copied"],
    ] {
        let (ended, log, addresses) = in_own_memory(&program, words, |place, host, pid| {
            let log = host.log();
            let count = |word: &str| log.matches(&format!("{word} ObjectId")).count();
            let (heard, freed) = [(COUNT, 0), (COUNT + 1, 0), (COUNT + 1, COUNT + 1)][place];
            assert_eq!(
                (count("loaded"), count("finalized"), count("freeing")),
                (heard, heard, freed),
                "{words:?}: {log}"
            );
            let images = if words[0] == "unheard" { heard - freed } else { 0 };
            assert_eq!(image::mapped(pid), images, "images, {words:?}: {log}");
        });
        let map = ended.perf_map();
        assert_eq!(addresses.len(), (COUNT + 1) * CALLED.len());
        for (name, address) in addresses {
            assert!(is_at(&map, &name, address), "{words:?}: {name} at {address:x}:\n{}\n{log}", map.names());
            assert_eq!(map.named(&name).count(), 1, "{words:?}: {name}");
        }
    }
}

/// Where the same code is in two places, and nothing says which of them is called, none of it is named; the log says so
/// once.
#[test]
fn objects_that_are_in_two_places_that_may_run_are_in_neither() {
    let scratch = Scratch::new("jitlink");
    let Some(program) = own_memory_program(&scratch) else { return };
    let (ended, log, _) = in_own_memory(&program, &["writable", "copied"], |place, host, _| {
        assert_eq!(host.log().matches("loaded ObjectId").count(), 0, "{}", host.log());
        if place == 0 {
            thread::sleep(Duration::from_millis(1100));
        }
    });
    assert!(ended.map.is_none_or(|map| map.is_empty()), "{log}");
    assert_eq!(log.matches("could not locate a JITLink object in memory within a second").count(), 1, "{log}");
}
