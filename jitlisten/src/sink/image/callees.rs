//! Section with the names of the functions outside of an image that its code refers to. Readers name code of libraries
//! that have no symbol for it.
//!
//! ```text
//!   to 7f9a3c0d1e40 cos      a function of this name starts at this address in the process
//!   at 1234 raise            the call whose last four bytes are at this address of the image calls this function
//! ```
//! To see it: `readelf -p .jitlisten.callees FILE`.

#![forbid(unsafe_code)]

use std::fmt::Write as _;

use super::content::Content;
use super::debug::DebugSection;
use super::layout::Layout;
use crate::Address;
use crate::loaded_object::external::{ReferenceKind, references};

const SECTION: &str = ".jitlisten.callees";

/// Encodes the section, if the code refers to other functions.
pub(super) fn encode_callees(content: &Content<'_>, layout: &Layout) -> Option<DebugSection> {
    let mut text = String::new();
    for debug_object in content.parts.iter().filter_map(|part| part.debug_object) {
        for reference in references(debug_object).unwrap_or_default() {
            let Some(field) = field(content, reference.field) else { continue };
            let (word, address) = match reference.kind {
                ReferenceKind::Address => ("to", u64::from_le_bytes(field)),
                ReferenceKind::Call => ("at", layout.offset(reference.field.0)),
            };
            let _ = writeln!(text, "{word} {address:x} {}", reference.name);
        }
    }
    (!text.is_empty()).then(|| DebugSection { name: SECTION.into(), bytes: text.into_bytes() })
}

/// Returns the eight bytes at an address in the pages.
fn field(content: &Content<'_>, address: Address) -> Option<[u8; 8]> {
    let start = usize::try_from(address.0.checked_sub(content.pages.start().0)?).ok()?;
    content.code.get(start..start.checked_add(8)?)?.try_into().ok()
}
