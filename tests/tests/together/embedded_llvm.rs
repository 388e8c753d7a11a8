//! Programs that embed LLVM in unusual ways: linked statically and stripped, at fixed addresses, with identical
//! functions folded, split over two libraries, without RTTI, twice in one process, in libraries that are opened and
//! closed, and hooked while threads compile.

#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{self, Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent, ObjectCounts};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code};

const OBJECTS_PER_THREAD: usize = 8;
const THREAD_COUNT: usize = 4;
const ENGINES: [&str; 2] = ["mcjit", "orc"];

/// Links `embedded.c` with the static archives that `llvm-config` lists, or with LLVM's shared library.
fn link(llvm: u32, is_static: bool, flags: &[&str], output: &Path) -> Option<()> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let llvm_config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let query_config = |args: &[&str]| {
        let output = tool::run(Command::new(&llvm_config).args(args));
        String::from_utf8(output.stdout).expect("text").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let library_dir = format!("-L{}", query_config(&["--libdir"])[0]);
    let mut libraries = vec![format!("-lLLVM-{llvm}")];
    if is_static {
        libraries = query_config(&["--link-static", "--libs", "orcjit", "mcjit", "x86", "irreader"]);
        libraries.extend(query_config(&["--link-static", "--system-libs"]));
        libraries.push("-lstdc++".to_owned());
    }
    let old_contexts = if llvm < 21 { "-DOLD_CONTEXTS" } else { "-UOLD_CONTEXTS" };
    let mut compiler_args = vec!["-O1", "-Wall", "-Wextra", "-Werror", old_contexts, "-pthread", "-ldl"];
    compiler_args.extend(["-Wl,--gc-sections", "-Wl,--no-as-needed", library_dir.as_str()]);
    compiler_args.extend(flags);
    // Archives must follow the source file that needs them.
    let link_run = tool::run(
        Command::new(&compiler)
            .args(compiler_args)
            .arg(paths::host("embedded.c"))
            .args(libraries)
            .arg("-o")
            .arg(output),
    );
    assert!(link_run.status.success(), "{}", String::from_utf8_lossy(&link_run.stderr));
    Some(())
}

const AS_LIBRARY: [&str; 6] = ["-DAS_LIBRARY", "-fPIC", "-shared", "-s", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"];

fn host(program: &Path, engine: &str, args: &[&str]) -> Host {
    let host = Host::new(program, "embedded").argument(engine).argument(OBJECTS_PER_THREAD.to_string());
    let host = host.arguments(args);
    host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb")
}

fn unobserved_reason(event: LogEvent<'_>) -> Option<&str> {
    if let LogEvent::Unobserved { reason, .. } = event { Some(reason) } else { None }
}

fn refuses_runtime_dyld(event: &LogEvent<'_>, refusal: &str) -> bool {
    matches!(event, LogEvent::LinkerUnobserved { linker: "RuntimeDyld", reason, .. } if reason.starts_with(refusal))
}

fn ignored_subject(event: LogEvent<'_>) -> Option<&str> {
    if let LogEvent::Ignored { subject, .. } = event { Some(subject) } else { None }
}

/// Function that an event reports as not hooked.
fn unhooked(event: LogEvent<'_>) -> Option<&str> {
    match event {
        LogEvent::FunctionUnhooked { function, .. } | LogEvent::CompilerUnhooked { function, .. } => Some(function),
        LogEvent::ListUnhooked { .. } | LogEvent::ListPolled { .. } => Some("__jit_debug_register_code"),
        LogEvent::LoaderUnhooked { .. } => Some("_r_debug.r_brk"),
        _ => None,
    }
}

fn count_events(log: &str) -> [usize; 2] {
    let ObjectCounts { loaded, finalized, .. } = ObjectCounts::in_log(log);
    [loaded, finalized]
}

/// Asserts the same output as without the library, that every object is loaded and finalized, and that every function
/// is in the perf map and in an image.
#[track_caller]
fn check_every_object(program: &Path, times: usize) {
    for engine in ENGINES {
        for (args, threads) in [(&[][..], 1), (&["threads"][..], THREAD_COUNT)] {
            let host = host(program, engine, args);
            let outcome = host::assert_same_output(&host).expect_success();
            let log = host.log();
            assert_eq!(
                count_events(&log),
                [times * threads * OBJECTS_PER_THREAD; 2],
                "{} {engine} {args:?}:\n{log}",
                program.display()
            );
            check_perf_map(&outcome, threads * OBJECTS_PER_THREAD, times);
            check_images(&host, threads * OBJECTS_PER_THREAD);
        }
    }
}

#[track_caller]
fn check_images(host: &Host, count: usize) {
    let names: BTreeSet<String> = image::files(host).iter().flat_map(|image| image::function_names(image)).collect();
    for number in 0..count {
        for function in ["outer", "inner", "ghc", "hidden"] {
            let name = format!("{function}{number}");
            assert!(names.contains(&name), "no image has {name}: {names:?}\n{}", host.log());
        }
    }
}

#[track_caller]
fn check_perf_map(outcome: &Outcome, count: usize, times: usize) {
    let map = outcome.perf_map();
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
        // `-no-pie` links at fixed addresses; `--icf=all` folds equal destructors into one.
        (15, &["-s", "-no-pie"]),
        (16, &["-s", "-fuse-ld=gold", "-Wl,--icf=all"]),
        (22, &["-s", "-fuse-ld=gold", "-Wl,--icf=all"]),
    ] {
        let program = scratch.join(&format!("static-{llvm}"));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        check_every_object(&program, 1);
    }
}

