//! Hosts that no package shows: LLVM linked in statically and stripped, at fixed addresses, with equal functions
//! folded, split over two libraries, without RTTI, twice in one process, in libraries that are opened and closed, and
//! hooked while threads compile.

#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{self, Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code};

const COUNT: usize = 8;
const THREADS: usize = 4;
const ENGINES: [&str; 2] = ["mcjit", "orc"];

/// Links `embedded.c`. `statically`: with what `llvm-config` names for that, and else with the library.
fn link(llvm: u32, statically: bool, flags: &[&str], output: &Path) -> Option<()> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let ask = |words: &[&str]| {
        let output = tool::run(Command::new(&config).args(words));
        String::from_utf8(output.stdout).expect("text").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let directory = format!("-L{}", ask(&["--libdir"])[0]);
    let mut libraries = vec![format!("-lLLVM-{llvm}")];
    if statically {
        libraries = ask(&["--link-static", "--libs", "orcjit", "mcjit", "x86", "irreader"]);
        libraries.extend(ask(&["--link-static", "--system-libs"]));
        libraries.push("-lstdc++".to_owned());
    }
    let old_contexts = if llvm < 21 { "-DOLD_CONTEXTS" } else { "-UOLD_CONTEXTS" };
    let mut all = vec!["-O1", "-Wall", "-Wextra", "-Werror", old_contexts, "-pthread", "-ldl"];
    all.extend(["-Wl,--gc-sections", "-Wl,--no-as-needed", directory.as_str()]);
    all.extend(flags);
    // Archives come behind what needs them.
    let done = tool::run(
        Command::new(&compiler).args(all).arg(paths::host("embedded.c")).args(libraries).arg("-o").arg(output),
    );
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(())
}

const AS_LIBRARY: [&str; 6] = ["-DAS_LIBRARY", "-fPIC", "-shared", "-s", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"];

fn host(program: &Path, engine: &str, words: &[&str]) -> Host {
    let host = Host::new(program, "embedded").argument(engine).argument(COUNT.to_string());
    let host = words.iter().fold(host, |host, word| host.argument(word));
    host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb")
}

fn heard(log: &str) -> [usize; 2] {
    ["debug: loaded ObjectId(", "debug: finalized ObjectId("].map(|line| log.matches(line).count())
}

/// Same output, every object heard and final, every function in the map.
#[track_caller]
fn every_object_is_heard(program: &Path, times: usize) {
    for engine in ENGINES {
        for (words, threads) in [(&[][..], 1), (&["threads"][..], THREADS)] {
            let host = host(program, engine, words);
            let ended = host::same_output(&host).well();
            let log = host.log();
            assert_eq!(heard(&log), [times * threads * COUNT; 2], "{} {engine} {words:?}:\n{log}", program.display());
            every_function_is_named(&ended, threads * COUNT, times);
            every_function_is_in_an_image(&host, threads * COUNT);
        }
    }
}

#[track_caller]
fn every_function_is_in_an_image(host: &Host, count: usize) {
    let names: BTreeSet<String> = image::files(host).iter().flat_map(|image| image::names(image)).collect();
    for number in 0..count {
        for function in ["outer", "inner", "ghc", "hidden"] {
            let name = format!("{function}{number}");
            assert!(names.contains(&name), "no image has {name}: {names:?}\n{}", host.log());
        }
    }
}

#[track_caller]
fn every_function_is_named(ended: &Ended, count: usize, times: usize) {
    let map = ended.perf_map();
    for number in 0..count {
        for function in ["outer", "inner", "ghc", "hidden"] {
            let name = format!("{function}{number}");
            assert_eq!(map.named(&name).count(), times, "{name}:\n{}", map.names());
        }
    }
}

#[test]
fn linked_statically_and_stripped() {
    let scratch = Scratch::new("embedded");
    for (llvm, flags) in [
        (14, &["-s"][..]),
        (19, &["-s"]),
        // At fixed addresses; then with equal destructors folded into one.
        (15, &["-s", "-no-pie"]),
        (16, &["-s", "-fuse-ld=gold", "-Wl,--icf=all"]),
        (22, &["-s", "-fuse-ld=gold", "-Wl,--icf=all"]),
    ] {
        let program = scratch.join(&format!("static-{llvm}"));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        every_object_is_heard(&program, 1);
    }
}

/// A stripped program, in which nothing registers what JITLink links, without frame pointers or unwind tables.
#[test]
fn gdb_names_functions_of_a_stripped_program() {
    let scratch = Scratch::new("embedded");
    let program = scratch.join("static-19");
    let (Some(()), Some(())) = (gdb::is_here(), link(19, true, &["-s"], &program)) else { return };
    let host = host(&program, "orc", &["loops"]).variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let last = COUNT - 1;
    let session = gdb::attach_at(&format!("inner{last}"), &running);
    let frames = &session.backtrace.frames;
    let expected = [format!("inner{last} ()"), format!("outer{last} ()")];
    assert_eq!(frames.get(..2), Some(&expected[..]), "{}\n{}", session.output, host.log());
}

/// LLVM's memory functions, and what its classes inherit from, are in another library of the product.
#[test]
fn split_over_two_libraries() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(config)) =
        (tool::require("cc", Absence::FailsInCi), tool::require("llvm-config-19", Absence::FailsInCi))
    else {
        return;
    };
    let directory = String::from_utf8(tool::run(Command::new(config).arg("--libdir")).stdout).expect("text");
    let archive = |name: &str| format!("{}/libLLVM{name}.a", directory.trim());
    let support = scratch.join("libsupport.so");
    let (first, second) = (archive("Support"), archive("Demangle"));
    let flags = ["-shared", "-Wl,--whole-archive", &first, &second, "-Wl,--no-whole-archive", "-lz", "-lstdc++"];
    let empty = scratch.join("empty.c");
    fs::write(&empty, "").expect("written");
    tool::compile(&compiler, &flags, &empty, &support);
    let program = scratch.join("split");
    let place = format!("-Wl,-rpath,{}", scratch.join("").display());
    let Some(()) = link(19, true, &["-s", &place, support.to_str().expect("text")], &program) else { return };
    every_object_is_heard(&program, 1);
}

