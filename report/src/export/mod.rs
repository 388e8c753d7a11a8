//! Exports of stacks to other tools.

pub(crate) mod callgrind;
pub(crate) mod collapsed;
pub(crate) mod firefox;
pub(crate) mod frames;
pub(crate) mod speedscope;

use crate::profile::Count;
use crate::recording::Sample;
use crate::report::Report;
use crate::sanitize::sanitize;
use crate::symbols::{Frame, Kind};

/// Returns the frames of a stack, innermost first. Frames beyond the last known caller are dropped: a frame-pointer
/// walk through code without frame pointers produces arbitrary addresses.
pub(crate) fn stack_frames(report: &Report, stack: u32) -> Vec<Frame> {
    let locations = report.recording.stacks.get(stack);
    let is_known = |location: &u32| {
        report.symbols.frames(*location).iter().any(|frame| report.symbols.function(frame).kind != Kind::Unknown)
    };
    let end = locations.iter().rposition(is_known).map_or(1, |last| last + 1).min(locations.len());
    locations[..end].iter().flat_map(|location| report.symbols.frames(*location)).copied().collect()
}

/// Returns a frame's name for tools that show one line per frame.
pub(crate) fn label(report: &Report, frame: &Frame) -> String {
    let function = report.symbols.function(frame);
    match function.kind {
        Kind::Python => {
            let mut parts = function.module.rsplit('/');
            let last = parts.next().unwrap_or_default();
            // Every package has a file of this name.
            let file = match parts.next() {
                Some(package) if last == "__init__.py" => format!("{package}/{last}"),
                _ => last.to_owned(),
            };
            sanitize(&format!("{} ({file})", function.name))
        }
        _ => sanitize(&function.name),
    }
}

/// Returns the path of a frame's source.
pub(crate) fn path<'a>(report: &'a Report, frame: &Frame) -> Option<&'a str> {
    frame.source.map(|source| report.symbols.sources[source as usize].as_str())
}

/// Unit in which samples are added up for tools that accept one number. Periods are used as in the line table, so that
/// a function has the same share in both. A late recorder charges the time of several periods to one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Time in ns.
    Time,
    /// Events of the counter.
    Events,
    /// Samples, because the recorder stores no periods.
    Samples,
}

impl Unit {
    pub(crate) fn for_report(report: &Report) -> Unit {
        match report.profile.all.weight {
            0 => Unit::Samples,
            _ if report.is_time() => Unit::Time,
            _ => Unit::Events,
        }
    }

    /// Returns ns, events or samples.
    pub(crate) fn amount(self, count: Count) -> u64 {
        if self == Unit::Samples { count.samples } else { count.weight }
    }
}

/// Returns the samples of each thread, ordered by time. Threads are ordered by their ids.
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
