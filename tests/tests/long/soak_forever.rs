//! A service that compiles and frees code indefinitely must not grow: after twice as many iterations, its memory use,
//! mappings and files are the same.

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::log;

/// Number of iterations that fill every quota and leave more stale lines than a perf map keeps (1 MiB, some 1,300 bytes
/// per object).
const WARM_UP_ROUNDS: u32 = 900;
const TOTAL_ROUNDS: u32 = 1800;
const QUOTA_BYTES: u64 = 1 << 20;
const MIB: i64 = 1 << 20;

/// Resource usage that the host prints after a number of iterations.
#[derive(Clone, Copy, Debug)]
struct Usage {
    resident: i64,
    mappings: i64,
    perf_map: i64,
    files: i64,
}

fn host() -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "comes_and_goes.py")?;
    Some(host.argument(WARM_UP_ROUNDS.to_string()).argument(TOTAL_ROUNDS.to_string()))
}

fn parse_usage(outcome: &Outcome) -> [Usage; 2] {
    let text = String::from_utf8_lossy(&outcome.stdout);
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("no {name}: {line}"));
        rest.split([',', '}']).next().and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let parse = |line: &str| Usage {
        resident: field(line, "resident"),
        mappings: field(line, "mappings"),
        perf_map: field(line, "perf_map"),
        files: field(line, "files"),
    };
    let usage: Vec<Usage> = text.lines().map(parse).collect();
    usage.try_into().unwrap_or_else(|usage| panic!("{usage:?}"))
}

#[test]
fn with_every_sink_nothing_grows_indefinitely() {
    let (Some(stock), Some(host)) = (host(), host()) else { return };
    let [stock_warm, stock_end] = parse_usage(&stock.run(Preload::Nothing).expect_success());
    let host = host.variable("JITLISTEN", "all").variable("JITLISTEN_QUOTA", "1M");
    let outcome = host.run(Preload::Library).expect_success();
    let [warm, end] = parse_usage(&outcome);
    let summary = format!("stock {stock_warm:?} {stock_end:?}\nours {warm:?} {end:?}\n{}", host.log());

    // The perf map keeps up to 1 MiB of lines for freed code; at the end, it contains only these.
    assert!(warm.perf_map > MIB / 2, "the host did not fill the map: {summary}");
    assert!(end.perf_map <= warm.perf_map + MIB / 4 && end.perf_map < 2 * MIB, "the perf map grows: {summary}");
    // The jitdump stops at the quota, and images stay below it; the log reports the quota once.
    assert!(end.files <= 2 * QUOTA_BYTES as i64 + MIB / 4, "files grow: {summary}");
    log::assert_one_stop(&host.log(), "jitdump", "JITLISTEN_QUOTA");
    // Memory that LLVM itself leaks in the same iterations is subtracted. Up to 4,096 address ranges of freed code stay
    // reserved.
    let growth = (end.resident - warm.resident) - (stock_end.resident - stock_warm.resident);
    assert!(growth < 4 * MIB, "memory grows by {growth} bytes in {} turns: {summary}", TOTAL_ROUNDS - WARM_UP_ROUNDS);
    assert!(end.mappings - stock_end.mappings < 4096 + 64, "mappings: {summary}");
}
