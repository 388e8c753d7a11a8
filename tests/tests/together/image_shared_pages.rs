//! Pages that several threads put code on: no byte of it is lost to an image, whatever else happens at that moment.

use std::path::PathBuf;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

const COUNT: u64 = 1000;

/// `hosts/shared_pages.c`, compiled.
fn jit(bin: &Scratch) -> Option<PathBuf> {
    if cfg!(not(target_arch = "x86_64")) {
        tool::skip("shared_pages", "its machine code is that of x86-64", Absence::IsAllowed);
        return None;
    }
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = bin.join("shared_pages");
    let library = paths::library();
    let directory = library.parent().expect("a file lies somewhere").display().to_string();
    let include = format!("-I{}", paths::root().join("include").display());
    let [path, runtime] = [format!("-L{directory}"), format!("-Wl,-rpath,{directory}")];
    let flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,--no-as-needed"];
    let arguments = [&flags[..], &[&include, &path, "-ljitlisten", &runtime]].concat();
    tool::compile(&compiler, &arguments, &paths::host("shared_pages.c"), &program);
    Some(program)
}

/// Number of images of each variant; every function must have its bytes and return its number.
fn images(variants: &[&str], preload: Preload) -> Option<Vec<u64>> {
    let bin = Scratch::new("shared-pages-bin");
    let program = jit(&bin)?;
    let run = |variant: &&str| {
        let host = Host::new(&program, "shared-pages").argument(COUNT.to_string());
        let host = with_images(variant.split(' ').fold(host, |host, word| host.argument(word)));
        let stdout = String::from_utf8(host.run(preload).well().stdout).expect("text");
        let counted = stdout.strip_prefix("wrong 0 lost 0 images ").unwrap_or_else(|| panic!("{variant}: {stdout}"));
        counted.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
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
fn pages_of_their_own_have_images_whatever_threads_there_are() {
    let Some(images) = images(&["owned", "owned switching", "owned frees"], Preload::Nothing) else { return };
    assert_eq!((images[0], images[1] > 0, images[2]), (COUNT, true, COUNT));
}

#[test]
fn a_single_thread_has_images_on_shared_pages() {
    let Some(images) = images(&["alone", "alone frees", "alone private"], Preload::Nothing) else { return };
    assert_eq!(images, [COUNT, COUNT, 0]);
}

/// Engines of LLVM share pages, and a call of `mprotect` takes long after the hook has heard of it.
#[test]
fn a_memory_manager_that_shares_pages_between_engines() {
    let bin = Scratch::new("shared-arena-bin");
    let (Some(compiler), Some(config)) =
        (tool::require("cc", Absence::FailsInCi), tool::require("llvm-config-14", Absence::FailsInCi))
    else {
        return;
    };
    let libraries = tool::run(std::process::Command::new(config).arg("--libdir")).stdout;
    let libraries = format!("-L{}", String::from_utf8_lossy(&libraries).trim());
    let source = paths::host("shared_arena.c");
    let flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
    tool::compile(&compiler, &[&flags[..], &["-DSLOW", "-shared", "-fPIC"]].concat(), &source, &bin.join("libslow.so"));
    let directory = bin.join("").display().to_string();
    let [path, runtime] = [format!("-L{directory}"), format!("-Wl,-rpath,{directory}")];
    let links = [&path, "-Wl,--no-as-needed", "-lslow", &runtime, &libraries, "-lLLVM-14", "-ldl"];
    let program = bin.join("shared_arena");
    tool::compile(&compiler, &[&flags[..], &links].concat(), &source, &program);
    let host = with_images(Host::new(program, "shared-arena").argument("400"));
    let ended = host.run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "wrong 0\n", "{}", host.log());
    assert!(!image::files(&host).is_empty(), "no image was tried: this proves nothing\n{}", host.log());
}
