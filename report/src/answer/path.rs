//! Path of a stack through the user's code: the lines that become rows of the tree.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::distinct::Distinct;
use crate::profile::owners::{STANDARD_LIBRARY, is_generated};
use crate::profile::{FunctionRow, Profile};
use crate::recording::Recording;
use crate::symbols::{Frame, Kind, Symbols, is_entry};

/// Line on the path of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    /// Index into [`Symbols::sources`].
    pub(super) source: u32,
    pub(super) line: u32,
    /// Function, as an index into [`Profile::functions`].
    pub(super) row: u32,
    pub(super) is_compiled: bool,
    pub(super) is_module: bool,
}

impl Step {
    pub(super) fn is_same_line(&self, other: &Step) -> bool {
        (self.source, self.line) == (other.source, other.line)
    }

    fn is_same_function(&self, other: &Step) -> bool {
        (self.source, self.row) == (other.source, other.row)
    }
}

/// Call of a function by a package that a line of Python called, such as `DataFrame.apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Callback {
    /// Line that called the package.
    pub(super) caller: Step,
    /// Line of the function that the package called.
    pub(super) callee: Step,
    /// Function of the package, as an index into [`Symbols::functions`].
    pub(super) function: u32,
}

/// Stack as the tree sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct StackPath {
    /// Lines, outermost first: lines of the user's Python, and compiled lines of any file except Numba's and Python's.
    pub(super) steps: Vec<Step>,
    /// True if any frame is a Python function.
    pub(super) has_python: bool,
    /// Outermost compiled function, as an index into [`Profile::functions`].
    pub(super) outermost_row: Option<u32>,
    /// Outermost C function that the innermost Python or compiled function called, as an index into
    /// [`Symbols::functions`].
    pub(super) callee: Option<u32>,
    /// Innermost package among the C functions that the innermost Python or compiled function called, as an index into
    /// [`Symbols::functions`].
    pub(super) package: Option<u32>,
    /// Innermost call of a function by a package.
    pub(super) callback: Option<Callback>,
    /// True if the innermost Python function called C functions whose work compiled code does not do faster.
    pub(super) is_c_work: bool,
    /// True if the innermost Python or compiled function called for a garbage collection, as `gc.collect()` does.
    pub(super) requests_collection: bool,
}

impl StackPath {
    /// Returns the interpreted lines before the first compiled one.
    pub(super) fn python_steps(&self) -> &[Step] {
        let end = self.steps.iter().position(|step| step.is_compiled).unwrap_or(self.steps.len());
        &self.steps[..end]
    }

    /// Returns the outermost line if it is compiled, in a thread without Python. In a thread of Python, a package such as
    /// `threading` has called it, and it may have nothing to do with what other threads run.
    fn worker_step(&self) -> Option<&Step> {
        self.steps.first().filter(|step| step.is_compiled && !self.has_python)
    }

    /// Returns true if compiled code runs below an interpreted line of the user.
    fn is_called_from_python(&self) -> bool {
        self.steps.first().is_some_and(|step| !step.is_compiled)
    }
}

/// Returns the path of each stack.
pub(super) fn stack_paths(recording: &Recording, symbols: &Symbols, profile: &Profile) -> Vec<StackPath> {
    let has_code = |location: u32| {
        let is_code = |frame: &Frame| matches!(symbols.function(frame).kind, Kind::Python | Kind::Compiled);
        symbols.frames(location).iter().any(is_code)
    };
    let has_code: Vec<bool> = (0..recording.locations.len() as u32).map(has_code).collect();
    let path = |stack| path_of_stack(recording.stacks.get(stack), &has_code, symbols, profile);
    (0..recording.stacks.len() as u32).map(path).collect()
}

