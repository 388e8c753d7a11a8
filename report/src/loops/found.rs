//! A loop that ran, and its description.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::facts::Facts;
use crate::profile::Count;

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The rule's id.
    pub rule: &'static str,
    /// One sentence.
    pub text: String,
}

/// What LLVM said of a loop. It may be of another version of the loop than the one that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The line that it names: of the loop, or of the statement that is in the way.
    pub line: u32,
    /// LLVM's name for it, which differs between releases.
    pub name: String,
    /// Its sentence.
    pub text: String,
}

/// A loop with samples.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The function that it is in.
    pub function: String,
    /// The source file of its hottest line.
    pub path: String,
    /// Its hottest line.
    pub line: u32,
    /// The source file of the loop itself: the hottest line may be of a function that was inlined into it.
    pub around: String,
    /// Whether it is of a function that was inlined: then its function here is the compiled one around it.
    pub is_inlined: bool,
    /// The first of its lines in that file.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// Every line that it has code of, also of functions that were inlined into it.
    pub lines: BTreeSet<(String, u32)>,
    /// Samples in its own instructions.
    pub own: Count,
    /// With the calls from there.
    pub total: Count,
    /// The functions that it calls, the heaviest first.
    pub calls: Vec<(String, Count)>,
    /// By function that it calls, and the innermost one below that: every sample once.
    pub(super) below: Vec<((String, String), Count)>,
    /// What its instructions do.
    pub facts: Facts,
    /// Whether no loop is inside it.
    pub is_innermost: bool,
    /// The other loops that the compiler made of the same lines: with vector instructions, for the remainder, ...
    pub versions: Vec<Version>,
    /// Its own instructions, without those of loops inside it.
    pub instructions: Vec<Instruction>,
    /// What LLVM said of it.
    pub remarks: Vec<Remark>,
    /// What helps.
    pub advice: Vec<Advice>,
}

/// Another loop for the same lines.
#[derive(Clone, Debug)]
pub struct Version {
    /// What its instructions do.
    pub facts: Facts,
    /// Samples in it and its calls.
    pub total: Count,
}

/// An instruction of a loop.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// In the image.
    pub address: u64,
    /// Its line in the user's files; 0 without one.
    pub line: u32,
    /// Samples at it.
    pub own: Count,
    /// With the functions that it calls.
    pub total: Count,
    /// Those, the heaviest first.
    pub calls: Vec<(String, Count)>,
    /// As an assembler writes it.
    pub text: String,
}

/// Two loops of which one has less of the samples of both than this: that one did not run.
const NEXT_TO_NONE: u64 = 50;
/// Calls that are named, and the least percent of each: of less, the kernel may have interrupted the loop.
const MOST_CALLS: usize = 5;
const LEAST_OF_A_CALL: f64 = 0.5;

