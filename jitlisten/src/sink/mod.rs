//! The sinks: one file per consumer behind one small trait.

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

/// An object whose code is final and executable, until its *freeing*.
pub(crate) struct FinalizedObject<'a> {
    pub(crate) id: ObjectId,
    pub(crate) object: &'a LoadedObject,
    /// One per function of `object`, in its order.
    pub(crate) names: &'a [ReadableName],
    /// Unwind rules for functions that its `.eh_frame` lacks, where they can be read from the code.
    pub(crate) made_rules: &'a [FunctionRules],
    /// The debug object, for a sink that asked for it, if it is still to be had.
    pub(crate) debug_object: Option<&'a [u8]>,
    /// What is in its memory now.
    pub(crate) snapshot: &'a CodeSnapshot,
    /// When its code became final, `CLOCK_MONOTONIC` in nanoseconds.
    pub(crate) since: u64,
    /// Where the first code begins at or behind an address, of all that is loaded.
    pub(crate) next_code: &'a dyn Fn(Address) -> Option<Address>,
    /// What else knows of it.
    pub(crate) origin: Origin,
    /// Whose text is in a range, of all that is loaded.
    pub(crate) neighbours: &'a dyn Fn(AddressRange) -> Neighbours<'a>,
    /// True if nothing writes to its pages unless our hooks hear of it first.
    pub(crate) owns_pages: bool,
    /// See [`HeaderPadding`].
    pub(crate) padding: &'a HeaderPadding,
}

/// Which objects have text in some memory.
#[derive(Default)]
pub(crate) struct Neighbours<'a> {
    /// Finalized objects.
    pub(crate) finalized: Vec<Neighbour<'a>>,
    /// Whether there are others, which are loaded and not finalized.
    pub(crate) unfinished: bool,
    /// True if a system call of another thread changes the memory at this moment.
    pub(crate) is_changing: bool,
}

/// A finalized object, as in [`FinalizedObject`].
pub(crate) struct Neighbour<'a> {
    pub(crate) id: ObjectId,
    pub(crate) object: &'a LoadedObject,
    pub(crate) names: &'a [ReadableName],
    pub(crate) made_rules: &'a [FunctionRules],
    pub(crate) debug_object: &'a DebugObject,
    pub(crate) owns_pages: bool,
}

/// Memory that was reserved in front of code, by its end.
pub(crate) type HeaderPadding = BTreeMap<Address, AddressRange>;

/// A consumer of objects. Called under the session's lock; must not call back into the session.
pub(crate) trait Sink: Send {
    /// Whether [`FinalizedObject::debug_object`] is needed.
    fn wants_debug_object(&self) -> bool {
        false
    }

    /// The object's code is final. Returns how many bytes were written.
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError>;

    /// Many calls of `finalized` follow, of objects that were final before: they may be written together.
    fn many_begin(&mut self) {}

    /// These were all. Returns how many bytes were written.
    fn many_end(&mut self) -> Result<u64, SinkError> {
        Ok(0)
    }

    /// The object's code is about to be freed.
    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError>;

    /// The sink is switched off, or the process exits, next. Returns how many bytes were written.
    fn ending(&mut self) -> Result<u64, SinkError> {
        Ok(0)
    }

    /// We are the child of a fork: leave the parent's files alone, and do nothing that takes longer the more there is.
    fn forked(&mut self) -> Forked;

    /// The process has become another user for good. A sink that cannot have a file of that user goes on with the old
    /// one.
    fn user_changed(&mut self) -> Forked {
        Forked::KnowsEverything
    }
}

/// What a sink knows in the child of a fork, or as another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forked {
    /// It is to be notified of everything alive once more, before anything else.
    KnowsNothing,
    /// What it was notified of before holds still.
    KnowsEverything,
}

/// Why a sink stopped.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// `verb` on `path` failed.
    Io { verb: &'static str, path: PathBuf, error: io::Error },
    /// The file at `path` is not one we may write to.
    NotOurs { path: PathBuf, found: &'static str },
    /// The environment names no directory to write to.
    NoDirectory,
}

impl SinkError {
    /// For `map_err`: `verb` on `path` failed.
    fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SinkError {
        let path = path.to_owned();
        move |error| SinkError::Io { verb, path, error }
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Io { verb, path, error } => write!(f, "{verb} {}: {error}", path.display()),
            SinkError::NotOurs { path, found } => write!(f, "{} is not ours: {found}", path.display()),
            SinkError::NoDirectory => {
                f.write_str("no directory to write to: JITLISTEN_DIR, JITDUMPDIR and HOME are not set")
            }
        }
    }
}

/// What sinks have to know of each other and of the time before them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SinkContext {
    /// A snapshot of [`StaleMap::find`] made when the session was opened.
    pub(crate) stale_map: Option<StaleMap>,
    /// What the perf map sink wrote, now or when it was on.
    pub(crate) own_lines: OwnLines,
    /// What it has left in the file, while it is off.
    pub(crate) left_lines: Arc<Mutex<LeftLines>>,
    /// Whether another living process has the same perf map: lines that are not ours are about its code.
    pub(crate) map_is_shared: Arc<AtomicBool>,
    /// The `jitlisten run` that this process belongs to.
    pub(crate) run: Option<Run>,
    /// The mappings of images, whether that sink is on or off. Taken under the session's lock only.
    pub(crate) images: Arc<Mutex<Images>>,
}

impl SinkContext {
    /// Those of a child right after `fork(2)`, when [`SinkContext::forget_map`] was called. Sinks that are switched on
    /// later share them.
    fn in_child(&self) -> SinkContext {
        SinkContext { stale_map: StaleMap::find(), ..self.clone() }
    }

    /// The perf map of this process is another file from now on.
    pub(crate) fn forget_map(&self) {
        self.own_lines.forget();
        self.map_is_shared.store(false, Ordering::Relaxed);
        *self.left_lines.lock().unwrap_or_else(PoisonError::into_inner) = LeftLines::default();
    }
}

/// Makes the sink; files are opened at the first object.
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

pub(crate) use gdb::show_list_of;
pub(crate) use image::Images;
pub(crate) use own_lines::OwnLines;
pub use perf_map::before_program;
pub(crate) use perf_map::{LeftLines, StaleMap};
pub use unwind::Unwinders;
pub(crate) use unwind::look_for_unwinders;

/// A name as text formats take it. A symbol stays what it is, however short.
fn printable(name: &str, style: NameStyle) -> String {
    let text = name::printable(name);
    if style == NameStyle::Linkage && text.strip_suffix("()") == Some(name) { name.to_owned() } else { text }
}

impl FinalizedObject<'_> {
    /// Every function with the name the user asked for.
    fn functions(&self, style: NameStyle) -> impl Iterator<Item = (AddressRange, &str)> {
        self.object.functions().iter().zip(self.names).map(move |(function, readable)| match style {
            NameStyle::Readable => (function.range, readable.text.as_str()),
            NameStyle::Linkage => (function.range, &*function.linkage_name),
        })
    }
}