/// Returns the path of a stack. `has_code` tells for each location whether it is in a Python or compiled function.
fn path_of_stack(locations: &[u32], has_code: &[bool], symbols: &Symbols, profile: &Profile) -> StackPath {
    let activities = &profile.activities;
    let mut path = StackPath::default();
    let mut has_owner = false;
    let mut inner_to_outer: Vec<Step> = Vec::new();
    let mut entry = None;
    let mut between = None;
    // Below the innermost Python or compiled function, other locations do not matter.
    let first = locations.iter().position(|location| has_code[*location as usize]).unwrap_or(locations.len());
    let (inner, outer) = locations.split_at(first);
    let outer = outer.iter().filter(|location| has_code[**location as usize]);
    for frame in inner.iter().chain(outer).flat_map(|location| symbols.frames(*location)) {
        let function = symbols.function(frame);
        match function.kind {
            Kind::Python => path.has_python = true,
            Kind::Compiled => path.outermost_row = Some(profile.rows[frame.function as usize]),
            _ if !has_owner => {
                path.callee = Some(frame.function);
                path.is_c_work |= is_c_work(&function.base) || is_c_module(&function.module);
                path.requests_collection |= COLLECTION_REQUESTS.contains(&function.base.as_str());
                let is_package = || {
                    let library = activities.library_of_function(frame.function as usize);
                    library.is_some_and(|library| library != STANDARD_LIBRARY && !is_python_library(library))
                };
                path.package = path.package.or_else(|| is_package().then_some(frame.function));
                continue;
            }
            _ => continue,
        }
        has_owner = true;
        match step(frame, symbols, profile) {
            Some(step) if is_entry(&function.name) => entry = entry.or(Some(step)),
            Some(caller) => {
                let callee = inner_to_outer.last().copied().or(entry).zip(between.take());
                let callback = callee.map(|(callee, function)| Callback { caller, callee, function });
                path.callback = path.callback.or(callback.filter(|_| !caller.is_compiled));
                inner_to_outer.push(caller);
            }
            None => between = Some(frame.function),
        }
    }
    // Without lines of Python, as in a recording of perf, an entry point may be all that is known.
    if inner_to_outer.is_empty() {
        inner_to_outer.extend(entry);
    }
    for step in inner_to_outer.into_iter().rev() {
        if path.steps.last().is_some_and(|last| last.is_same_line(&step)) {
            continue;
        }
        // A recursive function continues at its first place, so that the tree stays flat.
        if let Some(first) = path.steps.iter().position(|other| !other.is_module && other.is_same_function(&step)) {
            path.steps.truncate(first);
        }
        path.steps.push(step);
    }
    path
}

fn step(frame: &Frame, symbols: &Symbols, profile: &Profile) -> Option<Step> {
    let function = symbols.function(frame);
    let (source, line) = frame.source.zip(frame.line.filter(|line| *line != 0))?;
    let activities = &profile.activities;
    let is_compiled = function.kind == Kind::Compiled;
    let package = activities.package_of_source(source);
    let is_shown = match package {
        _ if is_generated(&symbols.sources[source as usize]) => false,
        None => true,
        Some(package) => is_compiled && package != "numba" && package != STANDARD_LIBRARY,
    };
    is_shown.then(|| Step {
        source,
        line,
        row: profile.rows[frame.function as usize],
        is_compiled,
        is_module: function.name == "<module>",
    })
}

/// Beginnings of the names of C functions of CPython that work on strings or sets, sort a list, call the system, work on
/// large integers, or serialise objects.
#[rustfmt::skip]
const C_WORK: [&str; 27] = [
    "unicode", "PyUnicode", "PyBytes", "bytes_", "sre_", "set_", "list_sort",
    "os_", "io_", "iobase_", "fileio_", "buffered", "textiowrapper_", "PyFile_", "builtin_print", "sock_", "mmap_",
    "k_mul", "k_lopsided_mul", "x_add", "x_sub", "x_divrem",
    "pickle_", "encoder_listencode", "scan_once", "dec_", "mpd_",
];

/// Extension modules of Python's library with numbers, whose functions compiled code does faster.
const NUMBER_MODULES: [&str; 8] =
    ["math", "cmath", "array", "_bisect", "_collections", "_heapq", "_random", "_statistics"];

/// Returns true for extension modules of CPython whose work compiled code does not do faster, such as
/// `_pickle.cpython-311-x86_64-linux-gnu.so`. Those of packages are named by their package.
fn is_c_module(file: &str) -> bool {
    let module = file.split_once(".cpython-").map(|(module, _)| module);
    module.is_some_and(|module| !NUMBER_MODULES.contains(&module))
}

/// Returns true for C functions of CPython whose work compiled code does not do faster.
fn is_c_work(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    C_WORK.iter().any(|prefix| name.starts_with(prefix))
}

/// C functions of CPython that collect garbage at the request of a program. Allocations call others.
const COLLECTION_REQUESTS: [&str; 4] = ["gc_collect", "gc_collect_impl", "PyGC_Collect", "_PyGC_Collect"];

pub(super) fn is_python_library(library: &str) -> bool {
    library.starts_with("libpython") || library.starts_with("python")
}

/// Loop of a function with `parallel=True`, which Numba compiles as a function of its own, for worker threads.
#[derive(Clone, Copy, Debug)]
struct ParallelLoop {
    /// Function that contains the loop, as an index into [`Profile::functions`]; `None` if no sample is in it.
    function: Option<u32>,
    line: u32,
}

