//! llvmlite's entry points: the functions of `libllvmlite.so` that hand a module to an engine.
//!
//! ctypes finds them with `dlsym`, once. Their values in the library's dynamic symbol table are changed when
//! `_r_debug.r_brk` announces the library, before they can have been looked up. `dlsym` then returns our function,
//! which sets the module's attributes (see [`crate::frame_pointers::attributes`]) and calls the original.
//!
//! | function | a module is |
//! | --- | --- |
//! | `LLVMPY_AddModule(engine, module)` | the second argument |
//! | `LLVMPY_CreateMCJITCompiler(module, machine, ...)` | the first argument |
//! | `LLVMPY_LLJIT_Link(jit, name, elements, count, ...)` | text or bitcode in the elements of kind 0 (llvmlite 0.41 and newer) |
//! | `LLVMPY_FinalizeObject(engine)` | none: when it returns, code is final, and no lock of LLVM's is held |

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use once_cell::race::OnceBox;

use crate::frame_pointers::attributes::{LlvmC, PatchedText};
use crate::hook_table::SLOTS;
use crate::hooks::guarded;
use crate::llvm::symbol_file::SymbolFile;
use crate::modules::announce;
use crate::process::detour::write_pointer;
use crate::process::library::{Identity, LLVMLITE_VERSION, Library};
use crate::state::{Shim, shim};

const ADD_MODULE: usize = 0;
const CREATE_MCJIT: usize = 1;
const LLJIT_LINK: usize = 2;
const FINALIZE_OBJECT: usize = 3;
const ENTRY_POINTS: [&str; 4] =
    ["LLVMPY_AddModule", "LLVMPY_CreateMCJITCompiler", "LLVMPY_LLJIT_Link", "LLVMPY_FinalizeObject"];

/// What the hooks of one llvmlite need. They run without any lock of ours.
struct Llvmlite {
    originals: [AtomicUsize; ENTRY_POINTS.len()],
    library: Library,
    /// Opened at the start, because the library's image differs from its file once the entry points are changed.
    symbols: Mutex<Option<SymbolFile>>,
    llvm: OnceBox<Option<LlvmC>>,
    closed: AtomicBool,
}

