//! Tests with real nongnu libunwinds: Debian's (`libunwind8`), and the copies listed in `UNWIND_REGISTER_LIBUNWIND`
//! (paths separated by `:`, such as the copy in memray's wheel). A missing library is skipped with a message, or fails
//! if `CI` is set.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod common;

use common::code::{Chain, Page};
use common::libunwind::{copies, has_complete_stack, walk_from};
use unwind_register::{ByHost, FramePointers, Registration, Registry, Section, UnwinderKind};

fn register(chain: &Chain) -> Registration {
    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, 0x1000).text(&text).by_host(ByHost::Everything);
    // SAFETY: the callers keep the code mapped while it is registered.
    unsafe { Registry::process().register(&section) }.expect("a good section")
}

#[test]
fn walks_through_registered_code_and_only_that() {
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        let page = Page::map(4096);
        let chain = page.chain(0, 0);
        assert!(!has_complete_stack(&chain, &walk_from(&chain, unwinder)), "{path}: the code is not registered yet");
        let registration = register(&chain);
        assert_eq!(registration.coverage().covered, 3);
        let frames = walk_from(&chain, unwinder);
        assert!(has_complete_stack(&chain, &frames), "{path}: {frames:x?}");
        drop(registration);
        assert!(!has_complete_stack(&chain, &walk_from(&chain, unwinder)), "{path}: forgotten at once");
    }
}

#[test]
fn every_copy_passed_the_probe() {
    let copies = copies().len();
    Registry::process().rescan();
    let unwinders = Registry::process().unwinders();
    let kinds = [UnwinderKind::LibunwindPlain, UnwinderKind::LibunwindLoadOffset];
    let used = unwinders.iter().filter(|unwinder| kinds.contains(&unwinder.kind)).count();
    assert!(used >= copies, "{unwinders:#?}");
    assert!(unwinders.iter().all(|unwinder| unwinder.ignored.is_none()), "{unwinders:#?}");
    println!("{unwinders:#?}");
}

#[test]
fn a_copy_that_is_opened_later_gets_the_backlog() {
    let page = Page::map(4096);
    let chain = page.chain(0, 32);
    let _registration = register(&chain);
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        assert!(has_complete_stack(&chain, &walk_from(&chain, unwinder)), "{path}");
    }
}

#[test]
fn new_code_at_an_old_address_is_walked_by_its_own_rules() {
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        let page = Page::map(4096);
        for pad in [0, 4096, 16, 512] {
            let chain = page.chain(256, pad);
            let registration = register(&chain);
            let frames = walk_from(&chain, unwinder);
            assert!(has_complete_stack(&chain, &frames), "{path}, {pad}: {frames:x?}");
            drop(registration);
        }
    }
}

#[test]
fn code_far_from_everything_else() {
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        for hint in [0x10_0000_0000usize, 0x3000_0000_0000] {
            let page = Page::map_at(hint as *mut u8, 4096);
            assert_eq!(page.base as usize, hint, "the kernel takes the hint");
            let chain = page.chain(0, 64);
            let _registration = register(&chain);
            assert!(has_complete_stack(&chain, &walk_from(&chain, unwinder)), "{path}, {hint:#x}");
        }
    }
}

#[test]
fn functions_without_an_fde_but_with_a_frame_pointer() {
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        let page = Page::map(4096);
        let chain = page.chain_with_frame_pointers(0);
        let section = Section::without_eh_frame().functions(&chain.functions).by_host(ByHost::Nothing);
        let registry = Registry::process();
        // SAFETY: the code outlives the registration.
        let result = unsafe { registry.register(&section) };
        assert!(result.is_err(), "frame pointers were not promised");
        // SAFETY: the code outlives the registration.
        let registration =
            unsafe { registry.register(&section.frame_pointers(FramePointers::Kept)) }.expect("prologues");
        assert_eq!((registration.coverage().synthesized, registration.coverage().uncovered), (3, 0));
        let frames = walk_from(&chain, unwinder);
        assert!(has_complete_stack(&chain, &frames), "{path}: {frames:x?}");
    }
}

#[test]
fn fork_in_the_middle_of_registering() {
    let page = Page::map(1 << 20);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(register(&page.chain(0, 0)));
            }
        });
        let chain = page.chain(4096, 0);
        let registers_in_child = || {
            // SAFETY: the child only registers code and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it waits for a lock.
                unsafe { libc::alarm(10) };
                drop(register(&chain));
                // SAFETY: the child exits without running destructors or exit handlers.
                unsafe { libc::_exit(7) };
            }
            let mut status = 0;
            // SAFETY: `child` is our own child process.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7
        };
        let stuck = (0..20).filter(|_| !registers_in_child()).take(3).count();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        // glibc's lock of `dl_iterate_phdr` may be copied while the other thread holds it, which is very rare.
        assert!(stuck <= 1, "{stuck} children could not register");
    });
}

/// Registers a `unw_dyn_info_t` of format DYNAMIC, as another library may do, and then code around it.
#[test]
fn what_others_registered_is_not_hidden() {
    let Some((_, unwinder)) = copies().into_iter().next() else { return };
    Registry::process().rescan();
    let page = Page::map_at(0x20_0000_0000 as *mut u8, 0x10000);
    let foreign_start = page.base as usize + 0x3000;
    let info: &'static mut [usize; 16] = Box::leak(Box::new([0; 16]));
    (info[2], info[3]) = (foreign_start, foreign_start + 0x1000);
    (info[7], info[8]) = (0x1234, 0x1234); // `handler` in one of the two layouts
    unwinder.register_info(info);
    let chains = [page.chain(0x1000, 0), page.chain(0x5000, 16)];
    let _registrations = chains.each_ref().map(register);
    for chain in &chains {
        assert!(has_complete_stack(chain, &walk_from(chain, unwinder)));
    }
    assert_eq!(unwinder.handler_at(foreign_start + 8), Some(0x1234), "below, between and above our code");
    assert_eq!(unwinder.handler_at(foreign_start - 8), None);
}

#[test]
fn unw_backtrace_walks_too() {
    for (path, unwinder) in copies() {
        Registry::process().rescan();
        let page = Page::map(4096);
        let chain = page.chain(0, 48);
        let _registration = register(&chain);
        let frames = common::libunwind::backtrace_from(&chain, unwinder);
        assert!(has_complete_stack(&chain, &frames), "{path}: {frames:x?}");
    }
}
