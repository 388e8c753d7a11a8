//! Profile format of pprof, which google/pprof, Pyroscope, Parca and Grafana read:
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>
//!
//! The message is encoded here, because it needs only numbers and nested messages. A location of pprof has several
//! lines if functions were inlined there. Samples are added up by stack and thread.

use rustc_hash::FxHashMap;

use crate::distinct::Distinct;
use crate::profile::thread_stack_counts;
use crate::report::{Report, Unit};
use crate::symbols::Frame;

/// Returns an uncompressed profile for pprof.
pub fn to_pprof(report: &Report) -> Vec<u8> {
    let mut tables = Tables::default();
    tables.strings.number(String::new());
    let samples = thread_stack_counts(report.counted_samples());
    let mut profile = Message::default();
    let (kind, unit) = match report.unit() {
        Unit::Time if report.recording.is_wall() => ("wall".to_owned(), "nanoseconds"),
        Unit::Time => ("cpu".to_owned(), "nanoseconds"),
        Unit::Events | Unit::Samples => (report.event().to_owned(), "count"),
    };
    let has_weights = report.unit() != Unit::Samples;
    profile.message(1, tables.value_type("samples", "count"));
    if has_weights {
        profile.message(1, tables.value_type(&kind, unit));
    }
    let labels: Vec<Vec<Message>> =
        (0..report.recording.threads.len()).map(|thread| tables.labels(report, thread)).collect();
    let mut locations_of_stack: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
    for ((stack, thread), count) in samples {
        let locations = locations_of_stack.entry(stack).or_insert_with(|| tables.locations(report, stack));
        let mut sample = Message::default();
        sample.packed(1, locations);
        let values = [count.samples, count.weight];
        sample.packed(2, &values[..if has_weights { 2 } else { 1 }]);
        for label in &labels[thread as usize] {
            sample.message(3, label.clone());
        }
        profile.message(2, sample);
    }
    tables.write_code(&mut profile);
    if let Some(elapsed) = report.elapsed() {
        let end = report.recorded.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let end = end.and_then(|end| u64::try_from(end.as_nanos()).ok()).unwrap_or_default();
        profile.number(9, end.saturating_sub(elapsed));
        profile.number(10, elapsed);
    }
    profile.message(11, tables.value_type(&kind, unit));
    profile.number(12, report.interval().unwrap_or(1));
    let comments = [concat!("jitlisten ", env!("CARGO_PKG_VERSION")).to_owned(), report.title()];
    profile.packed(13, &comments.map(|comment| tables.string(&comment)));
    let default_type = if has_weights { kind } else { "samples".to_owned() };
    profile.number(14, tables.string(&default_type));
    for string in &tables.strings.values {
        profile.bytes(6, string.as_bytes());
    }
    profile.0
}

#[derive(Default)]
struct Tables {
    strings: Distinct<String>,
    /// Name and file of each function.
    functions: Distinct<(u32, u32)>,
    /// Function and line of each frame at a location, innermost first.
    locations: Distinct<Vec<(u32, u32)>>,
}

impl Tables {
    /// Writes the locations and the functions.
    fn write_code(&self, profile: &mut Message) {
        for (index, lines) in self.locations.values.iter().enumerate() {
            let mut location = Message::default();
            location.number(1, index as u64 + 1);
            for (function, line) in lines {
                let mut message = Message::default();
                message.number(1, u64::from(*function) + 1);
                message.number(2, u64::from(*line));
                location.message(4, message);
            }
            profile.message(4, location);
        }
        for (index, (name, file)) in self.functions.values.iter().enumerate() {
            let mut function = Message::default();
            // Without a system name, which pprof would demangle: it takes `<module>` for the arguments of a template.
            for (field, value) in [(1, index as u64 + 1), (2, (*name).into()), (4, (*file).into())] {
                function.number(field, value);
            }
            profile.message(5, function);
        }
    }

    fn string(&mut self, text: &str) -> u64 {
        self.strings.number(text.to_owned()).into()
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Message {
        let mut message = Message::default();
        message.number(1, self.string(kind));
        message.number(2, self.string(unit));
        message
    }

    /// Returns the ids of the locations of a stack, innermost first.
    fn locations(&mut self, report: &Report, stack: u32) -> Vec<u64> {
        let frames = report.stack_frames(stack);
        let physical_frames = frames.split_inclusive(|frame| !frame.inlined);
        let mut locations = Vec::new();
        for frames in physical_frames {
            let lines = frames.iter().map(|frame| self.line(report, frame)).collect();
            locations.push(u64::from(self.locations.number(lines)) + 1);
        }
        locations
    }

    fn line(&mut self, report: &Report, frame: &Frame) -> (u32, u32) {
        let name = self.strings.number(report.label(frame));
        let function = report.symbols.function(frame);
        // A library takes the place of the file, so that functions of one name in two libraries stay apart.
        let file = self.strings.number(report.source_path(frame).unwrap_or(&function.module).to_owned());
        (self.functions.number((name, file)), frame.line.unwrap_or_default())
    }

    fn labels(&mut self, report: &Report, thread: usize) -> Vec<Message> {
        let thread = &report.recording.threads[thread];
        let texts = [
            ("thread", report.thread_name(thread)),
            ("process", report.process_name(thread)),
            ("host", thread.host.clone()),
        ];
        let numbers = [("pid", Some(thread.pid)), ("tid", Some(thread.tid)), ("rank", thread.rank)];
        let mut labels = Vec::new();
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            let mut label = Message::default();
            label.number(1, self.string(key));
            label.number(2, self.string(&text));
            labels.push(label);
        }
        for (key, number) in numbers.into_iter().filter_map(|(key, number)| Some((key, number?))) {
            let mut label = Message::default();
            label.number(1, self.string(key));
            label.number(3, number.into());
            labels.push(label);
        }
        labels
    }
}

/// Message of Protocol Buffers.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends a number. Zero is the default value, and is omitted.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: &[u64]) {
        let mut content = Message::default();
        values.iter().for_each(|value| content.varint(*value));
        self.message(field, content);
    }
}
