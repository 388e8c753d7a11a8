//! The expectation that every integration must meet: `gamma` has a name, and its stack is `gamma`, `beta`, `alpha`,
//! then the calling C code.
//!
//! The checks are pure functions of the parsed output of the tools.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::gdb::Backtrace;
use crate::perf_map::PerfMap;
use crate::perf_script::{Frame, Sample};
pub use crate::symbols::{Symbols, names_function};

/// Names of the JIT functions, leaf first.
pub const CHAIN: [&str; 3] = ["gamma", "beta", "alpha"];

/// Summary of perf's samples in the JIT code of a process.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Number of samples whose leaf is JIT code.
    pub jit: usize,
    /// Number of JIT samples whose leaf is unnamed.
    pub unnamed: usize,
    /// Number of JIT samples whose stack shows the whole chain and the caller.
    pub complete: usize,
    /// Number of samples per leaf; `None` counts leaves without a name.
    pub leaves: BTreeMap<Option<String>, usize>,
    /// The first few incomplete stacks, for the message of a failed test.
    pub incomplete: Vec<Sample>,
}

impl Verdict {
    /// Checks the samples against the chain. `caller` is a substring of the file name of the code that called the JIT
    /// code.
    #[must_use]
    pub fn from_samples(samples: &[Sample], caller: &str) -> Self {
        let mut verdict = Self::default();
        for sample in samples {
            let Some(leaf) = sample.frames.first().filter(|leaf| is_jit(leaf)) else { continue };
            verdict.jit += 1;
            verdict.unnamed += usize::from(leaf.symbol.is_none());
            *verdict.leaves.entry(leaf.symbol.clone()).or_default() += 1;
            if is_complete(&sample.frames, caller) {
                verdict.complete += 1;
            } else if verdict.incomplete.len() < 5 {
                verdict.incomplete.push(sample.clone());
            }
        }
        verdict
    }

    /// Requires enough samples for a meaningful check.
    ///
    /// # Panics
    /// If there are fewer.
    #[track_caller]
    pub fn assert_enough_samples(&self) {
        assert!(self.jit >= 150, "only {} samples in JIT code:\n{self}", self.jit);
    }

    /// Requires that the leaves have names. One sample in a hundred may lack one: ctypes and libffi keep trampolines in
    /// anonymous memory.
    ///
    /// # Panics
    /// If too many leaves are unnamed.
    #[track_caller]
    pub fn assert_named(&self) {
        self.assert_enough_samples();
        assert!(self.unnamed * 100 <= self.jit, "{} of {} leaves have no name:\n{self}", self.unnamed, self.jit);
    }

    /// Requires the whole chain up to the caller in at least 95 of 100 samples. Samples in a prologue, before the frame
    /// pointer is set, are unavoidably incomplete.
    ///
    /// # Panics
    /// If too many stacks are incomplete.
    #[track_caller]
    pub fn assert_complete(&self) {
        self.assert_named();
        assert!(self.complete * 100 >= self.jit * 95, "{} of {} stacks are complete:\n{self}", self.complete, self.jit);
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (leaf, count) in &self.leaves {
            writeln!(out, "{count:6} {}", leaf.as_deref().unwrap_or("(no name)"))?;
        }
        for sample in &self.incomplete {
            writeln!(out, "incomplete, thread {}:", sample.tid)?;
            for frame in sample.frames.iter().take(8) {
                writeln!(out, "  {:16x} {} ({})", frame.ip, frame.symbol.as_deref().unwrap_or("?"), frame.object)?;
            }
        }
        Ok(())
    }
}

/// Returns true if no file backs the address: it is in anonymous executable memory or unmapped.
#[must_use]
pub fn is_jit(frame: &Frame) -> bool {
    let is_perf_map = frame.object.starts_with("/tmp/perf-") && frame.object.ends_with(".map");
    is_perf_map || matches!(frame.object.as_str(), "//anon" | "[anon]" | "[unknown]")
}

/// Returns true if a stack begins with `gamma`, `beta`, `alpha` and has further frames.
#[must_use]
pub fn begins_with_chain(frames: &[Frame]) -> bool {
    let is_named =
        |frame: &Frame, function| frame.symbol.as_deref().is_some_and(|symbol| names_function(symbol, function));
    frames.len() > CHAIN.len() && CHAIN.iter().zip(frames).all(|(function, frame)| is_named(frame, function))
}

