//! speedscope's file format: <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use crate::profile::Count;
use crate::report::Report;
use crate::symbols::Frame;

use super::{Unit, by_thread, collapsed, frames_of, path};

/// One profile for each thread.
pub(crate) fn to_speedscope(report: &Report) -> Value {
    let mut frames: Vec<Value> = Vec::new();
    let mut numbers: FxHashMap<Frame, usize> = FxHashMap::default();
    let mut stacks: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    let mut profiles = Vec::new();
    let unit = Unit::of(report);
    for (thread, samples) in by_thread(report) {
        let (mut lists, mut weights): (Vec<Value>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut last = None;
        for sample in &samples {
            let weight = unit.amount(Count { weight: sample.weight, samples: 1 });
            if last == Some(sample.stack)
                && let Some(before) = weights.last_mut()
            {
                *before = before.saturating_add(weight);
                continue;
            }
            last = Some(sample.stack);
            let stack = stacks.entry(sample.stack).or_insert_with(|| {
                let own = frames_of(report, sample.stack);
                own.iter().rev().map(|frame| number(report, frame, &mut frames, &mut numbers)).collect()
            });
            lists.push(json!(stack));
            weights.push(weight);
        }
        let row = &report.recording.threads[thread as usize];
        profiles.push(json!({
            "type": "sampled",
            "name": crate::printable::printable(&format!("{} {}", row.name, row.tid)),
            "unit": if unit == Unit::Time { "nanoseconds" } else { "none" },
            "startValue": 0,
            "endValue": weights.iter().fold(0_u64, |sum, weight| sum.saturating_add(*weight)),
            "samples": lists,
            "weights": weights,
        }));
    }
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": report.title(),
        "exporter": concat!("jitlisten ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    })
}

fn number(report: &Report, frame: &Frame, frames: &mut Vec<Value>, numbers: &mut FxHashMap<Frame, usize>) -> usize {
    *numbers.entry(*frame).or_insert_with(|| {
        let mut value = Map::new();
        value.insert("name".to_owned(), json!(collapsed::name(report, frame)));
        if let Some(path) = path(report, frame) {
            value.insert("file".to_owned(), json!(path));
        }
        if let Some(line) = frame.line.filter(|line| *line != 0) {
            value.insert("line".to_owned(), json!(line));
        }
        frames.push(Value::Object(value));
        frames.len() - 1
    })
}