impl ParallelLoop {
    /// Returns the parallel loops among the functions, by their indices: `prange kernel prog.py:42 in prog.diffuse`.
    fn find_all(functions: &[FunctionRow]) -> FxHashMap<u32, ParallelLoop> {
        let compiled = || functions.iter().zip(0..).filter(|(function, _)| function.kind == Kind::Compiled);
        let rows: FxHashMap<&str, u32> = compiled().map(|(function, row)| (function.name.as_str(), row)).collect();
        let parse = |name: &str| {
            let (place, function) = name.strip_prefix("prange kernel ")?.rsplit_once(" in ")?;
            let line = place.rsplit_once(':')?.1.parse().ok()?;
            Some(ParallelLoop { function: rows.get(function).copied(), line })
        };
        compiled().filter_map(|(function, row)| Some((row, parse(&function.name)?))).collect()
    }
}

/// Callers of compiled code that a worker thread runs: the lines above the same function, in threads that Python
/// called, at the nearest time.
#[derive(Default)]
pub(super) struct Callers {
    parallel_loops: FxHashMap<u32, ParallelLoop>,
    /// Functions and sources that worker threads run, and functions that contain their parallel loops.
    functions: FxHashSet<u32>,
    sources: FxHashSet<u32>,
    /// Lines of callers, outermost first.
    pub(super) lines: Distinct<Vec<Step>>,
    /// Entries to add for each sample of a stack.
    entries: FxHashMap<u32, Vec<(Callee, u32)>>,
    /// Time of each sample, and its index into `lines`, by process.
    by_callee: FxHashMap<(u32, Callee), Vec<(u64, u32)>>,
}

/// Code that callers have: a function with the source of its line, or any function of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Callee {
    Function {
        source: u32,
        row: u32,
    },
    /// Function in any source.
    Row(u32),
    Source(u32),
}

impl Callers {
    /// Returns callers of the code that worker threads run in `paths`.
    pub(super) fn new(functions: &[FunctionRow], paths: &[StackPath]) -> Callers {
        let mut callers = Callers { parallel_loops: ParallelLoop::find_all(functions), ..Callers::default() };
        for path in paths {
            let Some(outermost) = path.worker_step() else { continue };
            callers.functions.insert(outermost.row);
            callers.sources.insert(outermost.source);
            let parallel_loop = path.outermost_row.and_then(|row| callers.parallel_loops.get(&row));
            callers.functions.extend(parallel_loop.and_then(|parallel_loop| parallel_loop.function));
        }
        callers
    }

    /// Adds a sample of a thread that Python called.
    pub(super) fn add(&mut self, process: u32, time: u64, stack: u32, path: &StackPath) {
        if self.functions.is_empty() || !path.is_called_from_python() {
            return;
        }
        if !self.entries.contains_key(&stack) {
            let entries = self.entries_of(path);
            self.entries.insert(stack, entries);
        }
        for (callee, lines) in &self.entries[&stack] {
            self.by_callee.entry((process, *callee)).or_default().push((time, *lines));
        }
    }

    fn entries_of(&mut self, path: &StackPath) -> Vec<(Callee, u32)> {
        let mut entries = Vec::new();
        for (index, step) in path.steps.iter().enumerate().filter(|(_, step)| step.is_compiled) {
            if self.functions.contains(&step.row) {
                let above = self.lines.number(path.steps[..index].to_vec());
                entries.push((Callee::Function { source: step.source, row: step.row }, above));
                entries.push((Callee::Row(step.row), self.lines.number(path.steps[..=index].to_vec())));
            }
            if self.sources.contains(&step.source) {
                entries.push((Callee::Source(step.source), self.lines.number(path.python_steps().to_vec())));
            }
        }
        entries
    }

    /// Sorts the samples by time. Must be called between the last [`Callers::add`] and the first [`Callers::find`].
    pub(super) fn sort(&mut self) {
        self.by_callee.values_mut().for_each(|samples| samples.sort_unstable());
    }

    /// Returns the lines above the outermost function of a stack without a Python caller, as an index into `lines`.
    pub(super) fn find(&mut self, process: u32, time: u64, path: &StackPath) -> Option<u32> {
        let outermost = path.worker_step()?;
        let function = Callee::Function { source: outermost.source, row: outermost.row };
        if let Some(lines) = self.nearest(process, function, time) {
            return Some(lines);
        }
        let Some(parallel_loop) = path.outermost_row.and_then(|row| self.parallel_loops.get(&row)).copied() else {
            return self.nearest(process, Callee::Source(outermost.source), time);
        };
        // Only the function that contains the loop can have started it.
        let lines = self.nearest(process, Callee::Row(parallel_loop.function?), time)?;
        let mut above = self.lines.values[lines as usize].clone();
        above.last_mut()?.line = parallel_loop.line;
        Some(self.lines.number(above))
    }

