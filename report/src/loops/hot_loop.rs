//! Loop that has samples, with its facts and advice.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use rustc_hash::FxHashSet;

use super::advice::Advice;
use super::callees::prepares;
use super::facts::Facts;
use crate::profile::Count;

/// LLVM optimisation remark. The remark may concern another version of the loop than the one that ran.
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
    /// True if the hottest instruction is one of Numba's own code, such as the loop of `np.sum`.
    pub(super) is_of_numba: bool,
    /// True if the function is a kernel of `@guvectorize`, whose arrays may have any stride.
    pub(super) is_gufunc: bool,
    /// First line of the loop in `loop_path`.
    pub first: u32,
    /// Last line of the loop in `loop_path`.
    pub last: u32,
    /// All lines that the loop has code for, including those of inlined functions.
    pub lines: BTreeSet<(String, u32)>,
    /// Samples in the loop's own instructions.
    pub self_count: Count,
    /// Samples in the loop, including those in functions called from it.
    pub total: Count,
    /// Called functions, the hottest first.
    pub calls: Vec<(String, Count)>,
    /// Samples by called function and innermost function on the stack. Each sample counts once.
    pub(super) below: Vec<((String, String), Count)>,
    /// Facts from the loop's instructions.
    pub facts: Facts,
    /// True if no loop is nested in this one.
    pub is_innermost: bool,
    /// Code that runs once each time the loop is entered.
    pub(super) surroundings: Surroundings,
    /// Other loops that the compiler generated from the same source lines, for example a vector loop and its remainder.
    pub versions: Vec<Version>,
    /// Instructions of the loop without those of nested loops.
    pub instructions: Vec<Instruction>,
    /// Remarks that LLVM made about the loop.
    pub remarks: Vec<Remark>,
    /// Advice, most relevant first.
    pub advice: Vec<Advice>,
}

/// Code that runs once each time a loop is entered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surroundings {
    /// True if this is the rest of a loop, false for a function.
    pub(super) is_loop: bool,
    /// Samples at its instructions.
    pub(super) self_count: Count,
    pub(super) instructions: u32,
    /// True if they divide, take square roots or call functions: each of these takes as long as several rounds.
    pub(super) is_slow: bool,
    /// How the loop depends on earlier rounds of the loop around it.
    pub(super) entry: Entry,
}

/// Values with which a loop starts each time it is entered from the loop around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Entry {
    /// It may continue with floating-point values that it had at its last end.
    #[default]
    Continues,
    /// Its floating-point values start anew.
    StartsAnew,
    /// In addition, its counters and addresses are those of the last time.
    Repeats,
}

/// Rounds each time a loop is entered, estimated from the share of samples around the loop.
///
/// In sums of 2 to 100 values, the code around the loop has 11 to 38 % of the samples up to 12
/// values, 2 to 12 % up to 32, and at most 1 % from 48 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounds {
    /// Fewer than about 16: an option for the loop gains nothing.
    Few,
    /// About 16 to 48, or too few samples to tell.
    Some,
    /// More than about 32.
    Many,
}

/// Percentages of the samples around a loop from which it has few rounds, and up to which it has many.
const FEW_ROUNDS_PERCENT: f64 = 7.0;
/// The same percentage for slow code around a loop, which has 28 % of the samples for sums of 40 values, and 67 % for
/// sums of 10.
const FEW_ROUNDS_SLOW_PERCENT: f64 = 45.0;
const MANY_ROUNDS_PERCENT: f64 = 2.5;
/// The same percentage up to which a loop of slow rounds has many: 2 to 4 % for three divisions, less than 0.5 % from 16
/// on.
const MAX_PERCENT_AROUND_SLOW_ROUNDS: f64 = 1.5;
/// Minimum number of samples around a loop with few rounds.
const MIN_SURROUNDING_SAMPLES: u64 = 3;
/// Code with more instructions around a loop has samples of its own, whatever the number of rounds.
const MAX_SURROUNDING_INSTRUCTIONS: u32 = 60;

