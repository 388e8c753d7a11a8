//! Function names, and the grouping of compilations by function.

use std::borrow::Cow;

/// Longer names are truncated.
const MAX_NAME_BYTES: usize = 4096;

/// Name prefixes of the entry points that Numba generates for a function (`names/src/numba.rs`).
const ENTRY_PREFIXES: [&str; 5] = ["cpython::", "cfunc::", "kernel::", "gufunc::", "ufunc::"];

pub(super) fn readable(linkage_name: &str) -> String {
    let name = if linkage_name.starts_with("_R") || linkage_name.starts_with("_ZN") && is_rust_hash(linkage_name) {
        format!("{:#}", rustc_demangle::demangle(linkage_name))
    } else {
        jitlisten_names::readable(linkage_name, None).text
    };
    truncate(name)
}

/// Returns true for a symbol of Rust's legacy mangling, whose path ends with `17h` and sixteen hexadecimal digits.
fn is_rust_hash(name: &str) -> bool {
    let end = name.find('.').unwrap_or(name.len());
    name[..end]
        .strip_suffix('E')
        .and_then(|path| path.get(path.len().checked_sub(19)?..))
        .is_some_and(|hash| hash.starts_with("17h") && hash[3..].bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn truncate(mut name: String) -> String {
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
        name.truncate(end);
        name.push('…');
    }
    name
}

/// Returns the name of the function that a compilation belongs to, without entry prefix, argument types and version.
pub(super) fn base(name: &str) -> &str {
    let mut remaining = name;
    for prefix in ENTRY_PREFIXES {
        remaining = remaining.strip_prefix(prefix).unwrap_or(remaining);
    }
    // Parentheses in `operator()` and `(anonymous namespace)` do not start an argument list.
    let arguments = remaining.match_indices('(').map(|(offset, _)| offset).find(|offset| {
        *offset != 0
            && !remaining[..*offset].ends_with("operator")
            && !remaining[*offset..].starts_with("(anonymous namespace)")
    });
    let end = arguments.unwrap_or(remaining.len());
    let end = remaining[..end].find(" [v").or_else(|| remaining[..end].find(" [0x")).unwrap_or(end);
    remaining[..end].trim_end()
}

/// Returns true if the name in the line table contains the origin of a generated function, which its symbol lacks:
/// `prange kernel prog.py:42 in prog.diffuse [v6]`, `prog.Point.ctor(float64) [v3]`. Numba's names end with the same
/// version as the symbol.
pub(super) fn names_origin(described: &str, symbol: &str) -> bool {
    let version_of = |name: &str| {
        let end = name.strip_suffix(']')?.rsplit_once([' ', '['])?.1;
        end.strip_prefix('v').filter(|digits| digits.parse::<u32>().is_ok()).map(str::to_owned)
    };
    let kinds = ["prange kernel ", "array expression ", "stencil ", "<dynamic>."];
    let is_generated = kinds.iter().any(|kind| symbol.contains(kind));
    is_generated && version_of(described).is_some_and(|version| version_of(symbol) == Some(version))
}

/// Returns true for a function that Numba generated for an array expression.
pub(super) fn is_array_expression(name: &str) -> bool {
    name.starts_with("array expression ")
}

/// Returns true for an entry point that Numba generated for another function of the same [`base`].
pub(crate) fn is_entry(name: &str) -> bool {
    ENTRY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Parses `py::name:/path/file.py`, which CPython writes into perf maps for its perf trampolines.
pub(super) fn parse_python_name(name: &str) -> Option<(Cow<'_, str>, &str)> {
    let (function, file) = name.strip_prefix("py::")?.split_once(':')?;
    Some((Cow::Borrowed(function), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilations_of_one_function_have_the_same_base() {
        for name in [
            "__main__.f(float64) [v2]",
            "cpython::__main__.f(array(float64, 1d, C), int64)",
            "gufunc::__main__.f(float64) [v2]",
            "ufunc::__main__.f(float64) [v2]",
            "__main__.f() [v1]",
            "__main__.f",
        ] {
            assert_eq!(base(name), "__main__.f");
        }
        assert_eq!(base("gufunc::prange kernel [0x7fe7 v19]"), "prange kernel");
        assert_eq!(base("m.f.<locals>.g(int64)"), "m.f.<locals>.g");
        assert_eq!(base("(anonymous namespace)::f(int)"), "(anonymous namespace)::f");
        assert_eq!(base("A::operator()(int) const"), "A::operator()");
    }

    #[test]
    fn a_generated_function_is_named_after_its_origin() {
        let kernel = "gufunc::prange kernel prog.py:42 in prog.diffuse [v6]";
        assert!(names_origin(kernel, "gufunc::prange kernel prog.py:42 [v6]"));
        assert!(names_origin(kernel, "gufunc::prange kernel [0x7fe7 v6]"));
        assert_eq!(base(kernel), "prange kernel prog.py:42 in prog.diffuse");
        let expression = "array expression prog.py:7 in prog.f [v3]";
        assert!(names_origin(expression, "array expression [0x7fe7 v3]"));
        assert_eq!(base(expression), "array expression prog.py:7 in prog.f");
        assert!(names_origin("prog.C.ctor(float64) [v3]", "<dynamic>.ctor(float64) [v3]"));
        for (described, symbol) in [
            (kernel, "gufunc::prange kernel prog.py:42 [v7]"),
            (kernel, "__main__.f(int64) [v6]"),
            ("prange kernel prog.py:42", "prange kernel prog.py:42 [v6]"),
            ("_ZN13_3cdynamic_3e4ctorB2v3Ed", "<dynamic>.ctor(float64) [v3]"),
        ] {
            assert!(!names_origin(described, symbol), "{described} {symbol}");
        }
    }

    #[test]
    fn symbols_of_numba_c_plus_plus_and_rust_are_readable() {
        assert_eq!(readable("_ZN8__main__6kernelB2v4B4abcdEf"), "__main__.kernel(float32) [v4]");
        assert_eq!(readable("_Z3fooi"), "foo(int)");
        assert_eq!(readable("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(readable("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(readable("memcpy"), "memcpy");
    }
}
