//! A minimal JIT: three functions in machine code, their unwind rules, and a stack walk through them.
//!
//! ```sh
//! cargo run -p unwind-register --example hand_made
//! ```
//! prints what each unwinder sees before and after the registration:
//!
//! ```text
//! _Unwind_Backtrace   unregistered: gamma + 0 more               registered: gamma beta alpha + 10 more
//! unw_step            unregistered: gamma + 11 more              registered: gamma beta alpha + 9 more
//! ```
//! Before registration, libgcc stops at the first frame. libunwind guesses: it takes `rbp` for a frame pointer and
//! skips functions that did not set it.
//!
//! `tests/common/code.rs` contains the code and the `.eh_frame` bytes, with a diagram.
#![allow(clippy::print_stdout, reason = "an example")]

#[cfg(target_arch = "x86_64")]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), unwind_register::Error> {
    use common::code::Page;
    use common::libunwind::{Unwinder, walk_from};
    use unwind_register::{Registry, Section};

    let page = Page::map(4096);
    let chain = page.chain(0, 0);
    let libunwind = Unwinder::open("libunwind.so.8");

    let registry = Registry::process();

    let describe = |frames: &[usize]| {
        let names = ["alpha", "beta", "gamma"];
        let first = frames.iter().position(|&frame| chain.index(frame).is_some()).unwrap_or(frames.len());
        let chain_names = frames[first..].iter().map_while(|&frame| chain.index(frame)).map(|index| names[index]);
        let chain_names: Vec<&str> = chain_names.collect();
        format!("{} + {} more", chain_names.join(" "), frames.len() - first - chain_names.len())
    };
    let before = (
        describe(&common::libgcc::walk_from(&chain)),
        libunwind.map(|unwinder| describe(&walk_from(&chain, unwinder))),
    );

    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, eh_frame.as_ptr() as usize).text(&text).functions(&chain.functions);
    // SAFETY: the code is complete, its rules are correct, and the registration is dropped before the page, at the end
    // of `main`.
    let registration = unsafe { registry.register(&section) }?;
    println!("{:?}", registration.coverage());

    let after = describe(&common::libgcc::walk_from(&chain));
    println!("_Unwind_Backtrace   unregistered: {:28} registered: {after}", before.0);
    if let (Some(unwinder), Some(before)) = (libunwind, before.1) {
        println!(
            "unw_step            unregistered: {before:28} registered: {}",
            describe(&walk_from(&chain, unwinder))
        );
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the machine code of this example is for x86_64");
}
