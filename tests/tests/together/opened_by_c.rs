//! A C program that opens `libllvmlite.so`. With `RTLD_LAZY`, the loader fills the library's import slots one by one
//! after our hooks are in place. With `RTLD_NOW`, it fills all of them after it has called `_r_debug.r_brk`.

use jitlisten_tests::host::{self, Host, Preload};
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths, perf};

fn check_opened_llvmlite(mode: &str) {
    for venv in ["numba-0.68.1", "numba-0.60.0", "numba-0.57.1", "numba-0.56.4"] {
        let (Some(python), Some(compiler)) = (integration::python(venv), tool::require("cc", Absence::FailsInCi))
        else {
            continue;
        };
        let build_dir = paths::Scratch::new("opens-llvmlite");
        let program = build_dir.join("opens_llvmlite");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"];
        tool::compile(&compiler, &flags, &paths::host("opens_llvmlite.c"), &program);
        let host = |seconds| {
            Host::new(&program, &format!("opens-llvmlite-{mode}"))
                .argument(integration::libllvmlite(&python))
                .argument(paths::host("chain.ll"))
                .argument(mode)
                .argument(seconds)
        };
        host::assert_same_output(&host("0")).expect_success();
        let Some(()) = perf::is_available() else { continue };
        let recording = perf::record(&host("2"), Preload::Library);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::from_samples(&recording.samples, "opens_llvmlite").assert_complete();
    }
}

#[test]
fn rtld_lazy() {
    check_opened_llvmlite("lazy");
}

#[test]
fn rtld_now() {
    check_opened_llvmlite("now");
}
