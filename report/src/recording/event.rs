//! Parser for `struct perf_event_attr`: the event, and the layout of its records.

use rustc_hash::FxHashMap;
use wire::perf_data::*;

use super::bytes::Bytes;

/// Event index by event id. A recording of several processors has one id per event and processor.
#[derive(Debug, Default)]
pub(super) struct EventIds(FxHashMap<u64, usize>);

impl EventIds {
    pub(super) fn new(events: &[Event]) -> EventIds {
        let mut ids = EventIds::default();
        events.iter().enumerate().for_each(|(index, event)| ids.add(index, event));
        ids
    }

    pub(super) fn add(&mut self, index: usize, event: &Event) {
        for id in &event.ids {
            self.0.entry(*id).or_insert(index);
        }
    }

    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.0.get(&id).copied()
    }
}

/// Event of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Name passed to the recorder, or the event's number.
    pub name: String,
    /// Samples per second, or events per sample, depending on [`is_frequency`](Event::is_frequency).
    pub rate: u64,
    /// True if `rate` is a frequency.
    pub is_frequency: bool,
    pub(super) kind: u32,
    pub(super) config: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) sample_id_all: bool,
    pub(super) has_hardware_index: bool,
    pub(super) user_registers: u64,
    pub(super) ids: Vec<u64>,
}

impl Event {
    /// Parses the attribute. The attribute of an older kernel may be shorter; missing fields are zero.
    pub(super) fn parse(attr: &[u8]) -> Option<Event> {
        let mut cursor = Bytes(attr);
        let kind = cursor.u32()?;
        let _size = cursor.u32()?;
        let config = cursor.u64()?;
        let rate = cursor.u64()?;
        let sample_type = cursor.u64()?;
        let read_format = cursor.u64()?;
        let flags = cursor.u64()?;
        // Skipped fields: wakeup_events and bp_type, config1, config2.
        let _ = cursor.take(24);
        let branches = cursor.u64().unwrap_or_default();
        let user_registers = cursor.u64().unwrap_or_default();
        Some(Event {
            name: default_name(kind, config),
            rate,
            is_frequency: flags & ATTR_FREQ != 0,
            kind,
            config,
            sample_type,
            read_format,
            sample_id_all: flags & ATTR_SAMPLE_ID_ALL != 0,
            has_hardware_index: branches & PERF_SAMPLE_BRANCH_HW_INDEX != 0,
            user_registers,
            ids: Vec::new(),
        })
    }

    pub(super) fn add_ids(&mut self, bytes: &[u8]) {
        let mut cursor = Bytes(bytes);
        while let Some(id) = cursor.u64() {
            self.ids.push(id);
        }
    }

    /// Returns true if both attributes describe the same event.
    pub(super) fn is_same_event(&self, other: &Event) -> bool {
        match (self.ids.first(), other.ids.first()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => (self.kind, self.config, self.sample_type) == (other.kind, other.config, other.sample_type),
        }
    }

    /// Returns the period of samples without a period field. A clock that is sampled at a frequency has a fixed period,
    /// too.
    pub(super) fn fixed_period(&self) -> u64 {
        match (self.is_frequency, self.kind, self.config) {
            (false, ..) => self.rate.max(1),
            // PERF_TYPE_SOFTWARE: PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_TASK_CLOCK
            (true, 1, 0 | 1) => 1_000_000_000_u64.checked_div(self.rate).unwrap_or(1).max(1),
            _ => 1,
        }
    }

    pub(super) fn has_field(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    /// Returns the distance in bytes from the timestamp to the end of a non-sample record; `None` without a timestamp.
    pub(super) fn time_from_end(&self) -> Option<usize> {
        let trailing_fields =
            [PERF_SAMPLE_TIME, PERF_SAMPLE_ID, PERF_SAMPLE_STREAM_ID, PERF_SAMPLE_CPU, PERF_SAMPLE_IDENTIFIER];
        let count = trailing_fields.iter().filter(|bit| self.has_field(**bit)).count();
        (self.sample_id_all && self.has_field(PERF_SAMPLE_TIME)).then_some(count * 8)
    }

    /// Returns true if samples have copies of registers and stack that need to be unwound.
    pub(crate) fn has_stack_copies(&self) -> bool {
        self.has_field(PERF_SAMPLE_STACK_USER) && self.has_field(PERF_SAMPLE_REGS_USER)
    }
}

fn default_name(kind: u32, config: u64) -> String {
    let name = match (kind, config) {
        (0, 0) => "cycles",
        (0, 1) => "instructions",
        (0, 3) => "cache-misses",
        (0, 5) => "branch-misses",
        (1, 0) => "cpu-clock",
        (1, 1) => "task-clock",
        (1, 2) => "page-faults",
        (1, 3) => "context-switches",
        _ => return format!("event {kind}:{config:#x}"),
    };
    name.to_owned()
}
