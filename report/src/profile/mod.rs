//! Samples added up by line, by function and by thread.
//!
//! *Self* is the time at the program counter. For an interpreted line it includes the C functions that the line calls.
//! Every sample is self time of exactly one line or function, except those of idle threads of pools, which wait for
//! work in recordings of wall-clock time: they are only counted. The self times of all lines, of line 0, of compiled
//! code without a line, and of code that is neither compiled nor interpreted therefore add up to all samples. *Total*
//! is self plus everything that the line or function called. A line that is on a stack several times, as with
//! recursion, counts once per sample.
//!
//! Inlined calls come from the line table. If `g` was inlined into line 20 of `f`, a sample there is self time of `g`'s
//! own line and total time of line 20. The tree below line 20 shows how much of its total that is.

pub(crate) mod activity;
mod build;
mod frozen;
pub(crate) mod hottest;
mod imports;
mod libraries;
mod marks;
pub(crate) mod owners;
mod role;
mod summary;
mod tree;

use std::collections::BTreeMap;
use std::hash::Hash;
use std::iter::Sum;
use std::ops::AddAssign;

use rustc_hash::FxHashMap;

use crate::recording::{Recording, Sample, Thread};
use crate::symbols::{Kind, Symbols, is_entry};
use activity::Activities;

pub use libraries::LibraryRow;
pub(crate) use libraries::library_of_stack;
pub(crate) use role::is_pool_library;
pub use summary::Summary;
pub use tree::Inlined;

/// Number of samples, and the sum of their periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Sum of the periods: ns of a clock, or events such as cycles.
    pub weight: u64,
    /// Number of samples.
    pub samples: u64,
}

impl Count {
    pub(crate) fn from_sample(sample: &Sample) -> Count {
        Count { weight: sample.weight, samples: 1 }
    }

    /// Returns true if there are no samples.
    pub fn is_zero(&self) -> bool {
        self.samples == 0
    }

    /// Returns the percentage of `whole`, by weight.
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

impl Sum for Count {
    fn sum<I: Iterator<Item = Count>>(counts: I) -> Count {
        let mut total = Count::default();
        counts.for_each(|count| total += count);
        total
    }
}

impl<'a> Sum<&'a Count> for Count {
    fn sum<I: Iterator<Item = &'a Count>>(counts: I) -> Count {
        counts.copied().sum()
    }
}

/// Sorts counted items, the heaviest first.
pub(crate) fn heaviest_first<T: Ord>(counts: impl IntoIterator<Item = (T, Count)>) -> Vec<(T, Count)> {
    let mut counts: Vec<(T, Count)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

/// Self and total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Time at the program counter.
    pub self_count: Count,
    /// Time including callees.
    pub total: Count,
}

impl Shares {
    pub(crate) fn add(&mut self, other: Shares) {
        self.self_count += other.self_count;
        self.total += other.total;
    }
}

/// Samples of one line of a source file.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Self and total over all threads.
    pub shares: Shares,
    /// Part of the self time whose line was inferred from surrounding instructions, because the compiler assigned none.
    pub approximate: Count,
    /// Self time for the list of hottest lines, including called C functions. For a compiled line, it also includes
    /// Numba's own code for calls such as `a.sum()`.
    pub hot: Count,
    /// Part of `hot` that was in C functions.
    pub in_c: Count,
    /// Shares by thread, if requested, as indices into [`Profile::threads`].
    pub by_thread: BTreeMap<u32, Shares>,
    /// For generated code without a file: the user line that accounts for most of its samples.
    pub generated_by: Option<SourcePosition>,
    /// Functions that have code at the line, as indices into [`Profile::functions`].
    pub functions: Vec<u32>,
    /// Calls that were inlined at the line.
    pub inlined: Vec<Inlined>,
    /// Functions that the line calls, as indices into [`Profile::functions`].
    pub calls: Vec<(u32, Count)>,
}

/// Lines of one source file that have samples.
#[derive(Clone, Debug, Default)]
pub struct SourceLines {
    /// Source path as written by the compiler.
    pub path: String,
    /// Lines by number. Line 0 is code that the compiler assigned no line.
    pub lines: BTreeMap<u32, Line>,
}

/// Source line: index into [`Profile::files`], and line number.
pub(crate) type SourcePosition = (u32, u32);

/// Range of lines in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Index into [`Profile::files`].
    pub file: u32,
    /// First line with samples.
    pub first: u32,
    /// Last line with samples.
    pub last: u32,
}