fn is_complete(frames: &[Frame], caller: &str) -> bool {
    if !begins_with_chain(frames) {
        return false;
    }
    // More JIT code may lie between alpha and C, such as Numba's wrapper or a JIT-compiled `main`. These frames need
    // names, too.
    let outer_frames = &frames[CHAIN.len()..];
    let first_outside = outer_frames.iter().position(|frame| !is_jit(frame));
    first_outside.is_some_and(|index| {
        outer_frames[..index].iter().all(|frame| frame.symbol.is_some()) && outer_frames[index].object.contains(caller)
    })
}

/// Requires that perf shows this name for every sample in the address ranges that the perf map lists under it.
///
/// # Panics
/// If a sample has another name, or no sample is in the function.
#[track_caller]
pub fn assert_samples_named(samples: &[Sample], map: &PerfMap, function: &str) {
    let ranges: Vec<_> = map.named(function).map(|entry| entry.start..entry.start + entry.size).collect();
    assert!(!ranges.is_empty(), "the perf map does not name {function}:\n{}", map.names());
    let mut sample_count = 0;
    for leaf in samples.iter().filter_map(|sample| sample.frames.first()).filter(|leaf| is_jit(leaf)) {
        if ranges.iter().any(|range| range.contains(&leaf.ip)) {
            sample_count += 1;
            let is_correct = leaf.symbol.as_deref().is_some_and(|symbol| names_function(symbol, function));
            assert!(is_correct, "a sample in {function} at {:x} is called {:?}", leaf.ip, leaf.symbol);
        }
    }
    assert!(sample_count > 0, "no sample is in {function}");
}

