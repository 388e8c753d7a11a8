//! Description of generated code, as given by the caller.

#![forbid(unsafe_code)]

use std::ops::Range;

/// Frame-pointer convention of functions without an FDE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramePointers {
    /// Unknown: functions without an FDE get no rules.
    #[default]
    Unknown,
    /// The code was compiled with frame pointers. Rules are synthesized for each function with a standard prologue.
    Kept,
}

/// Registrations with libgcc or LLVM libunwind (`__register_frame`) that the JIT itself has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ByHost {
    /// Unknown: each unwinder is queried with `_Unwind_Find_FDE`. The query takes the loader's lock in LLVM libunwind,
    /// and in a libgcc built for glibc before 2.35.
    #[default]
    Unknown,
    /// The JIT registers every FDE of the section, as MCJIT and RuntimeDyld do. Only synthesized rules are then
    /// registered with those unwinders.
    Everything,
    /// The JIT registers nothing, so everything is registered without a query. If the JIT did register the section,
    /// libgcc 13 and later abort.
    Nothing,
}

/// Generated code and its unwind table: in memory, complete and relocated.
///
/// The section is borrowed during the call only; the registry copies everything that unwinders need.
///
/// ```no_run
/// use unwind_register::{ByHost, FramePointers, Section};
///
/// # let (eh_frame, address) = (&[][..], 0);
/// let functions = [0x7f00_1000..0x7f00_1040, 0x7f00_1040..0x7f00_10a0];
/// let section = Section::new(eh_frame, address)
///     .functions(&functions)
///     .frame_pointers(FramePointers::Kept) // compiled with -fno-omit-frame-pointer
///     .by_host(ByHost::Nothing); // the JIT does not call __register_frame
/// ```
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
    /// Describes code with an `.eh_frame` section. `address` is the address that the bytes are (or were) relocated for.
    /// A terminator is not needed.
    pub fn new(eh_frame: &'a [u8], address: usize) -> Self {
        let (frame_pointers, by_host) = Default::default();
        Section { eh_frame, address, text: &[], functions: &[], frame_pointers, by_host }
    }

    /// Describes code without an `.eh_frame`; see [`Section::functions`] and [`Section::frame_pointers`].
    pub fn without_eh_frame() -> Self {
        Section::new(&[], 0)
    }

    /// Sets the address ranges of the code. FDEs outside these ranges are ignored: they are linker leftovers
    /// (dead-stripped or unrelocated functions).
    pub fn text(mut self, text: &'a [Range<usize>]) -> Self {
        self.text = text;
        self
    }

    /// Sets the address ranges of the functions, so that functions without an FDE are detected.
    pub fn functions(mut self, functions: &'a [Range<usize>]) -> Self {
        self.functions = functions;
        self
    }

    /// Sets the frame-pointer convention of functions without an FDE.
    pub fn frame_pointers(mut self, frame_pointers: FramePointers) -> Self {
        self.frame_pointers = frame_pointers;
        self
    }

    /// Declares the registrations that the JIT itself has made with libgcc or LLVM libunwind.
    pub fn by_host(mut self, by_host: ByHost) -> Self {
        self.by_host = by_host;
        self
    }
}

/// Number of functions that unwinders can walk through, by the origin of their rules.
///
/// Returned by [`Registration::coverage`](crate::Registration::coverage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Functions whose own FDE is registered.
    pub covered: usize,
    /// Functions without an FDE whose rules were synthesized from their frame-pointer prologue.
    pub synthesized: usize,
    /// Functions of [`Section::functions`] without any rules: stacks end there.
    pub uncovered: usize,
    /// Ignored FDEs: outside the text ranges, overlapping another FDE, or with instructions that do not decode.
    pub ignored: usize,
}
