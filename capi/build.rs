//! Linker flags of `libjitlisten.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Hooks point into the library for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjitlisten.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
}
