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

use crate::numba_type;

/// Nothing honest nests deeper; a hostile name must not exhaust the stack.
const DEEPEST: u32 = 48;

/// A name taken apart. Parts and tags are still escaped.
#[derive(Debug)]
pub(super) struct Mangled<'a, 'known> {
    /// Module and function.
    pub(super) path: Vec<&'a str>,
    pub(super) tags: Vec<&'a str>,
    pub(super) arguments: &'known Arguments<'a>,
}

/// What stands behind the name proper. A function and its wrappers have the same, so the latest is kept.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    mangled: &'a str,
    /// The argument types, readable, with commas between.
    pub(super) shown: String,
    /// Whether the text of a type holds what C++ cannot: a bracket, escaped.
    pub(super) escaped: bool,
    /// What LLVM or Numba appended: nothing, or `.` and more.
    pub(super) suffix: &'a str,
}

/// Takes apart a whole name. `latest` are the arguments of the name before, or none.
pub(super) fn parse<'a, 'known>(name: &'a str, latest: &'known mut Arguments<'a>) -> Option<Mangled<'a, 'known>> {
    let mut cursor = Cursor { rest: name.strip_prefix("_Z")? };
    // Capacity for what nearly every name has: growing costs more than the rest.
    let (mut path, mut tags) = (Vec::with_capacity(4), Vec::with_capacity(2));
    let nested = cursor.take("N");
    while let Some(part) = cursor.part() {
        path.push(part);
        if !nested {
            break;
        }
    }
    while cursor.take("B") {
        tags.push(cursor.part()?);
    }
    if path.is_empty() || nested && !cursor.take("E") {
        return None;
    }
    if latest.mangled != cursor.rest {
        *latest = Arguments::default();
        *latest = Arguments::parse(cursor.rest)?;
    }
    Some(Mangled { path, tags, arguments: latest })
}

impl<'a> Arguments<'a> {
    fn parse(mangled: &'a str) -> Option<Self> {
        let escaped = ["_28", "_3c", "_5b"].iter().any(|bracket| mangled.contains(bracket));
        let mut shown = String::with_capacity(mangled.len());
        let mut cursor = Cursor { rest: mangled };
        while !cursor.rest.is_empty() && !cursor.rest.starts_with('.') {
            if !shown.is_empty() {
                shown.push_str(numba_type::BETWEEN);
            }
            cursor.type_(&mut shown, DEEPEST)?;
        }
        Some(Arguments { mangled, shown, escaped, suffix: cursor.rest })
    }
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
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
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

    /// Appends the text of a type to `out`.
    fn type_(&mut self, out: &mut String, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if self.take("Li") {
            if self.take("-") {
                out.push('-');
            }
            out.push_str(self.digits()?);
            return self.take("E").then_some(());
        }
        let nested = self.take("N");
        let mut named = numba_type::Named::begin(out);
        while let Some(part) = self.part() {
            named.part(part);
            if !nested {
                break;
            }
        }
        if named.is_empty() {
            let (code, text) = numba_type::CODES.iter().find(|(code, _)| self.rest.starts_with(code))?;
            out.push_str(text);
            return (!nested && self.take(code)).then_some(());
        }
        if self.take("I") {
            while !self.take("E") {
                self.type_(named.param(), depth)?;
            }
        }
        named.finish();
        (!nested || self.take("E")).then_some(())
    }
}
