//! Hooks: the functions that the host calls in place of the original ones.
//!
//! | hook | replaced function | locks held by the caller |
//! | --- | --- | --- |
//! | [`loader_event`] | the loader's `_dl_debug_state` | the loader's lock |
//! | [`REGISTER_CODE`] | `__jit_debug_register_code` of one LLVM instance | LLVM's lock (MCJIT), none (ORC) |
//! | [`mprotect()`], [`munmap`], [`mmap`] | libc's, in libraries with LLVM | the lock of its memory manager, if any |
//! | [`unlocked`] | the same and related functions, in all other libraries | any lock, such as an allocator's |
//! | [`register_frame`] | libgcc's `__register_frame`, in libraries with LLVM | the lock of LLVM's engine |
//! | `llvmlite::*` | `LLVMPY_AddModule` and others | llvmlite's Python lock |
//! | `remarks::*` | virtual functions of llvmlite's diagnostic handlers | none; LLVM is compiling |
//!
//! Every hook calls the original function, whatever fails on our side. The first panic is caught and logged, and
//! disables our part of all hooks. Our part runs under a [`HostStateGuard`]. A hook that is called from another hook
//! only calls the original function.

pub(crate) mod dlsym_entry;
pub(crate) mod unlocked;

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::plumbing::{Executable, HostStateGuard, MemoryChange, ReentrancyGuard, ReentrancyToken};
use jitlisten::{Address, AddressRange, log_line};

use crate::hook_table::{SLOTS, for_each_slot};
use crate::memory::header_padding;
use crate::process::detour::{HookFunction, page_size};
use crate::process::mapped_proof::{Held, with_libraries_held};
use crate::process::{forward, lookup};
use crate::state::{Shim, shim};

static HOOKS_ARE_DISABLED: AtomicBool = AtomicBool::new(false);

/// Threads that are currently inside a hook. A hook that runs inside another hook only calls the original function.
static THREADS_IN_HOOKS: ReentrancyGuard = ReentrancyGuard::new();

/// Marks this thread as inside a hook; returns `None` if it already is. Call this only under a [`HostStateGuard`].
pub(crate) fn enter() -> Option<ReentrancyToken<'static>> {
    THREADS_IN_HOOKS.enter()
}

/// Runs `work` with the shim, unless this thread is already inside a hook. A panic in `work` disables the hooks, and
/// the host continues.
pub(crate) fn guarded<R: Default>(work: impl FnOnce(&Shim) -> R) -> R {
    let Some(_) = shim() else { return R::default() };
    let _host_state = HostStateGuard::enter();
    let Some(_entered) = enter() else { return R::default() };
    catch_panic(work)
}

