//! Samples of the tree: their paths and activities, and the lines to which the time of worker threads belongs.

use rustc_hash::{FxHashMap, FxHashSet};

use super::gil::{GilHolders, find_gil_holders};
use super::path::{Callback, Callers, StackPath, Step, is_python_library, stack_paths};
use super::serial::{Serial, find_serial_threads};
use crate::distinct::Distinct;
use crate::loops::is_allocation;
use crate::profile::activity::Activity;
use crate::profile::{Count, Profile, is_pool_library};
use crate::recording::compilations::Compilation;
use crate::recording::{Recording, Sample, Thread};
use crate::symbols::{Kind, Symbols};

/// Word for the time in Numba's C code between Python and compiled code.
pub(super) const CALLING: &str = "calling Numba";
/// Word for the time in Python's interpreter and its library.
pub(super) const INTERPRETER: &str = "Python";
/// Word for garbage collection.
pub(super) const COLLECTING: &str = "garbage collection";
/// Word for waits for Python's global lock.
pub(super) const WAITING_FOR_GIL: &str = "waiting for the GIL";
/// Word for the time of threads that run no Python.
const OTHER_THREADS: &str = "other threads";

/// Samples with the same path that did the same.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) stack: u32,
    /// Lines of the user, outermost first.
    pub(super) steps: Vec<Step>,
    /// Compilation that ran, as an index into the compilations.
    pub(super) compilation: Option<u32>,
    pub(super) activity: Activity,
    /// What the samples did, as an index into [`Samples::words`].
    pub(super) word: u32,
    /// C function that compiled code called, as an index into [`Samples::words`].
    pub(super) call: Option<u32>,
    /// Function of the user that a package called.
    pub(super) callback: Option<Callback>,
    /// True if the interpreter worked on strings, or sorted a list.
    pub(super) is_c_work: bool,
    /// True if the program called for a garbage collection, as `gc.collect()` does.
    pub(super) requests_collection: bool,
    pub(super) count: Count,
}

/// All samples of a recording.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(super) groups: Vec<Group>,
    /// Index into `groups` of each sample; `None` for those of idle threads.
    pub(super) group_of_sample: Vec<Option<u32>>,
    pub(super) words: Vec<String>,
    /// Threads that run compiled code one at a time.
    pub(super) serial: Option<Serial>,
    /// Code that holds the GIL while threads wait for it.
    pub(super) gil_holders: GilHolders,
}

/// Difference between samples of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Context {
    Plain,
    Compilation(u32),
    /// The thread runs no Python. Its time belongs to the line at this stack of the thread that does.
    BelowStack(u32),
    /// The thread runs compiled code below no Python. The index of its caller's lines in [`Callers::lines`].
    Called(u32),
}

/// A sample's period may begin before a compilation and end in it, and the timer may be late.
const TOLERANCE_NS: u64 = 10_000_000;

pub(crate) fn collect(
    recording: &Recording,
    symbols: &Symbols,
    profile: &Profile,
    compilations: &[Compilation],
) -> Samples {
    let paths = stack_paths(recording, symbols, profile);
    let mut callers = Callers::new(&profile.functions, &paths);
    let process_of_thread = number_processes(recording);
    for sample in &recording.samples {
        let process = process_of_thread[sample.thread as usize];
        callers.add(process, sample.time, sample.stack, &paths[sample.stack as usize]);
    }
    callers.sort();
    let (keys, counts, key_of_sample) =
        count_contexts(recording, profile, compilations, &paths, &process_of_thread, &mut callers);
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_unstable_by_key(|key| keys[*key]);
    let mut group_of_key = vec![None; counts.len()];
    let mut words = Distinct::default();
    let mut samples = Samples {
        serial: find_serial_threads(recording, profile, &paths),
        gil_holders: find_gil_holders(recording, symbols, profile, &paths, &process_of_thread),
        ..Samples::default()
    };
    for key in order {
        let ((stack, context), count) = (keys[key], counts[key]);
        let path = &paths[stack as usize];
        let stack_activity = profile.activities.get(stack);
        if profile.activities.is_idle(stack_activity) {
            continue;
        }
        let name = &profile.activities.names[stack_activity.name as usize];
        let word = match stack_activity.activity {
            Activity::Interpreted => interpreted_word(path, symbols, profile),
            Activity::Library => library_word(name, path, context),
            Activity::Waiting => waiting_word(name),
            Activity::Compiled => "compiled".to_owned(),
            Activity::Collecting => COLLECTING.to_owned(),
            activity => activity.words().to_owned(),
        };
        let is_compiled = stack_activity.activity == Activity::Compiled;
        let call = path.callee.filter(|_| is_compiled).map(|function| call_word(path, function, symbols, profile));
        let (steps, compilation) = match context {
            Context::BelowStack(stack) => (paths[stack as usize].python_steps().to_vec(), None),
            Context::Compilation(compilation) => (path.python_steps().to_vec(), Some(compilation)),
            Context::Called(lines) => (join_steps(&callers.lines.values[lines as usize], &path.steps), None),
            Context::Plain => (path.steps.clone(), None),
        };
        group_of_key[key] = Some(samples.groups.len() as u32);
        samples.groups.push(Group {
            stack,
            steps,
            compilation,
            activity: stack_activity.activity,
            word: words.number(word),
            call: call.map(|call| words.number(call)),
            callback: path.callback,
            is_c_work: path.is_c_work,
            requests_collection: path.requests_collection,
            count,
        });
    }
    samples.group_of_sample = key_of_sample.into_iter().map(|key| group_of_key[key as usize]).collect();
    samples.words = words.values;
    samples
}

