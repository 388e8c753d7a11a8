//! A million exchanges of pages while other threads run, replace and protect code beside them.
//!
//! `ci/tour.sh` runs the same program under ThreadSanitizer, which cannot replace this test: pages are copied by a
//! system call, and code is fetched, not loaded, so it sees neither. The model in
//! `jitlisten/src/sink/image/exchange_model.rs` tries every interleaving.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::with_images;
use jitlisten_tests::linked::compile_jit;
use jitlisten_tests::paths::Scratch;

/// Number of processes, and of exchanges in each of them.
const PROCESSES: u32 = 20;
const EXCHANGES: u64 = 50_000;

#[test]
fn a_million_exchanges_lose_no_byte_of_code() {
    let build_dir = Scratch::new("exchanged-pages-bin");
    let Some(program) = compile_jit("exchanged_pages", &build_dir) else { return };
    for _ in 0..PROCESSES {
        let host = Host::new(&program, "exchanged-pages").argument(EXCHANGES.to_string()).timeout_seconds(3600);
        let stdout = String::from_utf8(with_images(host).run(Preload::Nothing).expect_success().stdout).expect("text");
        let exchanges =
            stdout.trim_end().strip_prefix("wrong 0 damaged 0 0 0 exchanges ").and_then(|count| count.parse().ok());
        assert!(exchanges.is_some_and(|count: u64| count >= EXCHANGES), "{stdout}");
    }
}
