//! Starts the shim: installs the hooks, then examines the libraries that are already loaded.

#![forbid(unsafe_code)]

use jitlisten::Session;
use jitlisten::plumbing::LiveObjects;

use crate::channels::jitlink::hook;
use crate::channels::runtime_dyld::load_object;
use crate::frame_pointers::codegen;
use crate::frame_pointers::llvmlite;
use crate::hook_table::HookTable;
use crate::hooks::dlsym_entry::before_dlsym;
use crate::hooks::unlocked;
use crate::modules::Imports;
use crate::process::forward::{self, Function};
use crate::process::mapped_proof::with_libraries_held;
use crate::state::{self, Shim};
use crate::{fork, hooks};

static HOOKS: HookTable = HookTable {
    loader_event: hooks::loader_event,
    register_code: hooks::REGISTER_CODE,
    load_object: load_object::HOOKS,
    emit: hook::HOOKS,
    generate_code: codegen::hook::HOOKS,
    before_dlsym,
    memory: memory_hook,
    memory_without_llvm: memory_hook_without_llvm,
    mprotect_unnamed: hooks::mprotect_unnamed,
    attach_llvmlite: llvmlite::attach,
    llvmlite_closed: llvmlite::mark_closed,
};

fn memory_hook(function: Function) -> usize {
    match function {
        Function::Mprotect => hooks::mprotect as forward::Mprotect as usize,
        Function::Munmap => hooks::munmap as forward::Munmap as usize,
        Function::Mmap => hooks::mmap as forward::Mmap as usize,
        Function::RegisterFrame => hooks::register_frame as forward::RegisterFrame as usize,
        Function::PkeyMprotect => unlocked::pkey_mprotect as forward::PkeyMprotect as usize,
        Function::Mremap => unlocked::mremap as *const () as usize,
    }
}

fn memory_hook_without_llvm(function: Function) -> usize {
    match function {
        Function::Mprotect => unlocked::mprotect as forward::Mprotect as usize,
        Function::Munmap => unlocked::munmap as forward::Munmap as usize,
        Function::Mmap => unlocked::mmap as forward::Mmap as usize,
        // These hooks also take no lock for calls that do not concern code.
        Function::RegisterFrame | Function::PkeyMprotect | Function::Mremap => memory_hook(function),
    }
}

/// Starts to observe every LLVM instance in this process, including any that are loaded later. Further calls do
/// nothing.
///
/// Must not be called under the loader's lock, except from a constructor.
pub fn start(session: &'static Session) {
    if !session.options().active || !state::open(LiveObjects::of(session), &HOOKS) {
        return;
    }
    fork::install_handlers();
    with_libraries_held(|held, _| hooks::guarded(|shim| shim.start(held)));
    sinks_changed();
    hooks::guarded(Shim::detect_unwinders);
}

/// Handles the end of the process: searches writable and executable memory a last time, because code in it may have
/// changed since the last search.
pub fn ending() {
    hooks::guarded(Shim::search_self_loaded_at_exit);
}

/// Installs the hooks that newly enabled sinks need. Must not be called under the loader's lock, except from a
/// constructor.
pub fn sinks_changed() {
    let is_wanted = state::shim().is_some_and(Shim::wants_modules);
    if !is_wanted || Imports::are_hooked() {
        return;
    }
    Imports::prepare();
    with_libraries_held(|held, _| hooks::guarded(|shim| shim.hook_imports(held)));
}