/// Returns the number of each thread's process.
fn number_processes(recording: &Recording) -> Vec<u32> {
    let mut processes = Distinct::default();
    recording.threads.iter().map(|thread| processes.number((thread.host.as_str(), thread.pid))).collect()
}

/// Returns the stacks with their contexts, the count of each, and its index for each sample.
fn count_contexts(
    recording: &Recording,
    profile: &Profile,
    compilations: &[Compilation],
    paths: &[StackPath],
    process_of_thread: &[u32],
    callers: &mut Callers,
) -> (Vec<(u32, Context)>, Vec<Count>, Vec<u32>) {
    let spans = Spans::new(compilations);
    let python_threads = PythonThreads::new(recording, paths);
    let (mut keys, mut counts, mut key_of_sample) = (Distinct::default(), Vec::new(), Vec::new());
    for sample in &recording.samples {
        let thread = &recording.threads[sample.thread as usize];
        let context = if profile.activities.get(sample.stack).activity == Activity::Compiling {
            spans.find(thread, sample.time).map(Context::Compilation)
        } else {
            let process = process_of_thread[sample.thread as usize];
            let caller = callers.find(process, sample.time, &paths[sample.stack as usize]).map(Context::Called);
            caller.or_else(|| python_threads.line_below(sample, thread, paths).map(Context::BelowStack))
        };
        let key = keys.number((sample.stack, context.unwrap_or(Context::Plain)));
        counts.resize(keys.values.len(), Count::default());
        counts[key as usize] += Count::from_sample(sample);
        key_of_sample.push(key);
    }
    (keys.values, counts, key_of_sample)
}

/// Returns a caller's lines with the lines below. A line that is the last of the one and the first of the other is
/// there once.
fn join_steps(above: &[Step], below: &[Step]) -> Vec<Step> {
    let is_known = |step: &&Step| above.last().is_some_and(|last| last.is_same_line(step));
    let known = below.first().filter(is_known).map_or(0, |_| 1);
    [above, &below[known..]].concat()
}

/// Returns the word for time in a library.
fn library_word(name: &str, path: &StackPath, context: Context) -> String {
    let is_of_other_thread = !path.has_python && !matches!(context, Context::Plain | Context::Called(_));
    let word = match name {
        name if is_pool_library(name) => name,
        _ if is_of_other_thread => OTHER_THREADS,
        // Methods of a jitclass, and of Numba's typed containers, are compiled functions.
        "numba" => CALLING,
        name => name,
    };
    word.to_owned()
}

/// Returns the word for a C function that compiled code called. For functions of Python, as in an `objmode` block, it is
/// the package that they called.
fn call_word(path: &StackPath, function: u32, symbols: &Symbols, profile: &Profile) -> String {
    if !is_python_library(&symbols.functions[function as usize].module) {
        return function_word(symbols, function);
    }
    let package = path.package.and_then(|function| profile.activities.library_of_function(function as usize));
    package.unwrap_or(INTERPRETER).to_owned()
}

/// Returns the word for a C function that compiled code called: `exp (libm)`, or the library if it is unnamed.
fn function_word(symbols: &Symbols, function: u32) -> String {
    let function = &symbols.functions[function as usize];
    let library = function.module.split('.').next().unwrap_or_default();
    match function.kind {
        Kind::Native if library == "libm" && !function.base.starts_with('[') => {
            let name = function.base.trim_matches('_');
            let variant = ["_fma4", "_fma", "_avx2", "_avx", "_sse41", "_sse2"].iter();
            let name = variant.fold(name, |name, suffix| name.strip_suffix(suffix).unwrap_or(name));
            format!("{name} (libm)")
        }
        Kind::Native if function.base.starts_with('[') => library.split('-').next().unwrap_or(library).to_owned(),
        Kind::Kernel => "kernel".to_owned(),
        _ if is_allocation(&function.base) => "allocating".to_owned(),
        _ => function.base.clone(),
    }
}

