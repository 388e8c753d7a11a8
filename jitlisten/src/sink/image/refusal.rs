//! Reasons why pages get no image. These are not errors: the sink continues.

use crate::log::LogEvent;
use crate::statistics::{Counter, ImageCounters};
use crate::{Error, ObjectId, log_line};

#[derive(Debug)]
pub(super) enum Refusal {
    /// The memory was unmapped.
    Unreadable,
    /// The pages are writable, shared with other processes, from another file, or not executable.
    NotFinal,
    /// Another thread may write to the pages during the exchange.
    NotOwned,
    /// The ELF file cannot be encoded.
    NotEncoded(Error),
}

/// Flags for the kinds of refusal that were already logged.
#[derive(Debug, Default)]
pub(super) struct Refusals([bool; 4]);

impl Refusals {
    /// Counts a refusal. The first of each kind is logged as a warning, later ones as debug messages.
    pub(super) fn count_and_log(&mut self, counters: &ImageCounters, refusal: &Refusal, id: ObjectId) {
        let (kind, counter): (usize, &Counter) = match refusal {
            Refusal::Unreadable => (0, &counters.refused_unreadable),
            Refusal::NotFinal => (1, &counters.refused_not_final),
            Refusal::NotEncoded(_) => (2, &counters.refused_not_encoded),
            Refusal::NotOwned => (3, &counters.refused_not_owned),
        };
        counter.add(1);
        let id = &id.to_string();
        if std::mem::replace(&mut self.0[kind], true) {
            log_line!(Debug, "{}", LogEvent::NoImage { id, reason: &refusal.reason() });
        } else {
            let reason = &format!("{}; further ones are only counted", refusal.reason());
            log_line!(Warn, "{}", LogEvent::NoImage { id, reason });
        }
    }
}

impl Refusal {
    fn reason(&self) -> String {
        match self {
            Refusal::Unreadable => "its memory cannot be read".into(),
            Refusal::NotFinal => {
                "its pages are writable, shared with other processes or another file's, or not executable".into()
            }
            Refusal::NotOwned => {
                "other threads may put code into its pages (jitlisten_owns_pages promises that they do not)".into()
            }
            Refusal::NotEncoded(error) => error.to_string(),
        }
    }
}