/// We allocate under our locks what the program's `malloc` gives, which asks for memory under a lock of its own.
#[test]
fn with_an_allocator_of_its_own() {
    let scratch = Scratch::new("embedded");
    let allocator = paths::host("own_malloc.c");
    for llvm in [14, 19] {
        let program = scratch.join(&format!("allocates-{llvm}"));
        let flags = ["-s", "-fno-builtin", allocator.to_str().expect("text")];
        let Some(()) = link(llvm, true, &flags, &program) else { continue };
        every_object_is_heard(&program, 1);
    }
}

/// Makes a program as it is with `-fno-rtti`, as far as we look for types. Its symbols, further behind, stay.
fn without_types(program: &Path) {
    let mut bytes = fs::read(program).expect("just linked");
    for name in ["14RuntimeDyldELFE", "18RuntimeDyldELFMipsE", "19RuntimeDyldCOFFI386E", "3orc18ObjectLinkingLayerE"] {
        let name = format!("N4llvm{name}\0");
        let is_type = |at: &usize| !["_ZTI", "_ZTS", "_ZTV"].iter().any(|of| bytes[..*at].ends_with(of.as_bytes()));
        let at = memchr::memmem::find_iter(&bytes, name.as_bytes()).find(is_type).expect("a name of a type");
        bytes[at..at + name.len() - 1].fill(b'X');
    }
    fs::write(program, bytes).expect("written");
}

/// What is not exported has names in the program's file.
#[test]
fn symbols_of_the_file_stand_in_for_names_of_types() {
    let scratch = Scratch::new("embedded");
    for (llvm, flags) in [(14, &[][..]), (19, &[]), (15, &["-no-pie"])] {
        let program = scratch.join(&format!("typeless-{llvm}"));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        without_types(&program);
        every_object_is_heard(&program, 1);
    }
}

/// Puts `.rodata` where data is written, with no other constants apart, as gold does with Swift's.
const WRITTEN_CONSTANTS: &str = ".section .rodata, \"aw\"\n.byte 0\n.section .note.GNU-stack, \"\"\n";

