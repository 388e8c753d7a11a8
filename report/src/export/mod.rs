//! Stacks in the formats of other tools.

pub(crate) mod callgrind;
pub(crate) mod collapsed;
pub(crate) mod firefox;
pub(crate) mod shown;
pub(crate) mod speedscope;

use crate::printable::printable;
use crate::profile::Count;
use crate::recording::Sample;
use crate::report::Report;
use crate::symbols::{Frame, Kind};

/// The frames of a stack, the innermost first. What is behind the last known caller is left out: a walk by frame
/// pointers that comes into code without them goes on into nowhere.
pub(crate) fn frames_of(report: &Report, stack: u32) -> Vec<Frame> {
    let locations = report.recording.stacks.get(stack);
    let known = |location: &u32| {
        report.symbols.frames(*location).iter().any(|frame| report.symbols.function(frame).kind != Kind::Unknown)
    };
    let end = locations.iter().rposition(known).map_or(1, |last| last + 1).min(locations.len());
    locations[..end].iter().flat_map(|location| report.symbols.frames(*location)).copied().collect()
}

/// What a frame is called in a tool that has one line for it.
pub(crate) fn label(report: &Report, frame: &Frame) -> String {
    let function = report.symbols.function(frame);
    match function.kind {
        Kind::Python => {
            let mut parts = function.module.rsplit('/');
            let last = parts.next().unwrap_or_default();
            // Every package has one of these.
            let file = match parts.next() {
                Some(package) if last == "__init__.py" => format!("{package}/{last}"),
                _ => last.to_owned(),
            };
            printable(&format!("{} ({file})", function.name))
        }
        _ => printable(&function.name),
    }
}

/// Path of a frame's source.
pub(crate) fn path<'a>(report: &'a Report, frame: &Frame) -> Option<&'a str> {
    frame.source.map(|source| report.symbols.sources[source as usize].as_str())
}

/// What samples are added up by, where a tool has one number for them: their periods, as in the line table, so that a
/// function has the same share in both. A recorder that is late gives one sample the time of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds of a clock.
    Time,
    /// What was counted.
    Events,
    /// The recorder gives no periods.
    Samples,
}

impl Unit {
    pub(crate) fn of(report: &Report) -> Unit {
        match report.profile.all.weight {
            0 => Unit::Samples,
            _ if report.is_time() => Unit::Time,
            _ => Unit::Events,
        }
    }

    /// Nanoseconds, events or samples.
    pub(crate) fn amount(self, count: Count) -> u64 {
        if self == Unit::Samples { count.samples } else { count.weight }
    }
}

/// The samples of each thread in the order of their times, threads in the order of their numbers.
pub(crate) fn by_thread(report: &Report) -> Vec<(u32, Vec<Sample>)> {
    let mut threads: Vec<(u32, Vec<Sample>)> =
        (0..report.recording.threads.len() as u32).map(|thread| (thread, Vec::new())).collect();
    for sample in &report.recording.samples {
        threads[sample.thread as usize].1.push(*sample);
    }
    for (_, samples) in &mut threads {
        samples.sort_by_key(|sample| sample.time);
    }
    threads.sort_by_key(|(thread, _)| {
        let thread = &report.recording.threads[*thread as usize];
        (thread.pid, thread.tid)
    });
    threads
}
