//! Hooks of llvmlite's entry points: the functions of `libllvmlite.so` that hand a module to an engine.
//!
//! ctypes looks up each function once, with `dlsym`. The symbol values of these functions in the library's dynamic
//! symbol table are changed when `_r_debug.r_brk` announces the library, before any lookup. `dlsym` then returns our
//! hook, which sets the module's attributes (see [`crate::frame_pointers::attributes`]) and calls the original
//! function.
//!
//! | function | module |
//! | --- | --- |
//! | `LLVMPY_AddModule(engine, module)` | the second argument |
//! | `LLVMPY_CreateMCJITCompiler(module, machine, ...)` | the first argument |
//! | `LLVMPY_LLJIT_Link(jit, name, elements, count, ...)` | text or bitcode in the elements of kind 0 |
//! | `LLVMPY_FinalizeObject(engine)` | none; afterwards code is final, and LLVM holds no lock |

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use jitlisten::plumbing::LogEvent;
use once_cell::race::OnceBox;

use crate::frame_pointers::attributes::{LlvmC, PatchedText, UnwindTables};
use crate::hook_table::{SLOTS, for_each_slot};
use crate::hooks::guarded;
use crate::llvm::recognise::LLVMLITE_VERSION;
use crate::llvm::symbol_file::SymbolFile;
use crate::modules::announce_new_modules;
use crate::process::library::Library;
use crate::process::mapped_proof::Identity;
use crate::remarks::Remarks;
use crate::state::{Shim, shim};

const ADD_MODULE: usize = 0;
const CREATE_MCJIT: usize = 1;
const LLJIT_LINK: usize = 2;
const FINALIZE_OBJECT: usize = 3;
const ENTRY_POINTS: [&str; 4] =
    ["LLVMPY_AddModule", "LLVMPY_CreateMCJITCompiler", "LLVMPY_LLJIT_Link", "LLVMPY_FinalizeObject"];

/// Data for the hooks of one llvmlite library. The hooks run without any of our locks.
struct Llvmlite {
    originals: [AtomicUsize; ENTRY_POINTS.len()],
    library: Identity,
    path: PathBuf,
    /// Address of the llvmlite function that returns the version of its LLVM.
    get_version: Option<usize>,
    /// Symbols of the library's file. It is opened when the hooks are installed, because afterwards the library's image
    /// differs from its file.
    symbols: Mutex<Option<SymbolFile>>,
    llvm: OnceBox<(Option<LlvmC>, Option<Remarks>)>,
    closed: AtomicBool,
}