/// The code of an LLVM with neither symbols nor RTTI has addresses for names, and the log says why once.
#[test]
fn without_names_of_types() {
    let scratch = Scratch::new("embedded");
    let written = scratch.join("written.s");
    fs::write(&written, WRITTEN_CONSTANTS).expect("written");
    let by_gold = ["-s", "-fuse-ld=gold", "-Wl,--no-gc-sections", written.to_str().expect("text")];
    for (llvm, flags) in [(14, &["-s"][..]), (19, &["-s"]), (14, &by_gold)] {
        if flags.len() > 1 && tool::require("ld.gold", Absence::FailsInCi).is_none() {
            continue;
        }
        let program = scratch.join(&format!("nameless-{llvm}-{}", flags.len()));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        without_types(&program);
        for engine in ENGINES {
            let host = host(&program, engine, &["threads"]);
            let ended = host::same_output(&host).well();
            let log = host.log();
            assert_eq!(heard(&log), [THREADS * COUNT; 2], "{engine}: {log}");
            let name = format!("{}+jit@", program.file_name().expect("a name").to_string_lossy());
            let map = ended.perf_map();
            assert!(map.names().lines().count() >= THREADS * COUNT && map.names().contains(&name), "{}", map.names());
            assert_eq!(log.matches("is not observed").count(), 1, "{log}");
            let why = "this LLVM is not observed: its linkers have neither symbols nor RTTI; its code has addresses \
                for names";
            assert!(log.contains(why), "{log}");
        }
    }
}

/// The same of one whose GDB JIT list is exported and stays empty, also without a log.
#[test]
fn without_names_of_types_and_with_an_unused_list() {
    let scratch = Scratch::new("embedded");
    let exported =
        ["-s", "-Wl,--export-dynamic-symbol=__jit_debug_descriptor,--export-dynamic-symbol=__jit_debug_register_code"];
    let program = scratch.join("unlisted");
    let Some(()) = link(19, true, &exported, &program) else { return };
    without_types(&program);
    for log in ["", "debug:log"] {
        // LLJIT registers nothing with debuggers by itself.
        let host = host(&program, "orc", &[]).variable("JITLISTEN_LOG", log).variable("JITLISTEN", "perfmap");
        let map = host::same_output(&host).well().perf_map();
        assert!(
            map.names().lines().count() >= COUNT && map.names().contains("unlisted+jit@"),
            "{log}: {}",
            map.names()
        );
    }
}

/// Where LLVM's C functions are exported, every function gets a frame pointer but those that have an argument in its
/// register, and their callers.
#[test]
fn functions_of_a_shared_llvm_keep_a_frame_pointer() {
    let scratch = Scratch::new("embedded");
    for llvm in [14, 15, 16, 19, 22] {
        let program = scratch.join(&format!("shared-{llvm}"));
        let Some(()) = link(llvm, false, &[], &program) else { continue };
        every_object_is_heard(&program, 1);
        for (engine, policy) in ENGINES.into_iter().flat_map(|engine| [(engine, "1"), (engine, "untouched")]) {
            let host = host(&program, engine, &["threads"]).variable("JITLISTEN_FRAME_POINTERS", policy);
            let host = host.variable("JITLISTEN", "jitdump").variable("JITDUMPDIR", ".");
            host::same_output(&host).well();
            let dumps = jitdump_reader::find(&host.scratch("."));
            let [dump] = &dumps[..] else { panic!("{dumps:?}") };
            let dump = jitdump_reader::read(dump);
            assert_eq!(dump.functions.len(), 4 * THREADS * COUNT);
            for function in dump.functions {
                let uses_register = ["hidden", "ghc"].iter().any(|name| function.name.starts_with(name));
                let expected = policy == "1" && !uses_register;
                let found = machine_code::keeps_frame_pointer(&function.code);
                assert_eq!(found, expected, "LLVM {llvm}, {engine}, {policy}: {} {:x?}", function.name, function.code);
            }
        }
    }
}

fn libraries(scratch: &Scratch, copies: usize) -> Option<Vec<PathBuf>> {
    let mut all = Vec::new();
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-{llvm}.so"));
        link(llvm, true, &AS_LIBRARY, &library)?;
        for copy in 1..copies {
            let copied = scratch.join(&format!("libembedded-{llvm}-{copy}.so"));
            fs::copy(&library, &copied).expect("copied");
            all.push(copied);
        }
        all.push(library);
    }
    Some(all)
}

fn opens(scratch: &Scratch, compiler: &Path) -> PathBuf {
    let program = scratch.join("opens");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"];
    tool::compile(compiler, &flags, &paths::host("opens_embedded.c"), &program);
    program
}

