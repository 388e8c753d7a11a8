//! Several threads put code on the same pages: an image must never lose a byte of that code, regardless of what other
//! threads do at that moment.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::linked::compile_jit;
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

const FUNCTION_COUNT: u64 = 1000;

/// Number of images for each variant. Asserts that the code of every function is intact and that it returns the right
/// value.
fn images(variants: &[&str], preload: Preload) -> Option<Vec<u64>> {
    let build_dir = Scratch::new("shared-pages-bin");
    let program = compile_jit("shared_pages", &build_dir)?;
    let run = |variant: &&str| {
        let host = Host::new(&program, "shared-pages").argument(FUNCTION_COUNT.to_string());
        let host = with_images(host.arguments(variant.split(' ')));
        let stdout = String::from_utf8(host.run(preload).expect_success().stdout).expect("text");
        let counts = stdout.strip_prefix("wrong 0 lost 0 images ").unwrap_or_else(|| panic!("{variant}: {stdout}"));
        counts.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
    };
    Some(variants.iter().map(run).collect())
}

#[test]
fn pages_that_other_threads_write_to_have_no_image() {
    let variants = [
        "outside",
        "inside",
        "outside process",
        "outside switching",
        "inside switching",
        "outside frees switching",
        "memory",
        "memory switching",
        "writable",
        "shared",
        "private",
    ];
    let Some(images) = images(&variants, Preload::Nothing) else { return };
    assert_eq!(images, [0; 11]);
}

#[test]
fn pages_that_other_threads_write_to_have_no_image_in_a_program_that_is_observed() {
    let Some(images) = images(&["outside", "outside switching"], Preload::Library) else { return };
    assert_eq!(images, [0; 2]);
}

#[test]
fn exclusively_owned_pages_have_images_despite_other_threads() {
    let Some(images) = images(&["owned", "owned switching", "owned frees"], Preload::Nothing) else { return };
    assert_eq!((images[0], images[1] > 0, images[2]), (FUNCTION_COUNT, true, FUNCTION_COUNT));
}

#[test]
fn a_single_thread_has_images_on_shared_pages() {
    let Some(images) = images(&["alone", "alone frees", "alone private"], Preload::Nothing) else { return };
    assert_eq!(images, [FUNCTION_COUNT, FUNCTION_COUNT, 0]);
}

/// LLVM's engines share pages, and an `mprotect` call is still in progress long after our hook has seen it.
#[test]
fn a_memory_manager_that_shares_pages_between_engines() {
    let build_dir = Scratch::new("shared-arena-bin");
    let (Some(compiler), Some(llvm_config)) =
        (tool::require("cc", Absence::FailsInCi), tool::require("llvm-config-14", Absence::FailsInCi))
    else {
        return;
    };
    let llvm_path = tool::run(std::process::Command::new(llvm_config).arg("--libdir")).stdout;
    let llvm_path = format!("-L{}", String::from_utf8_lossy(&llvm_path).trim());
    let source = paths::host("shared_arena.c");
    let flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
    tool::compile(
        &compiler,
        &[&flags[..], &["-DSLOW", "-shared", "-fPIC"]].concat(),
        &source,
        &build_dir.join("libslow.so"),
    );
    let directory = build_dir.join("").display().to_string();
    let [link_path, run_path] = [format!("-L{directory}"), format!("-Wl,-rpath,{directory}")];
    let link_flags = [&link_path, "-Wl,--no-as-needed", "-lslow", &run_path, &llvm_path, "-lLLVM-14", "-ldl"];
    let program = build_dir.join("shared_arena");
    tool::compile(&compiler, &[&flags[..], &link_flags].concat(), &source, &program);
    let host = with_images(Host::new(program, "shared-arena").argument("400"));
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "wrong 0\n", "{}", host.log());
    assert!(!image::files(&host).is_empty(), "no image was tried: this proves nothing\n{}", host.log());
}
