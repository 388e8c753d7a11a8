//! C++ exceptions that propagate through compiled frames, with images in the module lists. Also tested under
//! sanitizers, whose unwinder reads those lists.

use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const VENV: &str = "numba-0.68.1";
const FUNCTION_COUNT: &str = "300";
const THROW_COUNT: &str = "20000";

/// Builds the host from the benchmark's sources.
fn host_that_throws(flags: &[&str]) -> Option<Host> {
    let library = "from llvmlite.binding import ffi; print(ffi.lib._lib._name)";
    let output = tool::run(Command::new(integration::python(VENV)?).args(["-c", library]));
    let llvmlite = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let compilers = [("cc", "compile.c"), ("c++", "throws.cpp")];
    let host = Host::new("/usr/bin/env", "throws");
    let sources = paths::root().join("benches/modules");
    let mut objects = Vec::new();
    for (compiler, source) in compilers {
        let compiler = tool::require(compiler, Absence::FailsInCi)?;
        let object = host.scratch(&format!("{source}.o"));
        let compile_flags = [&["-O1", "-g", "-c"], flags].concat();
        tool::compile(&compiler, &compile_flags, &sources.join(source), &object);
        objects.push(object);
    }
    let program = host.scratch("throws");
    let link_status =
        Command::new(tool::find("c++")?).args(flags).args(&objects).arg("-o").arg(&program).arg("-ldl").status();
    assert!(link_status.is_ok_and(|status| status.success()), "it links");
    let args = [llvmlite.as_str(), FUNCTION_COUNT, THROW_COUNT];
    Some(args.iter().fold(host.argument(program), |host, arg| host.argument(arg)))
}

/// Sum of the caught values, and number of addresses with a name.
fn run_host(host: &Host, preload: Preload) -> (String, String) {
    let outcome = host.run(preload).expect_success();
    assert_eq!(outcome.stderr, "", "a sanitizer, or the program, has something to say");
    let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let words: Vec<&str> = output.split_whitespace().collect();
    let ["sum", sum, .., named_addresses, "named"] = words[..] else { panic!("{output}") };
    (sum.to_owned(), named_addresses.to_owned())
}

#[test]
fn exceptions_go_through_compiled_frames() {
    let Some(host) = host_that_throws(&[]) else { return };
    let host = host.variable("JITLISTEN", "image,unwind,modules");
    let (stock, preloaded) = (run_host(&host, Preload::Nothing), run_host(&host, Preload::Library));
    assert_eq!(stock.0, preloaded.0, "the sum of what was caught");
    assert_eq!((stock.1.as_str(), preloaded.1.as_str()), ("0", "100000"), "addresses with a name");
}

#[test]
fn sanitizers_report_nothing_new() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let query = Command::new("cc").arg("-print-file-name=libasan.so").output();
    let runtime = query.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if !Path::new(&runtime).is_file() {
        return tool::skip("AddressSanitizer", "this compiler has no runtime of it", Absence::IsAllowed);
    }
    let Some(host) = host_that_throws(&flags) else { return };
    // LLVM frees some allocations only at exit, so leak detection is disabled.
    let host = host.variable("ASAN_OPTIONS", "detect_leaks=0").variable("JITLISTEN", "image,unwind,modules");
    let preloads = format!("{runtime}:{}", paths::library().display());
    let host = host.variable("LD_PRELOAD", &runtime);
    let stock = run_host(&host, Preload::Nothing);
    let preloaded = run_host(&host.variable("LD_PRELOAD", preloads), Preload::Nothing);
    assert_eq!(stock.0, preloaded.0, "the sum of what was caught");
    assert_eq!((stock.1.as_str(), preloaded.1.as_str()), ("0", "100000"), "addresses with a name");
}