/// Another loop generated from the same source lines.
#[derive(Clone, Debug)]
pub struct Version {
    /// Facts from the instructions of this version.
    pub facts: Facts,
    /// Samples in this version, including those in functions called from it.
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
    /// Samples at the instruction and in the functions that it calls.
    pub total: Count,
    /// Called functions, the hottest first.
    pub calls: Vec<(String, Count)>,
    /// Disassembly.
    pub text: String,
}

/// Assessment of a loop that gets no advice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict<'a> {
    /// Nearly all of its time is in packed instructions.
    Packed,
    /// Most of its time is in one called function, with its percentage of the loop's samples.
    Callee(&'a str, f64),
    /// No rule applies.
    Unexplained,
}

/// A loop is packed if at least this percentage of its time and of its operations is.
const MIN_PACKED_PERCENT: u32 = 90;
/// Instructions that count the rounds of a loop: an addition, a comparison and a branch.
const LOOP_CONTROL_INSTRUCTIONS: u32 = 3;
/// A called function with at least this percentage of the loop's time is its main cost.
const MIN_CALLEE_PERCENT: f64 = 50.0;

/// A version counts as not run if it has less than 1/50 of the loop's samples.
const DID_NOT_RUN_RATIO: u64 = 50;
/// Maximum number of called functions named for a loop.
const MAX_NAMED_CALLS: usize = 5;
/// Minimum share of the loop's samples for a call to be named. A smaller share may be due to kernel interrupts alone.
const MIN_CALL_PERCENT: f64 = 0.5;

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Packed => write!(formatter, "✓ nothing to say against it"),
            Verdict::Callee(name, percent) => write!(formatter, "· {percent:.0} % of it is in {name}"),
            Verdict::Unexplained => write!(formatter, "· no rule applies"),
        }
    }
}

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
            is_of_numba: false,
            is_gufunc: false,
            first: 0,
            last: 0,
            lines: BTreeSet::new(),
            self_count: Count::default(),
            total: Count::default(),
            calls: Vec::new(),
            below: Vec::new(),
            facts,
            is_innermost: true,
            surroundings: Surroundings::default(),
            versions: Vec::new(),
            instructions: Vec::new(),
            remarks: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Returns the loop's name with its line range: `loop 15-16`.
    pub fn name(&self) -> String {
        if self.first == self.last {
            format!("loop {}", self.first)
        } else {
            format!("loop {}-{}", self.first, self.last)
        }
    }

    /// Returns the name to show at the hottest line. The name includes the loop's file if that line is in a different
    /// file.
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

    /// Returns the first advice with a change, and the part of the loop's time that the change saves at least. `None`
    /// if its gain is unknown.
    pub fn saved(&self) -> Option<(&Advice, Count)> {
        let advice = self.advice.iter().find(|advice| advice.change.is_some())?;
        let gain = advice.gain?;
        Some((advice, Count { weight: gain.saved(self.total.weight), samples: gain.saved(self.total.samples) }))
    }

    /// Returns true if a change is known to make the loop faster.
    pub fn has_change(&self) -> bool {
        self.advice.iter().any(|advice| advice.change.is_some())
    }

    /// Assesses a loop that gets no advice.
    pub fn verdict(&self) -> Verdict<'_> {
        let Facts { packed, scalar, gathers, scatters, spills, narrow, memory, stores, instructions, .. } = self.facts;
        let is_packed =
            self.facts.is_vectorised() && packed * (100 - MIN_PACKED_PERCENT) >= scalar * MIN_PACKED_PERCENT;
        // Masks, conversions and copies, which simpler conditions or other types may save.
        let others = instructions.saturating_sub(packed + memory + LOOP_CONTROL_INSTRUCTIONS);
        let is_understood = gathers + scatters + spills + narrow == 0 && others <= packed;
        // The loop around a sum may add the same values again and again, as in moving windows.
        let may_repeat = stores == 0 && self.surroundings.is_loop;
        let has_its_time = self.self_count.percent_of(self.total) >= MIN_PACKED_PERCENT.into();
        if is_packed && is_understood && !may_repeat && has_its_time && self.rounds() != Rounds::Few {
            return Verdict::Packed;
        }
        let callee = self.calls.first().map(|(name, count)| (name, count.percent_of(self.total)));
        match callee.filter(|(_, percent)| *percent >= MIN_CALLEE_PERCENT) {
            Some((name, percent)) => Verdict::Callee(name, percent),
            None => Verdict::Unexplained,
        }
    }

    /// Describes the loop as rows of a label and a description.
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

    /// Lists the other versions, hottest first: vector width, samples, and number of loops. Versions without samples
    /// are merged if they have the same width.
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

    /// Returns true if the function has a vector loop for the same lines that received almost no samples.
    pub fn vector_version_did_not_run(&self) -> bool {
        self.is_one_at_a_time() && self.has_idle_vector_version()
    }

    /// The same for loops over integers, too.
    pub(super) fn has_idle_vector_version(&self) -> bool {
        let vectors = || self.versions.iter().filter(|version| version.facts.is_vectorised());
        let (count, vector_total) = (vectors().count(), vectors().map(|version| version.total).sum::<Count>());
        count != 0 && vector_total.samples * DID_NOT_RUN_RATIO <= self.total.samples
    }

    /// Returns true if all other versions together received almost no samples.
    pub(super) fn no_version_ran(&self) -> bool {
        let total = self.versions.iter().map(|version| version.total).sum::<Count>();
        total.samples * DID_NOT_RUN_RATIO <= self.total.samples
    }

    /// Returns true if LLVM unrolled the loop, but almost only the rest of fewer rounds ran.
    pub(super) fn unrolled_version_did_not_run(&self) -> bool {
        let is_unrolled =
            |version: &&Version| !version.facts.is_vectorised() && version.facts.scalar >= 4 * self.facts.scalar;
        let (count, unrolled) = self
            .versions
            .iter()
            .filter(is_unrolled)
            .fold((0, 0), |(count, samples), version| (count + 1, samples + version.total.samples));
        self.is_one_at_a_time() && count != 0 && unrolled * 10 < self.total.samples
    }

    /// Returns true if LLVM unrolled or vectorised the loop, but almost only the rest of fewer rounds ran.
    pub(super) fn wider_versions_did_not_run(&self) -> bool {
        let Facts { scalar, memory, .. } = self.facts;
        let is_wider =
            |facts: &Facts| facts.is_vectorised() || facts.scalar >= 4 * scalar && facts.memory >= 4 * memory.max(1);
        let mut wider = self.versions.iter().filter(|version| is_wider(&version.facts)).peekable();
        wider.peek().is_some() && wider.all(|version| version.total.samples * 10 < self.total.samples)
    }

    /// Returns true if LLVM made a remark of this name about the loop.
    pub(super) fn has_remark(&self, name: &str) -> bool {
        self.remarks.iter().any(|remark| remark.name == name)
    }

    /// Returns true if LLVM would compute several values at a time, did sums not have to keep their order.
    pub(super) fn only_order_hinders_llvm(&self) -> bool {
        self.has_remark("CantReorderFPOps")
    }

    /// Returns true if LLVM recognised no sum in the loop, whatever the order of its additions: another value, such as a
    /// sign that alternates, changes in each round, or the function allows any order already.
    pub(super) fn has_no_sum_for_llvm(&self) -> bool {
        self.has_remark("NonReductionValueUsedOutsideLoop") && !self.only_order_hinders_llvm()
    }

    /// Returns the percentage of the samples around the loop.
    fn percent_around(&self) -> f64 {
        let mut inside = self.self_count.samples;
        self.versions.iter().for_each(|version| inside += version.total.samples);
        let around = self.surroundings.self_count.samples;
        // Half a sample for those that a longer recording would have.
        (around as f64 + 0.5) * 100.0 / (inside + around).max(1) as f64
    }

    /// Returns true if a loop whose rounds are slow, such as divisions, may have few of them.
    pub(super) fn may_have_few_slow_rounds(&self) -> bool {
        self.surroundings.is_loop && self.percent_around() > MAX_PERCENT_AROUND_SLOW_ROUNDS
    }

    /// Estimates the rounds each time the loop is entered.
    pub(super) fn rounds(&self) -> Rounds {
        if self.unrolled_version_did_not_run() {
            return Rounds::Few;
        }
        let Surroundings { self_count: Count { samples: around, .. }, instructions, is_slow, .. } = self.surroundings;
        let percent = self.percent_around();
        let is_few = percent > if is_slow { FEW_ROUNDS_SLOW_PERCENT } else { FEW_ROUNDS_PERCENT }
            && around >= MIN_SURROUNDING_SAMPLES
            && instructions <= MAX_SURROUNDING_INSTRUCTIONS;
        match percent {
            _ if is_few => Rounds::Few,
            percent if percent <= MANY_ROUNDS_PERCENT => Rounds::Many,
            _ => Rounds::Some,
        }
    }

    /// Returns the percentage of the loop's samples in direct calls to matching functions.
    pub(super) fn share_of_calls(&self, matches: fn(&str) -> bool) -> f64 {
        let calls = self.calls.iter().filter(|(name, _)| matches(name));
        calls.map(|(_, count)| count).sum::<Count>().percent_of(self.total)
    }

    /// Returns the percentage of the loop's samples in calls to matching functions, or in calls whose innermost
    /// function matches.
    pub(super) fn share_below(&self, matches: fn(&str) -> bool) -> f64 {
        self.share_where(|(callee, leaf)| matches(callee) || matches(leaf))
    }

    /// Returns the percentage of the loop's samples whose called function and innermost function match.
    pub(super) fn share_where(&self, matches: impl Fn(&(String, String)) -> bool) -> f64 {
        let below = self.below.iter().filter(|(names, _)| matches(names));
        below.map(|(_, count)| count).sum::<Count>().percent_of(self.total)
    }

    /// Returns the percentage of the loop's samples in preparations by matching functions.
    pub(super) fn share_of_preparations(&self, matches: fn(&str) -> bool) -> f64 {
        self.share_where(|(callee, leaf)| matches(callee) && prepares(leaf))
    }

    pub(super) fn largest_call(&self, matches: fn(&str) -> bool) -> Option<&str> {
        self.calls.iter().map(|(name, _)| name.as_str()).find(|name| matches(name))
    }
}

