//! Programs that embed an LLVM and are linked with the library: `tests/cpp`, compiled against each LLVM that is
//! installed.
//!
//! One compilation for each LLVM and not for each test: the programs stay in `target/cpp` until a source is newer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::host::Host;
use crate::paths;
use crate::tool::{self, Absence};

/// The versions `include/jitlisten_llvm.hpp` is tried with.
pub const LLVMS: [u32; 5] = [14, 15, 16, 19, 22];

/// LLVM is built without both and works with both.
const DIALECTS: [&[&str]; 2] = [&["-fno-rtti", "-fno-exceptions"], &["-frtti", "-fexceptions"]];

const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];

/// `tests/cpp/host.cpp` with this LLVM, over an engine and a file of `tests/`, or `None` after a loud skip.
#[must_use]
pub fn host(llvm: u32, engine: &str, source: &str, seconds: u32) -> Option<Host> {
    static PROGRAMS: [OnceLock<Option<PathBuf>>; LLVMS.len()] = [const { OnceLock::new() }; LLVMS.len()];
    let place = LLVMS.iter().position(|&version| version == llvm).expect("one of LLVMS");
    let program = PROGRAMS[place].get_or_init(|| program(llvm, DIALECTS[place % 2])).as_ref()?;
    let host = Host::new(program, &format!("llvm-{llvm}-{engine}"));
    Some(host.argument(engine).argument(paths::root().join("tests").join(source)).argument(seconds.to_string()))
}

/// Has another compiler read the header as the other dialect, with every warning an error; `None` after a loud skip.
///
/// # Panics
/// When the compiler refuses.
#[must_use]
pub fn other_compiler_agrees(llvm: u32) -> Option<()> {
    let place = LLVMS.iter().position(|&version| version == llvm).expect("one of LLVMS");
    let clang = tool::require("clang++-14", Absence::FailsInCi)?;
    let mut command = Command::new(clang);
    command.args(DIALECTS[(place + 1) % 2]).args(WARNINGS).args(includes(&installed(llvm)?));
    let done = tool::run(command.args(["-std=c++17", "-fsyntax-only"]).arg(directory().join("host.cpp")));
    assert!(done.status.success(), "LLVM {llvm}: {}", String::from_utf8_lossy(&done.stderr));
    Some(())
}

/// What `llvm-config` returns to one word.
struct Installed {
    config: PathBuf,
}

impl Installed {
    fn config(&self, word: &str) -> String {
        let done = tool::run(Command::new(&self.config).args(["--link-shared", word]));
        assert!(done.status.success(), "{} {word}", self.config.display());
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }
}

fn installed(llvm: u32) -> Option<Installed> {
    Some(Installed { config: tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)? })
}

fn directory() -> PathBuf {
    paths::root().join("tests/cpp")
}

fn includes(llvm: &Installed) -> [String; 2] {
    let ours = paths::root().join("include");
    [format!("-isystem{}", llvm.config("--includedir")), format!("-I{}", ours.display())]
}

fn program(llvm: u32, dialect: &[&str]) -> Option<PathBuf> {
    let (compiler, c_compiler) = (tool::require("g++", Absence::FailsInCi)?, tool::require("cc", Absence::FailsInCi)?);
    let installed = installed(llvm)?;
    let output = paths::root().join("target/cpp");
    fs::create_dir_all(&output).unwrap_or_else(|error| panic!("create {}: {error}", output.display()));
    let program = output.join(format!("host-{llvm}"));
    if is_fresh(&program) {
        return Some(program);
    }
    let walker = output.join(format!("walker-{llvm}.o"));
    tool::compile(&c_compiler, &["-O1", "-g", "-fexceptions", "-Werror", "-c"], &paths::host("walker.c"), &walker);
    let library = paths::library();
    let libraries = library.parent().expect("it is in a directory");
    let mut flags: Vec<String> = ["-std=c++17", "-O0", "-g1", "-pthread"].map(str::to_owned).to_vec();
    flags.extend(dialect.iter().chain(&WARNINGS).map(|&flag| flag.to_owned()));
    flags.extend(includes(&installed));
    // libgcc's unwinder first: libunwind exports functions of the same names.
    flags.extend([walker.display().to_string(), "-Wl,--no-as-needed".to_owned(), "-lgcc_s".to_owned()]);
    flags.extend(["-lunwind".to_owned(), format!("-L{}", installed.config("--libdir"))]);
    flags.extend(installed.config("--libs").split_whitespace().map(str::to_owned));
    flags.extend([format!("-L{}", libraries.display()), "-ljitlisten".to_owned()]);
    flags.push(format!("-Wl,-rpath,{}", libraries.display()));
    // Whoever runs beside us never sees half a program.
    let part = output.join(format!("host-{llvm}.{}", std::process::id()));
    tool::compile(
        &compiler,
        &flags.iter().map(String::as_str).collect::<Vec<_>>(),
        &directory().join("host.cpp"),
        &part,
    );
    fs::rename(&part, &program).unwrap_or_else(|error| panic!("rename to {}: {error}", program.display()));
    Some(program)
}

/// Whether the program is there and younger than everything it is made of.
fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let sources = entries(directory()).chain(entries(paths::root().join("include")));
    let newest = sources.chain([paths::host("walker.c")]).map(|path| changed(&path)).max();
    program.is_file() && newest.is_some_and(|newest| newest < changed(program))
}