/// Returns the word for C code that a line of the user's Python called.
fn interpreted_word(path: &StackPath, symbols: &Symbols, profile: &Profile) -> String {
    let module = path.callee.map(|function| symbols.functions[function as usize].module.as_str());
    let package = path.package.and_then(|function| profile.activities.library_of_function(function as usize));
    let calls_numba = package == Some("numba") || module.is_some_and(|module| module.starts_with("_dispatcher."));
    if calls_numba { CALLING } else { package.unwrap_or(INTERPRETER) }.to_owned()
}

fn waiting_word(reason: &str) -> String {
    if reason == "sleep" { "sleeping".to_owned() } else { format!("waiting for {reason}") }
}

/// Outermost compilations, by machine, process and thread.
struct Spans<'a>(FxHashMap<(&'a str, u32, u32), Vec<Span>>);

/// Begin and end of a compilation, and its index.
type Span = (u64, u64, u32);

impl<'a> Spans<'a> {
    fn new(compilations: &'a [Compilation]) -> Spans<'a> {
        let mut spans: FxHashMap<(&str, u32, u32), Vec<Span>> = FxHashMap::default();
        for (index, row) in compilations.iter().enumerate().filter(|(_, row)| row.is_outermost()) {
            let span = (row.begin, row.begin.saturating_add(row.lasted), index as u32);
            spans.entry((row.host.as_str(), row.pid, row.tid)).or_default().push(span);
        }
        spans.values_mut().for_each(|spans| spans.sort_unstable());
        Spans(spans)
    }

    /// Returns the compilation at a time.
    fn find(&self, thread: &'a Thread, time: u64) -> Option<u32> {
        let spans = self.0.get(&(thread.host.as_str(), thread.pid, thread.tid))?;
        let end = spans.partition_point(|(begin, ..)| *begin <= time);
        let before = end.checked_sub(1).map(|index| spans[index]);
        let after = spans.get(end);
        let within = before.filter(|(_, end, _)| time <= end.saturating_add(TOLERANCE_NS));
        let next = after.filter(|(begin, ..)| *begin <= time.saturating_add(TOLERANCE_NS));
        within.as_ref().or(next).map(|(.., index)| *index)
    }
}

/// Threads that run Python.
struct PythonThreads<'a> {
    /// Time and stack of each sample with a line of the user, by machine and process. If several threads of a process
    /// run the user's Python, the line that its other threads work for is unknown.
    lines: FxHashMap<(&'a str, u32), Vec<(u64, u32)>>,
    threads: FxHashSet<u32>,
}

impl<'a> PythonThreads<'a> {
    fn new(recording: &'a Recording, paths: &[StackPath]) -> PythonThreads<'a> {
        let process = |sample: &Sample| {
            let thread = &recording.threads[sample.thread as usize];
            (thread.host.as_str(), thread.pid)
        };
        let mut threads = FxHashSet::default();
        let mut by_process: FxHashMap<(&str, u32), FxHashSet<u32>> = FxHashMap::default();
        for sample in &recording.samples {
            let path = &paths[sample.stack as usize];
            if path.has_python {
                threads.insert(sample.thread);
            }
            if !path.python_steps().is_empty() {
                by_process.entry(process(sample)).or_default().insert(sample.thread);
            }
        }
        let mut lines: FxHashMap<(&str, u32), Vec<(u64, u32)>> = FxHashMap::default();
        for sample in &recording.samples {
            let is_only_thread = by_process.get(&process(sample)).is_some_and(|threads| threads.len() == 1);
            if is_only_thread && !paths[sample.stack as usize].python_steps().is_empty() {
                lines.entry(process(sample)).or_default().push((sample.time, sample.stack));
            }
        }
        lines.values_mut().for_each(|lines| lines.sort_unstable());
        PythonThreads { lines, threads }
    }

    /// Returns the last stack with a line of the user before a sample of a thread that runs no Python.
    fn line_below(&self, sample: &Sample, thread: &Thread, paths: &[StackPath]) -> Option<u32> {
        if self.threads.contains(&sample.thread) || !paths[sample.stack as usize].steps.is_empty() {
            return None;
        }
        let lines = self.lines.get(&(thread.host.as_str(), thread.pid))?;
        let end = lines.partition_point(|(time, _)| *time <= sample.time);
        end.checked_sub(1).map(|index| lines[index].1)
    }
}
