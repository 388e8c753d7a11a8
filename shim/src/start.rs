//! Starts the shim: installs the hooks, then examines the libraries that are already loaded.

#![forbid(unsafe_code)]

use jitlisten::Session;

use crate::channels::jitlink::hook;
use crate::channels::runtime_dyld::load_object;
use crate::frame_pointers::codegen;
use crate::frame_pointers::llvmlite;
use crate::hook_table::HookTable;
use crate::memory::elsewhere;
use crate::modules::Imports;
use crate::process::dlsym_entry::before_dlsym;
use crate::process::held::with_libraries_held;
use crate::state::{self, Shim};
use crate::{fork, hooks};

static HOOKS: HookTable = HookTable {
    loader_event: hooks::loader_event,
    register_code: hooks::REGISTER_CODE,
    load_object: load_object::HOOKS,
    emit: hook::HOOKS,
    generate_code: codegen::hook::HOOKS,
    before_dlsym,
    mprotect: hooks::mprotect,
    mprotect_unnamed: hooks::mprotect_unnamed,
    munmap: hooks::munmap,
    mmap: hooks::mmap,
    register_frame: hooks::register_frame,
    pkey_mprotect: elsewhere::pkey_mprotect,
    mremap: elsewhere::mremap,
    mprotect_elsewhere: elsewhere::mprotect,
    munmap_elsewhere: elsewhere::munmap,
    mmap_elsewhere: elsewhere::mmap,
    attach_llvmlite: llvmlite::attach,
    llvmlite_closed: llvmlite::mark_closed,
};

/// Starts to observe every LLVM in this process, now and later. Further calls do nothing.
///
/// Must not be called under the loader's lock, except from a constructor.
pub fn start(session: &'static Session) {
    if !session.options().active || !state::open(session, &HOOKS) {
        return;
    }
    fork::install_handlers();
    with_libraries_held(|held, _| hooks::guarded(|shim| shim.begin(held)));
    sinks_changed();
    hooks::guarded(Shim::find_unwinders);
}

/// Handles the end of the process: writable, executable memory is searched a last time, since code in it may have
/// changed after the last search.
pub fn ending() {
    hooks::guarded(Shim::look_for_self_loaded_once_more);
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
