//! Hooks of the loader's functions that list or describe modules.
//!
//! These hooks may be called in any thread, under any lock, and in signal handlers. Their ABI is `C-unwind`, because
//! exceptions thrown by callbacks pass through them.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;

use jitlisten::Address;
use jitlisten::plumbing::modules::{self, Counts, LinkMap, Module};

use super::originals::{DL_FIND_OBJECT, DL_ITERATE_PHDR, DLADDR, DLADDR1, FUNCTIONS, original};
use super::symbolize;

/// Name of a hooked function, and a function that returns the address of our hook.
type Hook = (&'static str, fn() -> usize);

/// Hooked functions, in the order of the originals in `originals.rs`.
pub(super) const HOOKS: [Hook; FUNCTIONS] = [
    ("dl_iterate_phdr", || dl_iterate_phdr as *const () as usize),
    ("dladdr", || dladdr as *const () as usize),
    ("dladdr1", || dladdr1 as *const () as usize),
    ("_dl_find_object", || dl_find_object as *const () as usize),
    ("backtrace_symbols", || symbolize::backtrace_symbols as *const () as usize),
    ("backtrace_symbols_fd", || symbolize::backtrace_symbols_fd as *const () as usize),
];

type Callback = unsafe extern "C-unwind" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C-unwind" fn(Callback, *mut c_void) -> c_int;

/// State of a `dl_iterate_phdr` call while it walks the loader's list.
struct Iteration {
    callback: Callback,
    data: *mut c_void,
    own_counts: Counts,
    /// Counts of loaded and unloaded libraries, from the loader's latest record.
    loader: Counts,
}

/// Hook of `dl_iterate_phdr(3)`, which walks the loader's list and then ours.
unsafe extern "C-unwind" fn dl_iterate_phdr(callback: Option<Callback>, data: *mut c_void) -> c_int {
    let (Some(callback), original) = (callback, original(DL_ITERATE_PHDR)) else { return 0 };
    if original == 0 {
        return 0;
    }
    // SAFETY: the function with this name has this type.
    let original = unsafe { mem::transmute::<usize, Iterate>(original) };
    // Read the counts before the list, so that a reader that sees the same counts again has seen the same list.
    let own_counts = modules::counts();
    if own_counts == Counts::default() {
        // SAFETY: this forwards the caller's own call.
        return unsafe { original(callback, data) };
    }
    let mut iteration = Iteration { callback, data, own_counts, loader: Counts::default() };
    // SAFETY: the callback gets a pointer to the `Iteration` that it expects, which outlives the call.
    let result = unsafe { original(forward_with_both_counts, (&raw mut iteration).cast()) };
    if result != 0 {
        return result;
    }
    let reading = modules::read();
    for module in reading.modules() {
        let mut info = iteration.info(module);
        // SAFETY: the caller vouches for its callback, which gets a record in the loader's format.
        let result = unsafe { callback(&raw mut info, size_of::<libc::dl_phdr_info>(), data) };
        if result != 0 {
            return result;
        }
    }
    0
}

impl Iteration {
    /// Describes one of our modules in the loader's format.
    fn info(&self, module: &Module) -> libc::dl_phdr_info {
        libc::dl_phdr_info {
            dlpi_addr: module.bias(),
            dlpi_name: module.path().as_ptr(),
            dlpi_phdr: module.headers().as_ptr(),
            dlpi_phnum: module.headers().len() as u16,
            dlpi_adds: self.loader.adds.wrapping_add(self.own_counts.adds),
            dlpi_subs: self.loader.subs.wrapping_add(self.own_counts.subs),
            dlpi_tls_modid: 0,
            dlpi_tls_data: ptr::null_mut(),
        }
    }
}

/// Forwards one of the loader's records, with counts that include our modules.
unsafe extern "C-unwind" fn forward_with_both_counts(
    info: *mut libc::dl_phdr_info,
    size: usize,
    iteration: *mut c_void,
) -> c_int {
    // SAFETY: `dl_iterate_phdr` above passes the address of its own `Iteration` and waits until this call returns.
    let iteration = unsafe { &mut *iteration.cast::<Iteration>() };
    if size < size_of::<libc::dl_phdr_info>() {
        // SAFETY: the caller vouches for its callback, which gets the loader's record unchanged.
        return unsafe { (iteration.callback)(info, size, iteration.data) };
    }
    // SAFETY: the check above has shown that the loader's record has this size.
    let mut info = unsafe { info.read() };
    iteration.loader = Counts { adds: info.dlpi_adds, subs: info.dlpi_subs };
    info.dlpi_adds = info.dlpi_adds.wrapping_add(iteration.own_counts.adds);
    info.dlpi_subs = info.dlpi_subs.wrapping_add(iteration.own_counts.subs);
    // SAFETY: the caller vouches for its callback, which gets a copy of the loader's record.
    unsafe { (iteration.callback)(&raw mut info, size_of::<libc::dl_phdr_info>(), iteration.data) }
}

/// Flags that `dladdr1` accepts, from `<dlfcn.h>`.
const RTLD_DL_SYMENT: c_int = 1;
const RTLD_DL_LINKMAP: c_int = 2;

/// Fills in the result of `dladdr` for an address in one of our modules. Returns false for any other address.
fn fill_dl_info(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *const c_void, flags: c_int) -> bool {
    if modules::counts() == Counts::default() || info.is_null() {
        return false;
    }
    let (reading, address) = (modules::read(), Address(address as u64));
    let Some(module) = reading.find(address) else { return false };
    let symbol = module.symbol(address);
    let dl_info = libc::Dl_info {
        dli_fname: module.path().as_ptr(),
        dli_fbase: module.mapped().start().0 as *mut c_void,
        dli_sname: symbol.as_ref().map_or(ptr::null(), |symbol| symbol.name.as_ptr()),
        dli_saddr: symbol.as_ref().map_or(ptr::null_mut(), |symbol| symbol.range.start().0 as *mut c_void),
    };
    // SAFETY: the caller passes a pointer to a writable `Dl_info`.
    unsafe { info.write(dl_info) };
    let detail: *const c_void = match flags {
        RTLD_DL_LINKMAP => ptr::from_ref::<LinkMap>(module.link_map()).cast(),
        RTLD_DL_SYMENT => symbol.map_or(ptr::null(), |symbol| ptr::from_ref(symbol.entry).cast()),
        _ => return true,
    };
    if !extra.is_null() {
        // SAFETY: with either of these flags, the caller's `extra` points to a writable pointer.
        unsafe { extra.write(detail) };
    }
    true
}

/// Hook of `dladdr(3)`. Our list is searched first, because that takes no lock.
unsafe extern "C-unwind" fn dladdr(address: *const c_void, info: *mut libc::Dl_info) -> c_int {
    if fill_dl_info(address, info, ptr::null_mut(), 0) {
        return 1;
    }
    let original = original(DLADDR);
    if original == 0 {
        return 0;
    }
    type Dladdr = unsafe extern "C-unwind" fn(*const c_void, *mut libc::Dl_info) -> c_int;
    // SAFETY: the function with this name has this type, and this forwards the caller's own call.
    unsafe { mem::transmute::<usize, Dladdr>(original)(address, info) }
}

/// Hook of `dladdr1(3)`. Our list is searched first, because that takes no lock.
unsafe extern "C-unwind" fn dladdr1(
    address: *const c_void,
    info: *mut libc::Dl_info,
    extra: *mut *const c_void,
    flags: c_int,
) -> c_int {
    if fill_dl_info(address, info, extra, flags) {
        return 1;
    }
    let original = original(DLADDR1);
    if original == 0 {
        return 0;
    }
    type Dladdr1 = unsafe extern "C-unwind" fn(*const c_void, *mut libc::Dl_info, *mut *const c_void, c_int) -> c_int;
    // SAFETY: the function with this name has this type, and this forwards the caller's own call.
    unsafe { mem::transmute::<usize, Dladdr1>(original)(address, info, extra, flags) }
}

/// `struct dl_find_object` of `<dlfcn.h>`, which exists since glibc 2.35, as laid out on x86_64 and aarch64.
#[repr(C)]
struct DlFindObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<DlFindObject>() == 96);

