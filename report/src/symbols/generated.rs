//! Frames of functions that a compiler made up, where a person has written one.

use super::names;

/// A level of a place that has been named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// Takes out, the innermost frame first: an array expression inlined where it stands, which is the line itself; and the
/// entry (`gufunc::f`) around the function that it was made for, which would look like recursion.
pub(super) fn without(mut frames: Vec<Named>) -> Vec<Named> {
    let mut at = 1;
    while at < frames.len() {
        let (inner, outer) = (&frames[at - 1], &frames[at]);
        if names::is_array_expression(&inner.name) && (&inner.file, inner.line) == (&outer.file, outer.line) {
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
        let recursion = frames(&[function, ("m.f(float64) [v2]", 13)]);
        assert_eq!(without(recursion.clone()), recursion);
    }
}
