//! What a compiler said of its optimisations: kept by function until an image of the function is written.
//!
//! Never waits for the lock: it is taken under LLVM's, and a child may have inherited it from a thread it does not
//! have.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

/// The section of an image: a line for each remark, `ADDRESS\tLINE\tFILE\tNAME\tTEXT`. It is never loaded.
pub(crate) const SECTION: &str = ".jitlisten.remarks";

/// A function is loaded soon after it was optimised, or never: when there are more, all are dropped.
const MOST_FUNCTIONS: usize = 1024;
const MOST_OF_ONE: usize = 32;
const LONGEST: usize = 500;

/// By linkage name: `LINE\tFILE\tNAME\tTEXT`.
static REMARKS: Mutex<BTreeMap<Box<str>, Vec<Box<str>>>> = Mutex::new(BTreeMap::new());

/// One remark.
#[derive(Clone, Copy, Debug)]
pub struct Remark<'a> {
    /// Where in the source: the file as the compiler calls it.
    pub file: &'a str,
    /// Never 0.
    pub line: u32,
    /// `CantReorderFPOps`
    pub name: &'a str,
    /// `loop not vectorized: ...`
    pub text: &'a str,
}

/// Keeps a remark of a function that is being compiled.
pub fn note(function: &str, remark: Remark<'_>) {
    let Ok(mut remarks) = REMARKS.try_lock() else { return };
    if !remarks.contains_key(function) {
        if remarks.len() >= MOST_FUNCTIONS {
            remarks.clear();
        }
        remarks.insert(function.into(), Vec::new());
    }
    let Some(of_function) = remarks.get_mut(function) else { return };
    let Remark { file, line, name, text } = remark;
    let field =
        |text: &str| text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let written = [line.to_string(), field(file), field(name), field(text)].join("\t").into_boxed_str();
    if of_function.len() < MOST_OF_ONE && !of_function.contains(&written) {
        of_function.push(written);
    }
}

/// The lines of a function at an address of its image.
pub(crate) fn write(function: &str, address: u64, into: &mut String) {
    let Ok(remarks) = REMARKS.try_lock() else { return };
    for line in remarks.get(function).into_iter().flatten() {
        into.push_str(&format!("{address:x}\t{line}\n"));
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