/// Runs `work` with the shim. A panic in `work` disables the hooks, and the host continues.
pub(crate) fn catch_panic<R: Default>(work: impl FnOnce(&'static Shim) -> R) -> R {
    let Some(shim) = shim().filter(|_| !HOOKS_ARE_DISABLED.load(Ordering::Relaxed)) else { return R::default() };
    catch_unwind(AssertUnwindSafe(|| work(shim))).unwrap_or_else(|_| {
        if !HOOKS_ARE_DISABLED.swap(true, Ordering::Relaxed) {
            log_line!(Error, "internal error; jitlisten is disabled in this process");
        }
        R::default()
    })
}

/// Maximum number of loader events handled by one call, because handling an event may trigger further events.
const MAX_NESTED_LOADER_EVENTS: usize = 8;

/// True if a loader event still has to be handled, for example because it arrived inside a hook.
static EVENT_IS_PENDING: AtomicBool = AtomicBool::new(false);

/// Hook of the loader's `_dl_debug_state`, called when the list of libraries has changed.
pub(crate) unsafe extern "C" fn loader_event() {
    let Some(shim) = shim() else { return };
    // SAFETY: the loader calls `_dl_debug_state` under its lock.
    let held = unsafe { Held::new() };
    jitlisten::plumbing::preserving_errno(|| shim.record_closing(held));
    EVENT_IS_PENDING.store(true, Ordering::Relaxed);
    guarded(|shim| {
        for _ in 0..MAX_NESTED_LOADER_EVENTS {
            if !EVENT_IS_PENDING.swap(false, Ordering::Relaxed) {
                return;
            }
            shim.loader_event(held);
        }
    });
}

/// Checks for new libraries. The assembly stub [`before_dlsym`](dlsym_entry::before_dlsym) calls this
/// after saving the caller's registers.
pub(crate) unsafe extern "C" fn scan_before_dlsym() {
    let (is_always_on, was_requested) =
        (lookup::CHECK_ALWAYS.load(Ordering::Acquire), lookup::CHECK_ONCE.swap(false, Ordering::AcqRel));
    if !is_always_on && !was_requested {
        return;
    }
    let host_state = HostStateGuard::enter();
    let Some(entered) = enter() else {
        // This thread is inside a hook, so it may hold the loader's locks. Leave the request for a later call.
        lookup::CHECK_ONCE.fetch_or(was_requested, Ordering::AcqRel);
        return;
    };
    if is_always_on {
        with_libraries_held(|held, counts| catch_panic(|shim| shim.libraries_may_have_changed(held, counts)));
    }
    // This must come after `with_libraries_held` has returned, because it takes the loader's other lock.
    catch_panic(Shim::detect_unwinders);
    drop(entered);
    drop(host_state);
}

/// Hooks of `__jit_debug_register_code`, by slot of the LLVM instance.
pub(crate) const REGISTER_CODE: [HookFunction; SLOTS] = for_each_slot!(SLOT => register_code::<SLOT>);

unsafe extern "C" fn register_code<const SLOT: usize>() {
    guarded(|shim| shim.register_code(SLOT));
}

/// Hook of `mprotect(2)`, the last step of finalization.
pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    // SAFETY: this forwards the host's own call.
    let result = unsafe { protect(address, size, protection) };
    if result == 0 && protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.check_for_unreported(pages(address, size)));
    }
    result
}

/// Hook of `mprotect(2)` for a library whose code no other hook reports.
pub(crate) unsafe extern "C" fn mprotect_unnamed(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    // SAFETY: this forwards the host's own call.
    let result = unsafe { protect(address, size, protection) };
    if result == 0 && protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.register_unnamed_code(&mut shim.lock(), pages(address, size), false));
    }
    result
}

/// Marks a memory-changing call of the host as in progress. No image is mapped into its range until this value is
/// dropped.
pub(crate) struct PendingMemoryChange(Option<MemoryChange>);

impl PendingMemoryChange {
    /// Announces the change. The caller makes the system call next.
    pub(crate) fn begin(range: AddressRange) -> PendingMemoryChange {
        PendingMemoryChange(guarded(|shim| Some(shim.objects.begin_change(range))))
    }
}

impl Drop for PendingMemoryChange {
    fn drop(&mut self) {
        if let Some(change) = &self.0 {
            guarded(|shim| shim.objects.end_change(change));
        }
    }
}

/// Calls `mprotect(2)` on behalf of any library, and reports the change.
pub(crate) unsafe fn protect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    let range = pages(address, size);
    let change = PendingMemoryChange::begin(range);
    before_protect(range, protection);
    // SAFETY: this forwards the host's own call.
    let result = unsafe { forward::mprotect(address, size, protection) };
    drop(change);
    if result == 0 {
        after_protect(range, protection);
    }
    result
}

/// Handles a protection change before it happens, so that *freeing* is reported while the code is still mapped.
pub(crate) fn before_protect(range: AddressRange, protection: c_int) {
    if protection & libc::PROT_EXEC == 0 {
        guarded(|shim| shim.record_not_executable(range));
    } else if protection & libc::PROT_WRITE != 0 {
        guarded(|shim| shim.objects.withdraw_images(range));
    }
}

/// Handles a protection change after it has succeeded.
pub(crate) fn after_protect(range: AddressRange, protection: c_int) {
    if protection & (libc::PROT_EXEC | libc::PROT_WRITE) == 0 {
        guarded(|shim| header_padding::release(shim.objects, range.start()));
    }
    if protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.record_executable(range, executable_kind(protection)));
    }
}

