//! Types in the form that Numba prints.

use std::borrow::Cow;
use std::ops::Range;

use crate::escape;

/// Mangled codes of simple types: `N2CODE` in `numba/core/itanium_mangler.py`.
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

/// Separator between arguments, and between the parameters of a type.
pub(super) const SEPARATOR: &str = ", ";

/// Minimum number of digits in an address. A shorter number after a `#` may be part of the user's name.
const MIN_ADDRESS_DIGITS: usize = 8;

/// Removes the addresses of functions (`<function f at 0x7f50dcfede40>`) and of classes (`Acc#7f50dc534a90<...>`),
/// which differ between processes.
pub(super) fn without_addresses(types: &str) -> Cow<'_, str> {
    if !types.contains(['#', '<']) {
        return Cow::Borrowed(types);
    }
    let mut text = String::with_capacity(types.len());
    let mut rest = types;
    while let Some(index) = rest.find([' ', '#']) {
        let (plain, tail) = rest.split_at(index);
        text.push_str(plain);
        let digits = tail.strip_prefix(" at 0x").or_else(|| tail.strip_prefix('#')).unwrap_or_default();
        let after_digits = digits.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
        if digits.len() - after_digits.len() >= MIN_ADDRESS_DIGITS {
            rest = after_digits;
        } else {
            text.push_str(&tail[..1]);
            rest = &tail[1..];
        }
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Maximum number of parameters that are recorded. Array types have three and a few keywords. Types with more
/// parameters get no special form.
const MAX_PARAMS: usize = 8;

/// Writer that appends a named type to a string. Most types are `name(param, param)`. For the others, `finish` rewrites
/// the appended string into the form that Numba prints.
pub(super) struct NamedType<'out> {
    out: &'out mut String,
    start: usize,
    end_of_name: usize,
    /// Start of each parameter in `out`.
    params: [usize; MAX_PARAMS],
    param_count: usize,
}

impl<'out> NamedType<'out> {
    pub(super) fn begin(out: &'out mut String) -> Self {
        let start = out.len();
        NamedType { out, start, end_of_name: start, params: [0; MAX_PARAMS], param_count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.len() == self.start
    }

    /// Appends a component of the type name. The mangler splits names at dots, as if they were modules.
    pub(super) fn push_part(&mut self, part: &str) {
        if !self.is_empty() {
            self.out.push('.');
        }
        self.out.push_str(&escape::unescape_type(part));
        self.end_of_name = self.out.len();
    }

    /// Begins a parameter, which the caller appends to the returned string.
    pub(super) fn begin_param(&mut self) -> &mut String {
        self.out.push_str(if self.param_count == 0 { "(" } else { SEPARATOR });
        if let Some(param_start) = self.params.get_mut(self.param_count) {
            *param_start = self.out.len();
        }
        self.param_count += 1;
        self.out
    }

    pub(super) fn finish(self) {
        let name = self.out.get(self.start..self.end_of_name).unwrap_or_default();
        match (name, self.param_count) {
            ("Array", 3..=MAX_PARAMS) => self.rewrite_array(),
            ("UniTuple", 2) => self.rewrite_uniform_tuple(),
            ("Tuple", 0) => self.out.push_str("()"),
            (_, 0) => {}
            _ => self.out.push(')'),
        }
    }

    fn rewrite_array(self) {
        let end = self.out.len();
        for index in 3..self.param_count {
            let keyword = self.param_range(index, end);
            if !matches!(self.out.get(keyword.clone()), Some("mutable" | "aligned")) {
                self.out.extend_from_within(keyword);
                self.out.push(' ');
            }
        }
        self.out.push_str("array(");
        self.out.extend_from_within(self.param_range(0, end));
        self.out.push_str(SEPARATOR);
        self.out.extend_from_within(self.param_range(1, end));
        self.out.push_str("d, ");
        self.out.extend_from_within(self.param_range(2, end));
        self.out.push(')');
        self.out.drain(self.start..end);
    }

    fn rewrite_uniform_tuple(self) {
        let separator = self.params[1] - SEPARATOR.len()..self.params[1];
        self.out.replace_range(separator, " x ");
        self.out.push(')');
    }

    /// Returns the range of parameter `index`. `end` is the end of the last parameter.
    fn param_range(&self, index: usize, end: usize) -> Range<usize> {
        let next = self.params.get(index + 1).filter(|_| index + 1 < self.param_count);
        self.params[index]..next.map_or(end, |next| next - SEPARATOR.len())
    }
}
