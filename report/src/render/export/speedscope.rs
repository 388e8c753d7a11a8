//! File format of speedscope: <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use crate::profile::Count;
use crate::report::{Report, Unit};
use crate::sanitize::sanitize;
use crate::symbols::Frame;

use super::collapsed;

/// Returns a profile for speedscope, with one part per thread.
pub fn to_speedscope(report: &Report) -> Value {
    let mut frames: Vec<Value> = Vec::new();
    let mut frame_indices: FxHashMap<Frame, usize> = FxHashMap::default();
    let mut stacks: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    let mut profiles = Vec::new();
    let unit = report.unit();
    for (thread, samples) in report.samples_by_thread() {
        let (mut sampled_stacks, mut weights): (Vec<Value>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut last_stack = None;
        for sample in &samples {
            let weight = unit.amount(Count::from_sample(sample));
            if last_stack == Some(sample.stack)
                && let Some(last_weight) = weights.last_mut()
            {
                *last_weight = last_weight.saturating_add(weight);
                continue;
            }
            last_stack = Some(sample.stack);
            let stack = stacks.entry(sample.stack).or_insert_with(|| {
                let innermost_first = report.stack_frames(sample.stack);
                innermost_first
                    .iter()
                    .rev()
                    .map(|frame| frame_index(report, frame, &mut frames, &mut frame_indices))
                    .collect()
            });
            sampled_stacks.push(json!(stack));
            weights.push(weight);
        }
        let row = &report.recording.threads[thread as usize];
        profiles.push(json!({
            "type": "sampled",
            "name": sanitize(&report.thread_name(row)),
            "unit": if unit == Unit::Time { "nanoseconds" } else { "none" },
            "startValue": 0,
            "endValue": weights.iter().fold(0_u64, |sum, weight| sum.saturating_add(*weight)),
            "samples": sampled_stacks,
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

fn frame_index(
    report: &Report,
    frame: &Frame,
    frames: &mut Vec<Value>,
    frame_indices: &mut FxHashMap<Frame, usize>,
) -> usize {
    *frame_indices.entry(*frame).or_insert_with(|| {
        let mut value = Map::new();
        value.insert("name".to_owned(), json!(collapsed::frame_name(report, frame)));
        if let Some(path) = report.source_path(frame) {
            value.insert("file".to_owned(), json!(path));
        }
        if let Some(line) = frame.line.filter(|line| *line != 0) {
            value.insert("line".to_owned(), json!(line));
        }
        frames.push(Value::Object(value));
        frames.len() - 1
    })
}