/// Hook of `munmap(2)`. Frees code that was never unregistered.
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, size: usize) -> c_int {
    let range = pages(address, size);
    let change = PendingMemoryChange::begin(range);
    if !guarded(|shim| shim.record_unmapping(range)) {
        // SAFETY: this forwards the host's own call.
        let result = unsafe { forward::munmap(address, size) };
        if result != 0 {
            return result;
        }
    }
    drop(change);
    guarded(|shim| header_padding::release(shim.objects, range.start()));
    0
}

/// Hook of `mmap(2)`, for memory that is executable from the start, and for memory that LLVM will link into.
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    if header_padding::is_allocation(protection, flags, file) {
        match guarded(|shim| Some(allocate(shim, address, size, flags))) {
            Some(Ok(mapped)) => return mapped,
            Some(Err(error)) => {
                // SAFETY: `__errno_location` returns this thread's errno.
                unsafe { *libc::__errno_location() = error };
                return libc::MAP_FAILED;
            }
            None => {}
        }
    }
    // SAFETY: this forwards the host's own call.
    unsafe { map(address, size, protection, flags, file, offset, replaces_mappings(flags)) }
}

/// Maps memory that LLVM will link into; on failure returns the `errno` value.
fn allocate(shim: &Shim, address: *mut c_void, size: usize, flags: c_int) -> Result<*mut c_void, c_int> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let padded = header_padding::mmap(shim.objects, address, size, flags);
    // SAFETY: this forwards the host's own call.
    let mapped = padded.unwrap_or_else(|| unsafe { forward::mmap(address, size, protection, flags, -1, 0) });
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM));
    }
    shim.lock().allocated.add(pages(mapped, size));
    Ok(mapped)
}

/// Forwards a call of `mmap(2)`. `replaces` must be true if the call may replace existing code.
pub(crate) unsafe fn map(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
    replaces: bool,
) -> *mut c_void {
    let change = replaces.then(|| PendingMemoryChange::begin(pages(address, size)));
    if replaces && protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.record_code_replacement(pages(address, size)));
    } else if replaces {
        guarded(|shim| shim.record_replacement(pages(address, size)));
    }
    // SAFETY: this forwards the host's own call.
    let mapped = unsafe { forward::mmap(address, size, protection, flags, file, offset) };
    drop(change);
    if mapped != libc::MAP_FAILED && protection & libc::PROT_EXEC != 0 {
        guarded(|shim| shim.record_executable(pages(mapped, size), mapped_executable_kind(protection, flags)));
    }
    mapped
}

/// Returns true if a call of `mmap(2)` replaces existing mappings.
pub(crate) fn replaces_mappings(flags: c_int) -> bool {
    flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
}

/// Hook of libgcc's `__register_frame`. The `.eh_frame` at `begin` is already relocated.
pub(crate) unsafe extern "C" fn register_frame(begin: *const c_void) {
    // SAFETY: this forwards the host's own call.
    unsafe { forward::register_frame(begin) };
    guarded(|shim| shim.record_eh_frame(Address(begin as u64)));
}

/// Kind of executable memory that results from `protection`.
fn executable_kind(protection: c_int) -> Executable {
    if protection & libc::PROT_WRITE != 0 { Executable::Writable } else { Executable::Only }
}

/// Kind of executable memory that a call of `mmap` creates. Shared memory counts as writable, because another mapping
/// may be used to write to it.
fn mapped_executable_kind(protection: c_int, flags: c_int) -> Executable {
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE { Executable::Writable } else { executable_kind(protection) }
}

/// Returns the whole pages that contain the `size` bytes at `address`; empty if they exceed the address space.
pub(crate) fn pages(address: *mut c_void, size: usize) -> AddressRange {
    let size = size.next_multiple_of(page_size()) as u64;
    let start = Address(address as u64);
    AddressRange::new(start, size).unwrap_or_default()
}
