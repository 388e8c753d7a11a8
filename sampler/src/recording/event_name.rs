//! Event names as perf spells them, for [`Options::counter`](crate::Options).
//!
//! `include/uapi/linux/perf_event.h` defines their numbers; `perf list` prints the names.

#![forbid(unsafe_code)]

/// Values of `type` in `struct perf_event_attr` (`PERF_TYPE_SOFTWARE` and so on).
const SOFTWARE: u32 = 1;
const HARDWARE: u32 = 0;
const CACHE: u32 = 3;
const RAW: u32 = 4;

/// An event that the kernel can count for a thread, such as "cycles" or "page-faults".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    name: String,
    /// `type` in `struct perf_event_attr`.
    pub(crate) kind: u32,
    /// `config` in `struct perf_event_attr`.
    pub(crate) config: u64,
    /// True if events in the kernel are excluded.
    pub(crate) user_only: bool,
    /// Number of events per sample; `None` to sample at a frequency.
    pub(crate) period: Option<u64>,
}

const EVENTS: [(&str, u32, u64); 24] = [
    ("cycles", HARDWARE, 0),
    ("cpu-cycles", HARDWARE, 0),
    ("instructions", HARDWARE, 1),
    ("cache-references", HARDWARE, 2),
    ("cache-misses", HARDWARE, 3),
    ("branches", HARDWARE, 4),
    ("branch-instructions", HARDWARE, 4),
    ("branch-misses", HARDWARE, 5),
    ("bus-cycles", HARDWARE, 6),
    ("stalled-cycles-frontend", HARDWARE, 7),
    ("stalled-cycles-backend", HARDWARE, 8),
    ("ref-cycles", HARDWARE, 9),
    ("cpu-clock", SOFTWARE, 0),
    ("task-clock", SOFTWARE, 1),
    ("page-faults", SOFTWARE, 2),
    ("faults", SOFTWARE, 2),
    ("context-switches", SOFTWARE, 3),
    ("cs", SOFTWARE, 3),
    ("cpu-migrations", SOFTWARE, 4),
    ("migrations", SOFTWARE, 4),
    ("minor-faults", SOFTWARE, 5),
    ("major-faults", SOFTWARE, 6),
    ("alignment-faults", SOFTWARE, 7),
    ("emulation-faults", SOFTWARE, 8),
];
/// Caches that perf names, with their numbers.
const CACHES: [(&str, u64); 7] =
    [("L1-dcache", 0), ("L1-icache", 1), ("LLC", 2), ("dTLB", 3), ("iTLB", 4), ("branch", 5), ("node", 6)];
const OPERATIONS: [(&str, u64); 3] = [("load", 0), ("store", 1), ("prefetch", 2)];

impl Counter {
    /// Parses an event name: a hardware, software or cache event of `perf list`, or `r` followed by a raw hexadecimal
    /// number. The suffix `:u` excludes events in the kernel.
    ///
    /// # Errors
    /// A message, if the event is unknown.
    pub fn named(name: &str) -> Result<Self, String> {
        let (event, user_only) = match name.split_once(':') {
            None => (name, false),
            Some((event, "u")) => (event, true),
            Some((_, modifier)) => {
                return Err(format!("event {name:?}: unknown modifier :{modifier} (only :u is supported)"));
            }
        };
        let (kind, config) = parse_event(event).ok_or_else(|| {
            format!(
                "unknown event {name:?}: use one of `perf list`, such as cycles, cache-misses, page-faults or r01c2"
            )
        })?;
        Ok(Counter { name: event.to_owned(), kind, config, user_only, period: None })
    }

    /// Returns a clock of high resolution, which does not sample a thread in the kernel, because the signal would
    /// interrupt system calls.
    pub(crate) fn user_clock(hz: u32) -> Self {
        let period = Some(1_000_000_000 / u64::from(hz.max(1)));
        Counter { name: "cpu-clock".to_owned(), kind: SOFTWARE, config: 0, user_only: true, period }
    }

    /// Returns the number of events per sample. `None` if the kernel adapts it to the frequency.
    pub(crate) fn fixed_period(&self, hz: u32) -> Option<u64> {
        self.period.or_else(|| self.is_clock().then(|| 1_000_000_000 / u64::from(hz.max(1))))
    }

    /// True for a clock, which the kernel counts with a timer of its own: `cpu-clock` and `task-clock`.
    pub(crate) fn is_clock(&self) -> bool {
        self.kind == SOFTWARE && self.config <= 1
    }

    /// Returns a copy that does not count events in the kernel.
    pub(crate) fn excluding_kernel(self) -> Self {
        Counter { user_only: true, ..self }
    }

    /// Returns the name as perf would write it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}", self.name, if self.user_only { ":u" } else { "" })
    }
}

fn parse_event(name: &str) -> Option<(u32, u64)> {
    if let Some((_, kind, config)) = EVENTS.iter().find(|(event, ..)| *event == name) {
        return Some((*kind, *config));
    }
    if let Some(digits) = name.strip_prefix('r').filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit()))
    {
        return u64::from_str_radix(digits, 16).ok().map(|config| (RAW, config));
    }
    let (cache, rest) =
        CACHES.iter().find_map(|(cache, number)| Some((number, name.strip_prefix(cache)?.strip_prefix('-')?)))?;
    let (operation, is_miss) = match rest.strip_suffix("-misses") {
        Some(operation) => (operation, 1),
        None => (rest.strip_suffix("es").filter(|rest| *rest == "prefetch").or(rest.strip_suffix('s'))?, 0),
    };
    let (_, operation) = OPERATIONS.iter().find(|(prefix, _)| *prefix == operation)?;
    Some((CACHE, cache | operation << 8 | is_miss << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers are those that `perf record -e NAME -vv` prints.
    #[test]
    fn event_names_are_those_of_perf() {
        for (name, kind, config) in [
            ("cache-misses", HARDWARE, 3),
            ("page-faults", SOFTWARE, 2),
            ("L1-dcache-load-misses", CACHE, 0x10000),
            ("dTLB-stores", CACHE, 0x103),
            ("LLC-prefetches", CACHE, 0x202),
            ("r01c2", RAW, 0x1c2),
        ] {
            let counter = Counter::named(name).unwrap();
            assert_eq!((counter.kind, counter.config, counter.name()), (kind, config, name.to_owned()));
        }
        let user_counter = Counter::named("cycles:u").unwrap();
        assert!(user_counter.user_only && user_counter.name() == "cycles:u");
        for invalid in ["", "cycle", "r", "rxyz", "LLC", "LLC-", "LLC-load", "cycles:k", "L1-dcache-loads-misses"] {
            assert!(Counter::named(invalid).is_err(), "{invalid}");
        }
    }
}