/// Hook of `_dl_find_object(3)`. Callers want unwind tables, so modules without one are skipped. The loader's list is
/// searched first, because this function is called for every unwound frame.
unsafe extern "C-unwind" fn dl_find_object(address: *mut c_void, result: *mut DlFindObject) -> c_int {
    let original = original(DL_FIND_OBJECT);
    if original != 0 {
        type Find = unsafe extern "C-unwind" fn(*mut c_void, *mut DlFindObject) -> c_int;
        // SAFETY: the function with this name has this type, and this forwards the caller's own call.
        if unsafe { mem::transmute::<usize, Find>(original)(address, result) } == 0 {
            return 0;
        }
    }
    if modules::counts() == Counts::default() || result.is_null() {
        return -1;
    }
    let reading = modules::read();
    let Some(module) = reading.find(Address(address as u64)) else { return -1 };
    let Some(eh_frame) = module.eh_frame_hdr() else { return -1 };
    let object = DlFindObject {
        flags: 0,
        map_start: module.mapped().start().0 as *mut c_void,
        map_end: module.mapped().end().0 as *mut c_void,
        link_map: module.link_map(),
        eh_frame: eh_frame as *mut c_void,
        reserved: [0; 7],
    };
    // SAFETY: the caller passes a pointer to a writable `dl_find_object`.
    unsafe { result.write(object) };
    0
}