impl Loop {
    /// An innermost loop with nothing but facts.
    #[cfg(test)]
    pub(super) fn of_facts(facts: Facts) -> Loop {
        Loop {
            function: String::new(),
            path: String::new(),
            line: 0,
            around: "prog.py".to_owned(),
            is_inlined: false,
            first: 0,
            last: 0,
            lines: BTreeSet::new(),
            own: Count::default(),
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

    /// `loop 15-16`.
    pub fn name(&self) -> String {
        if self.first == self.last {
            format!("loop {}", self.first)
        } else {
            format!("loop {}-{}", self.first, self.last)
        }
    }

    /// Its name at its hottest line: with the file where that line is of a function of another file.
    pub fn name_at_line(&self) -> String {
        if self.around == self.path {
            self.name()
        } else {
            format!("{} of {}", self.name(), self.around.rsplit('/').next().unwrap_or_default())
        }
    }

    /// `8 values at a time (512 bits)`, if it is so.
    pub fn vector(&self) -> Option<String> {
        self.facts.vector()
    }

    /// `8x` or `1x`: how many values at a time; `?x` where that is not known.
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

    /// What there is to know, as rows of a name and a text.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("runs", self.facts.runs()), ("machine code", self.facts.summary())];
        if let Some(ways) = self.facts.ways_out() {
            rows.push(("ways out", ways));
        }
        let calls = self.calls.iter().map(|(name, count)| (name, count.percent_of(self.total)));
        let calls = calls.take(MOST_CALLS).filter(|(_, percent)| *percent >= LEAST_OF_A_CALL);
        let calls: Vec<String> = calls.map(|(name, percent)| format!("{name} {percent:.0} %")).collect();
        if !calls.is_empty() {
            rows.push(("calls", calls.join(", ")));
        }
        for (at, (what, samples, count)) in self.distinct_versions().into_iter().enumerate() {
            let samples = match samples {
                0 => "did not run (no samples)".to_owned(),
                1 => "1 sample".to_owned(),
                samples => format!("{samples} samples"),
            };
            let times = if count == 1 { String::new() } else { format!(", {count} loops") };
            rows.push((if at == 0 { "other versions" } else { "" }, format!("{what}{times}: {samples}")));
        }
        for (at, Remark { line, name, text }) in self.remarks.iter().enumerate() {
            rows.push((if at == 0 { "LLVM said" } else { "" }, format!("{text} ({name}, line {line})")));
        }
        rows
    }

    /// How other versions run, with their samples and the number of loops: the hottest first, equal ones that did not
    /// run as one.
    fn distinct_versions(&self) -> Vec<(String, u64, u32)> {
        let mut found: Vec<(String, u64, u32)> = Vec::new();
        for version in &self.versions {
            let (what, samples) = (version.facts.runs(), version.total.samples);
            match found.iter_mut().find(|(other, none, _)| samples == 0 && *none == 0 && *other == what) {
                Some((_, _, count)) => *count += 1,
                None => found.push((what, samples, 1)),
            }
        }
        found.sort_by_key(|(_, samples, _)| Reverse(*samples));
        found
    }

    pub(super) fn is_one_at_a_time(&self) -> bool {
        self.facts.scalar != 0 && self.facts.unknown == 0 && !self.facts.is_vectorised()
    }

    /// Whether the function has a loop of vector instructions for the same lines, with next to no samples.
    pub fn vector_version_did_not_run(&self) -> bool {
        let mut ran = Count::default();
        let vectors = self.versions.iter().filter(|version| version.facts.is_vectorised());
        let count = vectors.map(|version| ran += version.total).count();
        self.is_one_at_a_time() && count != 0 && ran.samples * NEXT_TO_NONE <= self.total.samples
    }

    /// How much of the loop is in calls of such functions, in percent. What those that it calls call in turn is not a
    /// matter of this loop.
    pub(super) fn share_of_calls(&self, is_meant: fn(&str) -> bool) -> f64 {
        let mut sum = Count::default();
        self.calls.iter().filter(|(name, _)| is_meant(name)).for_each(|(_, count)| sum += *count);
        sum.percent_of(self.total)
    }

    /// As [`share_of_calls`](Loop::share_of_calls), with those that end in such functions.
    pub(super) fn share_below(&self, is_meant: fn(&str) -> bool) -> f64 {
        let mut sum = Count::default();
        let meant = self.below.iter().filter(|((callee, leaf), _)| is_meant(callee) || is_meant(leaf));
        meant.for_each(|(_, count)| sum += *count);
        sum.percent_of(self.total)
    }

    pub(super) fn largest_call(&self, is_meant: fn(&str) -> bool) -> Option<&str> {
        self.calls.iter().map(|(name, _)| name.as_str()).find(|name| is_meant(name))
    }
}

/// Tells the innermost loops of a function that were made of the same lines of each other. With each, where its
/// instructions are from: two loops are versions of one where a whole chain of inlined calls is the same, not only the
/// innermost line.
pub(super) fn find_versions<Places: Eq + std::hash::Hash>(of_function: &mut [(Loop, FxHashSet<Places>)]) {
    let versions: Vec<Vec<Version>> = of_function
        .iter()
        .enumerate()
        .map(|(at, (of, places))| {
            let others = of_function.iter().enumerate().filter(|(other_at, (other, other_places))| {
                *other_at != at && of.is_innermost && other.is_innermost && !places.is_disjoint(other_places)
            });
            others.map(|(_, (other, _))| Version { facts: other.facts.clone(), total: other.total }).collect()
        })
        .collect();
    for ((of, _), versions) in of_function.iter_mut().zip(versions) {
        of.versions = versions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_next_to_no_time_are_not_named() {
        let count = |samples| Count { weight: samples, samples };
        let calls = vec![("pow".to_owned(), count(500)), ("[kernel]".to_owned(), count(4))];
        let of = Loop { calls, total: count(1000), ..Loop::of_facts(Facts::default()) };
        assert_eq!(of.rows().last(), Some(&("calls", "pow 50 %".to_owned())));
    }

    #[test]
    fn versions_that_did_not_run_are_one_row() {
        let version = |width, samples| Version {
            facts: Facts { packed: u32::from(width != 0), width, element: 64, ..Facts::default() },
            total: Count { weight: samples, samples },
        };
        let versions = [version(0, 0), version(256, 0), version(0, 7), version(256, 0), version(0, 9)].to_vec();
        let of = Loop { versions, ..Loop::of_facts(Facts::default()) };
        let rows: Vec<String> = of.rows().into_iter().skip(2).map(|(_, text)| text).collect();
        let expected = [
            "one value at a time: 9 samples",
            "one value at a time: 7 samples",
            "one value at a time: did not run (no samples)",
            "4 values at a time (256 bits), 2 loops: did not run (no samples)",
        ];
        assert_eq!(rows, expected);
    }
}