/// Links the innermost loops of a function that were generated from the same source lines. Each loop comes with the
/// origins of its instructions. Two loops are versions of each other if they share an origin. An origin is a whole
/// chain of inlined calls, so a shared innermost line is not enough.
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
    fn only_the_rest_of_an_unrolled_loop_has_few_rounds() {
        let count = |samples| Count { weight: samples, samples };
        let sum = |scalar| Facts { scalar, accumulators: 1, ..Facts::default() };
        let rounds = |unrolled_samples| {
            let versions = vec![Version { facts: sum(8), total: count(unrolled_samples) }];
            let hot_loop = Loop { versions, self_count: count(90), total: count(90), ..Loop::from_facts(sum(1)) };
            hot_loop.rounds()
        };
        assert_eq!((rounds(0), rounds(200)), (Rounds::Few, Rounds::Many));
    }

    #[test]
    fn negligible_calls_are_not_named() {
        let count = |samples| Count { weight: samples, samples };
        let calls = vec![("pow".to_owned(), count(500)), ("[kernel]".to_owned(), count(4))];
        let hot_loop = Loop { calls, total: count(1000), ..Loop::from_facts(Facts::default()) };
        assert_eq!(hot_loop.rows().last(), Some(&("calls", "pow 50 %".to_owned())));
    }

    #[test]
    fn versions_that_did_not_run_share_a_row() {
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
