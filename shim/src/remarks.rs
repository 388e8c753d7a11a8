//! What the loop vectoriser of an llvmlite says of the loops it compiles, for `jitlisten why`.
//!
//! Each `LLVMContext` has a `DiagnosticHandler`, which is told of every diagnostic, and asked whether anyone wants
//! optimisation remarks; without that LLVM makes none. If the handler is LLVM's own, without a callback, its object
//! gets a copy of its vtable with two other functions:
//!
//! | function | ours |
//! | --- | --- |
//! | `isAnyRemarkEnabled()` | yes, while images are made |
//! | `handleDiagnostics(const DiagnosticInfo &)` | reads a remark of `loop-vectorize` with a line; calls the original |
//!
//! No option of LLVM is set, so no other context sees a difference, nothing is printed, and what LLVM does with any
//! diagnostic is its own decision still: an error is printed and ends the process. The code does not change.
//!
//! All symbols are hidden ones, in the `.symtab` of the wheels. The two slots are found by the functions' addresses, a
//! remark by the address of its class's vtable. Its fields lie at the same place in the releases that were checked; in
//! others there are no remarks.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::options::{FramePointerPolicy, SinkKind};
use jitlisten::plumbing::{Remark, note_remark};

use crate::doctor::facts;
use crate::frame_pointers::attributes::c_functions;
use crate::hooks::guarded;
use crate::llvm::{releases, vtable};
use crate::state::Shim;

const PASS: &CStr = c"loop-vectorize";
/// Says only that another remark has the reason.
const NO_DETAILS: &str = "MissedDetails";
const LONGEST_NAME: usize = 4096;

const HANDLER: &str = "_ZTVN4llvm17DiagnosticHandlerE";
const CLASSES: [&str; 5] = [
    "_ZTVN4llvm18OptimizationRemarkE",
    "_ZTVN4llvm24OptimizationRemarkMissedE",
    "_ZTVN4llvm26OptimizationRemarkAnalysisE",
    "_ZTVN4llvm35OptimizationRemarkAnalysisFPCommuteE",
    "_ZTVN4llvm34OptimizationRemarkAnalysisAliasingE",
];

type Module = *mut c_void;
type Context = *mut c_void;
type Handler = *mut c_void;
type Function = *mut c_void;

c_functions! {
    /// Of a wheel's LLVM: its C API, and functions of C++ that take and return pointers.
    RemarkFunctions {
        get_module_context = "LLVMGetModuleContext" (Module) -> Context;
        get_diagnostic_handler = "LLVMContextGetDiagnosticHandler" (Context) -> *mut c_void;
        get_value_name = "LLVMGetValueName2" (Function, *mut usize) -> *const u8;
        get_description = "LLVMGetDiagInfoDescription" (*const Info) -> *mut c_char;
        dispose_message = "LLVMDisposeMessage" (*mut c_char);
        handler_of = "_ZNK4llvm11LLVMContext17getDiagHandlerPtrEv" (Context) -> Handler;
        handle_diagnostics =
            "_ZN4llvm17DiagnosticHandler17handleDiagnosticsERKNS_14DiagnosticInfoE" (Handler, *const Info) -> bool;
        is_any_remark_enabled = "_ZNK4llvm17DiagnosticHandler18isAnyRemarkEnabledEv" (Handler) -> bool;
    }
}

/// Words of a vtable in front of its functions: the offset to the top, and the type.
const HEAD: usize = 2;
/// Functions of the class: two destructors, five others.
const FUNCTIONS: usize = 7;

/// The start of `DiagnosticInfoOptimizationBase`.
#[repr(C)]
struct Info {
    vtable: usize,
    kind: i32,
    severity: i32,
    function: Function,
    file: *const c_void,
    line: u32,
    column: u32,
    pass: *const c_char,
    name: *const u8,
    name_length: usize,
}

const _: () = assert!(offset_of!(Info, function) == 16 && offset_of!(Info, pass) == 40 && size_of::<Info>() == 64);

/// One LLVM, and the vtable of its handlers that are observed.
#[repr(C)]
pub(crate) struct Remarks {
    head: [usize; HEAD],
    /// Handlers point here.
    functions: [usize; FUNCTIONS],
    llvm: RemarkFunctions,
    /// Where unchanged handlers point.
    stock: usize,
    classes: Vec<usize>,
    is_wanted: AtomicBool,
}

impl Remarks {
    /// With what those of [`names`](Remarks::names) begin that are not of LLVM's C API.
    pub(crate) const PREFIXES: [&str; 4] =
        ["_ZTVN4llvm", "_ZN4llvm17DiagnosticHandler", "_ZNK4llvm17DiagnosticHandler", "_ZNK4llvm11LLVMContext"];

