//! Stacks of all threads as JSON for programs: a tree of calls, and the samples of each thread at its nodes.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::distinct::Distinct;
use crate::profile::Count;
use crate::report::Report;
use crate::sanitize::sanitize;

/// Frame with its caller: index of the calling node, or -1, then indices of function and file, and the line. The file
/// is -1 and the line 0 if unknown.
type Node = (i64, u32, i64, u32);

/// Returns the stacks as columns. `docs/lines.schema.json` describes them. Frames are those of flame graphs.
pub fn stacks_to_json(report: &Report) -> Value {
    let recording = &report.recording;
    let (mut functions, mut files, mut nodes) = (Distinct::default(), Distinct::default(), Distinct::<Node>::default());
    let mut leaves: Vec<Option<u32>> = vec![None; recording.stacks.len()];
    let mut counts: FxHashMap<(u32, u32), Count> = FxHashMap::default();
    for sample in report.counted_samples() {
        let leaf = leaves[sample.stack as usize].get_or_insert_with(|| {
            let mut node = 0;
            let mut parent = -1;
            for frame in report.shown_frames(sample.stack).iter().rev() {
                let function = report.symbols.function(frame);
                let function =
                    functions.number((report.label(frame), function.kind.name(), sanitize(&function.module)));
                let file = report.source_path(frame).map_or(-1, |path| i64::from(files.number(sanitize(path))));
                node = nodes.number((parent, function, file, frame.line.unwrap_or_default()));
                parent = i64::from(node);
            }
            node
        });
        *counts.entry((sample.thread, *leaf)).or_default() += Count::from_sample(sample);
    }
    let mut counts: Vec<((u32, u32), Count)> = counts.into_iter().collect();
    counts.sort_by_key(|(key, _)| *key);
    let functions =
        functions.values.iter().map(|(name, kind, module)| json!({"name": name, "kind": kind, "module": module}));
    json!({
        "functions": functions.collect::<Vec<_>>(),
        "files": files.values,
        "nodes": {
            "parent": nodes.values.iter().map(|node| node.0).collect::<Vec<_>>(),
            "function": nodes.values.iter().map(|node| node.1).collect::<Vec<_>>(),
            "file": nodes.values.iter().map(|node| node.2).collect::<Vec<_>>(),
            "line": nodes.values.iter().map(|node| node.3).collect::<Vec<_>>(),
        },
        "samples": {
            "thread": counts.iter().map(|((thread, _), _)| *thread).collect::<Vec<_>>(),
            "node": counts.iter().map(|((_, node), _)| *node).collect::<Vec<_>>(),
            "samples": counts.iter().map(|(_, count)| count.samples).collect::<Vec<_>>(),
            "weight": counts.iter().map(|(_, count)| count.weight).collect::<Vec<_>>(),
        },
    })
}
