//! Compiler remarks about optimisations, kept by function until its image is written.
//!
//! The lock is only tried, never waited for, because remarks arrive while LLVM holds locks. In the child of a fork, our
//! lock may also be held by a thread that exists only in the parent.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Section of an image with a line for each remark: `ADDRESS\tLINE\tFILE\tNAME\tTEXT`. Never loaded.
pub(crate) const SECTION: &str = ".jitlisten.remarks";

/// Maximum number of functions with remarks; beyond it, all remarks are dropped. A function is loaded soon after its
/// optimisation, or never.
const MAX_FUNCTIONS: usize = 1024;
const MAX_REMARKS_PER_FUNCTION: usize = 32;
const MAX_FIELD_CHARS: usize = 500;

/// Lines `LINE\tFILE\tNAME\tTEXT` by linkage name of the function.
static REMARKS: Mutex<BTreeMap<Box<str>, Vec<Box<str>>>> = Mutex::new(BTreeMap::new());

/// An optimisation remark of the compiler.
#[derive(Clone, Copy, Debug)]
pub struct Remark<'a> {
    /// Source file, as the compiler names it.
    pub file: &'a str,
    /// Line number; never 0.
    pub line: u32,
    /// Name of the remark, such as `CantReorderFPOps`.
    pub name: &'a str,
    /// Message, such as `loop not vectorized: ...`.
    pub text: &'a str,
}

/// Keeps a remark about a function that is being compiled.
pub fn note(function: &str, remark: Remark<'_>) {
    let Ok(mut remarks) = REMARKS.try_lock() else { return };
    if !remarks.contains_key(function) {
        if remarks.len() >= MAX_FUNCTIONS {
            remarks.clear();
        }
        remarks.insert(function.into(), Vec::new());
    }
    let Some(function_remarks) = remarks.get_mut(function) else { return };
    let Remark { file, line, name, text } = remark;
    let field = |text: &str| {
        text.chars().take(MAX_FIELD_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>()
    };
    let line_text = [line.to_string(), field(file), field(name), field(text)].join("\t").into_boxed_str();
    if function_remarks.len() < MAX_REMARKS_PER_FUNCTION && !function_remarks.contains(&line_text) {
        function_remarks.push(line_text);
    }
}

/// Appends the remarks of a function to `output`, with its address in the image.
pub(crate) fn write(function: &str, address: u64, output: &mut String) {
    let Ok(remarks) = REMARKS.try_lock() else { return };
    for line in remarks.get(function).into_iter().flatten() {
        output.push_str(&format!("{address:x}\t{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_is_one_line_once() {
        let remark = Remark { file: "a\tb.py", line: 7, name: "UnsafeDep", text: "unsafe\ndependence" };
        note("a_remark_is_one_line_once", remark);
        note("a_remark_is_one_line_once", remark);
        let mut text = String::new();
        write("a_remark_is_one_line_once", 0x1200, &mut text);
        write("another", 0, &mut text);
        assert_eq!(text, "1200\t7\ta b.py\tUnsafeDep\tunsafe dependence\n");
    }
}
