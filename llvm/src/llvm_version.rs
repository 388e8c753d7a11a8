//! Selection of the LLVM version by the `llvmNN-N` features. `build.rs` rejects more than one of them.

#![forbid(unsafe_code)]

/// Re-exports the llvm-sys version that belongs to the enabled feature. inkwell uses the same one.
macro_rules! reexport_selected {
    ($($feature:literal $bindings:ident),* $(,)?) => {
        $(
            #[cfg(feature = $feature)]
            #[doc(inline)]
            pub use $bindings as llvm_sys;
        )*

        #[cfg(not(any($(feature = $feature),*)))]
        compile_error!(concat!("choose one LLVM by one of the features" $(, " ", $feature)*));
    };
}

reexport_selected! {
    "llvm14-0" llvm_sys_140,
    "llvm15-0" llvm_sys_150,
    "llvm16-0" llvm_sys_160,
    "llvm17-0" llvm_sys_170,
    "llvm18-1" llvm_sys_181,
    "llvm19-1" llvm_sys_191,
    "llvm20-1" llvm_sys_201,
    "llvm21-1" llvm_sys_211,
    "llvm22-1" llvm_sys_221,
}
