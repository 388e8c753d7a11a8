//! Frames of compiler-generated functions, replaced by the user's function where there is one.

use super::names;

/// A level of a place that has been named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// Removes what would look like recursion: an array expression or an entry (`gufunc::f`) inlined at its own line, and
/// the entry around the function that it was made for. The innermost frame is first.
pub(super) fn without(mut frames: Vec<Named>) -> Vec<Named> {
    let mut at = 1;
    while at < frames.len() {
        let (inner, outer) = (&frames[at - 1], &frames[at]);
        if (names::is_array_expression(&inner.name) || names::is_entry(&inner.name))
            && (&inner.file, inner.line) == (&outer.file, outer.line)
        {
            frames.remove(at - 1);
        } else if names::is_entry(&outer.name) && names::base(&inner.name) == names::base(&outer.name) {
            frames.remove(at);
        } else {
            at += 1;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(all: &[(&str, u32)]) -> Vec<Named> {
        let named = |(name, line): &(&str, u32)| Named {
            name: (*name).to_owned(),
            file: Some("/prog.py".to_owned()),
            line: Some(*line),
        };
        all.iter().map(named).collect()
    }

    #[test]
    fn an_array_expression_is_its_line() {
        let expression = ("array expression prog.py:7 in m.poly [v3]", 7);
        let poly = ("m.poly(float64) [v2]", 7);
        assert_eq!(without(frames(&[expression, poly])), frames(&[poly]));
        let callee = ("m.g(float64) [v4]", 20);
        assert_eq!(without(frames(&[callee, expression, poly])), frames(&[callee, poly]));
        // Not inlined, or inlined into a caller elsewhere.
        assert_eq!(without(frames(&[expression])), frames(&[expression]));
        let elsewhere = frames(&[expression, ("m.caller() [v5]", 9)]);
        assert_eq!(without(elsewhere.clone()), elsewhere);
    }

    #[test]
    fn an_entry_is_not_recursion() {
        let (function, entry) = (("m.f(float64) [v2]", 12), ("gufunc::m.f(float64) [v2]", 10));
        assert_eq!(without(frames(&[function, entry])), frames(&[function]));
        assert_eq!(without(frames(&[entry])), frames(&[entry]));
        // What starts the threads of a parallel loop, inlined into the loop's function.
        let starts = ("kernel::gufunc::prange kernel prog.py:9 in m.f [v3]", 9);
        assert_eq!(without(frames(&[starts, ("m.f(float64) [v2]", 9)])), frames(&[("m.f(float64) [v2]", 9)]));
        let recursion = frames(&[function, ("m.f(float64) [v2]", 13)]);
        assert_eq!(without(recursion.clone()), recursion);
    }
}