/// Row of a function, with all its compilations.
#[derive(Clone, Debug)]
pub struct FunctionRow {
    /// Function name without argument types.
    pub name: String,
    /// Kind of code.
    pub kind: Kind,
    /// Self and total of all compilations.
    pub shares: Shares,
    /// Shares by thread, if requested, as indices into [`Profile::threads`].
    pub by_thread: BTreeMap<u32, Shares>,
    /// Shares of each compilation by its full name.
    pub compilations: Vec<(String, Shares)>,
    /// Range of the function's own lines.
    pub lines: Option<Extent>,
    /// True if the function is listed under a library.
    pub is_library_function: bool,
    /// Callers: function, line of the call, and count.
    pub callers: Vec<(u32, Option<SourcePosition>, Count)>,
}

impl FunctionRow {
    /// Returns true if the row appears in lists of functions. Native functions without lines appear under their
    /// libraries.
    pub(crate) fn is_listed(&self) -> bool {
        matches!(self.kind, Kind::Compiled | Kind::Python) || self.lines.is_some()
    }

    /// Returns the compilations if the function has several. The entry point for Python does not count as a
    /// compilation.
    pub fn several_compilations(&self) -> &[(String, Shares)] {
        let count = self.compilations.iter().filter(|(name, _)| !is_entry(name)).count();
        if count > 1 { &self.compilations } else { &[] }
    }
}

/// Row of a thread with samples.
#[derive(Clone, Debug)]
pub struct ThreadRow {
    /// Thread described by this row.
    pub thread: Thread,
    /// Samples of the thread, except while it waited for work.
    pub all: Count,
    /// Samples in compiled code.
    pub compiled: Count,
    /// True unless the thread only waited for work, as threads of a pool do.
    pub ran: bool,
    /// Samples of the thread while it waited for work.
    pub idle: Count,
}

/// Profile of a recording.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// All samples except those of idle threads; 100 % of all figures.
    pub all: Count,
    /// Samples of idle threads of pools, in recordings of wall-clock time. They are in no other figure.
    pub idle: Count,
    /// Samples in compiled code.
    pub compiled: Count,
    /// Samples in interpreted functions with known lines, and in the C functions that these called.
    pub interpreted: Count,
    /// Part of [`compiled`](Profile::compiled) in code without a line table.
    pub without_line: Count,
    /// Samples in compiled code at line 0: the compiler assigned no line.
    pub line_zero: Count,
    /// Samples whose line was inferred from surrounding instructions.
    pub approximate: Count,
    /// Samples outside of compiled and interpreted code, by library or `[kernel]`, hottest first.
    pub outside: Vec<(String, Count)>,
    /// Samples that the recorder lost.
    pub lost: u64,
    /// Source files of compiled code, hottest first.
    pub files: Vec<SourceLines>,
    /// Functions, ordered by self time.
    pub functions: Vec<FunctionRow>,
    /// Time outside of the user's code, a row for each library, ordered by self time.
    pub libraries: Vec<LibraryRow>,
    /// Threads, hottest first.
    pub threads: Vec<ThreadRow>,
    /// Samples by activity.
    pub summary: Summary,
    /// Activity at each stack.
    pub activities: Activities,
    /// Index into [`functions`](Profile::functions) for each of [`Symbols::functions`]; `u32::MAX` without samples.
    pub(crate) rows: Vec<u32>,
}

/// Level of detail of a profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// Keep the lines of each thread apart.
    pub by_thread: bool,
    /// Include lines of libraries with debug information. The symbols must have been resolved with
    /// [`native_lines`](crate::Lookup::native_lines).
    pub native_lines: bool,
}

impl Profile {
    /// Builds the profile of a recording.
    pub fn new(recording: &Recording, symbols: &Symbols, detail: Detail) -> Profile {
        Profile::with_activities(recording, symbols, Activities::new(recording, symbols, &[]), detail)
    }

    /// Builds the profile from known activities.
    pub(crate) fn with_activities(
        recording: &Recording,
        symbols: &Symbols,
        activities: Activities,
        detail: Detail,
    ) -> Profile {
        build::build(recording, symbols, activities, detail)
    }

    /// Returns the samples outside of compiled and interpreted code.
    pub fn outside_all(&self) -> Count {
        self.outside.iter().map(|(_, count)| count).sum()
    }
}

/// Counts the samples of each stack. The result is sorted.
pub(crate) fn stack_counts<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<(u32, Count)> {
    sorted_counts(samples.into_iter().map(|sample| (sample.stack, Count::from_sample(sample))))
}

/// Counts the samples of each stack in each thread. The result is sorted.
pub(crate) fn thread_stack_counts<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<((u32, u32), Count)> {
    sorted_counts(samples.into_iter().map(|sample| ((sample.stack, sample.thread), Count::from_sample(sample))))
}

fn sorted_counts<K: Copy + Ord + Hash>(items: impl Iterator<Item = (K, Count)>) -> Vec<(K, Count)> {
    let mut counts: FxHashMap<K, Count> = FxHashMap::default();
    for (key, count) in items {
        *counts.entry(key).or_default() += count;
    }
    let mut counts: Vec<(K, Count)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(key, _)| *key);
    counts
}