/// Hooked llvmlite libraries, by slot. They are never freed, because a call may be in progress. After a library is
/// closed, its slot is reused.
static LLVMLITES: [AtomicPtr<Llvmlite>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

fn in_slot(slot: usize) -> Option<&'static Llvmlite> {
    // SAFETY: the pointer is null, or `attach` leaked the value that it points to.
    unsafe { LLVMLITES.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Marks an llvmlite library as closed, so that its slot can be reused.
pub(crate) fn mark_closed(identity: Identity) {
    let matching = (0..SLOTS).filter_map(in_slot).filter(|llvmlite| llvmlite.library == identity);
    matching.for_each(|llvmlite| llvmlite.closed.store(true, Ordering::Release));
}

/// Replaces an llvmlite library's entry points with our hooks, if a slot is free. The library need not be relocated.
pub(crate) fn attach(library: &Library<'_>, symbols: Option<SymbolFile>) {
    let is_free = |&slot: &usize| in_slot(slot).is_none_or(|llvmlite| llvmlite.closed.load(Ordering::Acquire));
    let Some(slot) = (0..SLOTS).find(is_free) else { return };
    if let Some(file) = &symbols {
        file.release_pages();
    }
    let (originals, symbols) = ([const { AtomicUsize::new(0) }; ENTRY_POINTS.len()], Mutex::new(symbols));
    let (llvm, closed) = (OnceBox::new(), AtomicBool::new(false));
    let get_version = library.dynamic_address(LLVMLITE_VERSION);
    let (identity, path) = (library.identity, library.path.clone());
    let llvmlite = Llvmlite { originals, library: identity, path, get_version, symbols, llvm, closed };
    let llvmlite: &Llvmlite = Box::leak(Box::new(llvmlite));
    LLVMLITES[slot].store(ptr::from_ref(llvmlite).cast_mut(), Ordering::Release);
    let functions: Vec<_> = ENTRY_POINTS.into_iter().zip(HOOKS[slot]).enumerate().collect();
    for (entry_point, (name, hook)) in functions {
        let Some(original) = library.dynamic_address(name) else { continue };
        llvmlite.originals[entry_point].store(original, Ordering::Release);
        // SAFETY: the hook for this entry point forwards all its arguments.
        if let Some(Err(error)) = unsafe { library.redefine(name, hook as usize) } {
            log_line!(Warn, "{}", LogEvent::CompilerUnhooked { function: name, error: &error.to_string() });
        }
    }
}

/// Type of an entry point with nine arguments, the maximum that any of the functions takes. The excess values come from
/// the caller's registers and stack; they are forwarded without being interpreted.
type EntryPoint = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> usize;

/// Hooks by slot of the llvmlite library and by entry point.
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
    // Only callers that got the hook's address from the library in this slot can call it, so the slot is in use.
    let Some(llvmlite) = in_slot(SLOT) else { return 0 };
    let policy = shim().map_or(FramePointerPolicy::Untouched, |shim| shim.objects.options().frame_pointer_policy);
    let mut elements = None;
    guarded(Shim::recheck_memory_hooks);
    guarded(|shim| match (llvmlite.llvm(), FUNCTION) {
        ((llvm, remarks), ADD_MODULE | CREATE_MCJIT) => {
            let module = (if FUNCTION == ADD_MODULE { b } else { a }) as *mut c_void;
            // SAFETY: these are the arguments that the caller passed to `FUNCTION`, in the thread that owns the module.
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
            // SAFETY: in calls of this function, `c` is an array of `d` elements.
            elements = Some(unsafe { LinkElements::with_patched_modules(llvm, policy, c as *const LinkElement, d) });
        }
        _ => {}
    });
    if let Some(elements) = &elements {
        c = elements.array.as_ptr() as usize;
    }
    let original = llvmlite.originals[FUNCTION].load(Ordering::Acquire);
    // SAFETY: `original` is the function that the caller meant to call, and it gets the caller's arguments (see
    // `EntryPoint` for their number). The elements live until the call returns.
    let result = unsafe { std::mem::transmute::<usize, EntryPoint>(original)(a, b, c, d, e, f, g, h, i) };
    if FUNCTION == FINALIZE_OBJECT || FUNCTION == LLJIT_LINK {
        announce_new_modules();
    }
    result
}

impl Llvmlite {
    /// Returns the LLVM-C functions. They are looked up when the first module is added, because the library is
    /// relocated by then.
    fn llvm(&'static self) -> &'static (Option<LlvmC>, Option<Remarks>) {
        let find_functions = || {
            let (Some(get_version), bias) = (self.get_version, self.library.bias) else { return (None, None) };
            // SAFETY: llvmlite's function of that name takes no arguments and returns a constant: major << 16 | minor
            // << 8 | patch.
            let version = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> u32>(get_version)() } >> 16;
            let symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner).take();
            let names = [LlvmC::names(), Remarks::names()].concat();
            let prefixes = [&["LLVM"], &Remarks::PREFIXES[..]].concat();
            let values = symbols.map(|symbols| symbols.find(&prefixes, &names)).unwrap_or_default();
            let llvm = LlvmC::find(&self.path, bias, &values, version);
            let release = &*version.to_string();
            match &llvm {
                Some(_) => {
                    let attributes = "frame pointers and unwind tables";
                    log_line!(Info, "{}", LogEvent::CodeChanged { version: release, attributes });
                }
                None => log_line!(Warn, "{}", LogEvent::ReleaseUnknown { version: release }),
            }
            (llvm, Remarks::find(&values, bias, version))
        };
        self.llvm.get_or_init(|| Box::new(find_functions()))
    }
}

/// `LinkElement` as declared in llvmlite's `orcjit.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LinkElement {
    kind: u8,
    value: *const u8,
    size: usize,
}

const _: () = assert!(size_of::<LinkElement>() == 24 && std::mem::offset_of!(LinkElement, value) == 8);

const KIND_IR: u8 = 0;

/// Copy of a link request's elements, with the modules among them patched.
struct LinkElements<'a> {
    array: Vec<LinkElement>,
    _texts: Vec<PatchedText<'a>>,
}

impl<'a> LinkElements<'a> {
    /// Copies the elements and patches the modules among them.
    ///
    /// # Safety
    /// `elements` must be an array of `count` elements, as passed to `LLVMPY_LLJIT_Link`.
    unsafe fn with_patched_modules(
        llvm: &'a LlvmC,
        policy: FramePointerPolicy,
        elements: *const LinkElement,
        count: usize,
    ) -> LinkElements<'a> {
        let mut patched = LinkElements { array: Vec::new(), _texts: Vec::new() };
        for index in 0..count {
            // SAFETY: the caller promises that the array has `count` elements.
            let mut element = unsafe { elements.add(index).read() };
            if element.kind == KIND_IR && policy != FramePointerPolicy::Untouched && !element.value.is_null() {
                // SAFETY: an element of this kind has `size` readable bytes.
                let module = unsafe { std::slice::from_raw_parts(element.value, element.size) };
                // SAFETY: llvmlite itself is about to use this LLVM library to parse the same module.
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