/// A stripped program without frame pointers or unwind tables, which does not register JITLink's objects with
/// debuggers.
#[test]
fn gdb_names_functions_of_a_stripped_program() {
    let scratch = Scratch::new("embedded");
    let program = scratch.join("static-19");
    let (Some(()), Some(())) = (gdb::is_available(), link(19, true, &["-s"], &program)) else { return };
    let host = host(&program, "orc", &["loops"]).variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let last_number = OBJECTS_PER_THREAD - 1;
    let session = gdb::attach_at(&format!("inner{last_number}"), &running);
    let frames = &session.backtrace.frames;
    let expected = [format!("inner{last_number} ()"), format!("outer{last_number} ()")];
    assert_eq!(frames.get(..2), Some(&expected[..]), "{}\n{}", session.output, host.log());
}

/// LLVM's memory functions and base classes are in another library of the same program.
#[test]
fn split_over_two_libraries() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(llvm_config)) =
        (tool::require("cc", Absence::FailsInCi), tool::require("llvm-config-19", Absence::FailsInCi))
    else {
        return;
    };
    let archive_dir = String::from_utf8(tool::run(Command::new(llvm_config).arg("--libdir")).stdout).expect("text");
    let archive = |name: &str| format!("{}/libLLVM{name}.a", archive_dir.trim());
    let support = scratch.join("libsupport.so");
    let (support_archive, demangle_archive) = (archive("Support"), archive("Demangle"));
    let flags = [
        "-shared",
        "-Wl,--whole-archive",
        &support_archive,
        &demangle_archive,
        "-Wl,--no-whole-archive",
        "-lz",
        "-lstdc++",
    ];
    let empty_source = scratch.join("empty.c");
    fs::write(&empty_source, "").expect("written");
    tool::compile(&compiler, &flags, &empty_source, &support);
    let program = scratch.join("split");
    let rpath = format!("-Wl,-rpath,{}", scratch.join("").display());
    let Some(()) = link(19, true, &["-s", &rpath, support.to_str().expect("text")], &program) else { return };
    check_every_object(&program, 1);
}

