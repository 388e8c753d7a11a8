//! Sinks: consumers of code events. Each has its own module; all implement one trait.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gdb;
mod image;
mod jitdump;
mod modules;
mod own_lines;
pub(crate) mod perf_map;
pub(crate) mod process_directory;
mod unwind;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::liveness::Run;
use crate::name::{self, ReadableName};
use crate::object::{DebugObject, Origin};
use crate::options::{NameStyle, Options, SinkKind};
use crate::{Address, AddressRange, LoadedObject, ObjectId};

/// Object whose code is final and executable; valid until its *freeing* event.
pub(crate) struct FinalizedObject<'a> {
    pub(crate) id: ObjectId,
    pub(crate) object: &'a LoadedObject,
    /// Names of the functions of `object`, in the same order.
    pub(crate) names: &'a [ReadableName],
    /// Unwind rules derived from machine code, for functions that `.eh_frame` lacks.
    pub(crate) derived_rules: &'a [FunctionRules],
    /// Debug object, if the sink asked for it and it is still available.
    pub(crate) debug_object: Option<&'a [u8]>,
    /// Copy of the object's live bytes.
    pub(crate) snapshot: &'a CodeSnapshot,
    /// Time at which the code became final, `CLOCK_MONOTONIC` in ns.
    pub(crate) finalized_at_ns: u64,
    /// Returns the start of the first loaded code at or after an address.
    pub(crate) find_next_code: &'a dyn Fn(Address) -> Option<Address>,
    /// Origin of the object, which determines where it is already registered.
    pub(crate) origin: Origin,
    /// Returns the loaded objects with text in a range.
    pub(crate) neighbours: &'a dyn Fn(AddressRange) -> Neighbours<'a>,
    /// True if our hooks are called before anything writes to the object's pages.
    pub(crate) owns_pages: bool,
    /// Memory reserved in front of code; see [`HeaderPadding`].
    pub(crate) padding: &'a HeaderPadding,
}

/// Loaded objects with text in a range.
#[derive(Default)]
pub(crate) struct Neighbours<'a> {
    /// Finalized objects.
    pub(crate) finalized: Vec<Neighbour<'a>>,
    /// True if the range also has text of loaded objects that are not final.
    pub(crate) has_pending: bool,
    /// True if another thread's system call is changing the memory right now.
    pub(crate) is_changing: bool,
}

/// A finalized object, with the same fields as [`FinalizedObject`].
pub(crate) struct Neighbour<'a> {
    pub(crate) id: ObjectId,
    pub(crate) object: &'a LoadedObject,
    pub(crate) names: &'a [ReadableName],
    pub(crate) derived_rules: &'a [FunctionRules],
    pub(crate) debug_object: &'a DebugObject,
    pub(crate) owns_pages: bool,
}

/// Memory reserved in front of code, by its end address.
pub(crate) type HeaderPadding = BTreeMap<Address, AddressRange>;

/// Consumer of code events. Its methods are called with the session locked, and must not call back into the session.
pub(crate) trait Sink: Send {
    /// Returns true if the sink needs [`FinalizedObject::debug_object`].
    fn wants_debug_object(&self) -> bool {
        false
    }

    /// Handles an object whose code became final. Returns the number of bytes written.
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError>;

    /// Starts a batch. The following objects became final earlier, and may be written together.
    fn begin_batch(&mut self) {}

    /// Ends the batch. Returns the number of bytes written.
    fn end_batch(&mut self) -> Result<u64, SinkError> {
        Ok(0)
    }

    /// Handles an object whose code is about to be freed.
    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError>;

    /// Finishes pending work before the sink is disabled or the process exits. Returns the number of bytes written.
    fn finish(&mut self) -> Result<u64, SinkError> {
        Ok(0)
    }

    /// Resets the sink in the child of a fork. Must leave the parent's files alone, and must run in constant time.
    fn forked(&mut self) -> SinkState;

    /// Handles a permanent change of the process's user. A sink that cannot create a file as the new user keeps its old
    /// file.
    fn user_changed(&mut self) -> SinkState {
        SinkState::Kept
    }
}

/// State of a sink after a fork or a change of user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinkState {
    /// The sink lost its state, so all live objects must be passed to it again before any other call.
    Lost,
    /// The sink kept its state.
    Kept,
}

