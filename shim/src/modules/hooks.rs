//! The functions that libraries call instead of the loader's.
//!
//! They may be called in any thread, under any lock, and in signal handlers. `C-unwind`: exceptions of callbacks pass
//! through.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;

use jitlisten::Address;
use jitlisten::modules::{self, Counts, LinkMap, Module};

use super::real::{DL_FIND_OBJECT, DL_ITERATE_PHDR, DLADDR, DLADDR1, FUNCTIONS, real};
use super::symbolize;

/// A function by its name, and where ours is.
type Hook = (&'static str, fn() -> usize);

/// What is hooked, each with our function.
pub(super) const HOOKED: [Hook; FUNCTIONS] = [
    ("dl_iterate_phdr", || dl_iterate_phdr as *const () as usize),
    ("dladdr", || dladdr as *const () as usize),
    ("dladdr1", || dladdr1 as *const () as usize),
    ("_dl_find_object", || dl_find_object as *const () as usize),
    ("backtrace_symbols", || symbolize::backtrace_symbols as *const () as usize),
    ("backtrace_symbols_fd", || symbolize::backtrace_symbols_fd as *const () as usize),
];

type Callback = unsafe extern "C-unwind" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C-unwind" fn(Callback, *mut c_void) -> c_int;

/// A call of `dl_iterate_phdr` on its way through the loader's list.
struct Pass {
    callback: Callback,
    data: *mut c_void,
    ours: Counts,
    /// Of the loader, by the last record.
    loader: Counts,
}

/// `dl_iterate_phdr(3)`: the loader's list, and behind it ours.
unsafe extern "C-unwind" fn dl_iterate_phdr(callback: Option<Callback>, data: *mut c_void) -> c_int {
    let (Some(callback), real) = (callback, real(DL_ITERATE_PHDR)) else { return 0 };
    if real == 0 {
        return 0;
    }
    // SAFETY: the function of that name has this type.
    let real = unsafe { mem::transmute::<usize, Iterate>(real) };
    // Before the list is read: a reader that sees the same counts again has seen the same list.
    let ours = modules::counts();
    if ours == Counts::default() {
        // SAFETY: the caller's own call.
        return unsafe { real(callback, data) };
    }
    let mut pass = Pass { callback, data, ours, loader: Counts::default() };
    // SAFETY: the callback gets the pass it is made for, which outlives the call.
    let result = unsafe { real(with_our_counts, (&raw mut pass).cast()) };
    if result != 0 {
        return result;
    }
    let reading = modules::read();
    for module in reading.modules() {
        let mut info = pass.info(module);
        // SAFETY: the caller's callback, with a record as the loader makes them.
        let result = unsafe { callback(&raw mut info, size_of::<libc::dl_phdr_info>(), data) };
        if result != 0 {
            return result;
        }
    }
    0
}

impl Pass {
    fn info(&self, module: &Module) -> libc::dl_phdr_info {
        libc::dl_phdr_info {
            dlpi_addr: module.bias(),
            dlpi_name: module.path().as_ptr(),
            dlpi_phdr: module.headers().as_ptr(),
            dlpi_phnum: module.headers().len() as u16,
            dlpi_adds: self.loader.adds.wrapping_add(self.ours.adds),
            dlpi_subs: self.loader.subs.wrapping_add(self.ours.subs),
            dlpi_tls_modid: 0,
            dlpi_tls_data: ptr::null_mut(),
        }
    }
}

/// Passes a record of the loader on, with the counts of both lists.
unsafe extern "C-unwind" fn with_our_counts(info: *mut libc::dl_phdr_info, size: usize, pass: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` above passes the address of its own pass, and waits.
    let pass = unsafe { &mut *pass.cast::<Pass>() };
    if size < size_of::<libc::dl_phdr_info>() {
        // SAFETY: the caller's callback, with what the loader says.
        return unsafe { (pass.callback)(info, size, pass.data) };
    }
    // SAFETY: the loader's record has this size.
    let mut info = unsafe { info.read() };
    pass.loader = Counts { adds: info.dlpi_adds, subs: info.dlpi_subs };
    info.dlpi_adds = info.dlpi_adds.wrapping_add(pass.ours.adds);
    info.dlpi_subs = info.dlpi_subs.wrapping_add(pass.ours.subs);
    // SAFETY: the caller's callback.
    unsafe { (pass.callback)(&raw mut info, size_of::<libc::dl_phdr_info>(), pass.data) }
}

/// `RTLD_DL_SYMENT`, `RTLD_DL_LINKMAP` of `<dlfcn.h>`.
const RTLD_DL_SYMENT: c_int = 1;
const RTLD_DL_LINKMAP: c_int = 2;

/// Writes what `dladdr` says of an address of ours. Returns whether it is one.
fn describe(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *const c_void, flags: c_int) -> bool {
    if modules::counts() == Counts::default() || info.is_null() {
        return false;
    }
    let (reading, address) = (modules::read(), Address(address as u64));
    let Some(module) = reading.find(address) else { return false };
    let symbol = module.symbol(address);
    let found = libc::Dl_info {
        dli_fname: module.path().as_ptr(),
        dli_fbase: module.mapped().start().0 as *mut c_void,
        dli_sname: symbol.as_ref().map_or(ptr::null(), |symbol| symbol.name.as_ptr()),
        dli_saddr: symbol.as_ref().map_or(ptr::null_mut(), |symbol| symbol.range.start().0 as *mut c_void),
    };
    // SAFETY: the caller's record.
    unsafe { info.write(found) };
    let more: *const c_void = match flags {
        RTLD_DL_LINKMAP => ptr::from_ref::<LinkMap>(module.link_map()).cast(),
        RTLD_DL_SYMENT => symbol.map_or(ptr::null(), |symbol| ptr::from_ref(symbol.entry).cast()),
        _ => return true,
    };
    if !extra.is_null() {
        // SAFETY: the caller's pointer, which these flags say is one.
        unsafe { extra.write(more) };
    }
    true
}

/// `dladdr(3)`. Ours first: it takes no lock.
unsafe extern "C-unwind" fn dladdr(address: *const c_void, info: *mut libc::Dl_info) -> c_int {
    if describe(address, info, ptr::null_mut(), 0) {
        return 1;
    }
    let real = real(DLADDR);
    if real == 0 {
        return 0;
    }
    type Dladdr = unsafe extern "C-unwind" fn(*const c_void, *mut libc::Dl_info) -> c_int;
    // SAFETY: the function of that name has this type; the caller's own call.
    unsafe { mem::transmute::<usize, Dladdr>(real)(address, info) }
}

/// `dladdr1(3)`.
unsafe extern "C-unwind" fn dladdr1(
    address: *const c_void,
    info: *mut libc::Dl_info,
    extra: *mut *const c_void,
    flags: c_int,
) -> c_int {
    if describe(address, info, extra, flags) {
        return 1;
    }
    let real = real(DLADDR1);
    if real == 0 {
        return 0;
    }
    type Dladdr1 = unsafe extern "C-unwind" fn(*const c_void, *mut libc::Dl_info, *mut *const c_void, c_int) -> c_int;
    // SAFETY: the function of that name has this type; the caller's own call.
    unsafe { mem::transmute::<usize, Dladdr1>(real)(address, info, extra, flags) }
}

/// `struct dl_find_object` of `<dlfcn.h>`, glibc 2.35 and newer, on x86_64 and aarch64.
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

/// `_dl_find_object(3)`: its callers want unwind tables, so what has none is not found. The loader's first: this is
/// called for every frame that is unwound.
unsafe extern "C-unwind" fn dl_find_object(address: *mut c_void, result: *mut DlFindObject) -> c_int {
    let real = real(DL_FIND_OBJECT);
    if real != 0 {
        type Find = unsafe extern "C-unwind" fn(*mut c_void, *mut DlFindObject) -> c_int;
        // SAFETY: the function of that name has this type; the caller's own call.
        if unsafe { mem::transmute::<usize, Find>(real)(address, result) } == 0 {
            return 0;
        }
    }
    if modules::counts() == Counts::default() || result.is_null() {
        return -1;
    }
    let reading = modules::read();
    let Some(module) = reading.find(Address(address as u64)) else { return -1 };
    let Some(eh_frame) = module.eh_frame_hdr() else { return -1 };
    let found = DlFindObject {
        flags: 0,
        map_start: module.mapped().start().0 as *mut c_void,
        map_end: module.mapped().end().0 as *mut c_void,
        link_map: module.link_map(),
        eh_frame: eh_frame as *mut c_void,
        reserved: [0; 7],
    };
    // SAFETY: the caller's record.
    unsafe { result.write(found) };
    0
}