/// While the library holds its locks, it must not allocate with the program's `malloc`, which maps memory under a lock
/// of its own.
#[test]
fn with_an_allocator_of_its_own() {
    let scratch = Scratch::new("embedded");
    let allocator = paths::host("own_malloc.c");
    for llvm in [14, 19] {
        let program = scratch.join(&format!("allocates-{llvm}"));
        let flags = ["-s", "-fno-builtin", allocator.to_str().expect("text")];
        let Some(()) = link(llvm, true, &flags, &program) else { continue };
        check_every_object(&program, 1);
    }
}

/// Overwrites the type names in a program as if it had been built with `-fno-rtti`. The symbols, later in the file, are
/// kept.
fn remove_type_names(program: &Path) {
    let mut bytes = fs::read(program).expect("just linked");
    for name in ["14RuntimeDyldELFE", "18RuntimeDyldELFMipsE", "19RuntimeDyldCOFFI386E", "3orc18ObjectLinkingLayerE"] {
        let name = format!("N4llvm{name}\0");
        let is_type = |offset: &usize| {
            !["_ZTI", "_ZTS", "_ZTV"].iter().any(|prefix| bytes[..*offset].ends_with(prefix.as_bytes()))
        };
        let offset = memchr::memmem::find_iter(&bytes, name.as_bytes()).find(is_type).expect("a name of a type");
        bytes[offset..offset + name.len() - 1].fill(b'X');
    }
    fs::write(program, bytes).expect("written");
}

/// Functions that are not exported have symbols in the program's file, which the library uses instead of the missing
/// type names.
#[test]
fn symbols_of_the_file_replace_missing_type_names() {
    let scratch = Scratch::new("embedded");
    for (llvm, flags) in [(14, &[][..]), (19, &[]), (15, &["-no-pie"])] {
        let program = scratch.join(&format!("typeless-{llvm}"));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        remove_type_names(&program);
        check_every_object(&program, 1);
    }
}

/// Assembly source that makes `.rodata` writable, so that constants are in the data segment, as gold links Swift's
/// LLVM.
const WRITTEN_CONSTANTS: &str = ".section .rodata, \"aw\"\n.byte 0\n.section .note.GNU-stack, \"\"\n";

/// Code compiled by an LLVM library with neither symbols nor RTTI is named by its addresses, and the log gives the
/// reason once.
#[test]
fn without_type_names() {
    let scratch = Scratch::new("embedded");
    let writable_rodata = scratch.join("written.s");
    fs::write(&writable_rodata, WRITTEN_CONSTANTS).expect("written");
    let gold_flags = ["-s", "-fuse-ld=gold", "-Wl,--no-gc-sections", writable_rodata.to_str().expect("text")];
    for (llvm, flags) in [(14, &["-s"][..]), (19, &["-s"]), (14, &gold_flags)] {
        if flags.len() > 1 && tool::require("ld.gold", Absence::FailsInCi).is_none() {
            continue;
        }
        let program = scratch.join(&format!("nameless-{llvm}-{}", flags.len()));
        let Some(()) = link(llvm, true, flags, &program) else { continue };
        remove_type_names(&program);
        for engine in ENGINES {
            let host = host(&program, engine, &["threads"]);
            let outcome = host::assert_same_output(&host).expect_success();
            let log = host.log();
            assert_eq!(count_events(&log), [THREAD_COUNT * OBJECTS_PER_THREAD; 2], "{engine}: {log}");
            let name = format!("{}+jit@", program.file_name().expect("a name").to_string_lossy());
            let map = outcome.perf_map();
            assert!(
                map.names().lines().count() >= THREAD_COUNT * OBJECTS_PER_THREAD && map.names().contains(&name),
                "{}",
                map.names()
            );
            let unobserved: Vec<&str> = log::events(&log).filter_map(unobserved_reason).collect();
            assert_eq!(
                unobserved,
                ["its linkers have neither symbols nor RTTI; its code has addresses for names"],
                "{log}"
            );
        }
    }
}

