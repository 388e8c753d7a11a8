//! Numba types as Numba prints them.

use super::escape;

/// `N2CODE` of `numba/core/itanium_mangler.py`.
pub(super) const CODES: [(&str, &str); 13] = [
    ("v", "none"),
    ("b", "bool"),
    ("h", "uint8"),
    ("a", "int8"),
    ("t", "uint16"),
    ("s", "int16"),
    ("j", "uint32"),
    ("i", "int32"),
    ("y", "uint64"),
    ("x", "int64"),
    ("Dh", "float16"),
    ("f", "float32"),
    ("d", "float64"),
];

/// A named type. The mangler splits names at dots, as if they were modules; `parts` are the pieces.
pub(super) fn show(parts: &[&str], params: &[String]) -> String {
    let name = parts.iter().map(|part| escape::type_text(part)).collect::<Vec<_>>().join(".");
    match (name.as_str(), params) {
        ("Array", [dtype, dimensions, layout, rest @ ..]) => {
            let adjectives = rest.iter().filter(|word| !matches!(word.as_str(), "mutable" | "aligned"));
            let adjectives: String = adjectives.map(|word| format!("{word} ")).collect();
            format!("{adjectives}array({dtype}, {dimensions}d, {layout})")
        }
        ("UniTuple", [item, count]) => format!("UniTuple({item} x {count})"),
        ("Tuple", []) => "Tuple()".to_owned(),
        (_, []) => name,
        (_, params) => format!("{name}({})", params.join(", ")),
    }
}