    fn nearest(&self, process: u32, callee: Callee, time: u64) -> Option<u32> {
        let samples = self.by_callee.get(&(process, callee))?;
        let next = samples.partition_point(|(other, _)| *other < time);
        let candidates = next.checked_sub(1).into_iter().chain([next]).filter_map(|index| samples.get(index));
        candidates.min_by_key(|(other, _)| other.abs_diff(time)).map(|(_, lines)| *lines)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::profile::Shares;

    fn step(line: u32, row: u32, is_compiled: bool) -> Step {
        Step { source: 0, line, row, is_compiled, is_module: false }
    }

    fn path(steps: &[Step]) -> StackPath {
        let outermost_row = steps.iter().find(|step| step.is_compiled).map(|step| step.row);
        StackPath { steps: steps.to_vec(), outermost_row, ..StackPath::default() }
    }

    fn functions(names: &[&str]) -> Vec<FunctionRow> {
        let row = |name: &&str| FunctionRow {
            name: (*name).to_owned(),
            kind: Kind::Compiled,
            shares: Shares::default(),
            by_thread: BTreeMap::new(),
            compilations: Vec::new(),
            lines: None,
            is_library_function: false,
            callers: Vec::new(),
        };
        names.iter().map(row).collect()
    }

    /// Returns the lines above each worker's line, from samples of the callers at times 1, 2, 3 and so on.
    fn callers_of(names: &[&str], callers: &[&[Step]], workers: &[(u64, Step)]) -> Vec<Option<Vec<Step>>> {
        let (callers, functions) = (callers.iter().map(|steps| path(steps)), functions(names));
        let paths: Vec<StackPath> = callers.chain(workers.iter().map(|(_, step)| path(&[*step]))).collect();
        let mut found = Callers::new(&functions, &paths);
        for (stack, (path, time)) in (0..).zip(paths.iter().zip(1..)) {
            found.add(7, time, stack, path);
        }
        found.sort();
        let mut find = |(time, step): &(u64, Step)| {
            let lines = found.find(7, *time, &path(&[*step]));
            lines.map(|lines| found.lines.values[lines as usize].clone())
        };
        workers.iter().map(&mut find).collect()
    }

    #[test]
    fn workers_run_below_the_parallel_loop_that_started_them() {
        let (call, parallel_loop, body) = (step(30, 0, false), step(12, 1, true), step(16, 2, true));
        let workers = [(1, step(17, 2, true)), (1, step(18, 3, true))];
        let found = callers_of(&[], &[&[call, parallel_loop, body]], &workers);
        assert_eq!(found[0], Some(vec![call, parallel_loop]), "the same function");
        assert_eq!(found[1], Some(vec![call]), "another function of the file");
        let mut callers = Callers::new(&[], &[path(&[body])]);
        assert_eq!(callers.find(7, 1, &path(&[call, body])), None, "Python called it");
    }

    #[test]
    fn workers_run_below_a_call_of_the_function_that_contains_their_loop() {
        let names = ["<module>", "m.first", "m.second", "prange kernel m.py:12 in m.second"];
        let other = [step(20, 0, false), step(7, 1, true)];
        let call = [step(22, 0, false), step(11, 2, true)];
        let kernel = step(12, 3, true);
        // Samples of another function are more, and one is at the worker's time.
        let found = callers_of(&names, &[&other, &other, &other, &call], &[(1, kernel)]);
        assert_eq!(found, [Some(vec![call[0], step(12, 2, true)])], "at the loop's line");
        assert_eq!(callers_of(&names, &[&other], &[(1, kernel)]), [None], "no call has a sample");
    }

    #[test]
    fn workers_run_below_the_call_at_the_nearest_time() {
        let names = ["<module>", "m.f", "prange kernel m.py:7 in m.f"];
        let call = |line| [step(line, 0, false), step(7, 1, true)];
        let found =
            callers_of(&names, &[&call(20), &call(20), &call(21)], &[(0, step(8, 2, true)), (4, step(8, 2, true))]);
        assert_eq!(found, [Some(call(20).to_vec()), Some(call(21).to_vec())]);
    }

    #[test]
    fn work_of_c_is_known_by_its_functions() {
        let names =
            ["list_sort", "_PyUnicode_Equal", "sre_ucs1_match", "bytes_add", "os_pread", "_io_FileIO_write", "k_mul"];
        assert!(names.into_iter().all(is_c_work));
        assert!(!["float_add", "PyNumber_Multiply", "dict_subscript", "list_append"].into_iter().any(is_c_work));
        let modules = ["_pickle.cpython-311-x86_64-linux-gnu.so", "math.cpython-311-x86_64-linux-gnu.so", "libm.so.6"];
        assert_eq!(modules.map(is_c_module), [true, false, false]);
    }
}
