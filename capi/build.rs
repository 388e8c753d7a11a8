//! Linker flags of `libjitlisten.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Hooks point into the library for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjitlisten.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
    // Where the linker brings an unwinder of its own (ci/wheel.sh): the shared one that comes first.
    println!("cargo:rerun-if-env-changed=JITLISTEN_LIBGCC_S");
    if let Ok(library) = std::env::var("JITLISTEN_LIBGCC_S") {
        println!("cargo:rustc-cdylib-link-arg={library}");
    }
}
