//! LLVM's own interpreter with the consumers that the table of `table.rs` leaves out.

use jitlisten_tests::door::Door;
use jitlisten_tests::host::Preload;
use jitlisten_tests::{doors, perf, perf_inject, story, walk};

const MCJIT: [Door; 2] = [Door::Lli(14, &["--jit-kind=mcjit"]), Door::Lli(22, &["--jit-kind=mcjit"])];
const ORC: [Door; 2] = [
    Door::Lli(22, &["--jit-kind=orc", "--jit-linker=rtdyld"]),
    Door::Lli(22, &["--jit-kind=orc", "--jit-linker=jitlink"]),
];

#[test]
fn both_unwinders_walk_to_the_start() {
    // libunwind 1.6.2 leaves the compiled frames of ORC, too, but loses its way two frames later, in LLVM 22's `runAsMain`.
    for (unwinder, doors) in [("libunwind", &MCJIT[..]), ("libgcc", &[&MCJIT[..], &ORC].concat())] {
        for door in doors {
            let Some(host) = door.chain(2, &[]) else { continue };
            let Some(walked) = walk::from_inside(host, unwinder, Preload::Library) else { continue };
            walked.is_complete();
        }
        doors::seen("shim, lli", unwinder);
    }
}

/// What libgcc knows LLVM has told it; libunwind, nobody.
#[test]
fn stock_libunwind_does_not() {
    let Some(host) = MCJIT[0].chain(1, &[]) else { return };
    let Some(walked) = walk::from_inside(host, "libunwind", Preload::Nothing) else { return };
    assert!(walked.samples >= 20 && walked.complete == 0, "{walked:?}: the other test proves nothing");
}

#[test]
fn perf_names_code_by_the_jitdump() {
    for door in [MCJIT[0], ORC[1]] {
        let (Some(()), Some(host)) = (perf::is_here(), door.chain(2, &[])) else { continue };
        let injected = perf_inject::record(host.variable("JITLISTEN", "jitdump"), 997, "fp");
        let inside = injected.leaves_in("gamma");
        let whole = injected.samples.iter().filter(|sample| story::begins_with_chain(&sample.frames)).count();
        assert!(inside >= 150 && whole * 100 >= inside * 95, "{door:?}: {whole} of {inside}");
    }
    doors::seen("shim, lli", "jitdump");
}
