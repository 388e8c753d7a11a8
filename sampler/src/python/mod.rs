//! Frames of functions that CPython interprets: CPython 3.8 to 3.15, with the GIL or free-threaded.
//!
//! ```text
//!   handler    frames  -->  a word for each frame, in the sample       code_numbers, memory
//!                 \-------> new code objects                           definitions
//!   writer     functions -> image (names, lines) and addresses in it   lines, text
//!              merge   -->  one stack: native frames, with Python frames in place of the evaluators
//! ```
//!
//! In the recording, a frame of an interpreted function is an address in a mapping of
//! `FILE.images/python-PID-TIME-N.so`. In that ELF file, the function is the symbol `py::QUALIFIED_NAME:FILE`, and the
//! line table contains its lines. So `perf report` and `perf script -F +srcline` show such frames, too. The mapped file
//! thus identifies the kind of code: *python* for such a file, *compiled* for any other file in `FILE.images`, *native*
//! for the rest.
//!
//! The stack also shows the state of the thread. A thread *runs* in its innermost frame. It *waits* if its innermost
//! frame is a system call in libc below a frame of kind python or native; below `take_gil`, `pthread_cond_timedwait`
//! waits for the GIL. It *collects garbage* below `gc_collect_main` or `gc_collect_region`. It *imports* below
//! `_find_and_load` of `<frozen importlib._bootstrap>`, whose caller's line is the `import`. It *compiles* below
//! `Dispatcher.compile`, `_compile_for_args` (Numba) or an LLVM frame.
//!
//! Code objects are not kept alive: names and lines are copied at a code object's first sample, and a hook on
//! `tp_dealloc` forgets it when it is freed. The type of every object is checked, so wrong offsets yield no names
//! rather than wrong ones.

mod code_numbers;
mod definitions;
mod evaluators;
mod find;
mod frames;
mod functions;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod image;
mod interpreter;
mod layout;
mod lines;
mod memory;
mod merge;
mod tasks;
mod text;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use jitlisten::log_line;

pub(crate) use evaluators::Evaluators;
pub(crate) use frames::EVALUATOR_MARK;

use crate::recording::current;
use crate::unwind::Outcome;
use crate::writer::perf_data::Mapping;
use functions::Functions;

/// Copies a range of this process's memory. `None` if a part of it is unreadable.
fn read(address: u64, size: u64) -> Option<Vec<u8>> {
    crate::writer::mappings::read_memory(address, size)
}

/// The writer's state for the interpreter of this process.
#[derive(Debug)]
pub(crate) struct Python {
    functions: Functions,
    inherited: Inherited,
    bases: merge::StackBases,
}

/// Facts about the interpreter that spare a fork child a second search.
#[derive(Clone, Debug)]
pub(crate) struct Inherited {
    minor: u8,
    glue: Arc<[Range<u64>]>,
    dealloc: u64,
}

impl Python {
    /// Searches new mappings for an interpreter; `maps` lists all mappings. Handlers then read frames of the
    /// interpreter that was found. Images are stored in `directory`.
    pub(crate) fn find(maps: &[u8], new_mappings: &[Mapping], directory: &Path) -> Option<Python> {
        let cpython = match find::find(maps, new_mappings)? {
            Ok(cpython) => cpython,
            Err(refusal) => {
                log_line!(Warn, "Python functions are not shown: {refusal}");
                return None;
            }
        };
        let inherited = Inherited {
            minor: cpython.interpreter.layout.release.minor,
            glue: cpython.glue.into(),
            dealloc: cpython.dealloc,
        };
        forget_numbers();
        // SAFETY: `inherited.dealloc` is the address of `PyCode_Type.tp_dealloc`, which lies in writable memory.
        if !unsafe { code_numbers::install_hook(inherited.dealloc) } {
            log_line!(Warn, "Python functions are not shown: another tool has hooked their code");
            return None;
        }
        log_line!(Info, "reading frames of {}", cpython.name);
        interpreter::publish(cpython.interpreter);
        Some(Python::new(inherited, directory))
    }