/// Code compiled by an LLVM library without type names, whose exported GDB JIT list stays empty, is named by its
/// addresses, with or without a log.
#[test]
fn without_type_names_and_with_an_unused_list() {
    let scratch = Scratch::new("embedded");
    let exported =
        ["-s", "-Wl,--export-dynamic-symbol=__jit_debug_descriptor,--export-dynamic-symbol=__jit_debug_register_code"];
    let program = scratch.join("unlisted");
    let Some(()) = link(19, true, &exported, &program) else { return };
    remove_type_names(&program);
    for log in ["", "debug:log"] {
        // LLJIT itself registers no code with debuggers.
        let host = host(&program, "orc", &[]).variable("JITLISTEN_LOG", log).variable("JITLISTEN", "perfmap");
        let map = host::assert_same_output(&host).expect_success().perf_map();
        assert!(
            map.names().lines().count() >= OBJECTS_PER_THREAD && map.names().contains("unlisted+jit@"),
            "{log}: {}",
            map.names()
        );
    }
}

/// If LLVM's C functions are exported, every function gets a frame pointer, except functions that take an argument in
/// the frame-pointer register, and their callers.
#[test]
fn functions_of_a_shared_llvm_keep_a_frame_pointer() {
    let scratch = Scratch::new("embedded");
    for llvm in [14, 15, 16, 19, 22] {
        let program = scratch.join(&format!("shared-{llvm}"));
        let Some(()) = link(llvm, false, &[], &program) else { continue };
        check_every_object(&program, 1);
        for (engine, policy) in ENGINES.into_iter().flat_map(|engine| [(engine, "1"), (engine, "untouched")]) {
            let host = host(&program, engine, &["threads"]).variable("JITLISTEN_FRAME_POINTERS", policy);
            let host = host.variable("JITLISTEN", "jitdump").variable("JITDUMPDIR", ".");
            host::assert_same_output(&host).expect_success();
            let dumps = jitdump_reader::find(&host.scratch("."));
            let [dump] = &dumps[..] else { panic!("{dumps:?}") };
            let dump = jitdump_reader::read(dump);
            assert_eq!(dump.functions.len(), 4 * THREAD_COUNT * OBJECTS_PER_THREAD);
            for function in dump.functions {
                let uses_register = ["hidden", "ghc"].iter().any(|name| function.name.starts_with(name));
                let expected = policy == "1" && !uses_register;
                let keeps_pointer = machine_code::keeps_frame_pointer(&function.code);
                assert_eq!(
                    keeps_pointer, expected,
                    "LLVM {llvm}, {engine}, {policy}: {} {:x?}",
                    function.name, function.code
                );
            }
        }
    }
}

fn libraries(scratch: &Scratch, copies: usize) -> Option<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-{llvm}.so"));
        link(llvm, true, &AS_LIBRARY, &library)?;
        for copy in 1..copies {
            let copied_library = scratch.join(&format!("libembedded-{llvm}-{copy}.so"));
            fs::copy(&library, &copied_library).expect("copied");
            libraries.push(copied_library);
        }
        libraries.push(library);
    }
    Some(libraries)
}

fn build_opener(scratch: &Scratch, compiler: &Path) -> PathBuf {
    let program = scratch.join("opens");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"];
    tool::compile(compiler, &flags, &paths::host("opens_embedded.c"), &program);
    program
}

/// Each library compiles the same functions at the same time, while the vtables of newly opened libraries are being
/// patched.
#[test]
fn several_in_one_process_that_come_and_go() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 2)) else {
        return;
    };
    let program = build_opener(&scratch, &compiler);
    const ROUNDS: usize = 3;
    let host = Host::new(&program, "opens").argument(ROUNDS.to_string()).argument(OBJECTS_PER_THREAD.to_string());
    let host = host.arguments(&libraries);
    let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
    let run_sorted = |preload| {
        let outcome = host.run(preload).expect_success();
        let mut lines: Vec<String> = String::from_utf8_lossy(&outcome.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        (lines, outcome)
    };
    let ((stock, _), (preloaded, outcome)) = (run_sorted(Preload::Nothing), run_sorted(Preload::Library));
    assert_eq!((stock.len(), &stock), (ROUNDS * libraries.len(), &preloaded));
    let log = host.log();
    assert_eq!(count_events(&log), [ROUNDS * libraries.len() * OBJECTS_PER_THREAD; 2], "{log}");
    assert!(outcome.perf_map().named("outer0").count() >= 1);
    // Whether a library is unmapped while threads of another library are in our hooks is a matter of chance, so run the
    // host several times.
    for _ in 0..9 {
        host.run(Preload::Library).expect_success();
    }
}

