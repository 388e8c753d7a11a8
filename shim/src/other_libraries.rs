//! Calls for memory from libraries without an LLVM, and from the program: a product may split LLVM over several libraries, and a
//! host may have a memory manager of its own (LLVM-C `LLVMCreateSimpleMCJITMemoryManager`) that calls libc's `mprotect` itself.
//!
//! Once an LLVM is in the process, the relocation slots of all libraries are changed; until then none is. `RTLD_DEEPBIND` does
//! not matter to slots. Left as they are:
//!
//! * slots that lead elsewhere than to the function our hook calls: another tool's, another namespace's (`dlmopen(3)`);
//! * those of the library that has that function: of libc, of one that stands in for it, and of a program whose `mprotect` is
//!   everybody's (a program that is not position independent and takes its address). Our hook would call itself.
//!
//! What these libraries do with memory that holds no code is passed on without a lock: see [`code_pages`].

use std::ffi::{c_int, c_void};

use jitlisten::{Address, log_line};

use crate::code_pages;
use crate::detour::write_pointer;
use crate::header_padding;
use crate::hooks::{self, guarded, pages};
use crate::library::{Library, Slot};
use crate::next::{self, Function};
use crate::relocation_slot::hook;

const NAMES: [&str; 7] = ["mprotect", "munmap", "mmap", "mmap64", "pkey_mprotect", "mremap", "__register_frame"];
const FUNCTIONS: [Function; NAMES.len()] = [
    Function::Mprotect,
    Function::Munmap,
    Function::Mmap,
    Function::Mmap,
    Function::PkeyMprotect,
    Function::Mremap,
    Function::RegisterFrame,
];

/// Exported where LLVM's memory is asked for, by whatever library.
const MEMORY_OF_LLVM: &str = "_ZN4llvm3sys6Memory20allocateMappedMemoryEmPKNS0_11MemoryBlockEjRSt10error_code";

/// The slots of libraries without an LLVM.
#[derive(Default)]
pub(crate) struct OtherLibraries {
    listens: bool,
    /// Those that the loader was not done with.
    waiting: Vec<Waiting>,
}

struct Waiting {
    bias: usize,
    library: std::ops::Range<usize>,
    slot: Slot,
    function: Function,
    hook: usize,
}

impl OtherLibraries {
    /// From now on, libraries that are added are listened to. Returns whether they were not before.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.listens, true)
    }

    /// A library has come that is not a source. It must be of the program's namespace.
    pub(crate) fn add(&mut self, library: &Library) {
        let range = library.range();
        if !self.listens || range.contains(&(OtherLibraries::begin as *const () as usize)) {
            return;
        }
        let slots = library.slots_of_imports(NAMES);
        let has_memory = !slots.is_empty() && library.dynamic_symbol(MEMORY_OF_LLVM).is_some();
        for (slot, name) in slots {
            let function = FUNCTIONS[name];
            if range.contains(&next::of_libc(function)) {
                continue;
            }
            let hook = if has_memory { hook(function) } else { hook_elsewhere(function) };
            let (bias, library) = (library.identity.bias, range.clone());
            self.waiting.push(Waiting { bias, library, slot, function, hook });
        }
    }

    /// Changes the slots that the loader has relocated.
    ///
    /// # Safety
    /// The libraries that were added must be mapped.
    pub(crate) unsafe fn change_relocated(&mut self) {
        self.waiting.retain(|waiting| {
            // SAFETY: the caller vouches for the mapping.
            if !unsafe { waiting.slot.is_relocated() } {
                return true;
            }
            // SAFETY: as above.
            let value = unsafe { waiting.slot.value() };
            // One that was never called through holds an address in its library.
            if !waiting.library.contains(&value) && !leads_to(waiting.function, value) {
                log_line!(Debug, "a {:?} at {:x} leads elsewhere and is left alone", waiting.function, waiting.bias);
                return false;
            }
            // SAFETY: an aligned word of the library's data, which the loader is done with.
            let written = unsafe { write_pointer(waiting.slot.address, waiting.hook, waiting.slot.protection) };
            if let Err(error) = written {
                log_line!(Info, "{:?} of a library cannot be listened to: {error}", waiting.function);
            }
            false
        });
    }

    /// Forgets a library that was closed.
    pub(crate) fn forget(&mut self, bias: usize) {
        self.waiting.retain(|waiting| waiting.bias != bias);
    }
}

