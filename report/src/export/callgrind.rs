//! The format of callgrind, which KCachegrind and `callgrind_annotate` read:
//! <https://valgrind.org/docs/manual/cl-format.html>
//!
//! Costs are the periods of samples, in nanoseconds or events, and then the number of samples. `calls=` has samples,
//! too: a sampler does not see single calls.

use std::collections::BTreeMap;
use std::fmt::Write;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::printable::printable;
use crate::profile::{Count, stack_counts};
use crate::report::Report;
use crate::symbols::Frame;

use super::{frames_of, label, path};

/// A function in a file: source, function.
type Place = (Option<u32>, u32);

/// What one function has: its own lines, and its calls by line and callee.
#[derive(Default)]
struct Costs {
    own: BTreeMap<u32, Count>,
    calls: BTreeMap<(u32, Place), (Count, u32)>,
}

/// The file.
pub(crate) fn to_callgrind(report: &Report) -> String {
    let mut all: BTreeMap<Place, (Frame, Costs)> = BTreeMap::new();
    let mut counts: FxHashMap<u32, Count> = FxHashMap::default();
    for ((stack, _), count) in stack_counts(&report.recording) {
        *counts.entry(stack).or_default() += count;
    }
    for (stack, count) in counts {
        add(&mut all, &frames_of(report, stack), count);
    }
    let event: String =
        report.event().chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' }).collect();
    let event = if event.starts_with(char::is_alphabetic) { event } else { format!("event_{event}") };
    let command = printable(&report.recording.facts.command.join(" "));
    let mut out = format!(
        "# callgrind format\nversion: 1\ncreator: jitlisten {}\ncmd: {command}\npositions: line\nevents: {event} \
         Samples\nsummary: {} {}\n",
        env!("CARGO_PKG_VERSION"),
        report.profile.all.weight,
        report.profile.all.samples,
    );
    let frames: BTreeMap<Place, Frame> = all.iter().map(|(place, (frame, _))| (*place, *frame)).collect();
    let mut names = Names::default();
    for (place, (frame, costs)) in &all {
        let _ = writeln!(out, "\nfl={}\nfn={}", names.file(report, frame), names.function(report, frame, place));
        for (line, count) in &costs.own {
            let _ = writeln!(out, "{line} {} {}", count.weight, count.samples);
        }
        for ((line, callee), (count, at)) in &costs.calls {
            let Some(inner) = frames.get(callee) else { continue };
            let _ = writeln!(out, "cfi={}\ncfn={}", names.file(report, inner), names.function(report, inner, callee));
            let _ = writeln!(out, "calls={} {at}\n{line} {} {}", count.samples, count.weight, count.samples);
        }
    }
    out
}

fn add(all: &mut BTreeMap<Place, (Frame, Costs)>, frames: &[Frame], count: Count) {
    let place = |frame: &Frame| (frame.source, frame.function);
    let Some(leaf) = frames.first() else { return };
    for frame in frames {
        all.entry(place(frame)).or_insert_with(|| (*frame, Costs::default()));
    }
    if let Some((_, costs)) = all.get_mut(&place(leaf)) {
        *costs.own.entry(leaf.line.unwrap_or_default()).or_default() += count;
    }
    // A recursive call counts once for the sample.
    let mut seen: FxHashSet<(Place, u32, Place)> = FxHashSet::default();
    for pair in frames.windows(2) {
        let [inner, outer] = pair else { continue };
        let edge = (place(outer), outer.line.unwrap_or_default(), place(inner));
        if !seen.insert(edge) {
            continue;
        }
        if let Some((_, costs)) = all.get_mut(&edge.0) {
            let call =
                costs.calls.entry((edge.1, edge.2)).or_insert((Count::default(), inner.line.unwrap_or_default()));
            call.0 += count;
        }
    }
}

/// Names are written once and are numbers from then on.
#[derive(Default)]
struct Names {
    files: FxHashMap<String, usize>,
    functions: FxHashMap<Place, usize>,
}

impl Names {
    fn file(&mut self, report: &Report, frame: &Frame) -> String {
        let file = path(report, frame).map_or_else(|| "???".to_owned(), printable);
        let next = self.files.len() + 1;
        match self.files.get(&file) {
            Some(number) => format!("({number})"),
            None => {
                self.files.insert(file.clone(), next);
                format!("({next}) {file}")
            }
        }
    }

    fn function(&mut self, report: &Report, frame: &Frame, place: &Place) -> String {
        let next = self.functions.len() + 1;
        match self.functions.get(place) {
            Some(number) => format!("({number})"),
            None => {
                self.functions.insert(*place, next);
                format!("({next}) {}", label(report, frame))
            }
        }
    }
}