/// A debugger that started the program owns the loader's breakpoint, so the library does not learn of any `dlclose`.
/// When another library compiles, the memory of a closed library must not be accessed.
#[test]
fn after_one_was_closed_unheard() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 1)) else {
        return;
    };
    let breakpoint_library = scratch.join("taken_breakpoint.so");
    tool::compile(&compiler, &["-shared", "-fPIC"], &paths::host("taken_breakpoint.c"), &breakpoint_library);
    let host =
        Host::new(build_opener(&scratch, &compiler), "opens").argument("0").argument(OBJECTS_PER_THREAD.to_string());
    let host = host.arguments(&libraries);
    let host = host.variable("JITLISTEN_LOG", "debug:log");
    let stock = host.run(Preload::Nothing).expect_success();
    let objects = 3 * OBJECTS_PER_THREAD;
    let preloads = format!("{}:{}", paths::library().display(), breakpoint_library.display());
    let host = host.variable("LD_PRELOAD", &preloads);
    let outcome = host.run(Preload::Nothing).expect_success();
    assert_eq!((stock.stdout, stock.stderr), (outcome.stdout, outcome.stderr));
    let log = host.log();
    assert!(log::events(&log).any(|event| matches!(event, LogEvent::LoaderUnhooked { .. })), "{log}");
    assert_eq!(count_events(&host.log()), [objects; 2], "{}", host.log());
    // Repeat the run under gdb. A gdb that tracks libraries without this breakpoint changes nothing.
    if gdb::is_available().is_some() {
        let log = format!("debug:{}", host.scratch("log").display());
        let host = host.variable("JITLISTEN", "unwind").variable("JITLISTEN_LOG", log);
        let session = gdb::start(&host, Preload::Library);
        assert!(session.output.contains("exited normally"), "{}", session.output);
        assert_eq!(count_events(&host.log()), [2 * objects; 2], "{}", host.log());
    }
}

/// Other libraries may interpose the functions of LLVM's linkers. Before glibc 2.41, the loader fills in the linkers'
/// vtables after it has announced the library, and must then resolve these symbols to our hooks.
#[test]
fn linkers_whose_functions_others_may_replace() {
    let scratch = Scratch::new("embedded");
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let program = build_opener(&scratch, &compiler);
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-open-{llvm}.so"));
        let Some(()) = link(llvm, true, &["-DAS_LIBRARY", "-fPIC", "-shared", "-s"], &library) else { continue };
        let host =
            Host::new(&program, "opens").argument("2").argument(OBJECTS_PER_THREAD.to_string()).argument(&library);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        // With these sources, only the linkers' hooks report objects.
        let host = host.variable("JITLISTEN_LLVM", "runtimedyld,jitlink");
        host::assert_same_output(&host).expect_success();
        let log = host.log();
        assert_eq!(count_events(&log), [2 * OBJECTS_PER_THREAD; 2], "{llvm}: {log}");
        assert!(log::events(&log).all(|event| unhooked(event).is_none()), "{log}");
    }
}

