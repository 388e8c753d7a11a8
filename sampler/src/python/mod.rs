//! Functions that CPython interprets: 3.8 to 3.15, with the GIL and free-threaded.
//!
//! ```text
//!   handler    frames  -->  a word for each frame, in the sample       known, memory
//!                 \-------> code objects that are new                  definitions
//!   writer     functions -> image (names, lines) and addresses in it   lines, text
//!              merge   -->  one stack: native frames, with the interpreter's in the place of its evaluators
//! ```
//!
//! In the recording, a frame of an interpreted function is an address in a mapping whose file is
//! `FILE.images/python-PID-TIME-N.so`, an ELF file with the function as the symbol `py::QUALIFIED_NAME:FILE` and its
//! line in the line table. So `perf report` and `perf script -F +srcline` show them, too. Kinds of code are thus:
//! *python* is such a file, *compiled* any other file in `FILE.images`, *native* the rest.
//!
//! The state of a thread at a sample is in the stack: it *runs* in its innermost frame; it *waits* where that is a
//! system call of libc's below a frame of kind python or native (`pthread_cond_timedwait` below `take_gil`: for the
//! GIL); it *collects garbage* below `gc_collect_main` or `gc_collect_region`; it *imports* below `_find_and_load` of
//! `<frozen importlib._bootstrap>`, whose caller's line is the `import`; it *compiles* below `Dispatcher.compile`,
//! `_compile_for_args` (Numba) or a frame of LLVM's.
//!
//! Code objects are not kept alive: names and lines are copied when a thread meets one for the first time, and a hook
//! on `tp_dealloc` forgets it when it is freed. The type of every object is checked, so wrong offsets give no names.

mod definitions;
mod evaluators;
mod find;
mod frames;
mod functions;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod image;
mod interpreter;
mod known;
mod layout;
mod lines;
mod memory;
mod merge;
mod tasks;
mod text;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jitlisten::log_line;

pub(crate) use evaluators::Evaluators;
pub(crate) use frames::EVALUATOR;

use crate::perf_data::Mapping;
use crate::unwind::Outcome;
use functions::Functions;

/// A copy of this process's memory, if all of it can be read.
fn read(address: u64, size: u64) -> Option<Vec<u8>> {
    crate::mappings::read_memory(address, size)
}

/// The interpreter of this process as the writer has it.
#[derive(Debug)]
pub(crate) struct Python {
    functions: Functions,
    inherited: Inherited,
    bases: merge::Bases,
}

/// What the child of a fork need not look for.
#[derive(Clone, Debug)]
pub(crate) struct Inherited {
    minor: u8,
    glue: Arc<[Range<u64>]>,
    dealloc: u64,
}

impl Python {
    /// Looks for an interpreter in new mappings, of all that `maps` lists; from then on handlers read its frames.
    /// `directory` says where images are to be.
    pub(crate) fn find(maps: &[u8], new: &[Mapping], directory: &Path) -> Option<Python> {
        let found = match find::find(maps, new)? {
            Ok(found) => found,
            Err(refusal) => {
                log_line!(Warn, "Python functions are not shown: {refusal}");
                return None;
            }
        };
        let inherited = Inherited {
            minor: found.interpreter.layout.release.minor,
            glue: found.glue.into(),
            dealloc: found.dealloc,
        };
        forget_numbers();
        // SAFETY: found as the type of code objects, in memory that is writable.
        if !unsafe { known::hook(inherited.dealloc) } {
            log_line!(Warn, "Python functions are not shown: another tool has hooked their code");
            return None;
        }
        log_line!(Info, "reading frames of {}", found.name);
        interpreter::publish(found.interpreter);
        Some(Python::new(inherited, directory))
    }

    fn new(inherited: Inherited, directory: &Path) -> Python {
        let functions = Functions::new(inherited.minor, directory);
        Python { functions, inherited, bases: merge::Bases::default() }
    }

    /// In the child of a fork: handlers read the frames of the parent's interpreter, and it has the hook.
    pub(crate) fn inherit(inherited: Inherited, directory: &Path) -> Option<Python> {
        is_read().then(|| {
            forget_numbers();
            Python::new(inherited, directory)
        })
    }

    /// For the child of a fork.
    pub(crate) fn inherited(&self) -> Inherited {
        self.inherited.clone()
    }

    /// Looks for asyncio among new mappings.
    pub(crate) fn look(&self, new: &[Mapping]) {
        let Some(interpreter) = interpreter::published() else { return };
        if interpreter.layout.coroutines.is_none() || interpreter.tasks.get().is_some() {
            return;
        }
        let name = |mapping: &Mapping| mapping.path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
        let may_have = |mapping: &&Mapping| {
            interpreter.has_code(mapping.start) || name(mapping).is_some_and(|name| name.starts_with(b"_asyncio."))
        };
        if let Some(found) = new.iter().filter(may_have).find_map(find::tasks) {
            let _ = interpreter.tasks.set(found);
        }
    }

    /// Takes what handlers have defined since the last time.
    pub(crate) fn take(&mut self, mapping: impl FnMut(u64, Mapping)) {
        self.functions.take(mapping);
    }

    /// Whether every frame of a sample can be named by now.
    pub(crate) fn knows(&self, words: &[u64]) -> bool {
        let frames = words.iter().take_while(|word| frames::Word::decode(**word).is_some());
        frames.into_iter().all(|&word| self.functions.address(word).is_some())
    }

    /// See [`merge::merge`] and [`merge::Bases::complete`]; `slot` is the thread's.
    pub(crate) fn merge(&mut self, slot: usize, words: &[u64], outcome: Outcome, merged: &mut Vec<u64>) -> bool {
        let is_joined = merge::merge(words, outcome, self, merged);
        self.bases.complete(slot, words, outcome, functions::is_in_image, merged);
        is_joined
    }

    /// Writes the images.
    pub(crate) fn write(&mut self) {
        if let Err(error) = self.functions.write() {
            log_line!(Warn, "names of Python functions cannot be written: {error}");
        }
    }

    /// No frames are read any more.
    pub(crate) fn end(self) {
        interpreter::withdraw();
        // SAFETY: the slot that `hook` has changed in `find`; the interpreter stays mapped.
        unsafe { known::unhook(self.inherited.dealloc) };
        let (damaged, nameless) = (&frames::DAMAGED, &frames::NAMELESS);
        let (damaged, nameless) = (damaged.load(Ordering::Relaxed), nameless.load(Ordering::Relaxed));
        if damaged + nameless != 0 {
            log_line!(
                Info,
                "{damaged} stacks had a frame of Python that could not be read, {nameless} frames have no name"
            );
        }
    }
}

impl merge::Names for Python {
    fn address(&self, word: u64) -> u64 {
        self.functions.address(word).unwrap_or_else(|| self.functions.unnamed())
    }

    fn is_glue(&self, address: u64) -> bool {
        let glue = &self.inherited.glue;
        let after = glue.partition_point(|range| range.start <= address);
        after.checked_sub(1).and_then(|at| glue.get(at)).is_some_and(|range| range.contains(&address))
    }
}

/// Code objects get numbers anew, in the files of this recording. While no handler runs.
fn forget_numbers() {
    frames::begin();
    definitions::clear();
}

/// Whether handlers read frames of an interpreter.
pub(crate) fn is_read() -> bool {
    interpreter::published().is_some()
}

/// In the child of a fork, and after a recording that ended in another way.
pub(crate) fn forget() {
    interpreter::withdraw();
}