    /// What to look for in the `.symtab` of an llvmlite.
    pub(crate) fn names() -> Vec<&'static str> {
        [&[HANDLER], &CLASSES[..], RemarkFunctions::NAMES].concat()
    }

    /// Finds an llvmlite's functions by their values in its file. The library must be mapped and relocated.
    pub(crate) fn find(found: &BTreeMap<&str, u64>, bias: usize, version: u32) -> Option<Remarks> {
        // On other processors no release was tried.
        if !cfg!(target_arch = "x86_64") || !releases::has_remarks(version) {
            return None;
        }
        let address = |name: &str| found.get(name).map(|value| bias.wrapping_add(*value as usize));
        let of_vtable = |name: &str| address(name).map(|vtable| vtable.wrapping_add(HEAD * size_of::<usize>()));
        let llvm = RemarkFunctions::new(address)?;
        let stock = of_vtable(HANDLER)?;
        let [head @ .., _, _, _, _, _, _, _] = vtable::words::<{ HEAD + FUNCTIONS }>(address(HANDLER)?)?;
        let mut functions = vtable::words::<FUNCTIONS>(stock)?;
        let changed = [
            (llvm.handle_diagnostics as usize, handle as *const () as usize),
            (llvm.is_any_remark_enabled as usize, is_any_remark_enabled as *const () as usize),
        ];
        for (original, ours) in changed {
            let mut slots = functions.iter_mut().filter(|slot| **slot == original);
            let (Some(slot), None) = (slots.next(), slots.next()) else { return None };
            *slot = ours;
        }
        let classes = CLASSES.iter().filter_map(|class| of_vtable(class)).collect();
        Some(Remarks { head, functions, llvm, stock, classes, is_wanted: AtomicBool::new(false) })
    }

    /// Observes the context of a module, if images are made.
    ///
    /// # Safety
    /// `module` must be a module of this LLVM, used by no other thread, and `self` must live for ever.
    pub(crate) unsafe fn observe(&'static self, shim: &Shim, module: Module) {
        let is_wanted = shim.session.is_enabled(SinkKind::Image)
            && shim.session.options().frame_pointer_policy != FramePointerPolicy::Untouched;
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
        if !is_wanted || module.is_null() {
            return;
        }
        // SAFETY: the context is the module's, which this thread alone uses; its handler is an object with a vtable,
        // and ours lives for ever.
        unsafe {
            let context = (self.llvm.get_module_context)(module);
            let handler = (self.llvm.handler_of)(context);
            let vtable = handler.cast::<usize>();
            let has_callback = !(self.llvm.get_diagnostic_handler)(context).is_null();
            if !handler.is_null() && !has_callback && vtable.read() == self.stock {
                vtable.write(self.functions.as_ptr() as usize);
                facts::add_remark_handler();
            }
        }
    }

    /// That of a handler that is observed.
    ///
    /// # Safety
    /// `handler` must point to our vtable.
    unsafe fn of(handler: Handler) -> &'static Remarks {
        // SAFETY: our vtable is in the middle of one of these, which lives for ever.
        unsafe { &*handler.cast::<*const u8>().read().sub(offset_of!(Remarks, functions)).cast::<Remarks>() }
    }

    /// Whether a diagnostic is a remark of the pass, with a line.
    ///
    /// # Safety
    /// `info` must be a diagnostic of this LLVM.
    unsafe fn is_meant(&self, info: *const Info) -> bool {
        // SAFETY: every diagnostic begins with its vtable. One of these classes has these fields, in the releases that
        // are known; the name of a pass is a C string that lives for ever.
        unsafe {
            self.is_wanted.load(Ordering::Relaxed)
                && self.classes.contains(&(*info).vtable)
                && (*info).line != 0
                && !(*info).pass.is_null()
                && CStr::from_ptr((*info).pass) == PASS
        }
    }

    /// # Safety
    /// `info` must be such a remark.
    unsafe fn note(&self, info: *const Info) {
        let mut length = 0;
        // SAFETY: a remark is of a function of this LLVM, whose name is as long as LLVM says, and lives as long; its
        // own name is a constant.
        let (fields, function, name) = unsafe {
            let function = (self.llvm.get_value_name)((*info).function, &raw mut length);
            (&*info, slice(function, length), slice((*info).name, (*info).name_length))
        };
        if function.is_empty() || name.is_empty() || name == NO_DETAILS {
            return;
        }
        // SAFETY: LLVM writes what it would print, for us to dispose of: a C string, if there is memory.
        let text = unsafe {
            let description = (self.llvm.get_description)(info);
            if description.is_null() {
                return;
            }
            let text = CStr::from_ptr(description).to_string_lossy().into_owned();
            (self.llvm.dispose_message)(description);
            text
        };
        // FILE:LINE:COLUMN: TEXT
        let line = fields.line;
        if let Some((file, text)) = text.split_once(&format!(":{line}:{}: ", fields.column)) {
            note_remark(function, Remark { file, line, name, text });
            facts::add_remark();
        }
    }
}

/// Text of LLVM's; empty if it is none.
///
/// # Safety
/// `start` must be null or readable for `length` bytes, for as long as the result is used.
unsafe fn slice<'a>(start: *const u8, length: usize) -> &'a str {
    if start.is_null() || length > LONGEST_NAME {
        return "";
    }
    // SAFETY: it is not null, and readable for so many bytes.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(start, length) }).unwrap_or_default()
}

/// `DiagnosticHandler::handleDiagnostics`: called by LLVM in the thread that compiles.
unsafe extern "C" fn handle(handler: Handler, info: *const Info) -> bool {
    // SAFETY: only handlers with our vtable call this, with a diagnostic of their LLVM; LLVM's own call is passed on.
    unsafe {
        let remarks = Remarks::of(handler);
        if remarks.is_meant(info) {
            guarded(|_| remarks.note(info));
        }
        (remarks.llvm.handle_diagnostics)(handler, info)
    }
}

/// `DiagnosticHandler::isAnyRemarkEnabled`.
unsafe extern "C" fn is_any_remark_enabled(handler: Handler) -> bool {
    // SAFETY: only handlers with our vtable call this; LLVM's own call is passed on.
    unsafe {
        let remarks = Remarks::of(handler);
        remarks.is_wanted.load(Ordering::Relaxed) || (remarks.llvm.is_any_remark_enabled)(handler)
    }
}
