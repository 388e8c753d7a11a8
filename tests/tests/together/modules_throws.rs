//! C++ exceptions through compiled frames, with images in the lists of modules; also under sanitizers, whose own
//! unwinder reads those lists.

use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const VENV: &str = "numba-0.68.1";
const FUNCTIONS: &str = "300";
const THROWS: &str = "20000";

/// The program of the benchmark.
fn throws(flags: &[&str]) -> Option<Host> {
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
        let always = [&["-O1", "-g", "-c"], flags].concat();
        tool::compile(&compiler, &always, &sources.join(source), &object);
        objects.push(object);
    }
    let program = host.scratch("throws");
    let linked =
        Command::new(tool::find("c++")?).args(flags).args(&objects).arg("-o").arg(&program).arg("-ldl").status();
    assert!(linked.is_ok_and(|status| status.success()), "it links");
    let words = [llvmlite.as_str(), FUNCTIONS, THROWS];
    Some(words.iter().fold(host.argument(program), |host, word| host.argument(word)))
}

/// What was caught, and how many addresses had a name.
fn caught(host: &Host, preload: Preload) -> (String, String) {
    let ended = host.run(preload).well();
    assert_eq!(ended.stderr, "", "a sanitizer, or the program, has something to say");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    let ["sum", sum, .., named, "named"] = words[..] else { panic!("{said}") };
    (sum.to_owned(), named.to_owned())
}

#[test]
fn exceptions_go_through_compiled_frames() {
    let Some(host) = throws(&[]) else { return };
    let host = host.variable("JITLISTEN", "image,unwind,modules");
    let (stock, ours) = (caught(&host, Preload::Nothing), caught(&host, Preload::Library));
    assert_eq!(stock.0, ours.0, "the sum of what was caught");
    assert_eq!((stock.1.as_str(), ours.1.as_str()), ("0", "100000"), "addresses with a name");
}

#[test]
fn sanitizers_see_nothing_new() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let found = Command::new("cc").arg("-print-file-name=libasan.so").output();
    let runtime = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if !Path::new(&runtime).is_file() {
        return tool::skip("AddressSanitizer", "this compiler has no runtime of it", Absence::IsAllowed);
    }
    let Some(host) = throws(&flags) else { return };
    // LLVM keeps what it has made until the end.
    let host = host.variable("ASAN_OPTIONS", "detect_leaks=0").variable("JITLISTEN", "image,unwind,modules");
    let both = format!("{runtime}:{}", paths::library().display());
    let host = host.variable("LD_PRELOAD", &runtime);
    let stock = caught(&host, Preload::Nothing);
    let ours = caught(&host.variable("LD_PRELOAD", both), Preload::Nothing);
    assert_eq!(stock.0, ours.0, "the sum of what was caught");
    assert_eq!((stock.1.as_str(), ours.1.as_str()), ("0", "100000"), "addresses with a name");
}
