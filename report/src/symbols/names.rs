//! Names of functions, and which compilations belong to one function.

use std::borrow::Cow;

/// The longest name that is shown.
const LONGEST: usize = 4096;

/// What stands before the name of an entry that Numba makes for a function (`names/src/numba.rs`).
const ENTRIES: [&str; 5] = ["cpython::", "cfunc::", "kernel::", "gufunc::", "ufunc::"];

/// A name for people.
pub(super) fn readable(linkage_name: &str) -> String {
    let name = if linkage_name.starts_with("_R") || linkage_name.starts_with("_ZN") && is_rust_hash(linkage_name) {
        format!("{:#}", rustc_demangle::demangle(linkage_name))
    } else {
        jitlisten_names::readable(linkage_name, None).text
    };
    cut(name)
}

/// `17h` and sixteen digits end the path of a symbol of Rust's old scheme.
fn is_rust_hash(name: &str) -> bool {
    let end = name.find('.').unwrap_or(name.len());
    name[..end]
        .strip_suffix('E')
        .and_then(|rest| rest.get(rest.len().checked_sub(19)?..))
        .is_some_and(|hash| hash.starts_with("17h") && hash[3..].bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn cut(mut name: String) -> String {
    if name.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| name.is_char_boundary(*at)).unwrap_or_default();
        name.truncate(end);
        name.push('…');
    }
    name
}

/// The function a compilation is of: without entry kind, argument types and count of specialisations.
pub(super) fn base(name: &str) -> &str {
    let mut rest = name;
    for prefix in ENTRIES {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    // `operator()` and `(anonymous namespace)` are no arguments.
    let arguments = rest
        .match_indices('(')
        .map(|(at, _)| at)
        .find(|at| *at != 0 && !rest[..*at].ends_with("operator") && !rest[*at..].starts_with("(anonymous namespace)"));
    let end = arguments.unwrap_or(rest.len());
    let end = rest[..end].find(" [v").or_else(|| rest[..end].find(" [0x")).unwrap_or(end);
    rest[..end].trim_end()
}

/// Whether the name in the line table says where a function that Numba generated comes from, which its symbol cannot:
/// `prange kernel prog.py:42 in prog.diffuse [v6]`, `prog.Point.ctor(float64) [v3]`. Those of Numba's end with the
/// count that the symbol ends with.
pub(super) fn says_more(described: &str, symbol: &str) -> bool {
    let count = |name: &str| {
        let end = name.strip_suffix(']')?.rsplit_once([' ', '['])?.1;
        end.strip_prefix('v').filter(|digits| digits.parse::<u32>().is_ok()).map(str::to_owned)
    };
    let kinds = ["prange kernel ", "array expression ", "stencil ", "<dynamic>."];
    let generated = kinds.iter().any(|kind| symbol.contains(kind));
    generated && count(described).is_some_and(|known| count(symbol) == Some(known))
}

/// Whether this is what Numba makes of an expression with arrays.
pub(super) fn is_array_expression(name: &str) -> bool {
    name.starts_with("array expression ")
}

/// Whether Numba made this for another function, which has the same [`base`].
pub(crate) fn is_entry(name: &str) -> bool {
    ENTRIES.iter().any(|prefix| name.starts_with(prefix))
}

/// `py::name:/path/file.py`, as CPython writes its trampolines into a perf map.
pub(super) fn python(name: &str) -> Option<(Cow<'_, str>, &str)> {
    let (function, file) = name.strip_prefix("py::")?.split_once(':')?;
    Some((Cow::Borrowed(function), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilations_of_one_function_have_one_base() {
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
    fn a_generated_function_is_called_by_what_it_was_made_for() {
        let kernel = "gufunc::prange kernel prog.py:42 in prog.diffuse [v6]";
        assert!(says_more(kernel, "gufunc::prange kernel prog.py:42 [v6]"));
        assert!(says_more(kernel, "gufunc::prange kernel [0x7fe7 v6]"));
        assert_eq!(base(kernel), "prange kernel prog.py:42 in prog.diffuse");
        let expression = "array expression prog.py:7 in prog.f [v3]";
        assert!(says_more(expression, "array expression [0x7fe7 v3]"));
        assert_eq!(base(expression), "array expression prog.py:7 in prog.f");
        assert!(says_more("prog.C.ctor(float64) [v3]", "<dynamic>.ctor(float64) [v3]"));
        for (described, symbol) in [
            (kernel, "gufunc::prange kernel prog.py:42 [v7]"),
            (kernel, "__main__.f(int64) [v6]"),
            ("prange kernel prog.py:42", "prange kernel prog.py:42 [v6]"),
            ("_ZN13_3cdynamic_3e4ctorB2v3Ed", "<dynamic>.ctor(float64) [v3]"),
        ] {
            assert!(!says_more(described, symbol), "{described} {symbol}");
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
