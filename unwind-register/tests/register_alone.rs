//! Test that one call to `register` is enough, because the call itself searches for unwinders.
#![cfg(target_arch = "x86_64")]

mod common;

use common::code::{Chain, Page};
use common::libgcc::walk_from;
use common::libunwind::has_complete_stack;
use unwind_register::{Registry, Section};

#[test]
fn unwinders_are_found_by_the_first_registration_that_may_look() {
    let registry = Registry::process();
    let page = Page::map(4096);
    let chain: Chain = page.chain(0, 0);
    let (eh_frame, text) = (chain.eh_frame(), [chain.text()]);
    let section = Section::new(&eh_frame, 0x1000).text(&text);
    // SAFETY: the code outlives the registration.
    let early_registration = unsafe { registry.register_with_known(&section) }.expect("a good section");
    assert!(registry.unwinders().is_empty() && !has_complete_stack(&chain, &walk_from(&chain)), "none was looked for");
    drop(early_registration);
    // SAFETY: the code outlives the registration.
    let registration = unsafe { registry.register(&section) }.expect("a good section");
    assert!(!registry.unwinders().is_empty(), "this process has a libgcc");
    assert!(has_complete_stack(&chain, &walk_from(&chain)));
    drop(registration);
}