/// Each compiles what the others compile, at the same time; the vtables of libraries that come are changed meanwhile.
#[test]
fn several_in_one_process_that_come_and_go() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 2)) else {
        return;
    };
    let program = opens(&scratch, &compiler);
    const ROUNDS: usize = 3;
    let host = Host::new(&program, "opens").argument(ROUNDS.to_string()).argument(COUNT.to_string());
    let host = libraries.iter().fold(host, |host, library| host.argument(library));
    let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
    let sorted = |preload| {
        let ended = host.run(preload).well();
        let mut lines: Vec<String> = String::from_utf8_lossy(&ended.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        (lines, ended)
    };
    let ((stock, _), (ours, ended)) = (sorted(Preload::Nothing), sorted(Preload::Library));
    assert_eq!((stock.len(), &stock), (ROUNDS * libraries.len(), &ours));
    let log = host.log();
    assert_eq!(heard(&log), [ROUNDS * libraries.len() * COUNT; 2], "{log}");
    assert!(ended.perf_map().named("outer0").count() >= 1);
    // One is unmapped while threads of others are in our hooks: that is a matter of chance.
    for _ in 0..9 {
        host.run(Preload::Library).well();
    }
}

/// A debugger that has started the program sits where the loader announces libraries: nothing says that one is closed.
/// Its words are not touched when another one compiles.
#[test]
fn after_one_was_closed_unheard() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 1)) else {
        return;
    };
    let taken = scratch.join("taken_breakpoint.so");
    tool::compile(&compiler, &["-shared", "-fPIC"], &paths::host("taken_breakpoint.c"), &taken);
    let host = Host::new(opens(&scratch, &compiler), "opens").argument("0").argument(COUNT.to_string());
    let host = libraries.iter().fold(host, |host, library| host.argument(library));
    let host = host.variable("JITLISTEN_LOG", "debug:log");
    let stock = host.run(Preload::Nothing).well();
    let objects = 3 * COUNT;
    let list = format!("{}:{}", paths::library().display(), taken.display());
    let host = host.variable("LD_PRELOAD", &list);
    let ended = host.run(Preload::Nothing).well();
    assert_eq!((stock.stdout, stock.stderr), (ended.stdout, ended.stderr));
    assert!(host.log().contains("hooking dlsym instead"), "{}", host.log());
    assert_eq!(heard(&host.log()), [objects; 2], "{}", host.log());
    // The same with a debugger. Where gdb has another way to hear of libraries, nothing is special.
    if gdb::is_here().is_some() {
        let log = format!("debug:{}", host.scratch("log").display());
        let host = host.variable("JITLISTEN", "unwind").variable("JITLISTEN_LOG", log);
        let session = gdb::start(&host, Preload::Library);
        assert!(session.output.contains("exited normally"), "{}", session.output);
        assert_eq!(heard(&host.log()), [2 * objects; 2], "{}", host.log());
    }
}

/// Other libraries may replace functions of the linker, so the loader fills in its vtable after it has announced the
/// library (before glibc 2.41): it finds us where the symbols say.
#[test]
fn linkers_whose_functions_others_may_replace() {
    let scratch = Scratch::new("embedded");
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let program = opens(&scratch, &compiler);
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-open-{llvm}.so"));
        let Some(()) = link(llvm, true, &["-DAS_LIBRARY", "-fPIC", "-shared", "-s"], &library) else { continue };
        let host = Host::new(&program, "opens").argument("2").argument(COUNT.to_string()).argument(&library);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        // Nothing but the linkers says anything.
        let host = host.variable("JITLISTEN_LLVM", "runtimedyld,jitlink");
        host::same_output(&host).well();
        let log = host.log();
        assert_eq!(heard(&log), [2 * COUNT; 2], "{llvm}: {log}");
        assert!(!log.contains("could not hook"), "{log}");
    }
}

