//! A copy of nongnu libunwind, opened at run time, and stack walks with it.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};

type Pointer = *mut c_void;
type CursorFn = unsafe extern "C" fn(Pointer) -> i32;
type InitFn = unsafe extern "C" fn(Pointer, Pointer) -> i32;
type GetRegFn = unsafe extern "C" fn(Pointer, i32, *mut usize) -> i32;
type RegisterFn = unsafe extern "C" fn(*const [usize; 16]);
type ProcInfoFn = unsafe extern "C" fn(usize, usize, *mut [usize; 32], usize) -> i32;
type BacktraceFn = unsafe extern "C" fn(*mut Pointer, i32) -> i32;

/// Functions of one copy that a walk needs. `unw_context_t` and `unw_cursor_t` are opaque here, but 2 KiB are enough
/// for either in every version.
#[derive(Clone, Copy)]
pub struct Unwinder {
    getcontext: CursorFn,
    init_local: InitFn,
    step: CursorFn,
    get_reg: GetRegFn,
    backtrace: BacktraceFn,
    register: RegisterFn,
    proc_info: ProcInfoFn,
    address_space: usize,
}

impl Unwinder {
    /// Opens the library at `path`; returns `None` if it does not exist.
    pub fn open(path: &str) -> Option<Unwinder> {
        let path = CString::new(path).expect("no NUL");
        // SAFETY: loading an unwinder runs no code with side effects.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is valid.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        // Not every build exports `_Ux86_64_getcontext`. The context of glibc has the same layout in the fields that
        // matter.
        let getcontext = find(c"_Ux86_64_getcontext").unwrap_or(libc::getcontext as Pointer);
        // SAFETY: these are the signatures in libunwind-common.h.
        unsafe {
            Some(Unwinder {
                getcontext: std::mem::transmute::<Pointer, CursorFn>(getcontext),
                init_local: std::mem::transmute::<Pointer, InitFn>(find(c"_ULx86_64_init_local")?),
                step: std::mem::transmute::<Pointer, CursorFn>(find(c"_ULx86_64_step")?),
                get_reg: std::mem::transmute::<Pointer, GetRegFn>(find(c"_ULx86_64_get_reg")?),
                backtrace: std::mem::transmute::<Pointer, BacktraceFn>(find(c"unw_backtrace")?),
                register: std::mem::transmute::<Pointer, RegisterFn>(find(c"_U_dyn_register")?),
                proc_info: std::mem::transmute::<Pointer, ProcInfoFn>(find(c"_ULx86_64_get_proc_info_by_ip")?),
                address_space: find(c"_ULx86_64_local_addr_space")?.cast::<usize>().read(),
            })
        }
    }

    /// Fills `frames` with the return addresses of the current stack, using `unw_step`; returns their number. It does
    /// not allocate, so it may run in a signal handler.
    #[inline(never)]
    pub fn walk(&self, frames: &mut [usize]) -> usize {
        const UNW_X86_64_RIP: i32 = 16;
        let mut context = [0u64; 256];
        let mut cursor = [0u64; 256];
        let (context, cursor) = (context.as_mut_ptr().cast(), cursor.as_mut_ptr().cast());
        let mut depth = 0;
        // SAFETY: both buffers are larger than the structures (unw_cursor_t has 127 words, ucontext_t 968 bytes).
        unsafe {
            (self.getcontext)(context);
            (self.init_local)(cursor, context);
            while depth < frames.len() && (self.step)(cursor) > 0 {
                (self.get_reg)(cursor, UNW_X86_64_RIP, &raw mut frames[depth]);
                depth += 1;
            }
        }
        depth
    }

    /// Registers an info, as another library might do.
    pub fn register_info(&self, info: &'static [usize; 16]) {
        // SAFETY: the caller passes a leaked info with the right layout.
        unsafe { (self.register)(info) };
    }

    /// Returns the personality routine that libunwind finds for an address; `None` if there are no rules for it.
    pub fn handler_at(&self, address: usize) -> Option<usize> {
        let mut info = [0; 32];
        // SAFETY: the buffer is larger than `unw_proc_info_t`.
        let status = unsafe { (self.proc_info)(self.address_space, address, &raw mut info, 0) };
        (status == 0).then_some(info[3])
    }

    /// Fills `frames` like [`Unwinder::walk`], using `unw_backtrace`.
    #[inline(never)]
    pub fn backtrace(&self, frames: &mut [usize]) -> usize {
        // SAFETY: the buffer has space for `frames.len()` addresses.
        unsafe { (self.backtrace)(frames.as_mut_ptr().cast(), frames.len() as i32) }.max(0) as usize
    }
}

thread_local! {
    static WALK: RefCell<(Option<Unwinder>, Vec<usize>)> = const { RefCell::new((None, Vec::new())) };
}

/// Walks from inside the chain with `unw_step` and returns the frames.
pub fn walk_from(chain: &super::Chain, unwinder: Unwinder) -> Vec<usize> {
    extern "C" fn callback() {
        collect(Unwinder::walk);
    }
    walk_with(chain, unwinder, callback)
}

/// Walks from inside the chain with `unw_backtrace` and returns the frames.
pub fn backtrace_from(chain: &super::Chain, unwinder: Unwinder) -> Vec<usize> {
    extern "C" fn callback() {
        collect(Unwinder::backtrace);
    }
    walk_with(chain, unwinder, callback)
}

fn collect(walk: fn(&Unwinder, &mut [usize]) -> usize) {
    WALK.with_borrow_mut(|(unwinder, frames)| {
        let mut buffer = [0; 64];
        let depth = walk(unwinder.as_ref().expect("set below"), &mut buffer);
        *frames = buffer[..depth].to_vec();
    });
}

fn walk_with(chain: &super::Chain, unwinder: Unwinder, callback: extern "C" fn()) -> Vec<usize> {
    WALK.with_borrow_mut(|walk| walk.0 = Some(unwinder));
    chain.call(callback);
    WALK.with_borrow_mut(|walk| std::mem::take(&mut walk.1))
}

/// Returns true if the stack contains gamma, beta and alpha in this order, followed by alpha's caller.
pub fn has_complete_stack(chain: &super::Chain, frames: &[usize]) -> bool {
    let Some(gamma) = frames.iter().position(|&frame| chain.index(frame) == Some(2)) else { return false };
    let indices: Vec<_> = frames[gamma..].iter().take(3).map(|&frame| chain.index(frame)).collect();
    indices == [Some(2), Some(1), Some(0)] && frames.len() > gamma + 4
}

/// Opens the copies of libunwind to test with. Skips a missing copy with a message, or fails if `CI` is set.
pub fn copies() -> Vec<(String, Unwinder)> {
    let extra_paths = std::env::var("UNWIND_REGISTER_LIBUNWIND").unwrap_or_default();
    let paths = std::iter::once("libunwind.so.8").chain(extra_paths.split(':').filter(|path| !path.is_empty()));
    let opened = paths.filter_map(|path| {
        let unwinder = Unwinder::open(path);
        assert!(unwinder.is_some() || std::env::var_os("CI").is_none(), "{path} is required where CI is set");
        if unwinder.is_none() {
            println!("SKIPPED: {path} is not there");
        }
        unwinder.map(|unwinder| (path.to_owned(), unwinder))
    });
    opened.collect()
}