/// `DT_RELR` packs relative relocations into bitmaps. With it, vtables are found and patched before the loader
/// relocates them.
#[test]
fn with_packed_relocations() {
    let scratch = Scratch::new("embedded");
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let program = build_opener(&scratch, &compiler);
    for llvm in [14, 19] {
        let library = scratch.join(&format!("libembedded-{llvm}.so"));
        let flags = [&AS_LIBRARY[..], &["-Wl,-z,pack-relative-relocs"]].concat();
        let Some(()) = link(llvm, true, &flags, &library) else { continue };
        let headers = Command::new("readelf").arg("-dW").arg(&library).output().expect("readelf");
        assert!(String::from_utf8_lossy(&headers.stdout).contains("(RELR)"), "{}", library.display());
        let host =
            Host::new(&program, "opens").argument("2").argument(OBJECTS_PER_THREAD.to_string()).argument(&library);
        let host = host.variable("JITLISTEN_LOG", "debug:log");
        host::assert_same_output(&host).expect_success();
        assert_eq!(count_events(&host.log()), [2 * OBJECTS_PER_THREAD; 2], "{llvm}:\n{}", host.log());
    }
}

/// Another thread sees the library just before the loader relocates it. A packed relocation is applied to the vtable's
/// own word, so if the word were patched right after the loader wrote it, the host's next call would jump to a wrong
/// address. The library reads the GDB JIT list instead.
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
    let needed_library = compile("waits_in_loader.c", &["-DAS_LIBRARY", "-shared", "-fPIC"], "libwaits.so");
    let breakpoint_library = compile("taken_breakpoint.c", &["-shared", "-fPIC"], "taken_breakpoint.so");
    let library = scratch.join("libembedded-packed.so");
    let flags = ["-DAS_LIBRARY", "-fPIC", "-shared", "-s", "-Wl,-Bsymbolic", "-Wl,-z,pack-relative-relocs"];
    let needed_library = needed_library.to_str().expect("text");
    let Some(()) = link(14, true, &[&flags[..], &[needed_library]].concat(), &library) else { return };
    let host = Host::new(&program, "waits").argument(&library).argument(OBJECTS_PER_THREAD.to_string());
    let stock = host.run(Preload::Nothing).expect_success();
    let log = host.scratch("log");
    let host = host.argument(&log).variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
    let preloads = format!("{}:{}", paths::library().display(), breakpoint_library.display());
    let host = host.variable("LD_PRELOAD", preloads);
    let outcome = host.run(Preload::Nothing).expect_success();
    assert_eq!((stock.stdout, stock.stderr), (outcome.stdout, outcome.stderr));
    let log = host.log();
    assert!(log::events(&log).filter_map(unhooked).any(|function| function == "RuntimeDyld"), "{log}");
    assert_eq!(count_events(&log), [OBJECTS_PER_THREAD; 2], "{log}");
}

