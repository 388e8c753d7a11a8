//! Description of a loop that has samples.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::facts::Facts;
use crate::profile::Count;

/// Advice for a loop, from one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Stable id of the rule.
    pub rule: &'static str,
    /// Text of the advice: one sentence.
    pub text: String,
}

/// Optimisation remark of LLVM. It may be about another version of the loop than the one that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Line of the loop, or of the statement that prevents the optimisation.
    pub line: u32,
    /// Name of the remark in LLVM, which differs between releases.
    pub name: String,
    /// Text of the remark.
    pub text: String,
}

/// Natural loop of machine code with samples.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Function that contains the loop.
    pub function: String,
    /// Source file of the hottest line.
    pub path: String,
    /// Hottest line.
    pub line: u32,
    /// Source file of the loop itself. The hottest line may belong to a function inlined into the loop.
    pub loop_path: String,
    /// True if the loop belongs to an inlined function. `function` is then the compiled function that contains it.
    pub is_inlined: bool,
    /// First line of the loop in `loop_path`.
    pub first: u32,
    /// Last line of the loop in `loop_path`.
    pub last: u32,
    /// All lines that the loop has code for, including those of inlined functions.
    pub lines: BTreeSet<(String, u32)>,
    /// Samples in the loop's own instructions.
    pub self_count: Count,
    /// Samples including calls made from the loop.
    pub total: Count,
    /// Called functions, the hottest first.
    pub calls: Vec<(String, Count)>,
    /// Samples by called function and innermost function below it. Each sample counts once.
    pub(super) below: Vec<((String, String), Count)>,
    /// Facts from the loop's instructions.
    pub facts: Facts,
    /// True if no loop is nested in this one.
    pub is_innermost: bool,
    /// Other loops that the compiler made of the same lines, for example a vector loop and its remainder.
    pub versions: Vec<Version>,
    /// Instructions of the loop without those of nested loops.
    pub instructions: Vec<Instruction>,
    /// Remarks that LLVM made about the loop.
    pub remarks: Vec<Remark>,
    /// Advice, most relevant first.
    pub advice: Vec<Advice>,
}

/// Another loop that was made of the same lines.
#[derive(Clone, Debug)]
pub struct Version {
    /// Facts from the version's instructions.
    pub facts: Facts,
    /// Samples in the version and its calls.
    pub total: Count,
}

/// An instruction of a loop.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Address in the image.
    pub address: u64,
    /// Line in the user's files; 0 if none.
    pub line: u32,
    /// Samples at the instruction.
    pub self_count: Count,
    /// Samples including the functions that it calls.
    pub total: Count,
    /// Called functions, the hottest first.
    pub calls: Vec<(String, Count)>,
    /// Disassembly.
    pub text: String,
}

/// A version with fewer than one in this many of the loop's samples counts as not run.
const DID_NOT_RUN_RATIO: u64 = 50;
/// Limit on the calls of a loop that are named.
const MAX_NAMED_CALLS: usize = 5;
/// Minimum percentage of a named call. Below, the kernel may only have interrupted the loop.
const MIN_CALL_PERCENT: f64 = 0.5;

