//! Numba's dialect of the Itanium C++ mangling.
//!
//! ```text
//!   mangled    = "_Z" ( "N" part+ tag* "E" | part tag* ) type*
//!   part       = length bytes                            8__main__
//!   tag        = "B" length bytes                        B2v2, B38c8tJT...
//!   type       = code | named | "N" part+ params? "E" | "Li" number "E"
//!   named      = part params?                            5ArrayIdLi1E1C7mutable7alignedE
//!   params     = "I" type* "E"
//! ```
//! No substitutions, no qualifiers: much less than C++ has, and what does not fit is not Numba's.

use std::borrow::Cow;

use super::numba_type;

/// Nothing honest nests deeper; a hostile name must not exhaust the stack.
const DEEPEST: u32 = 48;

/// A name taken apart. Parts and tags are still escaped.
#[derive(Debug, Default)]
pub(super) struct Mangled<'a> {
    /// Module and function.
    pub(super) path: Vec<&'a str>,
    pub(super) tags: Vec<&'a str>,
    /// The argument types, readable.
    pub(super) arguments: Vec<Cow<'a, str>>,
    /// Whether the text of a type holds what C++ cannot: a bracket, escaped.
    pub(super) escaped: bool,
    /// What LLVM or Numba appended: nothing, or `.` and more.
    pub(super) suffix: &'a str,
}

/// Takes apart a whole name.
pub(super) fn parse(name: &str) -> Option<Mangled<'_>> {
    let mut cursor = Cursor { rest: name.strip_prefix("_Z")? };
    let mut mangled = Mangled::default();
    let nested = cursor.take("N");
    while let Some(part) = cursor.part() {
        mangled.path.push(part);
        if !nested {
            break;
        }
    }
    while cursor.take("B") {
        mangled.tags.push(cursor.part()?);
    }
    if mangled.path.is_empty() || nested && !cursor.take("E") {
        return None;
    }
    mangled.escaped = ["_28", "_3c", "_5b"].iter().any(|bracket| cursor.rest.contains(bracket));
    while !cursor.rest.is_empty() && !cursor.rest.starts_with('.') {
        mangled.arguments.push(cursor.type_(DEEPEST)?);
    }
    mangled.suffix = cursor.rest;
    Some(mangled)
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn digits(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!digits.is_empty()).then_some(digits)
    }

    /// `length bytes`; nothing is consumed where there is none.
    fn part(&mut self) -> Option<&'a str> {
        let before = self.rest;
        let part = self.digits().and_then(|digits| digits.parse().ok()).and_then(|length| {
            let (part, rest) = self.rest.split_at_checked(length)?;
            self.rest = rest;
            (length != 0).then_some(part)
        });
        if part.is_none() {
            self.rest = before;
        }
        part
    }

    fn type_(&mut self, depth: u32) -> Option<Cow<'a, str>> {
        let depth = depth.checked_sub(1)?;
        if self.take("Li") {
            let negative = self.take("-");
            let digits = self.digits()?;
            let number = if negative { Cow::Owned(format!("-{digits}")) } else { Cow::Borrowed(digits) };
            return self.take("E").then_some(number);
        }
        let nested = self.take("N");
        let mut parts = Vec::new();
        while let Some(part) = self.part() {
            parts.push(part);
            if !nested {
                break;
            }
        }
        if parts.is_empty() {
            let (code, text) = numba_type::CODES.iter().find(|(code, _)| self.rest.starts_with(code))?;
            return (!nested && self.take(code)).then_some(Cow::Borrowed(*text));
        }
        let mut params = Vec::new();
        if self.take("I") {
            while !self.take("E") {
                params.push(self.type_(depth)?);
            }
        }
        (!nested || self.take("E")).then(|| numba_type::show(&parts, &params))
    }
}
