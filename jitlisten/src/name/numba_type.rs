//! Numba types as Numba prints them.

use std::borrow::Cow;

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
pub(super) fn show<'a>(parts: &[&'a str], params: &[Cow<'a, str>]) -> Cow<'a, str> {
    let name = match parts {
        [part] => escape::type_text(part),
        parts => Cow::Owned(parts.iter().map(|part| escape::type_text(part)).collect::<Vec<_>>().join(".")),
    };
    let mut shown = String::new();
    match (&*name, params) {
        ("Array", [dtype, dimensions, layout, rest @ ..]) => {
            for word in rest.iter().filter(|word| !matches!(&***word, "mutable" | "aligned")) {
                shown.extend([word, " "]);
            }
            shown.extend(["array(", dtype, ", ", dimensions, "d, ", layout, ")"]);
        }
        ("UniTuple", [item, count]) => shown.extend(["UniTuple(", item, " x ", count, ")"]),
        ("Tuple", []) => return Cow::Borrowed("Tuple()"),
        (_, []) => return name,
        (_, params) => shown.extend([&*name, "(", &params.join(", "), ")"]),
    }
    Cow::Owned(shown)
}
