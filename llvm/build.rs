//! Build script. If an `llvmNN-N` feature is enabled, compiles `src/adapters.cpp`, and with it the C++ adapters of
//! `include/jitlisten_llvm.hpp`, against the LLVM that llvm-sys has found. Otherwise does nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "_llvm")]
    adapter::compile();
}

#[cfg(feature = "_llvm")]
mod adapter {
    use std::env;
    use std::process::Command;

    /// C functions that the adapters call. The crate defines its own, under names that cannot collide with those of a
    /// `libjitlisten` that is linked or preloaded into the same program.
    const VERBS: [&str; 5] = [
        "jitlisten_object_loaded",
        "jitlisten_owns_pages",
        "jitlisten_finalized",
        "jitlisten_freeing",
        "jitlisten_open_with",
    ];

    pub(super) fn compile() {
        let configs: Vec<String> = env::vars()
            .filter(|(name, _)| name.starts_with("DEP_LLVM_") && name.ends_with("_CONFIG_PATH"))
            .map(|(_, path)| path)
            .collect();
        // With two features, the build usually fails even earlier, because inkwell rejects them, too.
        let [config] = &configs[..] else {
            panic!("choose one LLVM: exactly one of the features llvm14-0 to llvm22-1, not {}", configs.len());
        };
        let includes = query_llvm_config(config, "--includedir");
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").file("src/adapters.cpp").include("include").warnings(false);
        build.flag("-isystem").flag(&includes).flag("-fno-exceptions").flag("-fno-rtti").define("NDEBUG", None);
        for definition in
            query_llvm_config(config, "--cxxflags").split_whitespace().filter_map(|flag| flag.strip_prefix("-D"))
        {
            let (name, value) =
                definition.split_once('=').map_or((definition, None), |(name, value)| (name, Some(value)));
            build.define(name, value);
        }
        for verb in VERBS {
            build.define(verb, Some(verb.replacen("jitlisten", "jitlisten_crate", 1).as_str()));
        }
        build.compile("jitlisten_llvm");
        for file in ["src/adapters.cpp", "include/jitlisten.h", "include/jitlisten_llvm.hpp"] {
            println!("cargo:rerun-if-changed={file}");
        }
    }

    fn query_llvm_config(config: &str, option: &str) -> String {
        let output =
            Command::new(config).arg(option).output().unwrap_or_else(|error| panic!("{config} {option}: {error}"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