/// Relative relocations in `DT_RELR`, where they take an eighth of a word: vtables are found, and changed, before the
/// loader has come to them.
#[test]
fn with_packed_relocations() {
    let scratch = Scratch::new("embedded");
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let program = opens(&scratch, &compiler);
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-{llvm}.so"));
        let flags = [&AS_LIBRARY[..], &["-Wl,-z,pack-relative-relocs"]].concat();
        let Some(()) = link(llvm, true, &flags, &library) else { continue };
        let headers = Command::new("readelf").arg("-dW").arg(&library).output().expect("readelf");
        assert!(String::from_utf8_lossy(&headers.stdout).contains("(RELR)"), "{}", library.display());
        let host = Host::new(&program, "opens").argument("2").argument(COUNT.to_string()).argument(&library);
        let host = host.variable("JITLISTEN_LOG", "debug:log");
        host::same_output(&host).well();
        assert_eq!(heard(&host.log()), [2 * COUNT; 2], "{llvm}:\n{}", host.log());
    }
}

/// Seen by another thread than the one whose loader is about to relocate it. A packed relocation is the word in the
/// vtable itself: were it written when the loader has just been there, the host's next call would go anywhere. The GDB
/// JIT list is read instead.
#[test]
fn with_packed_relocations_in_front_of_the_loader() {
    let scratch = Scratch::new("embedded");
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let compile = |source: &str, flags: &[&str], name: &str| {
        let output = scratch.join(name);
        tool::compile(
            &compiler,
            &[&["-O1", "-Wall", "-Wextra", "-Werror"], flags].concat(),
            &paths::host(source),
            &output,
        );
        output
    };
    let program = compile("waits_in_loader.c", &["-pthread", "-ldl"], "waits");
    let needed = compile("waits_in_loader.c", &["-DAS_LIBRARY", "-shared", "-fPIC"], "libwaits.so");
    let taken = compile("taken_breakpoint.c", &["-shared", "-fPIC"], "taken_breakpoint.so");
    let library = scratch.join("libembedded-packed.so");
    let flags = ["-DAS_LIBRARY", "-fPIC", "-shared", "-s", "-Wl,-Bsymbolic", "-Wl,-z,pack-relative-relocs"];
    let needed = needed.to_str().expect("text");
    let Some(()) = link(14, true, &[&flags[..], &[needed]].concat(), &library) else { return };
    let host = Host::new(&program, "waits").argument(&library).argument(COUNT.to_string());
    let stock = host.run(Preload::Nothing).well();
    let log = host.scratch("log");
    let host = host.argument(&log).variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
    let list = format!("{}:{}", paths::library().display(), taken.display());
    let host = host.variable("LD_PRELOAD", list);
    let ended = host.run(Preload::Nothing).well();
    assert_eq!((stock.stdout, stock.stderr), (ended.stdout, ended.stderr));
    let log = host.log();
    assert!(log.contains("could not hook RuntimeDyld: the loader may be at work in it"), "{log}");
    assert_eq!(heard(&log), [COUNT; 2], "{log}");
}

/// A library whose relocation slots are read-only once the loader is done with them, which takes it long: 2,700
/// imports, with the memory functions among them.
fn sealed_library(scratch: &Scratch, compiler: &Path) -> PathBuf {
    let functions = |of: &dyn Fn(usize) -> String| (0..2700).map(of).collect::<String>();
    let (imported, sealed) = (scratch.join("libimported.so"), scratch.join("libsealed.so"));
    let source = scratch.join("imported.c");
    fs::write(&source, functions(&|number| format!("int f{number}(void) {{ return {number}; }}\n"))).expect("written");
    tool::compile(compiler, &["-shared", "-fPIC"], &source, &imported);
    let declared = functions(&|number| format!("int f{number}(void);\n"));
    let called = functions(&|number| format!("    sum += f{number}();\n"));
    let source = scratch.join("sealed.c");
    let memory = "void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        sum += mprotect(page, 4096, PROT_READ) + munmap(page, 4096);\n";
    let text = format!(
        "#include <sys/mman.h>\n{declared}long sealed(void) {{\n    long sum = 0;\n{memory}{called}    return \
         sum;\n}}\n"
    );
    fs::write(&source, text).expect("written");
    let here = scratch.join("");
    let (directory, run_path) = (format!("-L{}", here.display()), format!("-Wl,-rpath,{}", here.display()));
    let flags =
        ["-shared", "-fPIC", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--no-as-needed", &directory, &run_path, "-limported"];
    tool::compile(compiler, &flags, &source, &sealed);
    sealed
}

/// The loader is still at work in a library when an object of another thread is loaded: its pages are the loader's.
#[test]
fn beside_libraries_that_are_opened() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 1)) else {
        return;
    };
    let program = opens(&scratch, &compiler);
    let sealed = sealed_library(&scratch, &compiler);
    let count = 8 * COUNT;
    let host = Host::new(&program, "opens").argument("2").argument(count.to_string());
    let host = libraries.iter().fold(host, |host, library| host.argument(library)).argument("--").argument(&sealed);
    let host = host.variable("JITLISTEN_LOG", "debug:log");
    for run in 1..=4 {
        host.run(Preload::Library).well();
        assert_eq!(heard(&host.log()), [run * 2 * libraries.len() * count; 2], "{}", host.log());
    }
}

