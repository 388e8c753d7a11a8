//! Test of `docs/lines.schema.json` with the JSON of a recording.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::{fixture_options, testdata};
use jitlisten_report::{Options, Report, stacks_to_json, to_json};
use serde_json::Value;

/// Checks a value against the subset of JSON Schema that the file uses.
fn check(schema: &Value, root: &Value, value: &Value, path: &str) {
    if let Some(reference) = schema.get("$ref") {
        return check(root.pointer(&reference.as_str().unwrap()[1..]).unwrap(), root, value, path);
    }
    if let Some(constant) = schema.get("const") {
        return assert_eq!(value, constant, "{path}");
    }
    if let Some(values) = schema.get("enum") {
        return assert!(values.as_array().unwrap().contains(value), "{path}: {value}");
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().map(|name| name.as_str().unwrap()).collect(),
        name => vec![name.as_str().unwrap()],
    };
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{path}: unknown type {other}"),
    };
    assert!(types.into_iter().any(is), "{path}: {value}");
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], root, item, &format!("{path}[{index}]"));
    }
    let Some(fields) = value.as_object() else { return };
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        assert!(fields.contains_key(name.as_str().unwrap()), "{path} has no {name}");
    }
    for (name, field) in fields {
        match schema.get("properties").and_then(|properties| properties.get(name)) {
            Some(property) => check(property, root, field, &format!("{path}.{name}")),
            None => {
                let others = &schema["additionalProperties"];
                assert!(others.is_object(), "{path}.{name} is not in the schema");
                check(others, root, field, &format!("{path}.{name}"));
            }
        }
    }
}

#[test]
fn the_json_follows_its_schema() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lines.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let options = Options { by_thread: true, ..fixture_options() };
    let report = Report::open(&testdata().join("perf.data"), &options).unwrap();
    let mut value = to_json(&report);
    let stacks = stacks_to_json(&report);
    let sum = |column: &str| -> u64 {
        stacks["samples"][column].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
    };
    assert_eq!((sum("samples"), sum("weight")), (report.profile.all.samples, report.profile.all.weight));
    let parents = stacks["nodes"]["parent"].as_array().unwrap().iter().zip(0_i64..);
    assert!(parents.clone().count() > 10 && parents.into_iter().all(|(parent, node)| parent.as_i64().unwrap() < node));
    value["stacks"] = stacks;
    check(&schema, &schema, &value, "$");
}
