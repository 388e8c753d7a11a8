//! Test with LLVM libunwind, in a C host that links it. Debian's run-time library is enough (`libunwind-19`).
//!
//! It is skipped with a message if the library or a C compiler is missing, and fails if `CI` is set.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Finds LLVM's library, `libunwind.so.1` (`libunwind.so.8` is nongnu libunwind).
fn library() -> Option<PathBuf> {
    let system_dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    let versions = (13..40).rev().map(|version| PathBuf::from(format!("/usr/lib/llvm-{version}/lib")));
    let override_path = std::env::var_os("UNWIND_REGISTER_LLVM_LIBUNWIND").map(PathBuf::from);
    let candidates = system_dirs.into_iter().chain(versions).map(|dir| dir.join("libunwind.so.1"));
    override_path.into_iter().chain(candidates).find(|path| path.exists())
}

/// Builds the example into the target directory that this test was built into.
fn build_interface() -> Option<PathBuf> {
    let test_path = std::env::current_exe().ok()?;
    let profile_dir = test_path.parent()?.parent()?;
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--offline", "--example", "llvm_unwinder", "--target-dir"])
        .arg(profile_dir.parent()?);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).status().ok()?.success().then_some(())?;
    let library_path = profile_dir.parent()?.join("debug/examples/libllvm_unwinder.so");
    library_path.exists().then_some(library_path)
}

fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "{missing} is required where CI is set");
    println!("SKIPPED: no {missing}");
}

#[test]
fn a_host_with_llvm_libunwind() {
    let Some(library) = library() else { return skip("LLVM libunwind (libunwind.so.1)") };
    let Some(interface) = build_interface() else { return skip("example llvm_unwinder") };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/llvm_host.c");
    let host = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llvm_host");
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-fno-omit-frame-pointer", "-Wall", "-Werror", "-o"]).args([&host, &source, &library]);
    let Ok(output) = compile.arg("-ldl").output() else { return skip("C compiler") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&host).arg(&interface).output().expect("the host starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{}\n{text}", library.display());
    assert!(output.status.success(), "{}: {text}", output.status);
}
