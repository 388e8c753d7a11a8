//! Path of a stack through the user's code: the lines that become rows of the tree.

use rustc_hash::FxHashMap;

use crate::profile::Profile;
use crate::profile::owners::{STANDARD_LIBRARY, is_generated};
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
    /// Outermost C function that the innermost Python or compiled function called, as an index into
    /// [`Symbols::functions`].
    pub(super) callee: Option<u32>,
    /// Innermost package among the C functions that the innermost Python or compiled function called, as an index into
    /// [`Symbols::functions`].
    pub(super) package: Option<u32>,
    /// Innermost call of a function by a package.
    pub(super) callback: Option<Callback>,
    /// True if the innermost Python function called C functions that work on strings, or sort a list.
    pub(super) is_text: bool,
    /// True if the innermost Python or compiled function called for a garbage collection, as `gc.collect()` does.
    pub(super) requests_collection: bool,
}

impl StackPath {
    /// Returns the interpreted lines before the first compiled one.
    pub(super) fn python_steps(&self) -> &[Step] {
        let end = self.steps.iter().position(|step| step.is_compiled).unwrap_or(self.steps.len());
        &self.steps[..end]
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
            Kind::Compiled => {}
            _ if !has_owner => {
                path.callee = Some(frame.function);
                path.is_text |= is_text_function(&function.base);
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

/// Returns true for C functions of CPython that work on strings, or sort a list. Compiled code does neither faster.
fn is_text_function(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    ["unicode", "PyUnicode", "PyBytes", "bytes_", "sre_", "list_sort"].iter().any(|prefix| name.starts_with(prefix))
}

/// C functions of CPython that collect garbage at the request of a program. Allocations call others.
const COLLECTION_REQUESTS: [&str; 4] = ["gc_collect", "gc_collect_impl", "PyGC_Collect", "_PyGC_Collect"];

fn is_python_library(library: &str) -> bool {
    library.starts_with("libpython") || library.starts_with("python")
}

/// Callers of compiled code that a worker thread ran: the path above the same function, or the lines of Python above
/// the same file, in threads that Python called.
#[derive(Default)]
pub(super) struct Callers {
    by_function: FxHashMap<(u32, u32), FxHashMap<Vec<Step>, u64>>,
    by_source: FxHashMap<u32, FxHashMap<Vec<Step>, u64>>,
}

impl Callers {
    pub(super) fn add(&mut self, path: &StackPath, weight: u64) {
        if !path.is_called_from_python() {
            return;
        }
        let python = path.python_steps();
        for (index, step) in path.steps.iter().enumerate().filter(|(_, step)| step.is_compiled) {
            let above = path.steps[..index].to_vec();
            *self.by_function.entry((step.source, step.row)).or_default().entry(above).or_default() += weight;
            *self.by_source.entry(step.source).or_default().entry(python.to_vec()).or_default() += weight;
        }
    }

    /// Returns the most frequent path above the outermost compiled function of a stack without a Python caller.
    pub(super) fn find(&self, path: &StackPath) -> Option<&[Step]> {
        let outermost = path.steps.first().filter(|step| step.is_compiled)?;
        let by_function = self.by_function.get(&(outermost.source, outermost.row));
        let callers = by_function.or_else(|| self.by_source.get(&outermost.source))?;
        let order = |(path, weight): &(&Vec<Step>, &u64)| {
            (**weight, std::cmp::Reverse(path.iter().map(|step| (step.source, step.line)).collect::<Vec<_>>()))
        };
        callers.iter().max_by_key(order).map(|(path, _)| path.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(line: u32, row: u32, is_compiled: bool) -> Step {
        Step { source: 0, line, row, is_compiled, is_module: false }
    }

    #[test]
    fn workers_run_below_the_parallel_loop_that_started_them() {
        let path = |steps: &[Step]| StackPath { steps: steps.to_vec(), ..StackPath::default() };
        let (call, parallel_loop, body) = (step(30, 0, false), step(12, 1, true), step(16, 2, true));
        let mut callers = Callers::default();
        callers.add(&path(&[call, parallel_loop, body]), 1);
        assert_eq!(callers.find(&path(&[step(17, 2, true)])), Some(&[call, parallel_loop][..]), "the same function");
        assert_eq!(callers.find(&path(&[step(18, 3, true)])), Some(&[call][..]), "another function of the file");
        assert_eq!(callers.find(&path(&[call, body])), None, "Python called it");
    }

    #[test]
    fn strings_and_sorts_are_known_by_their_functions() {
        let names =
            ["list_sort", "_PyUnicode_Equal", "unicode_compare", "sre_ucs1_match", "_PyBytes_Join", "bytes_add"];
        assert!(names.into_iter().all(is_text_function));
        assert!(!["float_add", "PyNumber_Multiply", "dict_subscript", "list_append"].into_iter().any(is_text_function));
    }
}
