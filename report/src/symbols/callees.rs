//! Functions outside of an image that its code refers to, as the image sink writes them
//! (`jitlisten/src/sink/image/callees.rs`).

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Image section with the names, and its maximum size.
const SECTION: (&str, u64) = (".jitlisten.callees", 1 << 20);

/// Functions outside of an image that its code refers to.
#[derive(Debug, Default)]
pub(super) struct Callees {
    /// Names by the start of the function in the process.
    pub(super) starts: FxHashMap<u64, Arc<str>>,
    /// Names by the address of the last byte of a call in the image.
    pub(super) calls: FxHashMap<u64, Arc<str>>,
}

impl Callees {
    pub(super) fn read(section: impl FnOnce(&str, u64) -> Vec<u8>) -> Callees {
        let mut callees = Callees::default();
        let text = section(SECTION.0, SECTION.1);
        for line in text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
            let mut words = line.splitn(3, ' ');
            let (Some(word), Some(address), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            match word {
                "to" => match callees.starts.entry(address) {
                    Entry::Occupied(known) if !is_more_usual(name, known.get()) => {}
                    entry => _ = entry.insert_entry(name.into()),
                },
                "at" => _ = callees.calls.insert(address.wrapping_add(3), name.into()),
                _ => {}
            }
        }
        callees
    }
}

/// Returns true for the more usual of two names of a function: the shorter one, such as `cos` instead of `cosf64`.
fn is_more_usual(name: &str, other: &str) -> bool {
    (name.len(), name) < (other.len(), other)
}

/// Replaces a function's name by a more usual one.
pub(super) fn replace_by_usual(known: &mut Option<Arc<str>>, name: &Arc<str>) {
    if known.as_ref().is_none_or(|known| is_more_usual(name, known)) {
        *known = Some(Arc::clone(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_are_ignored() {
        let text = b"to 1f cosf64\nto 1f cos\nto x sin\nat\nat 10 pow\nin 1 exp\nto 1f cosf32x\nto 2 \xff\n";
        let callees = Callees::read(|name, _| if name == SECTION.0 { text.to_vec() } else { Vec::new() });
        assert_eq!(callees.starts.iter().map(|(start, name)| (*start, &**name)).collect::<Vec<_>>(), [(0x1f, "cos")]);
        assert_eq!(callees.calls.iter().map(|(end, name)| (*end, &**name)).collect::<Vec<_>>(), [(0x13, "pow")]);
    }
}
