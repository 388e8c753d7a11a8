//! The library's log, read back as events.

#![forbid(unsafe_code)]

pub use jitlisten::plumbing::LogEvent;

/// Events in a log.
pub fn events(log: &str) -> impl Iterator<Item = LogEvent<'_>> {
    log.lines().filter_map(LogEvent::from_line)
}

/// Number of events in a log that `is_counted` accepts.
#[must_use]
pub fn count(log: &str, is_counted: impl Fn(&LogEvent<'_>) -> bool) -> usize {
    events(log).filter(is_counted).count()
}

/// Numbers of loaded, finalized and freed objects in a log. The log's level must be `debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names explain them")]
pub struct ObjectCounts {
    pub loaded: usize,
    pub finalized: usize,
    pub freed: usize,
}

impl ObjectCounts {
    /// Counts, in the order of an object's life.
    #[must_use]
    pub fn new(loaded: usize, finalized: usize, freed: usize) -> ObjectCounts {
        ObjectCounts { loaded, finalized, freed }
    }

    /// Counts of a log.
    #[must_use]
    pub fn in_log(log: &str) -> ObjectCounts {
        ObjectCounts {
            loaded: count(log, |event| matches!(event, LogEvent::Loaded { .. })),
            finalized: count(log, |event| matches!(event, LogEvent::Finalized { .. })),
            freed: count(log, |event| matches!(event, LogEvent::Freed { .. })),
        }
    }
}

/// Sinks that stopped, according to a log, with their errors.
#[must_use]
pub fn stopped_sinks(log: &str) -> Vec<(&str, &str)> {
    let stopped = |event| if let LogEvent::SinkStopped { sink, error } = event { Some((sink, error)) } else { None };
    events(log).filter_map(stopped).collect()
}

/// Asserts that exactly one sink stopped, with `reason` in its error.
#[track_caller]
pub fn assert_one_stop(log: &str, sink: &str, reason: &str) {
    let stopped = stopped_sinks(log);
    assert!(matches!(stopped[..], [(stopped, error)] if stopped == sink && error.contains(reason)), "{log}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted() {
        let log = "jitlisten[7] debug: loaded object 1: 2 functions, text 0x10..0x20\n\
            jitlisten[7] debug: finalized object 1\n\
            jitlisten[7] debug: loaded object 2: 1 functions, text 0x30..0x40\n\
            jitlisten[7] debug: freeing object 1\njitlisten[7] info: recording with signal 40\n";
        assert_eq!(ObjectCounts::in_log(log), ObjectCounts::new(2, 1, 1));
    }
}