/// Each lives for ever: a call may be on its way. The place of one that was closed is given to the next.
static TABLE: [AtomicPtr<Llvmlite>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

fn at(slot: usize) -> Option<&'static Llvmlite> {
    // SAFETY: null, or leaked in `attach`.
    unsafe { TABLE.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Forgets an llvmlite that was closed.
pub(crate) fn closed(identity: Identity) {
    let found = (0..SLOTS).filter_map(at).filter(|llvmlite| llvmlite.library.identity == identity);
    found.for_each(|llvmlite| llvmlite.closed.store(true, Ordering::Release));
}

/// Puts our functions in the place of an llvmlite's entry points, if a place in the table is free.
///
/// # Safety
/// The library must be mapped, and stay so during the call. It need not be relocated.
pub(crate) unsafe fn attach(library: Library, symbols: Option<SymbolFile>) {
    let is_free = |&slot: &usize| at(slot).is_none_or(|llvmlite| llvmlite.closed.load(Ordering::Acquire));
    let Some(slot) = (0..SLOTS).find(is_free) else { return };
    let (originals, symbols) = ([const { AtomicUsize::new(0) }; ENTRY_POINTS.len()], Mutex::new(symbols));
    let (llvm, closed) = (OnceBox::new(), AtomicBool::new(false));
    let llvmlite: &Llvmlite = Box::leak(Box::new(Llvmlite { originals, library, symbols, llvm, closed }));
    TABLE[slot].store(ptr::from_ref(llvmlite).cast_mut(), Ordering::Release);
    let library = &llvmlite.library;
    let functions: Vec<_> = ENTRY_POINTS.into_iter().zip(hooks(slot)).enumerate().collect();
    for (entry_point, (name, hook)) in functions {
        let (Some(original), Some(value)) = (library.dynamic_address(name), library.dynamic_value_slot(name)) else {
            continue;
        };
        llvmlite.originals[entry_point].store(original, Ordering::Release);
        // The loader adds the bias to what it finds there.
        let ours = hook.wrapping_sub(library.identity.bias);
        // SAFETY: the value is an aligned word of the mapped symbol table.
        if let Err(error) = unsafe { write_pointer(value.address, ours, value.protection) } {
            log_line!(Warn, "could not hook {name}: {error}; code gets no frame pointers");
        }
    }
}

/// Up to nine words, which is what the longest of the functions takes; the ones a function does not take are whatever
/// the registers and the stack of its caller hold, and go on unread.
type EntryPoint = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> usize;

macro_rules! hooks_of_slots {
    ($slot:expr, $($number:literal)*) => {
        match $slot {
            $($number => [
                entry_point::<$number, ADD_MODULE>,
                entry_point::<$number, CREATE_MCJIT>,
                entry_point::<$number, LLJIT_LINK>,
                entry_point::<$number, FINALIZE_OBJECT>,
            ],)*
            _ => [
                entry_point::<0, ADD_MODULE>,
                entry_point::<0, CREATE_MCJIT>,
                entry_point::<0, LLJIT_LINK>,
                entry_point::<0, FINALIZE_OBJECT>,
            ],
        }
    };
}

fn hooks(slot: usize) -> [usize; ENTRY_POINTS.len()] {
    let hooks: [EntryPoint; ENTRY_POINTS.len()] = hooks_of_slots!(slot, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    hooks.map(|hook| hook as usize)
}

unsafe extern "C" fn entry_point<const SLOT: usize, const FUNCTION: usize>(
    a: usize,
    b: usize,
    mut c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
) -> usize {
    // This function's address is known only to callers that have it from a library in this place.
    let Some(slot) = at(SLOT) else { return 0 };
    let policy = shim().map_or(FramePointerPolicy::Untouched, |shim| shim.session.options().frame_pointer_policy);
    let mut elements = None;
    guarded(Shim::compiling);
    guarded(|_| match (slot.llvm(), FUNCTION) {
        // SAFETY: the arguments are those of the original of `FUNCTION`, in the thread that owns the module.
        (Some(llvm), ADD_MODULE) => unsafe { llvm.policy(b as *mut c_void, policy) },
        // SAFETY: as above.
        (Some(llvm), CREATE_MCJIT) => unsafe { llvm.policy(a as *mut c_void, policy) },
        (Some(llvm), LLJIT_LINK) => {
            // SAFETY: as above: `c` is an array of `d` elements.
            elements = Some(unsafe { Elements::patched(llvm, policy, c as *const LinkElement, d) });
        }
        _ => {}
    });
    if let Some(elements) = &elements {
        c = elements.array.as_ptr() as usize;
    }
    let original = slot.originals[FUNCTION].load(Ordering::Acquire);
    // SAFETY: the address is that of the function the caller asked for; see `EntryPoint` for the number of arguments.
    let original: EntryPoint = unsafe { std::mem::transmute::<usize, EntryPoint>(original) };
    // SAFETY: the host's own call, passed on, with elements that live until it returns.
    let result = unsafe { original(a, b, c, d, e, f, g, h, i) };
    if FUNCTION == FINALIZE_OBJECT || FUNCTION == LLJIT_LINK {
        announce();
    }
    result
}

impl Llvmlite {
    /// The LLVM-C functions, looked up at the first module: the library is relocated by then.
    fn llvm(&self) -> Option<&LlvmC> {
        let find = || {
            let library = &self.library;
            let get_version = library.dynamic_address(LLVMLITE_VERSION)?;
            // SAFETY: the address is that of llvmlite's function of that name and type.
            let get_version: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(get_version) };
            // SAFETY: takes nothing and returns a constant: major << 16 | minor << 8 | patch.
            let version = unsafe { get_version() } >> 16;
            let symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner).take();
            let found = LlvmC::find(library, symbols, version);
            match &found {
                Some(_) => log_line!(Info, "LLVM {version}: frame pointers and unwind tables enabled"),
                None => {
                    log_line!(Warn, "LLVM {version}: unknown release, code gets no frame pointers and unwind tables")
                }
            }
            found
        };
        self.llvm.get_or_init(|| Box::new(find())).as_ref()
    }
}

/// `LinkElement` of llvmlite's `orcjit.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LinkElement {
    kind: u8,
    value: *const u8,
    size: usize,
}

const _: () = assert!(size_of::<LinkElement>() == 24 && std::mem::offset_of!(LinkElement, value) == 8);

const KIND_IR: u8 = 0;

/// A copy of the elements of a link, with patched modules in it.
struct Elements<'a> {
    array: Vec<LinkElement>,
    _texts: Vec<PatchedText<'a>>,
}

impl<'a> Elements<'a> {
    /// # Safety
    /// `elements` must be an array of `count` elements, as `LLVMPY_LLJIT_Link` takes it.
    unsafe fn patched(
        llvm: &'a LlvmC,
        policy: FramePointerPolicy,
        elements: *const LinkElement,
        count: usize,
    ) -> Elements<'a> {
        let mut patched = Elements { array: Vec::new(), _texts: Vec::new() };
        for index in 0..count {
            // SAFETY: the caller says how many there are.
            let mut element = unsafe { elements.add(index).read() };
            if element.kind == KIND_IR && policy != FramePointerPolicy::Untouched && !element.value.is_null() {
                // SAFETY: an element of this kind has `size` readable bytes.
                let module = unsafe { std::slice::from_raw_parts(element.value, element.size) };
                // SAFETY: llvmlite is about to use this LLVM for the same purpose.
                if let Some(text) = unsafe { llvm.patch_text(module, policy) } {
                    element.value = text.as_c_str().as_ptr().cast();
                    element.size = text.as_c_str().to_bytes().len();
                    patched._texts.push(text);
                }
            }
            patched.array.push(element);
        }
        patched
    }
}
