//! Samples added up: by line, by function, by thread.
//!
//! *self* is where the program counter was, and of an interpreted line also what the C functions take that it calls:
//! every sample has exactly one place of self, so the selfs of all lines, of the code without a line, of line 0 and of
//! what is outside are all the samples. *total* is self and everything that the line or function called; a line that is
//! on a stack several times, as with recursion, counts once for the sample.
//!
//! Inlined calls are known from the line table: a place inside of `g` that was inlined into line 20 of `f` is self of
//! `g`'s own line and total of line 20, and the tree below line 20 says how much of its total that is.

mod build;
mod libraries;
mod summary;
mod tree;

use std::collections::BTreeMap;
use std::ops::AddAssign;

use rustc_hash::FxHashMap;

use crate::activity::Activities;
use crate::recording::{Recording, Thread};
use crate::symbols::{Kind, Symbols, is_entry};

pub use libraries::LibraryRow;
pub use summary::Summary;
pub use tree::Inlined;

/// A number of samples, and the sum of their periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Events: nanoseconds of a clock, cycles.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
}

impl Count {
    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.samples == 0
    }

    /// In percent of a whole, by weight.
    pub fn percent_of(&self, whole: Count) -> f64 {
        if whole.weight == 0 { 0.0 } else { self.weight as f64 * 100.0 / whole.weight as f64 }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.weight = self.weight.saturating_add(other.weight);
        self.samples += other.samples;
    }
}

/// Self and total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Where the program counter was.
    pub own: Count,
    /// With everything that was called.
    pub total: Count,
}

/// One line of a source file.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Of all threads.
    pub shares: Shares,
    /// What of its self has no line by the compiler, and this one by the instructions around.
    pub approximate: Count,
    /// Its time for a person: self, with the C functions that it called, and of a compiled line with the code of
    /// Numba's own.
    pub hot: Count,
    /// What of that was in C functions.
    pub in_c: Count,
    /// Of a line in the user's files: samples of which it is the innermost such line, so that it called what they are
    /// of.
    pub below: Count,
    /// What of those was compiling.
    pub below_compiling: Count,
    /// By thread, if that was wanted: indexes into [`Profile::threads`].
    pub by_thread: BTreeMap<u32, Shares>,
    /// Of generated code, which has no file: the line of the user's that most of it ran for.
    pub generated_by: Option<Place>,
    /// The functions that have code here: indexes into [`Profile::functions`].
    pub functions: Vec<u32>,
    /// The calls that were inlined here.
    pub inlined: Vec<Inlined>,
    /// Functions that are called from here: indexes into [`Profile::functions`].
    pub calls: Vec<(u32, Count)>,
}

/// The lines of one source file that have samples.
#[derive(Clone, Debug, Default)]
pub struct SourceLines {
    /// As the compiler names it.
    pub path: String,
    /// By number; 0 is the code of which the compiler says that it is of no line.
    pub lines: BTreeMap<u32, Line>,
}

/// A file, as an index into [`Profile::files`], and a line.
pub(crate) type Place = (u32, u32);

/// Lines of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// An index into [`Profile::files`].
    pub file: u32,
    /// The first line with samples.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// A function, with all its compilations.
#[derive(Clone, Debug)]
pub struct FunctionRow {
    /// Without argument types.
    pub name: String,
    /// Whose it is.
    pub kind: Kind,
    /// Added up.
    pub shares: Shares,
    /// By thread, if that was wanted: indexes into [`Profile::threads`].
    pub by_thread: BTreeMap<u32, Shares>,
    /// Each by its full name.
    pub compilations: Vec<(String, Shares)>,
    /// Where its own lines are.
    pub lines: Option<Extent>,
    /// Whether a library runs it.
    pub is_of_library: bool,
    /// What calls it: a function, from where, and how much.
    pub callers: Vec<(u32, Option<Place>, Count)>,
}

impl FunctionRow {
    /// The compilations that a person wants to see: all, if there are several. The entry that Python calls is none of
    /// its own.
    pub fn several_compilations(&self) -> &[(String, Shares)] {
        let count = self.compilations.iter().filter(|(name, _)| !is_entry(name)).count();
        if count > 1 { &self.compilations } else { &[] }
    }
}

/// A thread with samples.
#[derive(Clone, Debug)]
pub struct ThreadRow {
    /// Which.
    pub thread: Thread,
    /// All its samples.
    pub all: Count,
    /// Those in compiled code.
    pub compiled: Count,
    /// Whether it ran any function of Python or of compiled code, and was not only a library's.
    pub works: bool,
}

/// A recording, added up.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// All samples.
    pub all: Count,
    /// Those in compiled code.
    pub compiled: Count,
    /// Those in functions that the interpreter ran, whose lines are known, and in C functions that these called.
    pub interpreted: Count,
    /// Of [`compiled`](Profile::compiled), the ones in code without line table.
    pub without_line: Count,
    /// Of those, the ones in code of which the compiler says that it is of no line.
    pub line_zero: Count,
    /// Of the others, the ones whose line is that of the instructions around.
    pub approximate: Count,
    /// The others, by the library or `[kernel]`, the heaviest first.
    pub outside: Vec<(String, Count)>,
    /// Samples that the recorder lost.
    pub lost: u64,
    /// The source files of compiled code, the heaviest first.
    pub files: Vec<SourceLines>,
    /// Functions, the heaviest self first.
    pub functions: Vec<FunctionRow>,
    /// What is not the user's, a row for each library, the heaviest self first.
    pub libraries: Vec<LibraryRow>,
    /// Threads, the heaviest first.
    pub threads: Vec<ThreadRow>,
    /// What the program did, all together.
    pub summary: Summary,
    /// What it did at each stack.
    pub activities: Activities,
    /// Of each of [`Symbols::functions`] its row in [`functions`](Profile::functions); `u32::MAX` of one without
    /// samples.
    pub(crate) rows: Vec<u32>,
}

/// What to add up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// The lines of each thread.
    pub by_thread: bool,
    /// Lines of libraries with debug information, too; the symbols must have been resolved with
    /// [`native_lines`](crate::Lookup::native_lines).
    pub native_lines: bool,
}

impl Profile {
    /// Adds up.
    pub fn new(recording: &Recording, symbols: &Symbols, detail: Detail) -> Profile {
        Profile::with(recording, symbols, Activities::new(recording, symbols), detail)
    }

    /// With what was done at each stack.
    pub(crate) fn with(recording: &Recording, symbols: &Symbols, activities: Activities, detail: Detail) -> Profile {
        build::build(recording, symbols, activities, detail)
    }

    /// What is outside compiled code, all together.
    pub fn outside_all(&self) -> Count {
        let mut all = Count::default();
        for (_, count) in &self.outside {
            all += *count;
        }
        all
    }
}

/// The counts of each stack, and of each stack in each thread.
pub(crate) fn stack_counts(recording: &Recording) -> FxHashMap<(u32, u32), Count> {
    let mut counts: FxHashMap<(u32, u32), Count> = FxHashMap::default();
    for sample in &recording.samples {
        *counts.entry((sample.stack, sample.thread)).or_default() += Count { weight: sample.weight, samples: 1 };
    }
    counts
}
