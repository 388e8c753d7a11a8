//! Tests with a table of real names, and tests of the guarantees that hold for any name.

use std::collections::BTreeMap;

use jitlisten_names::{EntryKind, MAX_NAME_BYTES, printable, readable, wants_location};

/// Rows of `testdata/names.tsv`: kind, linkage name, location (`file:line` or `-`), readable name.
fn read_table() -> Vec<[String; 4]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/names.tsv");
    let text = std::fs::read_to_string(path).expect("the table is in the repository");
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|row| {
        let fields: Vec<String> = row.split('\t').map(str::to_owned).collect();
        fields.try_into().unwrap_or_else(|fields| panic!("not four fields: {fields:?}"))
    })
    .collect()
}

fn parse_location(field: &str) -> Option<(&str, u32)> {
    let (file, line) = field.rsplit_once(':')?;
    Some((file, line.parse().expect("a line number")))
}

fn parse_kind(field: &str) -> EntryKind {
    match field {
        "function" => EntryKind::Function,
        "cpython" => EntryKind::CpythonWrapper,
        "cfunc" => EntryKind::CfuncWrapper,
        "gufunc" => EntryKind::Gufunc,
        other => panic!("no such kind: {other}"),
    }
}

/// With `JITLISTEN_BLESS` set, this test rewrites the table. Review the diff before you commit it.
#[test]
fn real_names_read_well() {
    let mut failures = Vec::new();
    let mut blessed = String::from("# kind\tlinkage name\tlocation\ttext\n");
    for [expected_kind, linkage_name, location_field, text] in read_table() {
        let name = readable(&linkage_name, parse_location(&location_field));
        let kind_name = match name.kind {
            EntryKind::CpythonWrapper => "cpython",
            EntryKind::CfuncWrapper => "cfunc",
            EntryKind::Gufunc => "gufunc",
            _ => "function",
        };
        blessed.push_str(&format!("{kind_name}\t{linkage_name}\t{location_field}\t{}\n", name.text));
        if name.text != text || name.kind != parse_kind(&expected_kind) {
            failures
                .push(format!("{linkage_name}\n  is    {:?} {}\n  wants {expected_kind} {text}", name.kind, name.text));
        }
    }
    if std::env::var_os("JITLISTEN_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/names.tsv"), blessed).expect("writable");
        return;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn different_names_stay_different() {
    let mut linkage_names: BTreeMap<String, String> = BTreeMap::new();
    for [_, linkage_name, ..] in read_table() {
        let text = readable(&linkage_name, None).text;
        if let Some(other_name) = linkage_names.insert(text.clone(), linkage_name.clone()) {
            assert_eq!(other_name, linkage_name, "both are shown as {text}");
        }
    }
}

fn assert_contract(text: &str) {
    assert!(text.chars().count() >= 3 && text.len() <= MAX_NAME_BYTES, "length of {text:?}");
    assert!(!text.starts_with("0x") && !text.starts_with("0X") && !text.starts_with(' '), "start of {text:?}");
    assert!(!text.chars().any(char::is_control), "control character in {text:?}");
    assert_eq!(printable(text), text, "shown twice");
}

#[test]
fn every_name_satisfies_the_contract() {
    let long = format!("_ZN{}E", "3abc".repeat(400));
    let deep = format!("_ZN1a1bB2v1E{}{}", "1aI".repeat(4000), "E".repeat(4000));
    let malformed_names =
        ["", " ", "f", "0x1234", "0XF", "a\nb", "\x1b[2Jclear", "\u{202e}oof", "\u{feff}bom", "é", &long, &deep];
    for name in malformed_names.into_iter().map(str::to_owned).chain(read_table().into_iter().map(|[_, name, ..]| name))
    {
        let text = readable(&name, None).text;
        assert_contract(&text);
        for end in 0..name.len().min(300) {
            assert_contract(&readable(&String::from_utf8_lossy(&name.as_bytes()[..end]), Some(("/a/b.py", 3))).text);
        }
    }
}

#[test]
fn truncated_and_sanitised_names_stay_different() {
    let (first, second) = ("x".repeat(600) + "1", "x".repeat(600) + "2");
    assert_ne!(printable(&first), printable(&second));
    assert_ne!(printable("a\nb"), printable("a\rb"));
    assert_eq!(printable("f"), "f()");
    assert_eq!(printable("0x7f00 f"), "_0x7f00 f");
}

#[test]
fn only_nameless_code_wants_a_location() {
    assert!(wants_location("_ZN13_3cdynamic_3e36__numba_parfor_gufunc_0x7f50dd2e7110B3v24E"));
    assert!(wants_location("_ZN8__main__12_3clambda_3eB3v41Ed"));
    // Numba before 0.56 escaped names differently.
    assert!(wants_location("_ZN8__main__16$3clambda$3e$241Ed"));
    assert!(!wants_location("_ZN8__main__5innerB2v2Edx"));
}
