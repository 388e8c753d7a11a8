//! Remarks of llvmlite's loop vectoriser on the loops it compiles, for `jitlisten why`.
//!
//! Each `LLVMContext` has a `DiagnosticHandler`. It receives every diagnostic and decides whether LLVM creates
//! optimisation remarks at all. If the handler is LLVM's own and has no callback, the object gets a copy of its vtable
//! with two functions replaced:
//!
//! | function | replacement |
//! | --- | --- |
//! | `isAnyRemarkEnabled()` | returns true while images are written |
//! | `handleDiagnostics(const DiagnosticInfo &)` | reads `loop-vectorize` remarks that have a line; calls the original |
//!
//! No option of LLVM is set, so other contexts are unaffected and nothing is printed. LLVM still decides how to handle
//! each diagnostic: an error is printed and ends the process. The generated code does not change.
//!
//! All symbols are local, from the `.symtab` of the wheels. The two vtable slots are found by the functions' addresses,
//! a remark by the address of its class's vtable. The fields have the same offsets in all checked releases; for other
//! releases no remarks are read.

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

const VECTORIZER_PASS: &CStr = c"loop-vectorize";
/// Name of a remark that only refers to another remark for the reason.
const REMARK_WITHOUT_DETAILS: &str = "MissedDetails";
const MAX_NAME_BYTES: usize = 4096;

const HANDLER_VTABLE: &str = "_ZTVN4llvm17DiagnosticHandlerE";
const REMARK_VTABLES: [&str; 5] = [
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
    /// Functions of a wheel's LLVM: its C API, and C++ functions that take and return pointers.
    RemarkFunctions {
        get_module_context = "LLVMGetModuleContext" (Module) -> Context;
        get_diagnostic_handler = "LLVMContextGetDiagnosticHandler" (Context) -> *mut c_void;
        get_value_name = "LLVMGetValueName2" (Function, *mut usize) -> *const u8;
        get_description = "LLVMGetDiagInfoDescription" (*const Info) -> *mut c_char;
        dispose_message = "LLVMDisposeMessage" (*mut c_char);
        get_handler = "_ZNK4llvm11LLVMContext17getDiagHandlerPtrEv" (Context) -> Handler;
        handle_diagnostics =
            "_ZN4llvm17DiagnosticHandler17handleDiagnosticsERKNS_14DiagnosticInfoE" (Handler, *const Info) -> bool;
        is_any_remark_enabled = "_ZNK4llvm17DiagnosticHandler18isAnyRemarkEnabledEv" (Handler) -> bool;
    }
}

/// Words of a vtable before its functions: the offset to the top, and the type info.
const VTABLE_HEADER_WORDS: usize = 2;
/// Virtual functions of the class: two destructors, five others.
const VIRTUAL_FUNCTIONS: usize = 7;

/// Leading fields of `DiagnosticInfoOptimizationBase`.
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

/// An observed LLVM, and the replacement vtable of its handlers.
#[repr(C)]
pub(crate) struct Remarks {
    header: [usize; VTABLE_HEADER_WORDS],
    /// First function of the replacement vtable; observed handlers point here.
    functions: [usize; VIRTUAL_FUNCTIONS],
    llvm: RemarkFunctions,
    /// First function of LLVM's own vtable; unobserved handlers point here.
    stock_vtable: usize,
    remark_vtables: Vec<usize>,
    is_wanted: AtomicBool,
}

impl Remarks {
    /// Prefixes of those [`names`](Remarks::names) that are not in LLVM's C API.
    pub(crate) const PREFIXES: [&str; 4] =
        ["_ZTVN4llvm", "_ZN4llvm17DiagnosticHandler", "_ZNK4llvm17DiagnosticHandler", "_ZNK4llvm11LLVMContext"];

