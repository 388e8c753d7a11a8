//! Numba's variant of the Itanium C++ mangling.
//!
//! ```text
//!   mangled    = "_Z" ( "N" part+ tag* "E" | part tag* ) type*
//!   part       = length bytes                            8__main__
//!   tag        = "B" length bytes                        B2v2, B38c8tJT...
//!   type       = code | named | "N" part+ params? "E" | "Li" number "E"
//!   named      = part params?                            5ArrayIdLi1E1C7mutable7alignedE
//!   params     = "I" type* "E"
//! ```
//! The grammar lacks substitutions and qualifiers. A name that does not match it was not mangled by Numba.

use crate::numba_type;

/// Maximum nesting depth of types. Real types are shallower, and a malicious name must not overflow the stack.
const MAX_TYPE_DEPTH: u32 = 48;

/// Parsed name whose path components and tags are still escaped.
#[derive(Debug)]
pub(super) struct Mangled<'a, 'known> {
    /// Components of the module and function name.
    pub(super) path: Vec<&'a str>,
    pub(super) tags: Vec<&'a str>,
    pub(super) arguments: &'known Arguments<'a>,
}

/// Argument types and suffix of a name. They are the same for a function and its wrappers, so those parsed last are
/// cached.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    mangled: &'a str,
    /// Readable argument types, separated by commas.
    pub(super) text: String,
    /// True if the types contain an escaped bracket, which C++ names never do.
    pub(super) has_escaped_bracket: bool,
    /// Suffix that LLVM or Numba has appended: empty, or beginning with `.`.
    pub(super) suffix: &'a str,
}

/// Parses a whole name. `cache` contains the arguments of the previous name, or is empty.
pub(super) fn parse<'a, 'known>(name: &'a str, cache: &'known mut Arguments<'a>) -> Option<Mangled<'a, 'known>> {
    let mut cursor = Cursor { rest: name.strip_prefix("_Z")? };
    // These capacities fit nearly all names. Growing the vectors would cost more than the rest of the parser.
    let (mut path, mut tags) = (Vec::with_capacity(4), Vec::with_capacity(2));
    let nested = cursor.consume("N");
    while let Some(part) = cursor.parse_part() {
        path.push(part);
        if !nested {
            break;
        }
    }
    while cursor.consume("B") {
        tags.push(cursor.parse_part()?);
    }
    if path.is_empty() || nested && !cursor.consume("E") {
        return None;
    }
    if cache.mangled != cursor.rest {
        *cache = Arguments::default();
        *cache = Arguments::parse(cursor.rest)?;
    }
    Some(Mangled { path, tags, arguments: cache })
}

impl<'a> Arguments<'a> {
    fn parse(mangled: &'a str) -> Option<Self> {
        let has_escaped_bracket = ["_28", "_3c", "_5b"].iter().any(|bracket| mangled.contains(bracket));
        let mut text = String::with_capacity(mangled.len());
        let mut cursor = Cursor { rest: mangled };
        while !cursor.rest.is_empty() && !cursor.rest.starts_with('.') {
            if !text.is_empty() {
                text.push_str(numba_type::SEPARATOR);
            }
            cursor.parse_type(&mut text, MAX_TYPE_DEPTH)?;
        }
        Some(Arguments { mangled, text, has_escaped_bracket, suffix: cursor.rest })
    }
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn consume(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn parse_digits(&mut self) -> Option<&'a str> {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!digits.is_empty()).then_some(digits)
    }

    /// Parses `length bytes`. Consumes nothing if there is no such part.
    fn parse_part(&mut self) -> Option<&'a str> {
        let start = self.rest;
        let part = self.parse_digits().and_then(|digits| digits.parse().ok()).and_then(|length| {
            let (part, rest) = self.rest.split_at_checked(length)?;
            self.rest = rest;
            (length != 0).then_some(part)
        });
        if part.is_none() {
            self.rest = start;
        }
        part
    }

    /// Parses a type and appends its readable form to `out`.
    fn parse_type(&mut self, out: &mut String, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if self.consume("Li") {
            if self.consume("-") {
                out.push('-');
            }
            out.push_str(self.parse_digits()?);
            return self.consume("E").then_some(());
        }
        let nested = self.consume("N");
        let mut named = numba_type::NamedType::begin(out);
        while let Some(part) = self.parse_part() {
            named.push_part(part);
            if !nested {
                break;
            }
        }
        if named.is_empty() {
            let (code, text) = numba_type::CODES.iter().find(|(code, _)| self.rest.starts_with(code))?;
            out.push_str(text);
            return (!nested && self.consume(code)).then_some(());
        }
        if self.consume("I") {
            while !self.consume("E") {
                self.parse_type(named.begin_param(), depth)?;
            }
        }
        named.finish();
        (!nested || self.consume("E")).then_some(())
    }
}
