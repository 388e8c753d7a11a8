//! Panics in a function called from compiled code, so that Rust's standard library prints a backtrace through that
//! code.

#[unsafe(no_mangle)]
extern "C" fn ask(x: f64) -> f64 {
    let _ = std::panic::catch_unwind(|| panic!("asked"));
    x
}
