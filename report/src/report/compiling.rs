//! Totals of compilations by function, and a one-sentence summary.

use rustc_hash::FxHashMap;

use super::Report;
use crate::recording::compilations::{Compilation, MIN_FIRST_USE_NS, Why};
use crate::words::{plural, precise_duration};

/// Totals of the compilations of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledFunction {
    /// Function name for reports.
    pub function: String,
    /// Argument types of the compilation that took longest.
    pub signature: String,
    /// Number of compilations.
    pub count: usize,
    /// CPU time of the longest compilation in ns, without Numba's first use.
    pub longest: u64,
    /// CPU time of all compilations in ns, including nested ones, and saving their code in Numba's cache.
    pub cpu_ns: u64,
    /// CPU time in LLVM in ns; part of `cpu_ns`.
    pub llvm: u64,
}

impl Report {
    /// Returns the compiled functions, ordered by time. Nested compilations count towards the outermost function.
    pub fn compiling_by_function(&self) -> Vec<CompiledFunction> {
        let mut functions: FxHashMap<String, CompiledFunction> = FxHashMap::default();
        for row in self.compilations.iter().filter(|row| row.is_outermost()) {
            let (name, took) = (row.name(), row.compiling_ns());
            let total = functions.entry(name.clone()).or_default();
            if total.signature.is_empty() || took > total.longest {
                (total.longest, total.signature) = (took, row.signature.clone());
            }
            total.function = name;
            total.count += usize::from(!row.is_loop);
            (total.cpu_ns, total.llvm) = (total.cpu_ns + took, total.llvm + row.llvm.min(took));
        }
        let mut functions: Vec<CompiledFunction> = functions.into_values().collect();
        functions.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.function.cmp(&b.function)));
        functions
    }

    /// Returns the start of the recording. Outputs show the times of compilations relative to it.
    pub(crate) fn start_time(&self) -> u64 {
        let samples = self.recording.samples.iter().map(|sample| sample.time);
        samples.chain(self.compilations.iter().map(|row| row.begin)).min().unwrap_or_default()
    }

    /// Summarises all compilations in one sentence.
    pub(crate) fn compiling_summary(&self) -> String {
        let rows = &self.compilations;
        let total = rows.iter().filter(|row| row.is_outermost()).map(|row| row.cpu_ns).sum();
        let count =
            |matches: &dyn Fn(&Compilation) -> bool| rows.iter().filter(|row| !row.is_loop && matches(row)).count();
        let first_use: u64 = rows.iter().filter(|row| row.is_outermost()).map(|row| row.first_use).sum();
        let first_use = if first_use < MIN_FIRST_USE_NS {
            String::new()
        } else {
            format!(", Numba's first use {}", precise_duration(first_use))
        };
        let llvm: u64 = rows.iter().filter(|row| row.is_outermost()).map(|row| row.llvm).sum();
        // The share of the total is shown only for CPU time. Cycle counts are not times, and wall-clock time covers all
        // threads.
        let all = Some(self.profile.all.weight).filter(|_| self.is_time() && !self.recording.is_wall());
        let total_suffix = all.map(|all| format!(" of {}", precise_duration(all))).unwrap_or_default();
        let mut parts = vec![format!(
            "{}, {}{} (LLVM {}{first_use})",
            plural(count(&Compilation::is_outermost), "compilation"),
            precise_duration(total),
            total_suffix,
            precise_duration(llvm),
        )];
        let nested = count(&|row| row.depth > 0 && row.why != Why::Cached);
        if nested > 0 {
            parts.push(format!("{nested} more inside of them"));
        }
        let unfinished = count(&|row| row.depth == 0 && !row.is_finished);
        if unfinished > 0 {
            parts.push(format!("{unfinished} of them not finished"));
        }
        let cached = count(&|row| row.why == Why::Cached);
        if cached > 0 {
            let took: u64 = rows.iter().filter(|row| row.why == Why::Cached).map(|row| row.exclusive).sum();
            parts.push(format!("{cached} from the cache ({})", precise_duration(took)));
        }
        let recompiled = count(&|row| row.why == Why::NoLines);
        if recompiled > 0 {
            let subject = if recompiled == 1 { "its cache entry has" } else { "their cache entries have" };
            parts.push(format!("{recompiled} compiled again: {subject} no lines"));
        }
        parts.join("; ")
    }
}
