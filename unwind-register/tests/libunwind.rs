//! nongnu libunwind, the real one: Debian's, and others that are given by `UNWIND_REGISTER_LIBUNWIND` (paths, separated by `:`).
#![cfg(target_arch = "x86_64")]

mod common;

use common::code::Page;
use common::libunwind::{Unwinder, complete, walk_from};
use unwind_register::{ByHost, Registry, Section};

#[test]
fn walks_through_registered_code_and_only_that() {
    let unwinder = Unwinder::open("libunwind.so.8").expect("libunwind8");
    let registry = Registry::process();
    registry.rescan();
    let page = Page::map(4096);
    let chain = page.chain(0, 0);
    assert!(!complete(&chain, &walk_from(&chain, unwinder)), "nobody knows the code yet");
    let eh_frame = chain.eh_frame();
    let section = Section::new(&eh_frame, 0x1000).by_host(ByHost::Everything);
    // SAFETY: the code outlives the registration.
    let registration = unsafe { registry.register(&section) }.expect("a good section");
    assert_eq!(registration.coverage().covered, 3);
    let frames = walk_from(&chain, unwinder);
    assert!(complete(&chain, &frames), "{frames:x?}");
    drop(registration);
    assert!(!complete(&chain, &walk_from(&chain, unwinder)), "forgotten at once");
    println!("{:?}\n{:#?}", registry.statistics(), registry.unwinders());
}
