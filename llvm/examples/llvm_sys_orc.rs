//! Program that uses LLVM's ORC through llvm-sys, visible to perf, gdb and unwinders.
//!
//! ```text
//! cargo build --release -p jitlisten-llvm --example llvm_sys_orc --features llvm22-1,inkwell/llvm22-1-prefer-dynamic
//! perf record -g target/release/examples/llvm_sys_orc 2     # seconds of CPU time
//! perf report                                               # alpha, beta and gamma, with their callers
//! ```
//!
//! Optional arguments after the seconds: `timer` raises SIGVTALRM while `gamma` runs, so that a debugger stops there;
//! `default` links with LLVM's default linker (JITLink in later versions) instead of RuntimeDyld; `closed` disposes of
//! the JIT before the program ends, and prints that.

// Examples may print.
#![allow(clippy::disallowed_methods, reason = "a program of its own")]
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use jitlisten_llvm as producer;
use jitlisten_llvm::llvm_sys::core::{LLVMCreateMemoryBufferWithMemoryRangeCopy, LLVMDisposeMessage};
use jitlisten_llvm::llvm_sys::error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage};
use jitlisten_llvm::llvm_sys::execution_engine::LLVMCreateGDBRegistrationListener;
// Deprecated in LLVM 22, but earlier versions have no other.
#[allow(deprecated)]
use jitlisten_llvm::llvm_sys::ir_reader::LLVMParseIRInContext;
use jitlisten_llvm::llvm_sys::orc2::ee::{
    LLVMOrcCreateRTDyldObjectLinkingLayerWithSectionMemoryManager as create_rtdyld_layer,
    LLVMOrcRTDyldObjectLinkingLayerRegisterJITEventListener as register_jit_event_listener,
};
use jitlisten_llvm::llvm_sys::orc2::lljit::{
    LLVMOrcCreateLLJIT, LLVMOrcCreateLLJITBuilder, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddLLVMIRModule,
    LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator, LLVMOrcLLJITGetMainJITDylib, LLVMOrcLLJITGetObjLinkingLayer,
    LLVMOrcLLJITLookup, LLVMOrcLLJITRef,
};
use jitlisten_llvm::llvm_sys::orc2::{
    LLVMOrcCreateNewThreadSafeModule, LLVMOrcDisposeThreadSafeContext, LLVMOrcExecutionSessionRef,
    LLVMOrcObjectLayerRef, LLVMOrcThreadSafeContextRef,
};
use jitlisten_llvm::llvm_sys::prelude::{LLVMContextRef, LLVMModuleRef};
use jitlisten_llvm::llvm_sys::target::{LLVM_InitializeNativeAsmPrinter, LLVM_InitializeNativeTarget};

type Chain = extern "C" fn(i64, f64) -> f64;
const LOOP: i64 = 2_000_000;

/// IR of the chain `alpha` -> `beta` -> `gamma`; `gamma` uses nearly all of the time. It contains no pointer types, so
/// every LLVM version can parse it.
const CHAIN: &CStr = c"
define double @gamma(i64 %n, double %x) noinline nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = phi double [ %x, %entry ], [ %d, %loop ]
  %square = fmul double %a, %a
  %bigger = fadd double %square, 1.0
  %b = fdiv double 1.0, %bigger
  %c = fmul double %a, 0.75
  %d = fadd double %b, %c
  %next = add i64 %i, 1
  %done = icmp uge i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret double %d
}
define double @beta(i64 %n, double %x) noinline nounwind {
  %y = call double @gamma(i64 %n, double %x)
  %z = fmul double %y, 2.0
  ret double %z
}
define double @alpha(i64 %n, double %x) noinline nounwind {
  %y = call double @beta(i64 %n, double %x)
  %z = fsub double %y, 3.0
  ret double %z
}
";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has_argument = |name: &str| arguments.iter().any(|argument| argument == name);
    let seconds: f64 = arguments.first().map_or(Ok(1.0), |argument| argument.parse())?;
    // SAFETY: follows LLVM's order of calls, on one thread.
    unsafe {
        LLVM_InitializeNativeTarget();
        LLVM_InitializeNativeAsmPrinter();
        let jit = create_jit(has_argument("default"))?;
        let alpha = compile(jit)?;
        println!("{}\nrunning", alpha(10, 1.0));
        if has_argument("timer") {
            raise_sigvtalrm_soon();
        }
        run(alpha, seconds);
        if has_argument("closed") {
            check_error(LLVMOrcDisposeLLJIT(jit))?;
            println!("closed");
        }
    }
    Ok(())
}