/// Builds a library whose relocation slots become read-only after relocation. The relocation takes long because the
/// library has 2,700 imports, the memory functions among them.
fn sealed_library(scratch: &Scratch, compiler: &Path) -> PathBuf {
    let functions = |render: &dyn Fn(usize) -> String| (0..2700).map(render).collect::<String>();
    let (imported, sealed_path) = (scratch.join("libimported.so"), scratch.join("libsealed.so"));
    let source = scratch.join("imported.c");
    fs::write(&source, functions(&|number| format!("int f{number}(void) {{ return {number}; }}\n"))).expect("written");
    tool::compile(compiler, &["-shared", "-fPIC"], &source, &imported);
    let declarations = functions(&|number| format!("int f{number}(void);\n"));
    let calls = functions(&|number| format!("    sum += f{number}();\n"));
    let source = scratch.join("sealed.c");
    let memory_calls = "void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        sum += mprotect(page, 4096, PROT_READ) + munmap(page, 4096);\n";
    let text = format!(
        "#include <sys/mman.h>\n{declarations}long sealed(void) {{\n    long sum = 0;\n{memory_calls}{calls}    return \
         sum;\n}}\n"
    );
    fs::write(&source, text).expect("written");
    let scratch_dir = scratch.join("");
    let (library_dir, run_path) =
        (format!("-L{}", scratch_dir.display()), format!("-Wl,-rpath,{}", scratch_dir.display()));
    let flags =
        ["-shared", "-fPIC", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--no-as-needed", &library_dir, &run_path, "-limported"];
    tool::compile(compiler, &flags, &source, &sealed_path);
    sealed_path
}

/// Another thread loads an object while the loader is still relocating a library, whose pages belong to the loader
/// until then.
#[test]
fn beside_libraries_that_are_opened() {
    let scratch = Scratch::new("embedded");
    let (Some(compiler), Some(libraries)) = (tool::require("cc", Absence::FailsInCi), libraries(&scratch, 1)) else {
        return;
    };
    let program = build_opener(&scratch, &compiler);
    let sealed_path = sealed_library(&scratch, &compiler);
    let count = 8 * OBJECTS_PER_THREAD;
    let host = Host::new(&program, "opens").argument("2").argument(count.to_string());
    let host = host.arguments(&libraries).argument("--").argument(&sealed_path);
    let host = host.variable("JITLISTEN_LOG", "debug:log");
    for run in 1..=4 {
        host.run(Preload::Library).expect_success();
        assert_eq!(count_events(&host.log()), [run * 2 * libraries.len() * count; 2], "{}", host.log());
    }
}

/// The library is opened while four threads compile, and detects the objects compiled after that.
#[test]
fn opened_while_threads_compile() {
    let scratch = Scratch::new("embedded");
    let library = paths::library();
    for (llvm, is_static) in [(14, true), (19, true), (15, false), (22, false)] {
        let program = scratch.join(&format!("late-{llvm}"));
        let Some(()) = link(llvm, is_static, if is_static { &["-s"] } else { &[] }, &program) else { continue };
        for engine in ENGINES {
            for _ in 0..5 {
                let host = host(&program, engine, &["threads", "listen"]);
                // The stock run opens the C library instead, and only the printed sums are compared.
                let stock = host.variable("EMBEDDED_OPENS", "libc.so.6").run(Preload::Nothing).expect_success();
                let host = self::host(&program, engine, &["threads", "listen"]).variable("EMBEDDED_OPENS", &library);
                let preloaded = host.run(Preload::Nothing).expect_success();
                assert_eq!((&stock.stdout, &stock.stderr), (&preloaded.stdout, &preloaded.stderr));
                let map = preloaded.perf_map();
                // Each thread compiled its last function after the library was opened.
                for thread in 1..=THREAD_COUNT {
                    let name = format!("outer{}", thread * OBJECTS_PER_THREAD - 1);
                    assert_eq!(map.named(&name).count(), 1, "{name}:\n{}\n{}", map.names(), host.log());
                }
            }
        }
    }
}

/// Builds `listed.o`, and a program compiled with `flags` that contains an impostor of LLVM's linkers.
fn build_impostor(scratch: &Scratch, flags: &[&str]) -> Option<(PathBuf, PathBuf)> {
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

/// With ClickHouse's libc++, functions return a `std::unique_ptr` in a register; with others, in memory.
#[test]
fn results_in_memory_and_in_a_register() {
    for flags in [&[][..], &["-DIN_REGISTER"]] {
        let scratch = Scratch::new("embedded");
        let Some((object, program)) = build_impostor(&scratch, flags) else { return };
        assert_three_loads(&program, &object, "loads");
    }
}

#[track_caller]
fn assert_three_loads(program: &Path, object: &Path, mode: &str) {
    let host = Host::new(program, "impostor").argument(mode).argument(object);
    let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
    let outcome = host::assert_same_output(&host).expect_success();
    assert_eq!(
        (count_events(&host.log()), log::count(&host.log(), |event| matches!(event, LogEvent::Refused { .. }))),
        ([3, 3], 0),
        "{}",
        host.log()
    );
    assert_eq!(outcome.perf_map().named("listed").count(), 3, "{}", host.log());
}

/// The object file class is in another library, as in products that build each LLVM library as a shared library.
#[test]
fn object_files_whose_class_is_in_another_library() {
    let scratch = Scratch::new("embedded");
    let Some((object, program)) = build_impostor(&scratch, &[]) else { return };
    assert_three_loads(&program, &object, "foreign");
}

/// If LLVM's symbols are unversioned, constants in the library identify its release.
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
        let Some((object, program)) = build_impostor(&scratch, &[&format!("-DSAYS=\"{version}\"")]) else { return };
        let Some(refusal) = refusal else {
            assert_three_loads(&program, &object, "loads");
            continue;
        };
        let host = Host::new(&program, "impostor").argument("loads").argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log");
        host::assert_same_output(&host).expect_success();
        let log = host.log();
        assert!(log::events(&log).any(|event| refuses_runtime_dyld(&event, refusal)), "{version}: {log}");
        assert_eq!(count_events(&log), [0, 0], "{version}: {log}");
    }
}

