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
//! | `LLVMPY_LLJIT_Link(jit, name, elements, count, ...)` | text or bitcode in the elements of kind 0 |
//! | `LLVMPY_FinalizeObject(engine)` | none: when it returns, code is final, and no lock of LLVM's is held |

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use once_cell::race::OnceBox;

use crate::frame_pointers::attributes::{LlvmC, PatchedText, UnwindTables};
use crate::hook_table::{SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::llvm::symbol_file::SymbolFile;
use crate::modules::announce;
use crate::process::held::Identity;
use crate::process::library::{LLVMLITE_VERSION, Library};
use crate::remarks::Remarks;
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
    library: Identity,
    path: PathBuf,
    /// The function that says which LLVM is in it.
    get_version: Option<usize>,
    /// Opened at the start, because the library's image differs from its file once the entry points are changed.
    symbols: Mutex<Option<SymbolFile>>,
    llvm: OnceBox<(Option<LlvmC>, Option<Remarks>)>,
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
    let found = (0..SLOTS).filter_map(at).filter(|llvmlite| llvmlite.library == identity);
    found.for_each(|llvmlite| llvmlite.closed.store(true, Ordering::Release));
}

/// Puts our functions in the place of an llvmlite's entry points, if a place in the table is free. It need not be
/// relocated.
pub(crate) fn attach(library: &Library<'_>, symbols: Option<SymbolFile>) {
    let is_free = |&slot: &usize| at(slot).is_none_or(|llvmlite| llvmlite.closed.load(Ordering::Acquire));
    let Some(slot) = (0..SLOTS).find(is_free) else { return };
    let (originals, symbols) = ([const { AtomicUsize::new(0) }; ENTRY_POINTS.len()], Mutex::new(symbols));
    let (llvm, closed) = (OnceBox::new(), AtomicBool::new(false));
    let get_version = library.dynamic_address(LLVMLITE_VERSION);
    let (identity, path) = (library.identity, library.path.clone());
    let llvmlite = Llvmlite { originals, library: identity, path, get_version, symbols, llvm, closed };
    let llvmlite: &Llvmlite = Box::leak(Box::new(llvmlite));
    TABLE[slot].store(ptr::from_ref(llvmlite).cast_mut(), Ordering::Release);
    let functions: Vec<_> = ENTRY_POINTS.into_iter().zip(HOOKS[slot]).enumerate().collect();
    for (entry_point, (name, hook)) in functions {
        let Some(original) = library.dynamic_address(name) else { continue };
        llvmlite.originals[entry_point].store(original, Ordering::Release);
        // SAFETY: the hook of this entry point passes on whatever it is called with.
        if let Some(Err(error)) = unsafe { library.redefine(name, hook as usize) } {
            log_line!(Warn, "could not hook {name}: {error}; code gets no frame pointers");
        }
    }
}

/// Up to nine words, which is what the longest of the functions takes; the ones a function does not take are whatever
/// the registers and the stack of its caller hold, and go on unread.
type EntryPoint = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> usize;

/// By the place of the library in the table.
const HOOKS: [[EntryPoint; ENTRY_POINTS.len()]; SLOTS] = for_each_slot!(SLOT => [
    entry_point::<SLOT, ADD_MODULE>,
    entry_point::<SLOT, CREATE_MCJIT>,
    entry_point::<SLOT, LLJIT_LINK>,
    entry_point::<SLOT, FINALIZE_OBJECT>,
]);

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
    guarded(|shim| match (slot.llvm(), FUNCTION) {
        ((llvm, remarks), ADD_MODULE | CREATE_MCJIT) => {
            let module = (if FUNCTION == ADD_MODULE { b } else { a }) as *mut c_void;
            // SAFETY: the arguments are those of the original of `FUNCTION`, in the thread that owns the module.
            unsafe {
                if let Some(llvm) = llvm {
                    llvm.patch_module(module, policy, UnwindTables::Added);
                }
                if let Some(remarks) = remarks {
                    remarks.observe(shim, module);
                }
            }
        }
        ((Some(llvm), _), LLJIT_LINK) => {
            // SAFETY: of this function, `c` is an array of `d` elements.
            elements = Some(unsafe { Elements::patched(llvm, policy, c as *const LinkElement, d) });
        }
        _ => {}
    });
    if let Some(elements) = &elements {
        c = elements.array.as_ptr() as usize;
    }
    let original = slot.originals[FUNCTION].load(Ordering::Acquire);
    // SAFETY: the function the caller asked for (see `EntryPoint` for the number of arguments), and the host's own
    // call, with elements that live until it returns.
    let result = unsafe { std::mem::transmute::<usize, EntryPoint>(original)(a, b, c, d, e, f, g, h, i) };
    if FUNCTION == FINALIZE_OBJECT || FUNCTION == LLJIT_LINK {
        announce();
    }
    result
}

impl Llvmlite {
    /// The LLVM-C functions, looked up at the first module: the library is relocated by then.
    fn llvm(&'static self) -> &'static (Option<LlvmC>, Option<Remarks>) {
        let find = || {
            let (Some(get_version), bias) = (self.get_version, self.library.bias) else { return (None, None) };
            // SAFETY: llvmlite's function of that name takes nothing and returns a constant: major << 16 | minor << 8 |
            // patch.
            let version = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> u32>(get_version)() } >> 16;
            let symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner).take();
            let names = [LlvmC::names(), Remarks::names()].concat();
            let prefixes = [&["LLVM"], &Remarks::PREFIXES[..]].concat();
            let values = symbols.map(|symbols| symbols.find(&prefixes, &names)).unwrap_or_default();
            let found = LlvmC::find(&self.path, bias, &values, version);
            match &found {
                Some(_) => log_line!(Info, "LLVM {version}: frame pointers and unwind tables enabled"),
                None => {
                    log_line!(Warn, "LLVM {version}: unknown release, code gets no frame pointers and unwind tables")
                }
            }
            (found, Remarks::find(&values, bias, version))
        };
        self.llvm.get_or_init(|| Box::new(find()))
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