fn run(alpha: Chain, seconds: f64) {
    let deadline = cpu_time() + seconds;
    let mut result = 1.0;
    while cpu_time() < deadline {
        result = alpha(LOOP, 1.0);
    }
    println!("{result}");
}

unsafe fn create_jit(is_default: bool) -> Result<LLVMOrcLLJITRef, String> {
    let mut jit = null_mut();
    // SAFETY: LLVM is initialised, and the program has one thread.
    unsafe {
        let builder = LLVMOrcCreateLLJITBuilder();
        if !is_default {
            LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator(builder, create_layer, null_mut());
        }
        check_error(LLVMOrcCreateLLJIT(&raw mut jit, builder))?;
        // Attach before anything is compiled.
        assert!(producer::attach_layer(LLVMOrcLLJITGetObjLinkingLayer(jit)), "a layer of another kind");
    }
    Ok(jit)
}

/// Creates a RuntimeDyld layer that also registers its objects with gdb.
extern "C" fn create_layer(
    _context: *mut c_void,
    session: LLVMOrcExecutionSessionRef,
    _triple: *const c_char,
) -> LLVMOrcObjectLayerRef {
    // SAFETY: LLVM passes a live session, and the listener is one of LLVM's static objects.
    unsafe {
        let layer = create_rtdyld_layer(session);
        register_jit_event_listener(layer, LLVMCreateGDBRegistrationListener());
        layer
    }
}

unsafe fn compile(jit: LLVMOrcLLJITRef) -> Result<Chain, String> {
    // SAFETY: `jit` is live; LLVM takes ownership of the module.
    unsafe {
        let (shared, context) = create_context();
        let module = parse(context)?;
        // Enable frame pointers and unwind tables before any code is generated.
        producer::make_unwindable(module);
        let module = LLVMOrcCreateNewThreadSafeModule(module, shared);
        LLVMOrcDisposeThreadSafeContext(shared);
        check_error(LLVMOrcLLJITAddLLVMIRModule(jit, LLVMOrcLLJITGetMainJITDylib(jit), module))?;
        let mut address = 0;
        check_error(LLVMOrcLLJITLookup(jit, &raw mut address, c"alpha".as_ptr()))?;
        Ok(std::mem::transmute::<usize, Chain>(address as usize))
    }
}

#[allow(deprecated)]
unsafe fn parse(context: LLVMContextRef) -> Result<LLVMModuleRef, String> {
    let (mut module, mut message) = (null_mut(), null_mut());
    // SAFETY: LLVM takes ownership of the buffer; the caller owns the error message.
    unsafe {
        let buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(CHAIN.as_ptr(), CHAIN.count_bytes(), c"chain".as_ptr());
        if LLVMParseIRInContext(context, buffer, &raw mut module, &raw mut message) == 0 {
            return Ok(module);
        }
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeMessage(message);
        Err(text)
    }
}

/// Creates a context. LLVM 21 reversed which of the two contexts is created from the other.
#[cfg(any(feature = "llvm21-1", feature = "llvm22-1"))]
fn create_context() -> (LLVMOrcThreadSafeContextRef, LLVMContextRef) {
    use jitlisten_llvm::llvm_sys::core::LLVMContextCreate;
    use jitlisten_llvm::llvm_sys::orc2::LLVMOrcCreateNewThreadSafeContextFromLLVMContext;
    // SAFETY: no precondition.
    unsafe {
        let context = LLVMContextCreate();
        (LLVMOrcCreateNewThreadSafeContextFromLLVMContext(context), context)
    }
}

#[cfg(not(any(feature = "llvm21-1", feature = "llvm22-1")))]
fn create_context() -> (LLVMOrcThreadSafeContextRef, LLVMContextRef) {
    use jitlisten_llvm::llvm_sys::orc2::{LLVMOrcCreateNewThreadSafeContext, LLVMOrcThreadSafeContextGetContext};
    // SAFETY: no precondition.
    unsafe {
        let shared = LLVMOrcCreateNewThreadSafeContext();
        (shared, LLVMOrcThreadSafeContextGetContext(shared))
    }
}

unsafe fn check_error(error: LLVMErrorRef) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: `error` is an LLVM error, which is consumed once.
    unsafe {
        let message = LLVMGetErrorMessage(error);
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(message);
        Err(text)
    }
}

/// CPU time of this process in seconds.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn raise_sigvtalrm_soon() {
    let half_second = libc::timeval { tv_sec: 0, tv_usec: 500_000 };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: half_second };
    // SAFETY: the structure is initialised, and the old value is not requested.
    unsafe { libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, null_mut()) };
}
