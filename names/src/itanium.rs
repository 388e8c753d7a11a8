//! C++ names (and those of Rust before its `v0` scheme, which look like them).
//!
//! Source: <https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling>, through the `cpp_demangle` crate.

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Longer names are not demangled: they are cut anyway, and demangling may take disproportionate time.
const LONGEST_INPUT: usize = 8192;
const LONGEST_OUTPUT: usize = 4096;

/// The demangled name, or the name itself where it is no C++ name.
pub(super) fn demangle(linkage_name: &str) -> Cow<'_, str> {
    if !linkage_name.starts_with("_Z") || linkage_name.len() > LONGEST_INPUT {
        return Cow::Borrowed(linkage_name);
    }
    let mut shown = Bounded(String::new());
    let options = DemangleOptions::new().no_return_type();
    let demangled = BorrowedSymbol::new(linkage_name.as_bytes())
        .is_ok_and(|symbol| symbol.structured_demangle(&mut shown, &options).is_ok());
    if demangled { Cow::Owned(rust_escapes(shown.0)) } else { Cow::Borrowed(linkage_name) }
}

/// Substitutions can make a short name very long: writing stops there.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_OUTPUT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Rust's `$LT$` and friends. The hash at the end (`::h0123456789abcdef`) stays: it distinguishes instances.
fn rust_escapes(name: String) -> String {
    const ESCAPES: [(&str, &str); 12] = [
        ("_$LT$", "<"),
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$C$", ","),
        ("$u20$", " "),
        ("$u27$", "'"),
        ("$u5b$", "["),
        ("$u5d$", "]"),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
    ];
    if !name.contains('$') {
        return name;
    }
    ESCAPES.iter().fold(name, |name, (escape, plain)| name.replace(escape, plain)).replace("..", "::")
}
