//! Collects the loop vectoriser's remarks from llvmlite, for `jitlisten why`.
//!
//! Each `LLVMContext` has a `DiagnosticHandler`. This handler receives every diagnostic and decides whether LLVM
//! creates optimisation remarks at all. If the handler is LLVM's own and lacks a callback, we point it to a copy of its
//! vtable with two functions replaced:
//!
//! | function | replacement |
//! | --- | --- |
//! | `isAnyRemarkEnabled()` | returns true while images are written |
//! | `handleDiagnostics(const DiagnosticInfo &)` | reads `loop-vectorize` remarks with a line; calls the original |
//!
//! No LLVM option is set, so other contexts are unaffected and nothing is printed. LLVM still decides how to handle
//! each diagnostic; for example, it prints an error and ends the process. The generated code does not change.
//!
//! All symbols are local and come from the `.symtab` of the wheels. The two vtable slots are identified by the
//! functions' addresses, and a remark by the address of its class's vtable. The fields have the same offsets in all
//! checked releases. In other releases, no remarks are read.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::options::{FramePointerPolicy, SinkKind};
use jitlisten::plumbing::{Remark, record_remark};
use wire::facts::Total;

use crate::doctor::facts;
use crate::hooks::guarded;
use crate::llvm::c_functions::c_functions;
use crate::llvm::{releases, vtable};
use crate::state::Shim;

const VECTORIZER_PASS: &CStr = c"loop-vectorize";
/// Name of a remark that contains no reason, and only refers to another remark.
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
    /// Functions of the LLVM in a wheel: its C API, and C++ functions that take and return pointers.
    RemarkFunctions {
        get_module_context = "LLVMGetModuleContext" (Module) -> Context;
        get_diagnostic_handler = "LLVMContextGetDiagnosticHandler" (Context) -> *mut c_void;
        get_value_name = "LLVMGetValueName2" (Function, *mut usize) -> *const u8;
        get_description = "LLVMGetDiagInfoDescription" (*const RemarkInfo) -> *mut c_char;
        dispose_message = "LLVMDisposeMessage" (*mut c_char);
        get_handler = "_ZNK4llvm11LLVMContext17getDiagHandlerPtrEv" (Context) -> Handler;
        handle_diagnostics = "_ZN4llvm17DiagnosticHandler17handleDiagnosticsERKNS_14DiagnosticInfoE"
            (Handler, *const RemarkInfo) -> bool;
        is_any_remark_enabled = "_ZNK4llvm17DiagnosticHandler18isAnyRemarkEnabledEv" (Handler) -> bool;
    }
}

/// Number of words before the functions in a vtable: the offset to the top, and the typeinfo pointer.
const VTABLE_HEADER_WORDS: usize = 2;
/// Number of virtual functions of the class: two destructors and five others.
const VIRTUAL_FUNCTIONS: usize = 7;

/// Leading fields of a `DiagnosticInfoOptimizationBase`.
#[repr(C)]
struct RemarkInfo {
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

const _: () = assert!(
    offset_of!(RemarkInfo, function) == 16 && offset_of!(RemarkInfo, pass) == 40 && size_of::<RemarkInfo>() == 64
);

/// An observed LLVM library, and the replacement vtable for its handlers.
#[repr(C)]
pub(crate) struct Remarks {
    header: [usize; VTABLE_HEADER_WORDS],
    /// Functions of the replacement vtable. Observed handlers point to the first one.
    functions: [usize; VIRTUAL_FUNCTIONS],
    llvm: RemarkFunctions,
    /// Address of the first function in LLVM's own vtable, which unobserved handlers point to.
    stock_vtable: usize,
    remark_vtables: Vec<usize>,
    is_wanted: AtomicBool,
}

impl Remarks {
    /// Prefixes of those [`names`](Remarks::names) that are not part of LLVM's C API.
    pub(crate) const PREFIXES: [&str; 4] =
        ["_ZTVN4llvm", "_ZN4llvm17DiagnosticHandler", "_ZNK4llvm17DiagnosticHandler", "_ZNK4llvm11LLVMContext"];

    /// Symbols to look up in the `.symtab` of llvmlite's library.
    pub(crate) fn names() -> Vec<&'static str> {
        [&[HANDLER_VTABLE], &REMARK_VTABLES[..], RemarkFunctions::NAMES].concat()
    }

    /// Resolves an llvmlite library's functions, given their symbol values in its file. The library must be mapped and
    /// relocated.
    pub(crate) fn find(symbol_values: &BTreeMap<&str, u64>, bias: usize, version: u32) -> Option<Remarks> {
        // No release has been tested on other architectures.
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
    /// `module` must be a module of this LLVM library that no other thread uses, and `self` must never be freed.
    pub(crate) unsafe fn observe(&'static self, shim: &Shim, module: Module) {
        let is_wanted = shim.objects.is_enabled(SinkKind::Image)
            && shim.objects.options().frame_pointer_policy != FramePointerPolicy::Untouched;
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
                facts::add(Total::RemarkHandlers);
            }
        }
    }

    /// Returns the `Remarks` whose vtable an observed handler points to.
    ///
    /// # Safety
    /// `handler` must point to our vtable.
    unsafe fn from_handler(handler: Handler) -> &'static Remarks {
        // SAFETY: our vtable is the `functions` field of a `Remarks`, which is never freed.
        unsafe { &*handler.cast::<*const u8>().read().sub(offset_of!(Remarks, functions)).cast::<Remarks>() }
    }

    /// Returns true if a diagnostic is a vectoriser remark with a line number.
    ///
    /// # Safety
    /// `info` must be a diagnostic created by this LLVM library.
    unsafe fn is_loop_remark(&self, info: *const RemarkInfo) -> bool {
        // SAFETY: every diagnostic begins with its vtable pointer. In the known releases, objects of these classes have
        // these fields. The name of a pass is a C string that is never freed.
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
    /// `info` must be a remark for which [`is_loop_remark`](Remarks::is_loop_remark) returns true.
    unsafe fn record(&self, info: *const RemarkInfo) {
        let mut length = 0;
        // SAFETY: the remark's function belongs to this LLVM library. Its name has the length that LLVM returns and
        // lives as long as the function. The remark's name is a constant.
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
            record_remark(function, Remark { file, line, name, text });
            facts::add(Total::Remarks);
        }
    }
}

/// Reads a name from LLVM's memory; empty if `start` is null, or if the name is too long or not UTF-8.
///
/// # Safety
/// `start` must be null or readable for `length` bytes, for as long as the result is used.
unsafe fn read_name<'a>(start: *const u8, length: usize) -> &'a str {
    if start.is_null() || length > MAX_NAME_BYTES {
        return "";
    }
    // SAFETY: the pointer is not null, and the caller guarantees that `length` bytes are readable.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(start, length) }).unwrap_or_default()
}

/// Replacement of `DiagnosticHandler::handleDiagnostics`; LLVM calls it in the thread that compiles.
unsafe extern "C" fn handle_diagnostics(handler: Handler, info: *const RemarkInfo) -> bool {
    // SAFETY: only handlers with our vtable call this function, with a diagnostic of their LLVM library. The call is
    // forwarded to LLVM.
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
    // SAFETY: only handlers with our vtable call this function. The call is forwarded to LLVM.
    unsafe {
        let remarks = Remarks::from_handler(handler);
        remarks.is_wanted.load(Ordering::Relaxed) || (remarks.llvm.is_any_remark_enabled)(handler)
    }
}
