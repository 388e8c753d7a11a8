//! The third room: whom we tell. One file per consumer behind one small trait.

#![forbid(unsafe_code)]

mod perf_map;

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::name::ReadableName;
use crate::options::{NameStyle, Options, SinkKind};
use crate::{AddressRange, LoadedObject};

/// An object whose code is final and executable, until its *freeing*.
pub(crate) struct FinalizedObject<'a> {
    pub(crate) object: &'a LoadedObject,
    /// One per function of `object`, in its order.
    pub(crate) names: &'a [ReadableName],
    /// The debug object, for a sink that asked for it, if it is still to be had.
    pub(crate) debug_object: Option<&'a [u8]>,
}

/// A consumer of objects. Called under the session's lock; must not call back into the session.
pub(crate) trait Sink: Send {
    /// Whether [`FinalizedObject::debug_object`] is needed.
    fn wants_debug_object(&self) -> bool {
        false
    }

    /// The object's code is final. Answers how many bytes were written.
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError>;

    /// The object's code goes away now.
    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError>;

    /// We are the child of a fork: leave the parent's files alone and start with nothing. The session then tells again
    /// what is alive.
    fn forked(&mut self);
}

/// Why a sink stopped.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// `verb` on `path` failed.
    Io { verb: &'static str, path: PathBuf, error: io::Error },
    /// The file at `path` is not one we may write to.
    NotOurs { path: PathBuf, found: &'static str },
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Io { verb, path, error } => write!(f, "{verb} {}: {error}", path.display()),
            SinkError::NotOurs { path, found } => write!(f, "{} is not ours: {found}", path.display()),
        }
    }
}

/// Makes the sink; files are opened at the first object.
pub(crate) fn create(kind: SinkKind, options: &Options, stale_map: Option<StaleMap>) -> Box<dyn Sink> {
    match kind {
        SinkKind::PerfMap => Box::new(perf_map::PerfMap::new(options.names, stale_map)),
    }
}

pub(crate) use perf_map::StaleMap;

impl FinalizedObject<'_> {
    /// Every function with the name the user asked for.
    fn functions(&self, style: NameStyle) -> impl Iterator<Item = (AddressRange, &str)> {
        self.object.functions().iter().zip(self.names).map(move |(function, readable)| match style {
            NameStyle::Readable => (function.range, readable.text.as_str()),
            NameStyle::Linkage => (function.range, &*function.linkage_name),
        })
    }
}