    /// Symbols to look up in the `.symtab` of an llvmlite.
    pub(crate) fn names() -> Vec<&'static str> {
        [&[HANDLER_VTABLE], &REMARK_VTABLES[..], RemarkFunctions::NAMES].concat()
    }

    /// Resolves an llvmlite's functions from their values in its file. The library must be mapped and relocated.
    pub(crate) fn find(symbol_values: &BTreeMap<&str, u64>, bias: usize, version: u32) -> Option<Remarks> {
        // No release has been tested on other processors.
        if !cfg!(target_arch = "x86_64") || !releases::has_remarks(version) {
            return None;
        }
        let address = |name: &str| symbol_values.get(name).map(|value| bias.wrapping_add(*value as usize));
        let first_slot =
            |name: &str| address(name).map(|vtable| vtable.wrapping_add(VTABLE_HEADER_WORDS * size_of::<usize>()));
        let llvm = RemarkFunctions::new(address)?;
        let stock_vtable = first_slot(HANDLER_VTABLE)?;
        let [header @ .., _, _, _, _, _, _, _] =
            vtable::read_words::<{ VTABLE_HEADER_WORDS + VIRTUAL_FUNCTIONS }>(address(HANDLER_VTABLE)?)?;
        let mut functions = vtable::read_words::<VIRTUAL_FUNCTIONS>(stock_vtable)?;
        let replacements = [
            (llvm.handle_diagnostics as usize, handle_diagnostics as *const () as usize),
            (llvm.is_any_remark_enabled as usize, is_any_remark_enabled as *const () as usize),
        ];
        for (original, replacement) in replacements {
            let mut slots = functions.iter_mut().filter(|slot| **slot == original);
            let (Some(slot), None) = (slots.next(), slots.next()) else { return None };
            *slot = replacement;
        }
        let remark_vtables = REMARK_VTABLES.iter().filter_map(|class| first_slot(class)).collect();
        Some(Remarks { header, functions, llvm, stock_vtable, remark_vtables, is_wanted: AtomicBool::new(false) })
    }

    /// Observes the context of a module, if images are written.
    ///
    /// # Safety
    /// `module` must be a module of this LLVM that no other thread uses, and `self` must never be freed.
    pub(crate) unsafe fn observe(&'static self, shim: &Shim, module: Module) {
        let is_wanted = shim.session.is_enabled(SinkKind::Image)
            && shim.session.options().frame_pointer_policy != FramePointerPolicy::Untouched;
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
        if !is_wanted || module.is_null() {
            return;
        }
        // SAFETY: the context belongs to the module, which only this thread uses. Its handler is an object with a
        // vtable, and our vtable is never freed.
        unsafe {
            let context = (self.llvm.get_module_context)(module);
            let handler = (self.llvm.get_handler)(context);
            let vtable = handler.cast::<usize>();
            let has_callback = !(self.llvm.get_diagnostic_handler)(context).is_null();
            if !handler.is_null() && !has_callback && vtable.read() == self.stock_vtable {
                vtable.write(self.functions.as_ptr() as usize);
                facts::add_remark_handler();
            }
        }
    }

    /// Returns the LLVM of an observed handler.
    ///
    /// # Safety
    /// `handler` must point to our vtable.
    unsafe fn from_handler(handler: Handler) -> &'static Remarks {
        // SAFETY: our vtable is the `functions` field of a `Remarks`, which is never freed.
        unsafe { &*handler.cast::<*const u8>().read().sub(offset_of!(Remarks, functions)).cast::<Remarks>() }
    }

    /// Returns true if a diagnostic is a remark of the vectoriser and has a line.
    ///
    /// # Safety
    /// `info` must be a diagnostic of this LLVM.
    unsafe fn is_loop_remark(&self, info: *const Info) -> bool {
        // SAFETY: every diagnostic begins with its vtable. Objects of these classes have these fields in the known
        // releases; the name of a pass is a C string that is never freed.
        unsafe {
            self.is_wanted.load(Ordering::Relaxed)
                && self.remark_vtables.contains(&(*info).vtable)
                && (*info).line != 0
                && !(*info).pass.is_null()
                && CStr::from_ptr((*info).pass) == VECTORIZER_PASS
        }
    }

    /// Passes a remark on to the session.
    ///
    /// # Safety
    /// `info` must be a remark for which [`is_loop_remark`](Remarks::is_loop_remark) is true.
    unsafe fn record(&self, info: *const Info) {
        let mut length = 0;
        // SAFETY: the function of a remark belongs to this LLVM. Its name has the length that LLVM returns and lives as
        // long as the function; the name of the remark is a constant.
        let (fields, function, name) = unsafe {
            let function = (self.llvm.get_value_name)((*info).function, &raw mut length);
            (&*info, read_name(function, length), read_name((*info).name, (*info).name_length))
        };
        if function.is_empty() || name.is_empty() || name == REMARK_WITHOUT_DETAILS {
            return;
        }
        // SAFETY: LLVM returns the description as a C string that we dispose of, or null if it is out of memory.
        let text = unsafe {
            let description = (self.llvm.get_description)(info);
            if description.is_null() {
                return;
            }
            let text = CStr::from_ptr(description).to_string_lossy().into_owned();
            (self.llvm.dispose_message)(description);
            text
        };
        // Format of the description: FILE:LINE:COLUMN: TEXT
        let line = fields.line;
        if let Some((file, text)) = text.split_once(&format!(":{line}:{}: ", fields.column)) {
            note_remark(function, Remark { file, line, name, text });
            facts::add_remark();
        }
    }
}

/// Reads a name from LLVM; empty if it is null, too long or not UTF-8.
///
/// # Safety
/// `start` must be null or readable for `length` bytes, for as long as the result is used.
unsafe fn read_name<'a>(start: *const u8, length: usize) -> &'a str {
    if start.is_null() || length > MAX_NAME_BYTES {
        return "";
    }
    // SAFETY: the pointer is not null, and readable for `length` bytes.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(start, length) }).unwrap_or_default()
}

/// Replacement of `DiagnosticHandler::handleDiagnostics`; LLVM calls it in the thread that compiles.
unsafe extern "C" fn handle_diagnostics(handler: Handler, info: *const Info) -> bool {
    // SAFETY: only handlers with our vtable call this, with a diagnostic of their LLVM; the call is forwarded to LLVM.
    unsafe {
        let remarks = Remarks::from_handler(handler);
        if remarks.is_loop_remark(info) {
            guarded(|_| remarks.record(info));
        }
        (remarks.llvm.handle_diagnostics)(handler, info)
    }
}

/// Replacement of `DiagnosticHandler::isAnyRemarkEnabled`.
unsafe extern "C" fn is_any_remark_enabled(handler: Handler) -> bool {
    // SAFETY: only handlers with our vtable call this; the call is forwarded to LLVM.
    unsafe {
        let remarks = Remarks::from_handler(handler);
        remarks.is_wanted.load(Ordering::Relaxed) || (remarks.llvm.is_any_remark_enabled)(handler)
    }
}