    fn new(inherited: Inherited, directory: &Path) -> Python {
        let functions = Functions::new(inherited.minor, directory);
        Python { functions, inherited, bases: merge::StackBases::default() }
    }

    /// Continues in a fork child, where the parent's interpreter is published and hooked.
    pub(crate) fn inherit(inherited: Inherited, directory: &Path) -> Option<Python> {
        is_published().then(|| {
            forget_numbers();
            Python::new(inherited, directory)
        })
    }

    /// Returns the state for a fork child.
    pub(crate) fn inherited(&self) -> Inherited {
        self.inherited.clone()
    }

    pub(crate) fn find_asyncio(&self, new_mappings: &[Mapping]) {
        let Some(interpreter) = interpreter::published() else { return };
        if interpreter.layout.coroutines.is_none() || interpreter.tasks.get().is_some() {
            return;
        }
        let name = |mapping: &Mapping| mapping.path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
        let may_contain_asyncio = |mapping: &&Mapping| {
            interpreter.has_code(mapping.start) || name(mapping).is_some_and(|name| name.starts_with(b"_asyncio."))
        };
        if let Some(tasks) = new_mappings.iter().filter(may_contain_asyncio).find_map(find::find_tasks) {
            let _ = interpreter.tasks.set(tasks);
        }
    }

    /// Reads the definitions that handlers have written since the last call.
    pub(crate) fn take_definitions(&mut self, mapping: impl FnMut(u64, Mapping)) {
        self.functions.take_definitions(mapping);
    }

    /// True if all code objects of a sample are defined.
    pub(crate) fn can_name(&self, words: &[u64]) -> bool {
        let frames = words.iter().take_while(|word| frames::FrameWord::decode(**word).is_some());
        frames.into_iter().all(|&word| self.functions.address(word).is_some())
    }

    /// Merges a sample's stack: see [`merge::merge`] and [`merge::StackBases::complete`].
    pub(crate) fn merge(&mut self, slot: usize, words: &[u64], outcome: Outcome, merged: &mut Vec<u64>) -> bool {
        let is_joined = merge::merge(words, outcome, self, merged);
        self.bases.complete(slot, words, outcome, functions::is_in_image, merged);
        is_joined
    }

    /// Writes the current image if it has changed, and if that is due or `now`.
    pub(crate) fn write_images(&mut self, now: bool) {
        if let Err(error) = self.functions.write(now) {
            log_line!(Warn, "names of Python functions cannot be written: {error}");
        }
    }

    /// Stops reading frames, and removes the hook.
    pub(crate) fn end(self) {
        interpreter::withdraw();
        // SAFETY: `inherited.dealloc` is the slot that `install_hook` overwrote, and the interpreter stays mapped.
        unsafe { code_numbers::remove_hook(self.inherited.dealloc) };
        let Some(counters) = current::last().map(|recording| &recording.counters) else { return };
        let (unreadable, unnamed) = (counters.unreadable_stacks.get(), counters.unnamed_frames.get());
        if unreadable + unnamed != 0 {
            log_line!(
                Info,
                "{unreadable} stacks had a frame of Python that could not be read, {unnamed} frames have no name"
            );
        }
    }
}

impl merge::FrameAddresses for Python {
    fn address(&self, word: u64) -> u64 {
        self.functions.address(word).unwrap_or_else(|| self.functions.unnamed_address())
    }

    fn is_glue(&self, address: u64) -> bool {
        let glue = &self.inherited.glue;
        let index = glue.partition_point(|range| range.start <= address);
        index.checked_sub(1).and_then(|index| glue.get(index)).is_some_and(|range| range.contains(&address))
    }
}

/// Restarts the numbering of code objects, for the files of a new recording. Only call while no handler runs.
fn forget_numbers() {
    code_numbers::clear();
    definitions::clear();
}

/// True if handlers read the frames of an interpreter.
pub(crate) fn is_published() -> bool {
    interpreter::published().is_some()
}

/// Stops reading frames in a fork child that is not recorded, or after a recording that ended without [`Python::end`].
pub(crate) fn withdraw() {
    interpreter::withdraw();
}
