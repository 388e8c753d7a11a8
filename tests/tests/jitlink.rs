//! Hosts that link with JITLink and register nothing with debuggers: every function is found in memory by its bytes.

use std::path::PathBuf;

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
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

/// Every object is heard once, every function that is called has its name once, and the program prints the same.
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

/// What is switched off is not heard. This host registers nothing: only JITLink itself says what it links.
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

#[test]
fn a_library_that_is_closed_and_opened_again() {
    let Some(path) = library(LLVMS[0].0, LLVMS[0].1) else { return };
    every_function_is_named(&path, &["again"], 2);
}

/// One object, heard on its way into the linker, and listed for debuggers by lli's debug plugin when it is linked, with a function left out.
#[test]
fn an_object_that_is_also_listed_is_one_object() {
    let metadata = "!llvm.dbg.cu = !{!0}\n!llvm.module.flags = !{!2, !3}\n\
        !0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, emissionKind: FullDebug)\n\
        !1 = !DIFile(filename: \"pruned.c\", directory: \"/tmp\")\n!2 = !{i32 2, !\"Dwarf Version\", i32 4}\n\
        !3 = !{i32 2, !\"Debug Info Version\", i32 3}\n\
        !4 = distinct !DISubprogram(name: \"live\", file: !1, line: 40, type: !5, unit: !0, spFlags: DISPFlagDefinition)\n\
        !5 = !DISubroutineType(types: !{})\n!6 = !DILocation(line: 42, column: 3, scope: !4)\n";
    let functions = "define internal i32 @dead(i32 %n) uwtable section \".text.dead\" {\n  %x = mul i32 %n, 77\n  ret i32 %x\n}\n\
        define i32 @live(i32 %n) uwtable section \".text.live\" !dbg !4 {\n  %x = mul i32 %n, 3, !dbg !6\n  ret i32 %x, !dbg !6\n}\n\
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
        let listed = log.find("ObjectId(0) is reported once more").expect("it is listed");
        let freed = log.find("freeing ObjectId(").unwrap_or(log.len());
        let last = log.rfind("loaded ObjectId(").expect("objects");
        assert!(listed < freed && last < freed, "freed when it was listed:\n{log}");
    }
}
