//! Hosts that compile with LLVM and do not know this project: jax, PostgreSQL and Mesa's llvmpipe, each as its
//! distributor ships it.
//!
//! The expected number of objects or functions comes from an independent source: XLA writes its object files to a
//! directory, PostgreSQL's `explain` counts functions, and gdb counts the calls of LLVM's linker.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSymbol as _};

use crate::host::{Host, Preload};
use crate::tool::{self, Absence};
use crate::{integration, paths};

/// Host that runs `hosts/jax_fusions.py` under jax. XLA writes its object files to `dump` in the scratch directory.
#[must_use]
pub fn jax(words: &[&str]) -> Option<Host> {
    let python = integration::python("jax")?;
    let mut host = Host::new(python, "jax").argument(paths::host("jax_fusions.py"));
    for word in words {
        host = host.argument(word);
    }
    let flags = format!("--xla_dump_to={}", host.scratch("dump").display());
    Some(host.variable("XLA_FLAGS", flags).variable("JAX_PLATFORMS", "cpu"))
}

/// Returns the functions in XLA's object files.
///
/// # Panics
/// If an object file cannot be read.
#[must_use]
pub fn dumped_functions(host: &Host) -> Vec<String> {
    let files = fs::read_dir(host.scratch("dump")).expect("XLA has made it").flatten().map(|entry| entry.path());
    let objects = files.filter(|path| path.extension().is_some_and(|extension| extension == "o"));
    let mut functions = Vec::new();
    for path in objects {
        let bytes = fs::read(&path).expect("a file of XLA's");
        let file = object::File::parse(&*bytes).expect("an object file");
        let text = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text && !symbol.is_undefined());
        functions.extend(text.filter_map(|symbol| Some(symbol.name().ok()?.to_owned())));
    }
    functions.sort();
    functions
}

/// Host that runs `hosts/llvmpipe.c` on Mesa's software renderer.
#[must_use]
pub fn llvmpipe(frames: u32) -> Option<Host> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    if !Path::new("/usr/include/EGL/egl.h").exists() {
        tool::skip("llvmpipe", "no EGL to compile with; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let host = Host::new("./llvmpipe", "llvmpipe");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wl,--no-as-needed", "-lEGL", "-lGL"];
    tool::compile(&compiler, &flags, &paths::host("llvmpipe.c"), &host.scratch("llvmpipe"));
    Some(host.argument(frames.to_string()).variable("LIBGL_ALWAYS_SOFTWARE", "1"))
}

/// A PostgreSQL with default settings that runs statements in one process, without a server.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    user: Vec<&'static str>,
    host: Host,
}

impl Postgres {
    /// Creates a database with a table `numbers(x)` of 100,000 rows.
    #[must_use]
    pub fn new() -> Option<Self> {
        let programs = PathBuf::from("/usr/lib/postgresql/15/bin");
        if !programs.join("../lib/llvmjit.so").exists() {
            tool::skip("PostgreSQL", "no PostgreSQL 15 with llvmjit; run ci/setup.sh", Absence::FailsInCi);
            return None;
        }
        // initdb refuses to run as root.
        let is_root = tool::run(Command::new("id").arg("-u")).stdout == b"0\n";
        let as_postgres = vec!["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];
        let user = if is_root { as_postgres } else { vec!["env"] };
        let host = Host::accessible_to_all("sh", "postgres");
        fs::set_permissions(host.scratch("."), fs::Permissions::from_mode(0o777)).expect("our own directory");
        fs::copy(paths::library(), host.scratch("libjitlisten.so")).expect("copied");
        let postgres = Self { programs, user, host };
        let initdb = postgres.programs.join("initdb");
        let options = ["-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D"];
        let output = tool::run(
            Command::new(postgres.user[0])
                .args(&postgres.user[1..])
                .arg(initdb)
                .args(options)
                .arg(postgres.host.scratch("data")),
        );
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let table = "create table numbers as select x from generate_series(1, 100000) x\nanalyze numbers\n";
        let outcome = postgres.statements(table, &[]).run(Preload::Nothing);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        Some(postgres)
    }

    /// Host that runs these statements, one per line.
    #[must_use]
    pub fn statements(&self, statements: &str, settings: &[&str]) -> Host {
        let host = Host::accessible_to_all(self.user[0], "postgres-run");
        fs::set_permissions(host.scratch("."), fs::Permissions::from_mode(0o777)).expect("our own directory");
        fs::write(host.scratch("statements"), statements).expect("written");
        let quiet_settings = ["log_checkpoints=off", "log_min_messages=fatal", "max_parallel_workers_per_gather=0"];
        let settings: String = quiet_settings.iter().chain(settings).map(|setting| format!(" -c {setting}")).collect();
        let script = format!(
            "exec {}/postgres --single -D {}{settings} postgres < {}",
            self.programs.display(),
            self.host.scratch("data").display(),
            host.scratch("statements").display()
        );
        let words = self.user[1..].iter().copied().chain(["sh", "-c"]);
        host.arguments(words).argument(script)
    }

    /// Returns the functions in the bitcode that a process wrote per query with `jit_dump_bitcode`, after optimization.
    ///
    /// # Panics
    /// If LLVM cannot read the bitcode.
    #[must_use]
    pub fn compiled_functions(&self, pid: u32) -> Option<Vec<Vec<String>>> {
        let nm = tool::require("llvm-nm-14", Absence::FailsInCi)?;
        let file = |query: usize| self.host.scratch("data").join(format!("{pid}.{query}.optimized.bc"));
        let files = (0..).map(file).take_while(|file| file.exists());
        let functions = files.map(|file| {
            let output = tool::run(Command::new(&nm).args(["--defined-only", "--format=posix"]).arg(file));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).expect("names");
            let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let functions = words.filter(|words| matches!(words.get(1), Some(&("T" | "t" | "W" | "w"))));
            functions.map(|words| words[0].to_owned()).collect()
        });
        Some(functions.collect())
    }

    /// Copy of the library that every user can read.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.host.scratch("libjitlisten.so")
    }
}

/// Returns the numbers after `Functions: ` in the output of PostgreSQL's `explain`.
#[must_use]
pub fn explained_functions(stdout: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(stdout);
    let counts = text.split("Functions: ").skip(1);
    counts.filter_map(|text| text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()).collect()
}

/// Returns the number of objects that LLVM's linker loads in this host without the library, as counted by gdb. The
/// host's LLVM must have symbols.
///
/// # Panics
/// If gdb reports no count.
#[must_use]
pub fn count_objects_with_gdb(host: &Host) -> usize {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch"]);
    for (name, value) in host.variables(Preload::Nothing) {
        command.arg("-ex").arg(format!("set environment {name} {}", value.display()));
    }
    let commands = [
        "set debuginfod enabled off",
        "set breakpoint pending on",
        "set startup-with-shell off",
        "handle all nostop noprint pass",
        "break llvm::RuntimeDyldELF::loadObject",
        "ignore 1 1000000",
        "run",
        "info breakpoints",
    ];
    command.args(commands.iter().flat_map(|line| ["-ex", line]));
    let output = tool::run(command.arg("--args").args(host.command_line()).current_dir(host.scratch(".")));
    let text = String::from_utf8_lossy(&output.stdout);
    let hits = text.split("breakpoint already hit ").nth(1).and_then(|text| text.split(' ').next()?.parse().ok());
    hits.unwrap_or_else(|| panic!("gdb counts nothing:\n{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}
