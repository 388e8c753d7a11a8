//! Section with the names of the functions outside of an image that its code refers to. Readers name code of libraries
//! that have no symbol for it.
//!
//! ```text
//!   to 7f9a3c0d1e40 cos      a function of this name starts at this address in the process
//!   at 1234 raise            the call whose last four bytes are at this address of the image calls this function
//! ```
//! To see it: `readelf -p .jitlisten.callees FILE`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::content::Content;
use super::debug::DebugSection;
use super::layout::Layout;
use crate::Address;
use crate::loaded_object::external::{ReferenceKind, references};

const SECTION: &str = ".jitlisten.callees";
/// Maximum size of the section, which readers ignore if it is longer (`report/src/symbols/callees.rs`).
const MAX_BYTES: usize = 1 << 20;

/// Encodes the section, if the code refers to other functions. Starts of functions precede calls, which are more.
pub(super) fn encode_callees(content: &Content<'_>, layout: &Layout) -> Option<DebugSection> {
    let mut callees = BTreeSet::new();
    for debug_object in content.parts.iter().filter_map(|part| part.debug_object) {
        for reference in references(debug_object).unwrap_or_default() {
            let Some(field) = field(content, reference.field) else { continue };
            let address = match reference.kind {
                ReferenceKind::Address => u64::from_le_bytes(field),
                ReferenceKind::Call => layout.offset(reference.field.0),
            };
            callees.insert((reference.kind, address, reference.name));
        }
    }
    let text = to_text(callees);
    (!text.is_empty()).then(|| DebugSection { name: SECTION.into(), bytes: text.into_bytes() })
}

/// Returns the lines that fit into the section.
fn to_text<'a>(callees: impl IntoIterator<Item = (ReferenceKind, u64, &'a str)>) -> String {
    let mut text = String::new();
    for (kind, address, name) in callees {
        let word = match kind {
            ReferenceKind::Address => "to",
            ReferenceKind::Call => "at",
        };
        let length = text.len();
        let _ = writeln!(text, "{word} {address:x} {name}");
        if text.len() > MAX_BYTES {
            text.truncate(length);
            break;
        }
    }
    text
}

/// Returns the eight bytes at an address in the pages.
fn field(content: &Content<'_>, address: Address) -> Option<[u8; 8]> {
    let start = usize::try_from(address.0.checked_sub(content.pages.start().0)?).ok()?;
    content.code.get(start..start.checked_add(8)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_has_a_maximum_size() {
        let name = "f".repeat(100);
        let lines = |count| to_text((0..count).map(|address| (ReferenceKind::Call, address, &*name)));
        assert_eq!(lines(2), format!("at 0 {name}\nat 1 {name}\n"));
        let text = lines(1 << 20);
        assert!(text.len() <= MAX_BYTES && MAX_BYTES - text.len() < 200 && text.ends_with("f\n"), "{}", text.len());
    }
}