/// A linker of an unknown LLVM release is ignored. If the program does not register its code with debuggers either, the
/// log has a warning.
#[test]
fn what_nothing_is_heard_of_is_said_when_it_has_compiled() {
    let scratch = Scratch::new("embedded");
    let flags = [
        ("-DANOTHER_RELEASE", "unknown release: 18 slots in the vtable of RuntimeDyldELF"),
        ("-DSAYS=\"25.1.0\"", "unsupported release LLVM 25"),
    ];
    let modes = [("waits", 0, 1), ("waits-listed", 3, 0), ("loads", 0, 0)];
    for ((flag, refusal), (mode, objects, warnings)) in flags.iter().flat_map(|flag| modes.map(|mode| (flag, mode))) {
        let Some((object, program)) = build_impostor(&scratch, &[flag]) else { return };
        let host = Host::new(&program, "impostor").argument(mode).argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        host::assert_same_output(&host).expect_success();
        let log = host.log();
        assert!(log::events(&log).any(|event| refuses_runtime_dyld(&event, refusal)), "{log}");
        assert_eq!(count_events(&log), [objects; 2], "{mode}: {log}");
        let is_warning = |event: &LogEvent<'_>| {
            let LogEvent::Silent { library, reason } = event else { return false };
            *library == "/proc/self/exe" && reason.contains(refusal)
        };
        assert_eq!(log::count(&log, is_warning), warnings, "{mode}: {log}");
    }
}

/// A class that has the name of LLVM's linker but is something else is ignored. The program continues, the log gives
/// the reason, and the GDB JIT list is read instead, although it is not exported.
#[test]
fn what_only_looks_like_a_linker_is_left_alone() {
    let scratch = Scratch::new("embedded");
    let Some((object, program)) = build_impostor(&scratch, &[]) else { return };
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
        let outcome = host::assert_same_output(&host).expect_success();
        let log = host.log();
        let ignored: Vec<&str> = log::events(&log).filter_map(ignored_subject).collect();
        assert_eq!(ignored.len(), usize::from(refusal.is_some()), "{log}");
        if let Some(refusal) = refusal {
            assert!(ignored[0].contains(refusal), "{mode}: {log}");
            assert_eq!(outcome.perf_map().named("listed").count(), 1, "{mode}: {log}");
        }
    }
    for (mode, refusal) in [
        ("emits-text", Some("no ELF object")),
        ("emits-wild", Some("memory that cannot be read")),
        // An object for another architecture is ignored without a warning.
        ("emits-other", None),
    ] {
        let host = Host::new(&program, "impostor").argument(mode).argument(&object);
        let host = host.variable("JITLISTEN_LOG", "debug:log").variable("JITLISTEN", "perfmap,image,unwind,gdb");
        host::assert_same_output(&host).expect_success();
        let log = host.log();
        let ignored: Vec<&str> = log::events(&log).filter_map(ignored_subject).collect();
        assert_eq!(ignored.len(), usize::from(refusal.is_some()), "{mode}: {log}");
        assert!(ignored.iter().zip(refusal).all(|(subject, refusal)| subject.contains(refusal)), "{mode}: {log}");
    }
}
