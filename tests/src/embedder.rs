//! Programs that embed LLVM and link to the library: `tests/cpp`, compiled against each installed LLVM.
//!
//! Each LLVM needs one compilation, shared by all tests: the programs stay in `target/cpp` until a source is newer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::host::Host;
use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// LLVM releases that `include/jitlisten_llvm.hpp` is tested with.
pub const LLVMS: [u32; 5] = [14, 15, 16, 19, 22];

/// Compiler flags with and without RTTI and exceptions. LLVM is built without both and works with both.
const RTTI_FLAGS: [&[&str]; 2] = [&["-fno-rtti", "-fno-exceptions"], &["-frtti", "-fexceptions"]];

const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];

/// Host that runs `tests/cpp/host.cpp`, built against this LLVM release, with an engine and a file from `tests/`;
/// `None` if the test is skipped.
#[must_use]
pub fn host(llvm: u32, engine: &str, source: &str, seconds: u32) -> Option<Host> {
    static PROGRAMS: [OnceLock<Option<PathBuf>>; LLVMS.len()] = [const { OnceLock::new() }; LLVMS.len()];
    let index = LLVMS.iter().position(|&version| version == llvm).expect("one of LLVMS");
    let program = PROGRAMS[index].get_or_init(|| build_program(llvm, RTTI_FLAGS[index % 2])).as_ref()?;
    let host = Host::new(program, &format!("llvm-{llvm}-{engine}"));
    Some(host.argument(engine).argument(paths::root().join("tests").join(source)).argument(seconds.to_string()))
}

/// Parses the header with clang, with warnings as errors and with the other RTTI and exception flags; `None` if the
/// test is skipped.
///
/// # Panics
/// If clang reports an error.
#[must_use]
pub fn check_with_other_compiler(llvm: u32) -> Option<()> {
    let index = LLVMS.iter().position(|&version| version == llvm).expect("one of LLVMS");
    let clang = tool::require("clang++-14", Absence::FailsInCi)?;
    let mut command = Command::new(clang);
    command.args(RTTI_FLAGS[(index + 1) % 2]).args(WARNINGS).args(include_flags(&find_llvm(llvm)?));
    let output = tool::run(command.args(["-std=c++17", "-fsyntax-only"]).arg(source_directory().join("host.cpp")));
    assert!(output.status.success(), "LLVM {llvm}: {}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// An LLVM installation, queried through its `llvm-config`.
struct LlvmInstallation {
    llvm_config: PathBuf,
}

impl LlvmInstallation {
    fn query(&self, option: &str) -> String {
        let output = tool::run(Command::new(&self.llvm_config).args(["--link-shared", option]));
        assert!(output.status.success(), "{} {option}", self.llvm_config.display());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn find_llvm(llvm: u32) -> Option<LlvmInstallation> {
    Some(LlvmInstallation { llvm_config: tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)? })
}

fn source_directory() -> PathBuf {
    paths::root().join("tests/cpp")
}

fn include_flags(llvm: &LlvmInstallation) -> [String; 2] {
    let our_include = paths::root().join("include");
    [format!("-isystem{}", llvm.query("--includedir")), format!("-I{}", our_include.display())]
}

fn build_program(llvm: u32, rtti_flags: &[&str]) -> Option<PathBuf> {
    let (compiler, c_compiler) = (tool::require("g++", Absence::FailsInCi)?, tool::require("cc", Absence::FailsInCi)?);
    let llvm_installation = find_llvm(llvm)?;
    let output = paths::root().join("target/cpp");
    fs::create_dir_all(&output).unwrap_or_else(|error| panic!("create {}: {error}", output.display()));
    let program = output.join(format!("host-{llvm}"));
    if is_fresh(&program) {
        return Some(program);
    }
    let walker = output.join(format!("walker-{llvm}.o"));
    tool::compile(&c_compiler, &["-O1", "-g", "-fexceptions", "-Werror", "-c"], &paths::host("walker.c"), &walker);
    let library = paths::library();
    let library_directory = library.parent().expect("it is in a directory");
    let mut flags: Vec<String> = ["-std=c++17", "-O0", "-g1", "-pthread"].map(str::to_owned).to_vec();
    flags.extend(rtti_flags.iter().chain(&WARNINGS).map(|&flag| flag.to_owned()));
    flags.extend(include_flags(&llvm_installation));
    // libgcc's unwinder comes first: libunwind exports functions of the same names.
    flags.extend([walker.display().to_string(), "-Wl,--no-as-needed".to_owned(), "-lgcc_s".to_owned()]);
    flags.extend(["-lunwind".to_owned(), format!("-L{}", llvm_installation.query("--libdir"))]);
    flags.extend(llvm_installation.query("--libs").split_whitespace().map(str::to_owned));
    flags.extend([format!("-L{}", library_directory.display()), "-ljitlisten".to_owned()]);
    flags.push(format!("-Wl,-rpath,{}", library_directory.display()));
    // The rename is atomic: a test that runs concurrently never sees an incomplete program.
    let temporary = output.join(format!("host-{llvm}.{}", std::process::id()));
    tool::compile(
        &compiler,
        &flags.iter().map(String::as_str).collect::<Vec<_>>(),
        &source_directory().join("host.cpp"),
        &temporary,
    );
    fs::rename(&temporary, &program).unwrap_or_else(|error| panic!("rename to {}: {error}", program.display()));
    Some(program)
}

/// Builds a program of `tests/cpp` that uses LLVM without our API.
#[must_use]
pub fn build_without_us(llvm: u32, source: &str, flags: &[&str], build_dir: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let llvm_installation = find_llvm(llvm)?;
    let [include, _] = include_flags(&llvm_installation);
    let library_path = format!("-L{}", llvm_installation.query("--libdir"));
    let libraries = llvm_installation.query("--libs");
    let program = build_dir.join(source.trim_end_matches(".cpp"));
    let mut all_flags = vec!["-std=c++17", "-O0", "-fno-rtti", "-fno-exceptions", "-Wl,--no-as-needed", &include];
    all_flags.extend(flags);
    all_flags.extend(WARNINGS);
    all_flags.push(&library_path);
    all_flags.extend(libraries.split_whitespace());
    tool::compile(&compiler, &all_flags, &source_directory().join(source), &program);
    Some(program)
}

/// Returns true if the program exists and is newer than all its sources.
fn is_fresh(program: &Path) -> bool {
    let modified =
        |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let sources = entries(source_directory()).chain(entries(paths::root().join("include")));
    let newest = sources.chain([paths::host("walker.c")]).map(|path| modified(&path)).max();
    program.is_file() && newest.is_some_and(|newest| newest < modified(program))
}
