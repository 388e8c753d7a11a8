//! The report as one HTML page that works offline.
//!
//! The page is a template, a style and a script, which are the same for every recording, and one block of JSON. In that
//! block every `<`, `>` and `&` is written as an escape, so that nothing in it can end it; the script puts text into
//! the page as text only. A content security policy forbids the page to load anything.

mod barriers;
mod data;
mod loops;
mod stacks;

use crate::report::Report;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("stacks.js"),
    include_str!("loops.js"),
    include_str!("table.js"),
    include_str!("pictures.js"),
    include_str!("compilations.js"),
    include_str!("page.js")
);

/// The whole page.
pub fn to_html(report: &Report) -> String {
    let data = escaped(&data::data(report).to_string());
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    // What is put in is not searched again.
    let mut rest = PAGE;
    for (mark, text) in [("@CSS@", STYLE), ("@DATA@", data.as_str()), ("@JS@", SCRIPT)] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// JSON that can stand in a script element.
fn escaped(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + json.len() / 16);
    for character in json.chars() {
        match character {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            '\u{2028}' => safe.push_str("\\u2028"),
            '\u{2029}' => safe.push_str("\\u2029"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_block_of_data() {
        let safe = escaped(r#"{"a":"</script><!--<script>&"}"#);
        assert!(!safe.contains(['<', '>', '&']));
        let back: serde_json::Value = serde_json::from_str(&safe).expect("still JSON");
        assert_eq!(back["a"], "</script><!--<script>&");
    }
}
