//! Recognition of libraries that contain LLVM, or that may load code that LLVM has compiled.

#![forbid(unsafe_code)]

use crate::llvm::releases::{self, Release};
use crate::llvm::symbol_file::SymbolFile;
use crate::llvm::vtable::mapped::{constants, separate_constants};
use crate::process::host::is_python_launcher;
use crate::process::library::Library;
use crate::process::search;

/// Name of llvmlite's function that returns the version of its LLVM.
pub(crate) const LLVMLITE_VERSION: &str = "LLVMPY_GetVersionInfo";

/// Returns true if the library exports llvmlite's functions.
pub(crate) fn is_llvmlite(library: &Library<'_>) -> bool {
    library.exports(LLVMLITE_VERSION)
}

/// Minimum code size of a library that contains LLVM and a code generator. Debian's smallest one has more than 40 MB.
pub(crate) const MIN_LLVM_CODE_BYTES: u64 = 4 << 20;

/// Returns true if `library` may contain LLVM. This cheap test rules out nearly every library.
pub(crate) fn may_have_llvm(library: &Library<'_>) -> bool {
    library.segments.code_size() >= MIN_LLVM_CODE_BYTES
        && (library.uses().mprotect || memchr::memmem::find(library.section.strings(), b"N4llvm").is_some())
}

/// Returns true if a library may compile code even if no linkers are found in it: it could contain LLVM, and it
/// registers unwind tables.
pub(crate) fn may_compile(library: &Library<'_>) -> bool {
    may_have_llvm(library) && library.uses().register_frame
}

/// Names of functions that programs look up in order to load code: LLVM-C functions for compiling, and the function
/// that IREE's runtime looks up in each ELF file that it loads from memory.
const LOOKED_UP_NAMES: [&[u8]; 4] = [
    b"\0LLVMCreateMCJITCompilerForModule\0",
    b"\0LLVMOrcCreateLLJIT\0",
    b"\0LLVMTargetMachineEmitToMemoryBuffer\0",
    b"\0iree_hal_executable_library_query\0",
];
/// Prefixes of [`LOOKED_UP_NAMES`], so that two searches find all of them.
const LOOKED_UP_PREFIXES: [&[u8]; 2] = [b"\0LLVM", b"\0iree_hal_"];

/// Returns true if a library makes memory executable and looks up one of [`LOOKED_UP_NAMES`] (drjit, IREE), so it may
/// load cached code without a linker. Such libraries are smaller than LLVM (about 2 MB of code). Larger ones are not
/// searched, because libjvm.so, node and many others also import both `mprotect` and `dlsym`.
pub(crate) fn may_load_code(library: &Library<'_>) -> bool {
    let uses = library.uses();
    let is_small = library.segments.code_size() < MIN_LLVM_CODE_BYTES;
    // Exclude Python, which has imported `mprotect` and `dlsym` since 3.12.
    if !uses.mprotect || !uses.dlsym || !is_small || is_python_launcher(library) || library.is_jitlisten() {
        return false;
    }
    let mut is_present = false;
    for segment in
        separate_constants(library).iter().filter(|segment| segment.bytes.len() as u64 <= MIN_LLVM_CODE_BYTES)
    {
        search::for_each_match(segment.bytes, &LOOKED_UP_PREFIXES, |_, offset| {
            is_present |= LOOKED_UP_NAMES.iter().any(|name| segment.bytes[offset..].starts_with(name));
            !is_present
        });
    }
    is_present
}

/// Messages of RuntimeDyld and JITLink that occur in every release from 10 to 22.
const LINKER_MESSAGES: [&[u8]; 2] = [b"Unable to allocate memory for common symbols!", b"Generic JITLink error"];

/// Returns true if `library` seems to contain one of LLVM's linkers, although no vtable was found.
pub(crate) fn seems_to_have_linker(library: &Library<'_>) -> bool {
    if !may_have_llvm(library) {
        return false;
    }
    let constants = constants(library);
    let mut is_present = false;
    let mut search_bytes = |bytes: &[u8]| {
        search::for_each_match(bytes, &LINKER_MESSAGES, |_, _| {
            is_present = true;
            false
        });
    };
    constants.iter().for_each(|segment| search_bytes(segment.bytes));
    is_present
}

/// Returns the releases of LLVM that a library with a linker contains, rarely more than one. Reads constants from the
/// library's file, if it is open.
pub(crate) fn releases(library: &Library<'_>, symbols: Option<&SymbolFile>) -> Vec<Release> {
    if let Some(release) = version(library).and_then(|version| Release::parse(&version)) {
        return vec![release];
    }
    let constants = constants(library);
    let in_file = |file| constants.iter().map(|segment| SymbolFile::segment(file, library, segment)).collect();
    let in_file: Option<Vec<_>> = symbols.and_then(in_file);
    releases::find_in_constants(in_file.as_ref().unwrap_or(&constants))
}

/// Version of a library whose symbols are versioned (`LLVM_14`, `LLVM_19.1`), as in distribution builds.
pub(crate) fn version(library: &Library<'_>) -> Option<String> {
    let names = library.section.strings();
    memchr::memmem::find_iter(names, b"\0LLVM_").find_map(|offset| {
        let version = names[offset + 6..].split(|&byte| byte == 0).next()?;
        let is_version = !version.is_empty() && version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        is_version.then(|| String::from_utf8_lossy(version).into_owned())
    })
}

/// Major version of a library whose symbols are versioned.
pub(crate) fn major_version(library: &Library<'_>) -> Option<u32> {
    version(library)?.split('.').next()?.parse().ok()
}
