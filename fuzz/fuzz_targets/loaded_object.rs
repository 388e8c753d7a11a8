//! Fuzz target that parses arbitrary bytes as an object. The parser must reject it, or uphold the documented
//! invariants.

#![no_main]

use jitlisten::{LineRows, LoadedObject};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(object) = LoadedObject::parse(data) {
        check_text_and_functions(&object);
    }
    if let Ok(lines) = LineRows::parse(data) {
        check_rows(&lines);
    }
});

fn check_text_and_functions(object: &LoadedObject) {
    assert!(object.text().iter().all(|text| !text.range.is_empty()));
    assert!(object.text().windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start()));
    assert!(object.functions().windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start()));
    for function in object.functions() {
        assert!(!function.range.is_empty() && !function.linkage_name.is_empty());
        assert!(object.text().iter().any(|text| text.range.covers(function.range)));
        assert!(!function.aliases.contains(&function.linkage_name));
    }
}

fn check_rows(lines: &LineRows) {
    let rows = lines.rows();
    assert!(rows.last().is_none_or(|row| row.end_sequence));
    for pair in rows.windows(2) {
        assert!(pair[0].address < pair[1].address || pair[0].end_sequence && pair[0].address == pair[1].address);
    }
    for row in rows {
        assert!(lines.file(row.file).is_some());
        let has_location = !row.end_sequence && row.line != 0;
        assert!(!has_location || lines.find(row.address) == lines.file(row.file).map(|file| (file, row.line)));
    }
}
