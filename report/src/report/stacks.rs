//! Stack frames as shown by flame graphs, trees and exports.

use super::Report;
use crate::profile::Count;
use crate::recording::Sample;
use crate::sanitize::sanitize;
use crate::symbols::{Frame, Function, Kind, is_entry};
use crate::words::python_name;

/// Time on the run queue is reported if it exceeds 1/20 of all time.
const RUN_QUEUE_SHARE_DIVISOR: u64 = 20;
/// Children with less CPU time are not mentioned.
const MIN_CHILDREN_NS: u64 = 100_000_000;

/// Unit of stack weights in tools that accept a single number per stack. Weights are periods, as in the line table, so
/// that a function has the same share in both. Sample counts would differ, because a late recorder charges several
/// periods to one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Time,
    Events,
    /// Samples, because the recorder stores no periods.
    Samples,
}

impl Unit {
    /// Returns ns, events or samples.
    pub(crate) fn amount(self, count: Count) -> u64 {
        if self == Unit::Samples { count.samples } else { count.weight }
    }
}

impl Report {
    pub(crate) fn unit(&self) -> Unit {
        match self.profile.all.weight {
            0 => Unit::Samples,
            _ if self.is_time() => Unit::Time,
            _ => Unit::Events,
        }
    }

    /// Returns the time that threads were on the run queue, if it is known and the report shows all time.
    pub(crate) fn run_queue_ns(&self) -> u64 {
        if self.is_time() && !self.no_compile { self.recording.facts.run_queue_ns } else { 0 }
    }

    /// Returns the CPU time of child processes that were not recorded, if it is known and the report shows all time.
    pub(crate) fn unrecorded_children_ns(&self) -> u64 {
        if self.is_time() && !self.no_compile { self.recording.facts.unrecorded_children_ns } else { 0 }
    }

    /// Returns times that are outside the 100 %, with their labels.
    pub(crate) fn outside_ns(&self) -> impl Iterator<Item = (u64, &'static str)> + use<> {
        let min_queue_ns = self.profile.all.weight / RUN_QUEUE_SHARE_DIVISOR;
        let rows = [
            (self.profile.idle.weight, 0, "idle threads of pools, outside the 100 %"),
            (self.run_queue_ns(), min_queue_ns, "ready to run, no free processor (run queue), outside the 100 %"),
            (
                self.unrecorded_children_ns(),
                MIN_CHILDREN_NS,
                "child processes, not recorded (use -s), outside the 100 %",
            ),
        ];
        rows.into_iter().filter(|(ns, min_ns, _)| ns > min_ns).map(|(ns, _, label)| (ns, label))
    }

    /// Returns the samples except those of idle threads, as all figures and exports count them.
    pub(crate) fn counted_samples(&self) -> impl Iterator<Item = &Sample> {
        let activities = &self.profile.activities;
        self.recording.samples.iter().filter(|sample| !activities.is_idle(activities.get(sample.stack)))
    }

    /// Returns the intended period of samples, in ns or events.
    pub(crate) fn interval(&self) -> Option<u64> {
        let (event, _) = self.recording.events.get(self.recording.event)?;
        let period = if event.is_frequency { 1_000_000_000_u64.checked_div(event.rate)? } else { event.rate };
        (period != 0).then_some(period)
    }

    /// Returns the frames of a stack, innermost first. Frames beyond the last known caller are dropped, because a
    /// frame-pointer walk through code without frame pointers produces arbitrary addresses.
    pub(crate) fn stack_frames(&self, stack: u32) -> Vec<Frame> {
        let locations = self.recording.stacks.get(stack);
        let is_known = |location: &u32| {
            self.symbols.frames(*location).iter().any(|frame| self.symbols.function(frame).kind != Kind::Unknown)
        };
        let end = locations.iter().rposition(is_known).map_or(1, |last| last + 1).min(locations.len());
        locations[..end].iter().flat_map(|location| self.symbols.frames(*location)).copied().collect()
    }

