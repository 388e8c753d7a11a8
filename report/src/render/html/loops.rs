//! Loops of a line, as JSON for the page.

use serde_json::{Value, json};

use crate::loops::Loop;
use crate::sanitize::sanitize;

/// Maximum number of instructions shown per loop; the rest are omitted.
const MAX_INSTRUCTIONS: usize = 300;

pub(super) fn loop_value(hot_loop: &Loop) -> Value {
    let instructions = hot_loop.instructions.iter().take(MAX_INSTRUCTIONS).map(|instruction| {
        let callee = instruction.calls.first().map(|(name, _)| sanitize(name));
        json!([instruction.line, instruction.total.weight, instruction.text, callee])
    });
    let advice = hot_loop.advice.iter().map(|advice| json!([advice.rule, advice.text(), advice.mark()]));
    json!({
        "chip": hot_loop.chip(),
        "name": hot_loop.name_at_line(),
        "inlined": hot_loop.is_inlined,
        "function": sanitize(&hot_loop.function),
        "weight": hot_loop.total.weight,
        "advice": advice.collect::<Vec<_>>(),
        "rows": hot_loop.rows().iter().map(|(name, text)| json!([name, sanitize(text)])).collect::<Vec<_>>(),
        "code": instructions.collect::<Vec<_>>(),
    })
}
