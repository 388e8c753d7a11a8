//! Does nothing. Cargo accepts `links` only from a package with a build script.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
