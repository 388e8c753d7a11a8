//! Report as one HTML page that works offline.
//!
//! The template, style sheet and script are the same for every recording; a block of JSON holds the data. In that block
//! every `<`, `>` and `&` is escaped, so that no text in it can end the element. The script adds text to the page only
//! as text nodes, and a content security policy forbids the page to load anything.

mod assembly;
mod barriers;
mod data;
mod loops;
mod stacks;

use crate::report::Report;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("stacks.js"),
    include_str!("answer.js"),
    include_str!("loops.js"),
    include_str!("table.js"),
    include_str!("graphs.js"),
    include_str!("processes.js"),
    include_str!("compilations.js"),
    include_str!("page.js")
);

/// Returns the whole page.
pub fn to_html(report: &Report) -> String {
    let data = escaped(&data::data(report).to_string());
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    // Replacements may contain the text of a placeholder, so they are not searched.
    let mut rest = PAGE;
    for (placeholder, text) in [("@CSS@", STYLE), ("@DATA@", data.as_str()), ("@JS@", SCRIPT)] {
        let (before, after) = rest.split_once(placeholder).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Escapes JSON so that it can be embedded in a script element.
fn escaped(json: &str) -> String {
    let mut escaped_json = String::with_capacity(json.len() + json.len() / 16);
    for character in json.chars() {
        match character {
            '<' => escaped_json.push_str("\\u003c"),
            '>' => escaped_json.push_str("\\u003e"),
            '&' => escaped_json.push_str("\\u0026"),
            '\u{2028}' => escaped_json.push_str("\\u2028"),
            '\u{2029}' => escaped_json.push_str("\\u2029"),
            other => escaped_json.push(other),
        }
    }
    escaped_json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_data_ends_its_element() {
        let escaped_json = escaped(r#"{"a":"</script><!--<script>&"}"#);
        assert!(!escaped_json.contains(['<', '>', '&']));
        let parsed: serde_json::Value = serde_json::from_str(&escaped_json).expect("still JSON");
        assert_eq!(parsed["a"], "</script><!--<script>&");
    }
}
