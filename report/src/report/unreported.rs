//! Code that no compiler has reported, which belongs to no file and is unnamed, and compiled code without lines.

use crate::python_command::ignores_start_up_file;
use crate::recording::Recording;
use crate::symbols::{Frame, Kind, Symbols};
use crate::words::file_name;

/// Minimum share of samples, in percent, for unreported code to be mentioned.
const MIN_PERCENT: u64 = 1;

/// Returns a note if [`MIN_PERCENT`] of the samples are in unreported code. If no code was reported at all, the note
/// names the LLVM libraries in the recorded processes.
pub(super) fn note_unreported_code(recording: &Recording, symbols: &Symbols) -> Option<String> {
    let is_unreported = |stack: u32| {
        let Some(innermost) = recording.stacks.get(stack).first() else { return false };
        let frame = symbols.frames(*innermost).first();
        frame.is_some_and(|frame| symbols.function(frame).kind == Kind::Unknown)
    };
    let (mut all, mut unreported) = (0_u64, 0_u64);
    for sample in &recording.samples {
        all = all.saturating_add(sample.weight);
        if is_unreported(sample.stack) {
            unreported = unreported.saturating_add(sample.weight);
        }
    }
    let percent = unreported.saturating_mul(100).checked_div(all).filter(|percent| *percent >= MIN_PERCENT)?;
    let note = format!("{percent} % of the samples are in code that belongs to no file and that no compiler reported");
    let has_compiled = symbols.functions.iter().any(|function| function.kind == Kind::Compiled);
    let names = recording.files.iter().map(|file| file_name(&file.path));
    let mut llvms: Vec<&str> = names.filter(|name| is_llvm(name) && !has_compiled).collect();
    llvms.sort_unstable();
    llvms.dedup();
    if llvms.is_empty() {
        return Some(note);
    }
    Some(format!("{note}, nor did {} report any: see `jitlisten doctor -- COMMAND`", llvms.join(", ")))
}

/// Returns a note if compiled code has no lines because Python was told not to read the start-up file.
pub(super) fn note_ignored_start_up_file(recording: &Recording, symbols: &Symbols) -> Option<String> {
    let is_compiled = |frame: &&Frame| symbols.function(frame).kind == Kind::Compiled;
    let mut compiled = symbols.all_frames().iter().filter(is_compiled).peekable();
    let has_no_lines = compiled.peek().is_some() && compiled.all(|frame| frame.source.is_none());
    (has_no_lines && ignores_start_up_file(&recording.facts.command)).then(|| {
        "compiled code has no lines, because Python was started with -I, -E or -S, which ignores PYTHONPATH: leave that \
         out, or call jitlisten.enable() in the program"
            .to_owned()
    })
}

/// Returns true for the file names of LLVM's library and of llvmlite's.
fn is_llvm(name: &str) -> bool {
    name.starts_with("libLLVM") || name.starts_with("libllvmlite")
}