    /// Returns the frames of a stack that flame graphs and trees show, innermost first. They omit the start of the
    /// program or thread, interpreter functions that call Python or compiled code, and the import system while it runs
    /// a module, as Python's tracebacks do. The innermost frame is always kept.
    pub(crate) fn shown_frames(&self, stack: u32) -> Vec<Frame> {
        let mut frames = self.stack_frames(stack);
        let function = |frame: &Frame| self.symbols.function(frame);
        // The evaluation loop is shown as the Python function that it runs.
        while let [leaf, caller, ..] = frames.as_slice()
            && function(caller).kind == Kind::Python
            && is_evaluation_loop(function(leaf))
        {
            frames.remove(0);
        }
        let (mut is_leaf, mut python_inside, mut code_inside) = (true, false, false);
        frames.retain(|frame| {
            let function = function(frame);
            let is_shown = match function.kind {
                _ if is_leaf => true,
                Kind::Native => !(code_inside && is_interpreter(function)),
                Kind::Python => !(python_inside && is_import_system(function)),
                _ => true,
            };
            is_leaf = false;
            code_inside |= matches!(function.kind, Kind::Python | Kind::Compiled);
            python_inside |= function.kind == Kind::Python && !is_import_system(function);
            is_shown
        });
        while let [.., outermost] = frames.as_slice()
            && frames.len() > 1
            && is_program_start(function(outermost))
        {
            frames.pop();
        }
        frames
    }

    /// Returns true if `frame` is only the entry that calls the compiled function `inner` from Python.
    pub(crate) fn is_entry_of(&self, frame: &Frame, inner: &Frame) -> bool {
        let (function, inner) = (self.symbols.function(frame), self.symbols.function(inner));
        function.kind == Kind::Compiled && function.base == inner.base && is_entry(&function.name)
    }

    /// Returns a frame's name for tools that show one line per frame.
    pub(crate) fn label(&self, frame: &Frame) -> String {
        let function = self.symbols.function(frame);
        match function.kind {
            Kind::Python => sanitize(&python_name(&function.name, &function.module)),
            _ => sanitize(&function.name),
        }
    }

    pub(crate) fn source_path(&self, frame: &Frame) -> Option<&str> {
        frame.source.map(|source| self.symbols.sources[source as usize].as_str())
    }

    /// Returns the counted samples of each thread, ordered by time. Threads are ordered by their ids.
    pub(crate) fn samples_by_thread(&self) -> Vec<(u32, Vec<Sample>)> {
        let mut threads: Vec<(u32, Vec<Sample>)> =
            (0..self.recording.threads.len() as u32).map(|thread| (thread, Vec::new())).collect();
        for sample in self.counted_samples() {
            threads[sample.thread as usize].1.push(*sample);
        }
        for (_, samples) in &mut threads {
            samples.sort_by_key(|sample| sample.time);
        }
        threads.sort_by_key(|(thread, _)| {
            let thread = &self.recording.threads[*thread as usize];
            (thread.pid, thread.tid)
        });
        threads
    }
}

fn is_evaluation_loop(function: &Function) -> bool {
    function.kind == Kind::Native
        && ["_PyEval_EvalFrameDefault", "_PyEval_Vector", "_PyFunction_Vectorcall"].contains(&function.name.as_str())
}

/// Returns true for Python itself, and for Numba's C code between Python and compiled code.
fn is_interpreter(function: &Function) -> bool {
    ["python3", "libpython3", "_dispatcher."].iter().any(|prefix| function.module.starts_with(prefix))
}

fn is_import_system(function: &Function) -> bool {
    function.module.starts_with("<frozen importlib")
}

fn is_program_start(function: &Function) -> bool {
    let prefixes = ["python3", "libpython3", "libc.so", "libc-", "ld-linux", "libpthread"];
    function.kind == Kind::Native
        && (function.name == "_start" || prefixes.iter().any(|prefix| function.module.starts_with(prefix)))
}