/// The library is opened while four threads compile: later objects are detected.
#[test]
fn listened_to_while_threads_compile() {
    let scratch = Scratch::new("embedded");
    let library = paths::library();
    for (llvm, statically) in [(14, true), (19, true), (15, false), (22, false)] {
        let program = scratch.join(&format!("late-{llvm}"));
        let Some(()) = link(llvm, statically, if statically { &["-s"] } else { &[] }, &program) else { continue };
        for engine in ENGINES {
            for _ in 0..5 {
                let host = host(&program, engine, &["threads", "listen"]);
                // Reads nothing of the library's but the sums.
                let stock = host.variable("EMBEDDED_OPENS", "libc.so.6").run(Preload::Nothing).well();
                let host = self::host(&program, engine, &["threads", "listen"]).variable("EMBEDDED_OPENS", &library);
                let ours = host.run(Preload::Nothing).well();
                assert_eq!((&stock.stdout, &stock.stderr), (&ours.stdout, &ours.stderr));
                let map = ours.perf_map();
                // Each thread's last, compiled when the library was open.
                for thread in 1..=THREADS {
                    let name = format!("outer{}", thread * COUNT - 1);
                    assert_eq!(map.named(&name).count(), 1, "{name}:\n{}\n{}", map.names(), host.log());
                }
            }
        }
    }
}

/// `listed.o`, and a program that is linked with an impostor of LLVM's linkers, with these flags.
fn impostor(scratch: &Scratch, flags: &[&str]) -> Option<(PathBuf, PathBuf)> {
    let (c, cpp) = (tool::require("cc", Absence::FailsInCi)?, tool::require("c++", Absence::FailsInCi)?);
    let source = scratch.join("listed.c");
    fs::write(&source, "long listed(long n) { return n * 7 + 1; }\n").expect("written");
    let object = scratch.join("listed.o");
    tool::compile(&c, &["-O1", "-c"], &source, &object);
    let program = scratch.join("impostor");
    let flags = [&["-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic"], flags].concat();
    tool::compile(&cpp, &flags, &paths::host("impostor.cpp"), &program);
    Some((object, program))
}

/// ClickHouse's libc++ returns a `std::unique_ptr` in a register.
#[test]
fn what_is_returned_in_memory_and_in_a_register() {
    for flags in [&[][..], &["-DIN_REGISTER"]] {
        let scratch = Scratch::new("embedded");
        let Some((object, program)) = impostor(&scratch, flags) else { return };
        loads_three(&program, &object, "loads");
    }
}

#[track_caller]
fn loads_three(program: &Path, object: &Path, mode: &str) {
    let host = Host::new(program, "impostor").argument(mode).argument(object);
    let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
    let ended = host::same_output(&host).well();
    assert_eq!((heard(&host.log()), host.log().matches("ignoring an object").count()), ([3, 3], 0), "{}", host.log());
    assert_eq!(ended.perf_map().named("listed").count(), 3, "{}", host.log());
}

/// Of a product that has each of LLVM's libraries apart.
#[test]
fn object_files_whose_class_is_in_another_library() {
    let scratch = Scratch::new("embedded");
    let Some((object, program)) = impostor(&scratch, &[]) else { return };
    loads_three(&program, &object, "foreign");
}

