//! Numba types as Numba prints them.

use std::borrow::Cow;
use std::ops::Range;

use crate::escape;

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

/// What stands between arguments and parameters.
pub(super) const BETWEEN: &str = ", ";

/// Fewer digits behind a `#` may be a number of the user's.
const SHORTEST_ADDRESS: usize = 8;

/// Types without the addresses of functions (`<function f at 0x7f50dcfede40>`) and classes (`Acc#7f50dc534a90<...>`),
/// which are others in each process.
pub(super) fn without_addresses(types: &str) -> Cow<'_, str> {
    if !types.contains(['#', '<']) {
        return Cow::Borrowed(types);
    }
    let mut kept = String::with_capacity(types.len());
    let mut rest = types;
    while let Some(at) = rest.find([' ', '#']) {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        let digits = from.strip_prefix(" at 0x").or_else(|| from.strip_prefix('#')).unwrap_or_default();
        let behind = digits.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
        if digits.len() - behind.len() >= SHORTEST_ADDRESS {
            rest = behind;
        } else {
            kept.push_str(&from[..1]);
            rest = &from[1..];
        }
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// An array of Numba's has three parameters and a few words; a type that has more is shown as any other type.
const MOST: usize = 8;

/// A named type, written to the end of a text: first as `name(param, param)`, which most types are, and then, where
/// Numba says it in another way, in that way.
pub(super) struct Named<'out> {
    out: &'out mut String,
    start: usize,
    end_of_name: usize,
    /// Where the parameters begin.
    params: [usize; MOST],
    count: usize,
}

impl<'out> Named<'out> {
    pub(super) fn begin(out: &'out mut String) -> Self {
        let start = out.len();
        Named { out, start, end_of_name: start, params: [0; MOST], count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.len() == self.start
    }

    /// A piece of the name. The mangler splits names at dots, as if they were modules.
    pub(super) fn part(&mut self, part: &str) {
        if !self.is_empty() {
            self.out.push('.');
        }
        self.out.push_str(&escape::type_text(part));
        self.end_of_name = self.out.len();
    }

    /// Where the next parameter is to be written.
    pub(super) fn param(&mut self) -> &mut String {
        self.out.push_str(if self.count == 0 { "(" } else { BETWEEN });
        if let Some(place) = self.params.get_mut(self.count) {
            *place = self.out.len();
        }
        self.count += 1;
        self.out
    }

    pub(super) fn finish(self) {
        let name = self.out.get(self.start..self.end_of_name).unwrap_or_default();
        match (name, self.count) {
            ("Array", 3..=MOST) => self.array(),
            ("UniTuple", 2) => self.uniform_tuple(),
            ("Tuple", 0) => self.out.push_str("()"),
            (_, 0) => {}
            _ => self.out.push(')'),
        }
    }

    fn array(self) {
        let end = self.out.len();
        for index in 3..self.count {
            let word = self.text_of(index, end);
            if !matches!(self.out.get(word.clone()), Some("mutable" | "aligned")) {
                self.out.extend_from_within(word);
                self.out.push(' ');
            }
        }
        self.out.push_str("array(");
        self.out.extend_from_within(self.text_of(0, end));
        self.out.push_str(BETWEEN);
        self.out.extend_from_within(self.text_of(1, end));
        self.out.push_str("d, ");
        self.out.extend_from_within(self.text_of(2, end));
        self.out.push(')');
        self.out.drain(self.start..end);
    }

    fn uniform_tuple(self) {
        let between = self.params[1] - BETWEEN.len()..self.params[1];
        self.out.replace_range(between, " x ");
        self.out.push(')');
    }

    /// Where parameter `index` is, the last of which ends at `end`.
    fn text_of(&self, index: usize, end: usize) -> Range<usize> {
        let next = self.params.get(index + 1).filter(|_| index + 1 < self.count);
        self.params[index]..next.map_or(end, |next| next - BETWEEN.len())
    }
}