impl Loop {
    /// Builds an innermost loop that has only facts.
    #[cfg(test)]
    pub(super) fn from_facts(facts: Facts) -> Loop {
        Loop {
            function: String::new(),
            path: String::new(),
            line: 0,
            loop_path: "prog.py".to_owned(),
            is_inlined: false,
            first: 0,
            last: 0,
            lines: BTreeSet::new(),
            self_count: Count::default(),
            total: Count::default(),
            calls: Vec::new(),
            below: Vec::new(),
            facts,
            is_innermost: true,
            versions: Vec::new(),
            instructions: Vec::new(),
            remarks: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Returns the name with the line range: `loop 15-16`.
    pub fn name(&self) -> String {
        if self.first == self.last {
            format!("loop {}", self.first)
        } else {
            format!("loop {}-{}", self.first, self.last)
        }
    }

    /// Returns the name for display at the hottest line. It includes the file if that line is in another one.
    pub fn name_at_line(&self) -> String {
        if self.loop_path == self.path {
            self.name()
        } else {
            format!("{} of {}", self.name(), self.loop_path.rsplit('/').next().unwrap_or_default())
        }
    }

    /// Describes the vector width of a vectorised loop: `8 values at a time (512 bits)`.
    pub fn describe_vector(&self) -> Option<String> {
        self.facts.describe_vector()
    }

    /// Returns the number of lanes as `8x` or `1x`; `?x` if unknown.
    pub fn chip(&self) -> String {
        if self.facts.unknown != 0 {
            return "?x".to_owned();
        }
        match (self.facts.is_vectorised(), self.facts.lanes()) {
            (true, lanes @ 2..) => format!("{lanes}x"),
            (true, _) => "vector".to_owned(),
            (false, _) => "1x".to_owned(),
        }
    }

    /// Describes the loop in rows of a name and a text.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("runs", self.facts.describe_lanes()), ("machine code", self.facts.summary())];
        if let Some(exits) = self.facts.describe_early_exits() {
            rows.push(("ways out", exits));
        }
        let calls = self.calls.iter().map(|(name, count)| (name, count.percent_of(self.total)));
        let calls = calls.take(MAX_NAMED_CALLS).filter(|(_, percent)| *percent >= MIN_CALL_PERCENT);
        let calls: Vec<String> = calls.map(|(name, percent)| format!("{name} {percent:.0} %")).collect();
        if !calls.is_empty() {
            rows.push(("calls", calls.join(", ")));
        }
        for (index, (lanes, samples, count)) in self.distinct_versions().into_iter().enumerate() {
            let samples = match samples {
                0 => "did not run (no samples)".to_owned(),
                1 => "1 sample".to_owned(),
                samples => format!("{samples} samples"),
            };
            let times = if count == 1 { String::new() } else { format!(", {count} loops") };
            rows.push((if index == 0 { "other versions" } else { "" }, format!("{lanes}{times}: {samples}")));
        }
        for (index, Remark { line, name, text }) in self.remarks.iter().enumerate() {
            rows.push((if index == 0 { "LLVM said" } else { "" }, format!("{text} ({name}, line {line})")));
        }
        rows
    }

    /// Returns how other versions run, their samples, and the number of loops, the hottest first. Equal versions
    /// without samples are merged.
    fn distinct_versions(&self) -> Vec<(String, u64, u32)> {
        let mut distinct: Vec<(String, u64, u32)> = Vec::new();
        for version in &self.versions {
            let (lanes, samples) = (version.facts.describe_lanes(), version.total.samples);
            match distinct
                .iter_mut()
                .find(|(other_lanes, other_samples, _)| samples == 0 && *other_samples == 0 && *other_lanes == lanes)
            {
                Some((_, _, count)) => *count += 1,
                None => distinct.push((lanes, samples, 1)),
            }
        }
        distinct.sort_by_key(|(_, samples, _)| Reverse(*samples));
        distinct
    }

    pub(super) fn is_one_at_a_time(&self) -> bool {
        self.facts.scalar != 0 && self.facts.unknown == 0 && !self.facts.is_vectorised()
    }

    /// Returns true if the function has a vector loop for the same lines that got almost no samples.
    pub fn vector_version_did_not_run(&self) -> bool {
        let mut vector_total = Count::default();
        let vectors = self.versions.iter().filter(|version| version.facts.is_vectorised());
        let count = vectors.map(|version| vector_total += version.total).count();
        self.is_one_at_a_time() && count != 0 && vector_total.samples * DID_NOT_RUN_RATIO <= self.total.samples
    }

    /// Returns the percentage of the loop that is in direct calls of matching functions.
    pub(super) fn share_of_calls(&self, matches: fn(&str) -> bool) -> f64 {
        let mut sum = Count::default();
        self.calls.iter().filter(|(name, _)| matches(name)).for_each(|(_, count)| sum += *count);
        sum.percent_of(self.total)
    }

    /// Returns the percentage in calls of matching functions, or in calls whose innermost function matches.
    pub(super) fn share_below(&self, matches: fn(&str) -> bool) -> f64 {
        let mut sum = Count::default();
        let matching = self.below.iter().filter(|((callee, leaf), _)| matches(callee) || matches(leaf));
        matching.for_each(|(_, count)| sum += *count);
        sum.percent_of(self.total)
    }

    pub(super) fn largest_call(&self, matches: fn(&str) -> bool) -> Option<&str> {
        self.calls.iter().map(|(name, _)| name.as_str()).find(|name| matches(name))
    }
}

/// Links the innermost loops of a function that were made of the same lines. Each loop comes with the origins of its
/// instructions. Two loops are versions of one if a whole chain of inlined calls is the same, not only the innermost
/// line.
pub(super) fn find_versions<Origin: Eq + std::hash::Hash>(function_loops: &mut [(Loop, FxHashSet<Origin>)]) {
    let versions: Vec<Vec<Version>> = function_loops
        .iter()
        .enumerate()
        .map(|(index, (hot_loop, origins))| {
            let siblings = function_loops.iter().enumerate().filter(|(other_index, (other, other_origins))| {
                *other_index != index
                    && hot_loop.is_innermost
                    && other.is_innermost
                    && !origins.is_disjoint(other_origins)
            });
            siblings.map(|(_, (other, _))| Version { facts: other.facts.clone(), total: other.total }).collect()
        })
        .collect();
    for ((hot_loop, _), versions) in function_loops.iter_mut().zip(versions) {
        hot_loop.versions = versions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_next_to_no_time_are_not_named() {
        let count = |samples| Count { weight: samples, samples };
        let calls = vec![("pow".to_owned(), count(500)), ("[kernel]".to_owned(), count(4))];
        let hot_loop = Loop { calls, total: count(1000), ..Loop::from_facts(Facts::default()) };
        assert_eq!(hot_loop.rows().last(), Some(&("calls", "pow 50 %".to_owned())));
    }

    #[test]
    fn versions_that_did_not_run_are_one_row() {
        let version = |width, samples| Version {
            facts: Facts { packed: u32::from(width != 0), width, element: 64, ..Facts::default() },
            total: Count { weight: samples, samples },
        };
        let versions = [version(0, 0), version(256, 0), version(0, 7), version(256, 0), version(0, 9)].to_vec();
        let hot_loop = Loop { versions, ..Loop::from_facts(Facts::default()) };
        let rows: Vec<String> = hot_loop.rows().into_iter().skip(2).map(|(_, text)| text).collect();
        let expected = [
            "one value at a time: 9 samples",
            "one value at a time: 7 samples",
            "one value at a time: did not run (no samples)",
            "4 values at a time (256 bits), 2 loops: did not run (no samples)",
        ];
        assert_eq!(rows, expected);
    }
}