/// Checks that a backtrace starts in `gamma`, contains the chain and the caller, and ends at the start of the program.
/// `caller` is part of the debugger's line for that frame: a function or a file.
///
/// # Errors
/// A description of the first mismatch, with the backtrace.
pub fn check_backtrace(backtrace: &Backtrace, caller: &str, symbols: Symbols) -> Result<(), String> {
    let frames = &backtrace.frames;
    let mismatch = |problem: &str| {
        let mut message = format!("{problem} in this backtrace:\n");
        for frame in frames {
            let _ = writeln!(message, "  {frame}");
        }
        Err(message)
    };
    for (index, function) in CHAIN.iter().enumerate() {
        if !frames.get(index).is_some_and(|frame| names_function(frame, function)) {
            return mismatch(&format!("frame {index} is not {function}"));
        }
    }
    let Some(caller_index) = frames.iter().position(|frame| frame.contains(caller)) else {
        return mismatch(&format!("{caller} is not"));
    };
    let first_unnamed = frames.iter().position(|frame| frame.starts_with("??"));
    match (first_unnamed, symbols) {
        (Some(index), Symbols::Present) => return mismatch(&format!("frame {index} has no name")),
        (Some(index), Symbols::Stripped) if index < caller_index => {
            return mismatch(&format!("frame {index} has no name"));
        }
        _ => {}
    }
    let reaches_start = frames.last().is_some_and(|frame| frame.starts_with("_start") || frame.contains("clone"));
    if reaches_start || symbols == Symbols::Stripped { Ok(()) } else { mismatch("the start of the program is not") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(symbol: &str, object: &str) -> Frame {
        Frame { ip: 0x1000, symbol: (symbol != "?").then(|| symbol.to_owned()), object: object.to_owned() }
    }

    fn sample(frames: &[(&str, &str)]) -> Sample {
        Sample { pid: 1, tid: 1, frames: frames.iter().map(|(symbol, object)| frame(symbol, object)).collect() }
    }

    const MAP: &str = "/tmp/perf-1.map";

    #[test]
    fn names_are_whole_identifiers() {
        assert!(names_function("__main__.gamma(long long, double)", "gamma"));
        assert!(names_function("__main__::gamma[abi:v3](long long)", "gamma"));
        assert!(names_function("gamma", "gamma"));
        assert!(!names_function("_ZN8__main__5gammaB2v3B38c8tJTIe", "gamma"));
        assert!(!names_function("gamma2", "gamma"));
        assert!(!names_function("lgamma", "gamma"));
        assert!(names_function("lgamma gamma", "gamma"));
    }

    #[test]
    fn a_complete_stack_is_complete() {
        let good_sample = sample(&[
            ("m.gamma(double)", MAP),
            ("m.beta(double)", MAP),
            ("m.alpha(double)", MAP),
            ("m.alpha [cpython]", MAP),
            ("Dispatcher_call", "/x/_dispatcher.so"),
            ("?", "[unknown]"),
        ]);
        let verdict = Verdict::from_samples(&vec![good_sample; 300], "_dispatcher");
        assert_eq!((verdict.jit, verdict.unnamed, verdict.complete), (300, 0, 300));
        verdict.assert_complete();
    }

    #[test]
    fn whatever_is_missing_makes_a_stack_incomplete() {
        let c = ("Dispatcher_call", "/x/_dispatcher.so");
        let (gamma, beta, alpha) = (("gamma", MAP), ("beta", MAP), ("alpha", MAP));
        for frames in [
            vec![gamma, beta, alpha],
            vec![gamma, alpha, c],
            vec![gamma, ("?", MAP), alpha, c],
            vec![("?", MAP), beta, alpha, c],
            vec![gamma, beta, alpha, ("?", MAP), c],
            vec![gamma, beta, alpha, ("other", "/x/libother.so"), c],
            vec![gamma, beta, alpha, ("?", "[unknown]")],
            vec![gamma],
        ] {
            let verdict = Verdict::from_samples(&[sample(&frames)], "_dispatcher");
            assert_eq!((verdict.jit, verdict.complete), (1, 0), "{frames:?}");
        }
    }

    #[test]
    fn code_in_files_is_not_checked() {
        let verdict = Verdict::from_samples(&[sample(&[("memcpy", "/x/libc.so")]), sample(&[])], "python");
        assert_eq!(verdict.jit, 0);
    }

    #[test]
    #[should_panic(expected = "have no name")]
    fn stock_samples_are_unnamed() {
        Verdict::from_samples(&vec![sample(&[("?", MAP), ("?", "[unknown]")]); 400], "python").assert_named();
    }

    #[test]
    #[should_panic(expected = "is called")]
    fn a_wrong_name_in_a_known_range_is_noticed() {
        let map = PerfMap::parse(b"1000 10 m.gamma(double)\n").unwrap();
        assert_samples_named(&[sample(&[("m.outdated(double)", MAP)])], &map, "gamma");
    }

    fn backtrace(frames: &[&str]) -> Backtrace {
        Backtrace { frames: frames.iter().map(|&frame| frame.to_owned()).collect() }
    }

    #[test]
    fn backtraces_are_checked_as_far_as_symbols_permit() {
        let jit_frames = ["m::gamma(double) ()", "m::beta(double) ()", "m::alpha(double) ()"];
        let whole_backtrace =
            backtrace(&[&jit_frames[..], &["Dispatcher_call (...)", "main (...)", "_start ()"]].concat());
        assert_eq!(check_backtrace(&whole_backtrace, "Dispatcher_call", Symbols::Present), Ok(()));

        let stripped_backtrace =
            backtrace(&[&jit_frames[..], &["Dispatcher_call (...)", "?? ()", "_start ()"]].concat());
        assert!(check_backtrace(&stripped_backtrace, "Dispatcher_call", Symbols::Present).is_err());
        assert_eq!(check_backtrace(&stripped_backtrace, "Dispatcher_call", Symbols::Stripped), Ok(()));

        for incomplete in [
            backtrace(&[&jit_frames[..], &["?? ()", "Dispatcher_call (...)", "_start ()"]].concat()),
            backtrace(&[&jit_frames[..1], &["?? ()"]].concat()),
            backtrace(&[]),
        ] {
            assert!(check_backtrace(&incomplete, "Dispatcher_call", Symbols::Stripped).is_err());
        }
        let truncated_backtrace = backtrace(&[&jit_frames[..], &["Dispatcher_call (...)"]].concat());
        assert!(check_backtrace(&truncated_backtrace, "Dispatcher_call", Symbols::Present).is_err());
    }
}
