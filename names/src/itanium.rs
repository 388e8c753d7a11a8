//! C++ names and legacy Rust names (before the `v0` scheme), which use the same mangling.
//!
//! Source: <https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling>, implemented by the `cpp_demangle` crate.

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Maximum length of a name to demangle. Longer names are truncated anyway, and demangling them may take
/// disproportionately long.
const MAX_INPUT_BYTES: usize = 8192;
const MAX_OUTPUT_BYTES: usize = 4096;

/// Demangles a name; returns it unchanged if it is not a C++ name.
pub(super) fn demangle(linkage_name: &str) -> Cow<'_, str> {
    if !linkage_name.starts_with("_Z") || linkage_name.len() > MAX_INPUT_BYTES {
        return Cow::Borrowed(linkage_name);
    }
    let mut output = BoundedString(String::new());
    let options = DemangleOptions::new().no_return_type();
    let is_demangled = BorrowedSymbol::new(linkage_name.as_bytes())
        .is_ok_and(|symbol| symbol.structured_demangle(&mut output, &options).is_ok());
    if is_demangled { Cow::Owned(unescape_rust(output.0)) } else { Cow::Borrowed(linkage_name) }
}

/// Output buffer with a maximum length, because substitutions can expand a short name into a very long one.
struct BoundedString(String);

impl fmt::Write for BoundedString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_OUTPUT_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Replaces `$LT$` and similar escapes of Rust. The hash at the end (`::h0123456789abcdef`) is kept, because it
/// distinguishes instances.
fn unescape_rust(name: String) -> String {
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
