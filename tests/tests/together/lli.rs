//! LLVM's interpreter `lli` with those consumers that `table.rs` does not cover.

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::{perf, perf_inject, scenario, support_table, walk};

const MCJIT: [Integration; 2] =
    [Integration::Lli(14, &["--jit-kind=mcjit"]), Integration::Lli(22, &["--jit-kind=mcjit"])];
const ORC: [Integration; 2] = [
    Integration::Lli(22, &["--jit-kind=orc", "--jit-linker=rtdyld"]),
    Integration::Lli(22, &["--jit-kind=orc", "--jit-linker=jitlink"]),
];

#[test]
fn both_unwinders_walk_to_the_start() {
    // libunwind 1.6.2 also unwinds out of ORC's compiled frames, but fails two frames later, in LLVM 22's `runAsMain`.
    for (unwinder, integrations) in [("libunwind", &MCJIT[..]), ("libgcc", &[&MCJIT[..], &ORC].concat())] {
        for integration in integrations {
            let Some(host) = integration.chain(2, &[]) else { continue };
            let Some(walked) = walk::run_with_walker(host, unwinder, Preload::Library) else { continue };
            walked.assert_complete();
        }
        support_table::record_cell("shim, lli", unwinder);
    }
}

/// Control: libgcc uses the unwind tables that LLVM registers, and libunwind does not.
#[test]
fn stock_libunwind_does_not() {
    let Some(host) = MCJIT[0].chain(1, &[]) else { return };
    let Some(walked) = walk::run_with_walker(host, "libunwind", Preload::Nothing) else { return };
    // A sample may be in a function of `lli` that calls compiled code.
    assert!(walked.samples >= 20 && walked.complete * 20 < walked.samples, "{walked:?}: the other test proves nothing");
}

#[test]
fn perf_names_code_by_the_jitdump() {
    for integration in [MCJIT[0], ORC[1]] {
        let (Some(()), Some(host)) = (perf::is_available(), integration.chain(2, &[])) else { continue };
        let injected = perf_inject::record(host.variable("JITLISTEN", "jitdump"), 997, "fp");
        let gamma_leaf_count = injected.count_leaves_in("gamma");
        let whole_stacks = injected.samples.iter().filter(|sample| scenario::begins_with_chain(&sample.frames)).count();
        assert!(
            gamma_leaf_count >= 150 && whole_stacks * 100 >= gamma_leaf_count * 95,
            "{integration:?}: {whole_stacks} of {gamma_leaf_count}"
        );
    }
    support_table::record_cell("shim, lli", "jitdump");
}
