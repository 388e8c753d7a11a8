//! Hashes of the sources that an image was compiled from.
//!
//! jitlisten's line tables for Numba are DWARF 4, which has no field for them. They are a text in the compilation unit that
//! consumers leave alone, `DW_AT_APPLE_flags` (LLVM's `DICompileUnit(flags: ...)`), a line for each file:
//!
//! ```text
//! jitlisten-source sha256:0123456789abcdef0123456789abcdef /path/prog.py
//! ```
//! The hash is the first half of the SHA-256 of the file's bytes when the function was compiled. To see it:
//! `readelf --debug-dump=info IMAGE | grep -a jitlisten-source`.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

const MARK: &str = "jitlisten-source sha256:";
/// Of more units than this the rest is not looked at.
const MOST_UNITS: usize = 1 << 16;

/// Path and hash of each file that has one.
pub(super) fn of<R: gimli::Reader>(dwarf: &gimli::Dwarf<R>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut headers = dwarf.units();
    for _ in 0..MOST_UNITS {
        let Ok(Some(header)) = headers.next() else { break };
        let Some(text) = flags(dwarf, header) else { continue };
        found.extend(text.lines().filter_map(parse));
    }
    found.sort();
    found.dedup();
    found
}

fn flags<R: gimli::Reader>(dwarf: &gimli::Dwarf<R>, header: gimli::UnitHeader<R>) -> Option<String> {
    let unit = dwarf.unit(header).ok()?;
    let mut entries = unit.entries();
    let root = entries.next_dfs().ok()??;
    let value = root.attr_value(gimli::DW_AT_APPLE_flags)?;
    let text = dwarf.attr_string(&unit, value).ok()?;
    Some(text.to_string_lossy().ok()?.into_owned())
}

fn parse(line: &str) -> Option<(String, String)> {
    let (hash, path) = line.strip_prefix(MARK)?.split_once(' ')?;
    Some((path.to_owned(), hash.to_owned()))
}

/// The hash of a file's bytes, as it stands in an image.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
