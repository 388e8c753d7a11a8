//! Linker flags of `libjitlisten.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Hooks point into the library for the life of the process, so it must never be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjitlisten.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now");
    // If the linker brings its own unwinder (ci/wheel.sh), the shared libgcc_s must precede it.
    println!("cargo:rerun-if-env-changed=JITLISTEN_LIBGCC_S");
    if let Ok(library) = std::env::var("JITLISTEN_LIBGCC_S") {
        println!("cargo:rustc-cdylib-link-arg={library}");
    }
}
