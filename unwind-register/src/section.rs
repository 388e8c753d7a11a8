//! The caller's description of a piece of generated code.

#![forbid(unsafe_code)]

use std::ops::Range;

/// Whether functions without an FDE keep a frame pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramePointers {
    /// Not known: functions without an FDE stay without rules.
    #[default]
    Unknown,
    /// The code was compiled to keep them. Rules are made for every function that starts as such functions do.
    Kept,
}

/// What the JIT itself has registered with libgcc or LLVM's libunwind (`__register_frame`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ByHost {
    /// Not known: each unwinder is asked (`_Unwind_Find_FDE`). That takes the loader's lock where libgcc was built for
    /// a glibc before 2.35, and in LLVM's libunwind.
    #[default]
    Unknown,
    /// Every FDE of the section, as MCJIT and RuntimeDyld do. Only rules made here are registered with those unwinders.
    Everything,
    /// Nothing. All of it is registered, without asking. Wrong use ends in an abort inside libgcc 13 and later.
    Nothing,
}

/// A piece of generated code and its unwind tables, as they are in memory: relocated, and finished.
///
/// Borrowed for the call only; what unwinders need is copied.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    pub(crate) eh_frame: &'a [u8],
    pub(crate) address: usize,
    pub(crate) text: &'a [Range<usize>],
    pub(crate) functions: &'a [Range<usize>],
    pub(crate) frame_pointers: FramePointers,
    pub(crate) by_host: ByHost,
}

impl<'a> Section<'a> {
    /// The bytes of an `.eh_frame` section, and the address they are (or were) relocated for. A terminator is not
    /// needed.
    pub fn new(eh_frame: &'a [u8], address: usize) -> Self {
        let (frame_pointers, by_host) = Default::default();
        Section { eh_frame, address, text: &[], functions: &[], frame_pointers, by_host }
    }

    /// Code that has no `.eh_frame` at all; see [`Section::functions`] and [`Section::frame_pointers`].
    pub fn without_eh_frame() -> Self {
        Section::new(&[], 0)
    }

    /// Where the code is. FDEs outside are then taken for what a linker forgot (dead-stripped, unrelocated), and left
    /// out.
    pub fn text(mut self, text: &'a [Range<usize>]) -> Self {
        self.text = text;
        self
    }

    /// The functions that are known, so that those without an FDE are noticed.
    pub fn functions(mut self, functions: &'a [Range<usize>]) -> Self {
        self.functions = functions;
        self
    }

    /// Whether functions without an FDE keep a frame pointer.
    pub fn frame_pointers(mut self, frame_pointers: FramePointers) -> Self {
        self.frame_pointers = frame_pointers;
        self
    }

    /// What the JIT has already registered with libgcc or LLVM's libunwind.
    pub fn by_host(mut self, by_host: ByHost) -> Self {
        self.by_host = by_host;
        self
    }
}

/// How many functions unwinders can now walk through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Functions with an FDE, which is registered.
    pub covered: usize,
    /// Functions without an FDE for which rules were made from their frame pointer.
    pub synthesized: usize,
    /// Functions of [`Section::functions`] that no rules are known for: stacks end there.
    pub uncovered: usize,
    /// FDEs left out: outside of the text, overlapping another one, or with instructions that do not decode.
    pub refused: usize,
}