/// Without versions of symbols, the constants say which release it is.
#[test]
fn the_release_is_the_one_that_the_library_says() {
    for (version, refusal) in [
        ("14.0.6", None),
        ("15.0.7-rust-1.70.0-stable", None),
        ("16.0.0git", None),
        ("19.1.7", Some("unknown release: 16 slots in the vtable of RuntimeDyldELF")),
        ("25.0.0git", Some("unsupported release LLVM 25")),
    ] {
        let scratch = Scratch::new("embedded");
        let Some((object, program)) = impostor(&scratch, &[&format!("-DSAYS=\"{version}\"")]) else { return };
        let Some(refusal) = refusal else {
            loads_three(&program, &object, "loads");
            continue;
        };
        let host = Host::new(&program, "impostor").argument("loads").argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log");
        host::same_output(&host).well();
        let log = host.log();
        assert!(log.contains(&format!("RuntimeDyld is not observed: {refusal}")), "{version}: {log}");
        assert_eq!(heard(&log), [0, 0], "{version}: {log}");
    }
}

/// A linker of an unknown release is ignored. That is worth a warning where the program registers nothing with
/// debuggers either, and not where it does.
#[test]
fn what_nothing_is_heard_of_is_said_when_it_has_compiled() {
    let scratch = Scratch::new("embedded");
    let flags = [
        ("-DANOTHER_RELEASE", "unknown release: 18 slots in the vtable of RuntimeDyldELF"),
        ("-DSAYS=\"25.1.0\"", "unsupported release LLVM 25"),
    ];
    let modes = [("waits", 0, 1), ("waits-listed", 3, 0), ("loads", 0, 0)];
    for ((flag, refusal), (mode, objects, warnings)) in flags.iter().flat_map(|flag| modes.map(|mode| (flag, mode))) {
        let Some((object, program)) = impostor(&scratch, &[flag]) else { return };
        let host = Host::new(&program, "impostor").argument(mode).argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        host::same_output(&host).well();
        let log = host.log();
        assert!(log.contains(&format!("RuntimeDyld is not observed: {refusal}")), "{log}");
        assert_eq!(heard(&log), [objects; 2], "{mode}: {log}");
        let said: Vec<&str> =
            log.lines().filter(|line| line.contains("warn: /proc/self/exe: this LLVM reported no object")).collect();
        assert_eq!(said.len(), warnings, "{mode}: {log}");
        assert!(said.iter().all(|line| line.contains(refusal)), "{log}");
    }
}

/// What is called as LLVM's linker and is something else: the program goes on, the log says so, and the GDB JIT list is
/// read instead, although it is not exported.
#[test]
fn what_only_looks_like_a_linker_is_left_alone() {
    let scratch = Scratch::new("embedded");
    let Some((object, program)) = impostor(&scratch, &[]) else { return };
    for (mode, refusal) in [
        ("null", None),
        ("stranger", Some("what was returned does not refer to its linker")),
        ("never", Some("nothing is returned, time and again")),
        ("late", Some("the absent section has an address")),
        ("heap", Some("what was returned has no vtable")),
        ("none", Some("what was returned has no vtable")),
        ("data", Some("a vtable with functions of others")),
        ("others", Some("a vtable with functions of others")),
        ("elsewhere", Some("its bytes are not where they are said to be")),
        ("no-file", Some("no object file")),
        ("no-class", Some("no object file")),
        ("lies", Some("the absent section has an address")),
        ("wild", Some("its bytes cannot be read")),
        ("text", Some("no relocatable ELF object of this machine")),
    ] {
        let host = Host::new(&program, "impostor").argument(mode).argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        let ended = host::same_output(&host).well();
        let log = host.log();
        assert_eq!(log.matches(": ignoring an object: ").count(), usize::from(refusal.is_some()), "{log}");
        if let Some(refusal) = refusal {
            assert!(log.contains(refusal), "{mode}: {log}");
            assert_eq!(ended.perf_map().named("listed").count(), 1, "{mode}: {log}");
        }
    }
    for (mode, refusal) in [
        ("emits-text", Some("no ELF object")),
        ("emits-wild", Some("memory that cannot be read")),
        // An object of another machine is no fault.
        ("emits-other", None),
    ] {
        let host = Host::new(&program, "impostor").argument(mode).argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        host::same_output(&host).well();
        let log = host.log();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("warn: ")).collect();
        assert!(warnings.len() == usize::from(refusal.is_some()), "{mode}: {log}");
        assert!(warnings.iter().zip(refusal).all(|(one, refusal)| one.contains(refusal)), "{mode}: {log}");
    }
}
