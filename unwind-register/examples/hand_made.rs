//! A JIT in eighty lines: three functions in machine code, their unwind rules, and a stack walked through them.
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
//! (Unregistered, libgcc stops, and libunwind guesses: it takes `rbp` for a frame pointer and skips what did not set
//! it.)
//!
//! The code and the `.eh_frame` bytes are in `tests/common/code.rs`, with a picture.
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
        let from = frames.iter().position(|&frame| chain.index(frame).is_some()).unwrap_or(frames.len());
        let ours = frames[from..].iter().map_while(|&frame| chain.index(frame)).map(|index| names[index]);
        let ours: Vec<&str> = ours.collect();
        format!("{} + {} more", ours.join(" "), frames.len() - from - ours.len())
    };
    let before = (describe(&common::libgcc::walk_from(&chain)), libunwind.map(|u| describe(&walk_from(&chain, u))));

    let eh_frame = chain.eh_frame();
    let text = [chain.text()];
    let section = Section::new(&eh_frame, eh_frame.as_ptr() as usize).text(&text).functions(&chain.functions);
    // SAFETY: the code is finished, its rules are true, and it outlives the registration (which is dropped at the end
    // of `main`, before the page).
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
