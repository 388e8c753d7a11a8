//! The session: what a user of the library sees of the live objects.

use once_cell::race::OnceBox;

use crate::LiveFunction;
use crate::live_objects::LiveObjects;
use crate::log_line;
use crate::options::{Options, SinkKind};
use crate::process::privilege::is_privileged;
use crate::statistics::Statistics;

/// The session of the process. Keeps the live objects and the sinks; at most one exists.
///
/// [`producer::open`](crate::producer::open) opens it. The sinks can be switched and queried at any time:
///
/// ```
/// use jitlisten::options::{Options, SinkKind};
/// use jitlisten::producer;
///
/// let (options, complaints) = Options::from_env();
/// let session = producer::open(options, &complaints);
/// session.enable(SinkKind::Unwind);
/// assert!(session.is_enabled(SinkKind::Unwind));
/// for function in session.live_functions() {
///     println!("{} {}", function.range, function.name);
/// }
/// session.disable(SinkKind::Unwind);
/// ```
#[derive(Debug)]
pub struct Session(LiveObjects);

static PROCESS: OnceBox<Session> = OnceBox::new();

/// Opens the session of this process, or returns it unchanged if it is open already. `complaints` are logged. In a
/// privileged process ([`is_privileged`]) the options are ignored, and the session is inactive.
pub fn open_session(options: Options, complaints: &[String]) -> &'static Session {
    PROCESS.get_or_init(|| {
        if is_privileged() {
            return Box::new(Session::new(Options { active: false, ..Options::default() }));
        }
        crate::log::open(&options.log);
        for complaint in complaints {
            log_line!(Warn, "{complaint}");
        }
        Box::new(Session::new(options))
    })
}

impl Session {
    /// The session of this process, if it is open.
    pub fn process() -> Option<&'static Session> {
        PROCESS.get()
    }

    pub(crate) fn new(options: Options) -> Session {
        Session(LiveObjects::new(options))
    }

    /// Options that the session was opened with.
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// Current values of the counters.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Enables a sink and notifies it of all live objects. Does nothing if the sink is enabled, except in the child of
    /// a fork: there it writes the inherited objects now.
    pub fn enable(&self, kind: SinkKind) {
        self.0.enable(kind);
    }

    /// Disables a sink. Its files are closed and kept.
    pub fn disable(&self, kind: SinkKind) {
        self.0.disable(kind);
    }

    /// Returns true if a sink is enabled: requested and not failed.
    pub fn is_enabled(&self, kind: SinkKind) -> bool {
        self.0.is_enabled(kind)
    }

    /// All live functions, sorted by address. Slow, because it reads the line table of each object.
    pub fn live_functions(&self) -> Vec<LiveFunction> {
        self.0.live_functions()
    }
}

impl LiveObjects {
    /// The live objects of this process, if its session is open.
    pub fn process() -> Option<&'static LiveObjects> {
        Session::process().map(LiveObjects::of)
    }

    /// The live objects of a session.
    pub fn of(session: &Session) -> &LiveObjects {
        &session.0
    }
}
