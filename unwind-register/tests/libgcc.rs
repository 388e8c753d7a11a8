//! Tests with the real libgcc: sections that it already knows are skipped, others are registered, and the process exits
//! without aborting.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod common;

use common::code::{Chain, Page};
use common::libgcc::{__deregister_frame, __register_frame, walk_from};
use common::libunwind::has_complete_stack;
use unwind_register::{ByHost, FramePointers, Registration, Registry, Section};

fn register(chain: &Chain, by_host: ByHost) -> Registration {
    Registry::process().rescan();
    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(by_host);
    // SAFETY: the callers keep the code mapped while it is registered.
    unsafe { Registry::process().register(&section) }.expect("a good section")
}

/// Host that registers its section as MCJIT does, until dropped.
struct Host(Vec<u8>);

impl Host {
    fn register(eh_frame: Vec<u8>) -> Host {
        // SAFETY: the section is well-formed and ends with a terminator.
        unsafe { __register_frame(eh_frame.as_ptr()) };
        Host(eh_frame)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: `Host::register` registered this section.
        unsafe { __deregister_frame(self.0.as_ptr()) };
    }
}

#[test]
fn registered_code_is_walked_and_forgotten() {
    for by_host in [ByHost::Unknown, ByHost::Nothing] {
        let page = Page::map(4096);
        let chain = page.chain(0, 0);
        assert!(!has_complete_stack(&chain, &walk_from(&chain)));
        let registration = register(&chain, by_host);
        assert!(has_complete_stack(&chain, &walk_from(&chain)), "{by_host:?}");
        drop(registration);
        assert!(!has_complete_stack(&chain, &walk_from(&chain)));
    }
}

#[test]
fn what_the_host_registered_is_not_registered_twice() {
    for by_host in [ByHost::Unknown, ByHost::Everything] {
        let page = Page::map(4096);
        let chain = page.chain(0, 16);
        let host = Host::register(chain.eh_frame());
        let registration = register(&chain, by_host);
        assert!(has_complete_stack(&chain, &walk_from(&chain)));
        drop(registration);
        assert!(has_complete_stack(&chain, &walk_from(&chain)), "the host's registration is still there");
        drop(host);
        assert!(!has_complete_stack(&chain, &walk_from(&chain)));
    }
}

#[test]
fn only_the_missing_functions_are_added() {
    let page = Page::map(4096);
    let chain = page.chain(0, 32);
    let host = Host::register(chain.eh_frame_of(&[1]));
    assert!(!has_complete_stack(&chain, &walk_from(&chain)));
    let registration = register(&chain, ByHost::Unknown);
    assert!(has_complete_stack(&chain, &walk_from(&chain)));
    drop((host, registration));
}

#[test]
fn rules_made_from_frame_pointers() {
    let page = Page::map(4096);
    let chain = page.chain_with_frame_pointers(0);
    Registry::process().rescan();
    assert!(!has_complete_stack(&chain, &walk_from(&chain)), "libgcc does not guess");
    let section = Section::without_eh_frame().functions(&chain.functions).frame_pointers(FramePointers::Kept);
    // SAFETY: the code outlives the registration.
    let registration = unsafe { Registry::process().register(&section) }.expect("prologues");
    let frames = walk_from(&chain);
    assert!(has_complete_stack(&chain, &frames), "{frames:x?}");
    drop(registration);
    assert!(!has_complete_stack(&chain, &walk_from(&chain)));
}

#[test]
fn ten_thousand_and_an_end_without_an_abort() {
    let page = Page::map(10_000 * 128);
    let chains: Vec<Chain> = (0..10_000).map(|i| page.chain(i * 128, 0)).collect();
    let mut registrations: Vec<Registration> = chains.iter().map(|chain| register(chain, ByHost::Unknown)).collect();
    assert!(has_complete_stack(&chains[5000], &walk_from(&chains[5000])));
    // Replace every second registration with one of another chain, then drop them all in reverse order.
    for i in (0..10_000).step_by(2) {
        registrations[i] = register(&chains[(i + 1) % 10_000], ByHost::Unknown);
    }
    registrations.reverse();
    drop(registrations);
    assert!(!has_complete_stack(&chains[5000], &walk_from(&chains[5000])));
}

#[test]
fn a_registration_that_is_alive_at_exit_is_harmless() {
    let page = Page::map(4096);
    let chain = page.chain(0, 0);
    std::mem::forget((register(&chain, ByHost::Nothing), page));
}

#[test]
fn a_gap_in_the_section_of_the_host_is_not_registered() {
    let page = Page::map(4096);
    let chain = page.chain(0, 64);
    let host = Host::register(chain.eh_frame_of(&[0, 2]));
    let registration = register(&chain, ByHost::Unknown);
    drop(host); // libgcc 13 and later would abort here if the function in between had been registered
    drop(registration);
    assert!(!has_complete_stack(&chain, &walk_from(&chain)));
}

#[test]
fn code_that_was_forgotten_and_placed_again() {
    let page = Page::map(4096);
    let old_chain = page.chain(0, 16);
    let stale_registration = register(&old_chain, ByHost::Nothing);
    let chain = page.chain(0, 128);
    let registration = register(&chain, ByHost::Nothing);
    assert!(has_complete_stack(&chain, &walk_from(&chain)), "the newest wins");
    drop(stale_registration);
    assert!(has_complete_stack(&chain, &walk_from(&chain)), "and stays");
    drop(registration);
    assert!(!has_complete_stack(&chain, &walk_from(&chain)));
}
