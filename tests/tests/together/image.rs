//! `JITLISTEN=image` with unmodified tools that know nothing about JITs, compared with the stock process.

use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, count_complete, with_images};
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{perf, support_table};

const NUMBA: &str = "numba-0.68.1";

#[test]
fn perf_report_names_code_without_map_or_inject() {
    for integration in [Integration::Numba(NUMBA), Integration::Lli(14, &["--jit-kind=mcjit"])] {
        let (Some(()), Some(host)) = (perf::is_available(), integration.chain(2, &[])) else { continue };
        let host = with_images(host);
        let recording = perf::record(&host, Preload::Library);
        assert_eq!(recording.map, None, "no perf map was asked for");
        let caller = [integration.caller_frame(), "call_cfunc", "runFunction", "main"];
        let (jit_count, complete_count) = count_complete(&recording.samples, &caller);
        assert!(jit_count >= 150, "{integration:?}: only {jit_count} samples in images\n{}", host.log());
        assert!(
            complete_count * 100 >= jit_count * 95,
            "{integration:?}: {complete_count} of {jit_count} stacks are complete"
        );
        support_table::record_cell(integration.row(), "image");
    }
}

/// perf unwinds with tables alone, because neither the compiled code nor Python keeps frame pointers.
#[test]
fn perf_walks_by_unwind_tables_from_the_kernel_to_main() {
    let (Some(()), Some(host)) = (perf::is_available(), Integration::Numba(NUMBA).chain(2, &[])) else { return };
    let host = with_images(host).variable("JITLISTEN_FRAME_POINTERS", "0");
    let data = host.scratch("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "199", "--call-graph", "dwarf", "-B", "-N", "-o"]).arg(&data);
    assert!(tool::run(record.args(["--", "env"]).args(host.env_arguments(Preload::Library))).status.success());
    let samples = perf::samples(&data);
    // Python's `main` calls `Py_BytesMain`. From there, perf 6.12 often cannot unwind through libc, with or without the
    // library.
    let (jit_count, complete_count) = count_complete(&samples, &["__libc_start", "Py_BytesMain"]);
    assert!(jit_count >= 30, "only {jit_count} samples in images\n{}", host.log());
    assert!(complete_count * 100 >= jit_count * 95, "{complete_count} of {jit_count} stacks reach main");
}

#[test]
fn checkers_of_elf_and_dwarf_find_no_fault() {
    let Some(host) = integration::numba(NUMBA, "callback.py") else { return };
    let host = with_images(host.argument("0")).variable("NUMBA_DEBUGINFO", "1");
    let _ = host.run(Preload::Library).expect_success();
    let images = image::files(&host);
    assert!(images.len() >= 3, "{images:?}\n{}", host.log());
    for (checker, args) in
        [("readelf", &["-aW"][..]), ("llvm-dwarfdump-22", &["--verify"]), ("eu-elflint", &["--gnu-ld"])]
    {
        let Some(program) = tool::require(checker, Absence::IsAllowed) else { continue };
        for image in &images {
            let checker_run = tool::run(Command::new(&program).args(args).arg(image));
            let stderr = String::from_utf8_lossy(&checker_run.stderr);
            assert!(checker_run.status.success() && stderr.is_empty(), "{checker} {}: {stderr}", image.display());
            let text = String::from_utf8_lossy(&checker_run.stdout);
            assert!(!text.to_lowercase().contains("warning"), "{checker}: {text}");
        }
    }
}

#[test]
fn images_cost_no_mapping() {
    let host = || Some(with_images(integration::numba(NUMBA, "many.py")?.argument("500")));
    let count_mappings = |preload| {
        let host = host()?;
        let stdout = String::from_utf8(host.run(preload).expect_success().stdout).expect("text");
        assert!(stdout.contains("right: 500\n"), "{stdout}");
        let image_count = image::files(&host).len();
        Some((stdout.rsplit(' ').next()?.trim().parse::<u64>().expect("a number"), image_count))
    };
    let (Some((stock, stock_images)), Some((preloaded, images))) =
        (count_mappings(Preload::Nothing), count_mappings(Preload::Library))
    else {
        return;
    };
    assert_eq!(stock_images, 0);
    assert!(images >= 500, "{images} images");
    assert!(preloaded <= stock + stock / 10, "{preloaded} mappings instead of {stock}");
}

/// RLIMIT_FSIZE makes a write in the middle of the first image fail, and the image sink stops without any other effect.
#[test]
fn a_full_disk_stops_the_sink_and_nothing_else() {
    let Some(python) = integration::python(NUMBA) else { return };
    let script = jitlisten_tests::paths::host("callback.py");
    let limit_file_size =
        |host: Host| with_images(host.argument("-c").argument("ulimit -f 4; exec \"$@\"").argument("sh"));
    let host = limit_file_size(Host::new("/bin/sh", "full")).argument(python).argument(script).argument("0");
    let host = host.variable("JITLISTEN_LOG", "/dev/null");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).lines().next(), Some("17.0"));
    assert_eq!(image::files(&host), Vec::<PathBuf>::new());
}
