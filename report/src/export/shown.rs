//! Selects the frames of a stack for pictures and trees.
//!
//! Omitted, unless the stack ends there: the start of the program or thread, the interpreter's C functions that call
//! Python or compiled code, and the import system while it runs a module, as in Python's own tracebacks.

use crate::report::Report;
use crate::symbols::{Frame, Function, Kind, is_entry};

use super::frames_of;

/// The frames of a stack, the innermost first.
pub(crate) fn shown_frames(report: &Report, stack: u32) -> Vec<Frame> {
    let mut frames = frames_of(report, stack);
    let function = |frame: &Frame| report.symbols.function(frame);
    // The interpreter's loop is the function that it runs.
    while let [leaf, caller, ..] = frames.as_slice()
        && function(caller).kind == Kind::Python
        && is_loop(function(leaf))
    {
        frames.remove(0);
    }
    let (mut is_leaf, mut python_inside, mut code_inside) = (true, false, false);
    frames.retain(|frame| {
        let function = function(frame);
        let is_shown = match function.kind {
            _ if is_leaf => true,
            Kind::Native => !(code_inside && is_interpreter(function)),
            Kind::Python => !(python_inside && is_import_system(function)),
            _ => true,
        };
        is_leaf = false;
        code_inside |= matches!(function.kind, Kind::Python | Kind::Compiled);
        python_inside |= function.kind == Kind::Python && !is_import_system(function);
        is_shown
    });
    while let [.., outermost] = frames.as_slice()
        && frames.len() > 1
        && is_start(function(outermost))
    {
        frames.pop();
    }
    frames
}

/// Whether this is only what calls a compiled function from Python, and the function is next.
pub(crate) fn is_entry_of(report: &Report, frame: &Frame, inner: &Frame) -> bool {
    let (function, inner) = (report.symbols.function(frame), report.symbols.function(inner));
    function.kind == Kind::Compiled && function.base == inner.base && is_entry(&function.name)
}

fn is_loop(function: &Function) -> bool {
    function.kind == Kind::Native
        && ["_PyEval_EvalFrameDefault", "_PyEval_Vector", "_PyFunction_Vectorcall"].contains(&function.name.as_str())
}

/// Python itself, and Numba's C code between it and compiled code.
fn is_interpreter(function: &Function) -> bool {
    ["python3", "libpython3", "_dispatcher."].iter().any(|start| function.module.starts_with(start))
}

fn is_import_system(function: &Function) -> bool {
    function.module.starts_with("<frozen importlib")
}

fn is_start(function: &Function) -> bool {
    let starts = ["python3", "libpython3", "libc.so", "libc-", "ld-linux", "libpthread"];
    function.kind == Kind::Native
        && (function.name == "_start" || starts.iter().any(|start| function.module.starts_with(start)))
}
