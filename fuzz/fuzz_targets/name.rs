//! Fuzz target that checks that every linkage name becomes a single line, which all readers of perf maps accept.

#![no_main]

use jitlisten::name::{LONGEST, printable, readable, wants_location};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let name = String::from_utf8_lossy(data);
    for location in [None, Some(("/home/user/prog.py", 14)), Some((&*name, 3))] {
        let readable_name = readable(&name, location);
        assert_eq!(readable_name, readable(&name, location), "the same again");
        let text = readable_name.text;
        assert!(text.chars().count() >= 3 && text.len() <= LONGEST);
        assert!(!text.starts_with("0x") && !text.starts_with("0X") && !text.starts_with(' '));
        assert!(!text.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202e}')));
        assert_eq!(printable(&text), text);
    }
    if !wants_location(&name) {
        assert_eq!(readable(&name, None), readable(&name, Some(("/home/user/prog.py", 14))));
    }
});
