//! A service that compiles and frees for ever has what it had: memory, mappings and files are the same after twice the
//! time.

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::integration;

/// Enough for more dead lines than a perf map keeps (1 MiB, some 1,300 bytes an object), and for every quota.
const WARM: u32 = 900;
const TURNS: u32 = 1800;
const QUOTA: u64 = 1 << 20;
const MIB: i64 = 1 << 20;

/// One line of the host's.
#[derive(Clone, Copy, Debug)]
struct Said {
    resident: i64,
    mappings: i64,
    perf_map: i64,
    files: i64,
}

fn host() -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "comes_and_goes.py")?;
    Some(host.argument(WARM.to_string()).argument(TURNS.to_string()))
}

fn said(ended: &Ended) -> [Said; 2] {
    let text = String::from_utf8_lossy(&ended.stdout);
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap_or_else(|| panic!("no {name}: {line}"));
        rest.split([',', '}']).next().and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let parse = |line: &str| Said {
        resident: field(line, "resident"),
        mappings: field(line, "mappings"),
        perf_map: field(line, "perf_map"),
        files: field(line, "files"),
    };
    let said: Vec<Said> = text.lines().map(parse).collect();
    said.try_into().unwrap_or_else(|said| panic!("{said:?}"))
}

#[test]
fn with_every_sink_on_nothing_grows_for_ever() {
    let (Some(stock), Some(ours)) = (host(), host()) else { return };
    let [stock_warm, stock_end] = said(&stock.run(Preload::Nothing).well());
    let ours = ours.variable("JITLISTEN", "all").variable("JITLISTEN_QUOTA", "1M");
    let ended = ours.run(Preload::Library).well();
    let [warm, end] = said(&ended);
    let all = format!("stock {stock_warm:?} {stock_end:?}\nours {warm:?} {end:?}\n{}", ours.log());

    // Lines of freed code are kept up to 1 MiB, and nothing else is in the map at the end.
    assert!(warm.perf_map > MIB / 2, "the host did not fill the map: {all}");
    assert!(end.perf_map <= warm.perf_map + MIB / 4 && end.perf_map < 2 * MIB, "the perf map grows: {all}");
    // The jitdump stops at the quota, images stay below it; the log says so once.
    assert!(end.files <= 2 * QUOTA as i64 + MIB / 4, "files grow: {all}");
    let reported: Vec<String> =
        ours.log().lines().filter(|line| line.contains("JITLISTEN_QUOTA")).map(str::to_owned).collect();
    assert!(reported.len() == 1 && reported[0].contains("the jitdump sink stops"), "{reported:?}");
    // What LLVM itself leaks in the same turns is not ours; addresses of freed code are reserved, 4,096 ranges at the
    // most.
    let grown = (end.resident - warm.resident) - (stock_end.resident - stock_warm.resident);
    assert!(grown < 4 * MIB, "memory grows by {grown} bytes in {} turns: {all}", TURNS - WARM);
    assert!(end.mappings - stock_end.mappings < 4096 + 64, "mappings: {all}");
}
