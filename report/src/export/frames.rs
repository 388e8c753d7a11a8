//! Selection of a stack's frames for flame graphs and trees.
//!
//! The selection omits the start of the program or thread, interpreter functions that call Python or compiled code, and
//! the import system while it runs a module, as Python's tracebacks do. A frame is kept if the stack ends there.

use crate::report::Report;
use crate::symbols::{Frame, Function, Kind, is_entry};

use super::stack_frames;

/// Returns the shown frames of a stack, innermost first.
pub(crate) fn shown_frames(report: &Report, stack: u32) -> Vec<Frame> {
    let mut frames = stack_frames(report, stack);
    let function = |frame: &Frame| report.symbols.function(frame);
    // The evaluation loop is shown as the Python function that it runs.
    while let [leaf, caller, ..] = frames.as_slice()
        && function(caller).kind == Kind::Python
        && is_evaluation_loop(function(leaf))
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
        && is_program_start(function(outermost))
    {
        frames.pop();
    }
    frames
}

/// Returns true if `frame` is only the entry that calls the compiled function `inner` from Python.
pub(crate) fn is_entry_of(report: &Report, frame: &Frame, inner: &Frame) -> bool {
    let (function, inner) = (report.symbols.function(frame), report.symbols.function(inner));
    function.kind == Kind::Compiled && function.base == inner.base && is_entry(&function.name)
}

fn is_evaluation_loop(function: &Function) -> bool {
    function.kind == Kind::Native
        && ["_PyEval_EvalFrameDefault", "_PyEval_Vector", "_PyFunction_Vectorcall"].contains(&function.name.as_str())
}

/// Returns true for Python itself, and for Numba's C code between Python and compiled code.
fn is_interpreter(function: &Function) -> bool {
    ["python3", "libpython3", "_dispatcher."].iter().any(|prefix| function.module.starts_with(prefix))
}

fn is_import_system(function: &Function) -> bool {
    function.module.starts_with("<frozen importlib")
}

fn is_program_start(function: &Function) -> bool {
    let prefixes = ["python3", "libpython3", "libc.so", "libc-", "ld-linux", "libpthread"];
    function.kind == Kind::Native
        && (function.name == "_start" || prefixes.iter().any(|prefix| function.module.starts_with(prefix)))
}
