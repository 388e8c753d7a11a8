//! A panic below compiled code, with the backtrace of Rust's standard library.

#[unsafe(no_mangle)]
extern "C" fn ask(x: f64) -> f64 {
    let _ = std::panic::catch_unwind(|| panic!("asked"));
    x
}
