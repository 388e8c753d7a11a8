//! The loops of a line for the page.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::loops::Loop;
use crate::printable::printable;
use crate::report::Report;

/// More instructions of a loop are not shown.
const MOST_INSTRUCTIONS: usize = 300;

/// By path and line, the heaviest first.
pub(super) fn by_line(report: &Report) -> FxHashMap<(&str, u32), Vec<Value>> {
    let mut found: FxHashMap<(&str, u32), Vec<Value>> = FxHashMap::default();
    for of in report.loops() {
        found.entry((&of.path, of.line)).or_default().push(value(of));
    }
    found
}

fn value(of: &Loop) -> Value {
    let instructions = of.instructions.iter().take(MOST_INSTRUCTIONS).map(|instruction| {
        let callee = instruction.calls.first().map(|(name, _)| printable(name));
        json!([instruction.line, instruction.total.weight, instruction.text, callee])
    });
    json!({
        "chip": of.chip(),
        "name": of.name_at_line(),
        "inlined": of.is_inlined,
        "function": printable(&of.function),
        "weight": of.total.weight,
        "advice": of.advice.iter().map(|advice| json!([advice.rule, advice.text])).collect::<Vec<_>>(),
        "rows": of.rows().iter().map(|(name, text)| json!([name, printable(text)])).collect::<Vec<_>>(),
        "code": instructions.collect::<Vec<_>>(),
    })
}
