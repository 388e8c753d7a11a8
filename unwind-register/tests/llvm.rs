//! LLVM's libunwind (Debian: `libunwind-19`, the run-time library is enough), in a C host of its own.
//!
//! Skipped loudly where there is no such library or no C compiler, and an error where `CI` is set.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// LLVM's library is `libunwind.so.1`; `libunwind.so.8` is the other one.
fn library() -> Option<PathBuf> {
    let fixed = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    let versions = (13..40).rev().map(|version| PathBuf::from(format!("/usr/lib/llvm-{version}/lib")));
    let given = std::env::var_os("UNWIND_REGISTER_LLVM_LIBUNWIND").map(PathBuf::from);
    let found = fixed.into_iter().chain(versions).map(|folder| folder.join("libunwind.so.1"));
    given.into_iter().chain(found).find(|path| path.exists())
}

/// Builds the example into the target folder this test was built into.
fn interface() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--example", "llvm_unwinder", "--target-dir"]).arg(profile.parent()?);
    build.current_dir(env!("CARGO_MANIFEST_DIR")).status().ok()?.success().then_some(())?;
    let interface = profile.parent()?.join("debug/examples/libllvm_unwinder.so");
    interface.exists().then_some(interface)
}

fn skip(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what} is required where CI is set");
    println!("SKIPPED: no {what}");
}

#[test]
fn a_host_with_llvm_libunwind() {
    let Some(library) = library() else { return skip("LLVM libunwind (libunwind.so.1)") };
    let Some(interface) = interface() else { return skip("example llvm_unwinder") };
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