/// Whether our hook calls what stands at `address`. `mmap64` is `mmap` here, under another name.
fn leads_to(function: Function, address: usize) -> bool {
    next::leads_to(function, address) || function == Function::Mmap && address == libc::mmap64 as *const () as usize
}

fn hook_elsewhere(function: Function) -> usize {
    type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    let mprotect: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int = mprotect;
    let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int = munmap;
    let mmap: Mmap = mmap;
    match function {
        Function::Mprotect => mprotect as usize,
        Function::Munmap => munmap as usize,
        Function::Mmap => mmap as usize,
        // They take no lock either where no code is concerned.
        Function::RegisterFrame | Function::PkeyMprotect | Function::Mremap => hook(function),
    }
}

unsafe extern "C" fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    if protection & libc::PROT_EXEC == 0 && !code_pages::overlaps(pages(address, size)) {
        // SAFETY: the host's own call, passed on.
        return unsafe { next::mprotect(address, size, protection) };
    }
    // SAFETY: as above.
    unsafe { hooks::mprotect(address, size, protection) }
}

unsafe extern "C" fn munmap(address: *mut c_void, size: usize) -> c_int {
    let range = pages(address, size);
    let held_code = code_pages::overlaps(range);
    if held_code {
        guarded(|shim| shim.replacing(range));
    }
    // SAFETY: the host's own call, passed on.
    let result = unsafe { next::munmap(address, size) };
    if held_code && result == 0 {
        guarded(|shim| header_padding::give_back(shim.session, range.start()));
    }
    result
}

unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    if hooks::is_fixed(flags) && code_pages::overlaps(pages(address, size)) {
        guarded(|shim| shim.replacing(pages(address, size)));
    }
    // SAFETY: the host's own call, passed on.
    let mapped = unsafe { next::mmap(address, size, protection, flags, file, offset) };
    if mapped != libc::MAP_FAILED && protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.executable(pages(mapped, size), hooks::how_mapped(protection, flags)));
    }
    mapped
}

/// `pkey_mprotect(2)`, of every library.
pub(crate) unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let (range, executable) = (pages(address, size), protection & libc::PROT_EXEC != 0);
    let concerned = executable || code_pages::overlaps(range);
    if concerned {
        hooks::protecting(range, protection);
    }
    // SAFETY: the host's own call, passed on.
    let result = unsafe { next::pkey_mprotect(address, size, protection, key) };
    if concerned && result == 0 {
        hooks::protected(range, protection);
    }
    result
}

/// `mremap(2)`, of every library. Code that is moved is other code at its new place: its addresses in it may be wrong now.
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    let (before, target) = (pages(address, size), pages(place, new_size));
    if flags & libc::MREMAP_FIXED != 0 && code_pages::overlaps(target) {
        guarded(|shim| shim.replacing(target));
    }
    let held_code = code_pages::overlaps(before);
    // SAFETY: the host's own call, passed on.
    let moved = unsafe { next::mremap(address, size, new_size, flags, place) };
    if !held_code || moved == libc::MAP_FAILED {
        return moved;
    }
    let after = pages(moved, new_size);
    if moved != address {
        guarded(|shim| shim.replacing(before));
    } else if new_size < size {
        let gone = after.end().0..before.end().0;
        let gone = jitlisten::AddressRange::new(Address(gone.start), gone.end.saturating_sub(gone.start));
        guarded(|shim| shim.replacing(gone.unwrap_or_default()));
        return moved;
    }
    guarded(|shim| shim.look_at(after));
    moved
}