/// Reason why a sink stopped.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// The operation named by `verb` failed on `path`.
    Io { verb: &'static str, path: PathBuf, error: io::Error },
    /// We may not write to the file at `path`.
    NotOurs { path: PathBuf, reason: &'static str },
    /// No environment variable names a directory to write to.
    NoDirectory,
}

impl SinkError {
    /// Returns an error constructor for `map_err`: the operation `verb` failed on `path`.
    fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SinkError {
        let path = path.to_owned();
        move |error| SinkError::Io { verb, path, error }
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Io { verb, path, error } => write!(f, "{verb} {}: {error}", path.display()),
            SinkError::NotOurs { path, reason } => write!(f, "{} is not ours: {reason}", path.display()),
            SinkError::NoDirectory => {
                f.write_str("no directory to write to: JITLISTEN_DIR, JITDUMPDIR and HOME are not set")
            }
        }
    }
}

/// State that sinks share, and that outlives them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SinkContext {
    /// Result of [`StaleMap::find`] when the session was opened.
    pub(crate) stale_map: Option<StaleMap>,
    /// Byte ranges of the perf map that the perf map sink has written, even if the sink is disabled now.
    pub(crate) own_lines: OwnLines,
    /// Lines that a disabled perf map sink has left in the file.
    pub(crate) retained_lines: Arc<Mutex<RetainedLines>>,
    /// True if another live process has the same perf map, so that foreign lines may describe that process's code.
    pub(crate) map_is_shared: Arc<AtomicBool>,
    /// The `jitlisten run` invocation that started this process, if any.
    pub(crate) run: Option<Run>,
    /// Mappings of images, kept even while the `image` sink is disabled. This mutex is only locked while the session is
    /// locked.
    pub(crate) images: Arc<Mutex<Images>>,
}

impl SinkContext {
    /// Returns the context for a child right after `fork(2)`; call [`SinkContext::reset_map`] first. The child's sinks
    /// share the returned context, including sinks that are enabled later.
    fn in_child(&self) -> SinkContext {
        SinkContext { stale_map: StaleMap::find(), ..self.clone() }
    }

    /// Resets the state of the perf map, because later lines go to another file.
    pub(crate) fn reset_map(&self) {
        self.own_lines.forget();
        self.map_is_shared.store(false, Ordering::Relaxed);
        let mut retained_lines = self.retained_lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Most children of a fork have none, and end soon: do not touch more pages there than necessary.
        if !retained_lines.is_empty() {
            *retained_lines = RetainedLines::default();
        }
    }
}

/// Creates a sink. Its files are opened when it receives the first object.
pub(crate) fn create(kind: SinkKind, options: &Options, context: &SinkContext) -> Box<dyn Sink> {
    match kind {
        SinkKind::Unwind => Box::new(unwind::Unwind::default()),
        SinkKind::PerfMap => Box::new(perf_map::PerfMap::new(options.names, context)),
        SinkKind::Gdb => Box::new(gdb::Gdb::default()),
        SinkKind::Image => Box::new(image::Image::new(options, &context.images)),
        SinkKind::Modules => Box::new(modules::Modules::new(options.names, &context.images)),
        SinkKind::Jitdump => Box::new(jitdump::Jitdump::new(options, context)),
    }
}

pub(crate) use gdb::show_llvm_list;
pub(crate) use image::{Images, page_size};
pub(crate) use own_lines::OwnLines;
pub use perf_map::run_before_program;
pub(crate) use perf_map::{RetainedLines, StaleMap};
pub use unwind::UnwinderSearch;
pub(crate) use unwind::find_unwinders;

/// Returns a name in the form that text formats accept. Linkage names stay unchanged, however short.
fn printable(name: &str, style: NameStyle) -> String {
    let readable = name::printable(name);
    if style == NameStyle::Linkage && readable.strip_suffix("()") == Some(name) { name.to_owned() } else { readable }
}

impl FinalizedObject<'_> {
    /// Returns all functions, each with its name in `style`.
    fn functions(&self, style: NameStyle) -> impl Iterator<Item = (AddressRange, &str)> {
        self.object.functions().iter().zip(self.names).map(move |(function, readable)| match style {
            NameStyle::Readable => (function.range, readable.text.as_str()),
            NameStyle::Linkage => (function.range, &*function.linkage_name),
        })
    }
}
