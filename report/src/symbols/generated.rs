//! Replacement of compiler-generated functions by the user's functions.

use super::names;

/// Frame with the name of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedFrame {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// Removes frames that would look like recursion. These are an array expression or an entry point (`gufunc::f`) inlined
/// at its own line, and an entry point that contains the function it calls. Frames are innermost first.
pub(super) fn remove_generated(mut frames: Vec<NamedFrame>) -> Vec<NamedFrame> {
    let mut index = 1;
    while index < frames.len() {
        let (inner, outer) = (&frames[index - 1], &frames[index]);
        if (names::is_array_expression(&inner.name) || names::is_entry(&inner.name))
            && (&inner.file, inner.line) == (&outer.file, outer.line)
        {
            frames.remove(index - 1);
        } else if names::is_entry(&outer.name) && names::base(&inner.name) == names::base(&outer.name) {
            frames.remove(index);
        } else {
            index += 1;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(levels: &[(&str, u32)]) -> Vec<NamedFrame> {
        let named = |(name, line): &(&str, u32)| NamedFrame {
            name: (*name).to_owned(),
            file: Some("/prog.py".to_owned()),
            line: Some(*line),
        };
        levels.iter().map(named).collect()
    }

    #[test]
    fn an_array_expression_is_shown_as_its_line() {
        let expression = ("array expression prog.py:7 in m.poly [v3]", 7);
        let poly = ("m.poly(float64) [v2]", 7);
        assert_eq!(remove_generated(frames(&[expression, poly])), frames(&[poly]));
        let callee = ("m.g(float64) [v4]", 20);
        assert_eq!(remove_generated(frames(&[callee, expression, poly])), frames(&[callee, poly]));
        // First without inlining, then inlined into a caller on another line.
        assert_eq!(remove_generated(frames(&[expression])), frames(&[expression]));
        let elsewhere = frames(&[expression, ("m.caller() [v5]", 9)]);
        assert_eq!(remove_generated(elsewhere.clone()), elsewhere);
    }

    #[test]
    fn an_entry_is_not_recursion() {
        let (function, entry) = (("m.f(float64) [v2]", 12), ("gufunc::m.f(float64) [v2]", 10));
        assert_eq!(remove_generated(frames(&[function, entry])), frames(&[function]));
        assert_eq!(remove_generated(frames(&[entry])), frames(&[entry]));
        // The function that starts the threads of a parallel loop is inlined into the loop's function.
        let launcher = ("kernel::gufunc::prange kernel prog.py:9 in m.f [v3]", 9);
        assert_eq!(
            remove_generated(frames(&[launcher, ("m.f(float64) [v2]", 9)])),
            frames(&[("m.f(float64) [v2]", 9)])
        );
        let recursion = frames(&[function, ("m.f(float64) [v2]", 13)]);
        assert_eq!(remove_generated(recursion.clone()), recursion);
    }
}
