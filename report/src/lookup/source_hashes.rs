//! Hashes of the sources that an image was compiled from.
//!
//! jitlisten's line tables for Numba are DWARF 4, which lacks a field for hashes. LLVM receives the hashes as compiler
//! flags (`DICompileUnit(flags: ...)`), one line per file, and appends them to the compiler's name in `DW_AT_producer`
//! (or writes `DW_AT_APPLE_flags`, for lldb):
//!
//! ```text
//! Numba, jitlisten jitlisten-source sha256:0123456789abcdef0123456789abcdef /path/prog.py
//! ```
//! The hash is the first half of the SHA-256 of the file's bytes at the time of compilation. To print it: `readelf
//! --debug-dump=info IMAGE | grep -a jitlisten-source`.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

const HASH_PREFIX: &str = "jitlisten-source sha256:";
/// Maximum number of compile units to read.
const MAX_UNITS: usize = 1 << 16;

/// Returns the path and hash of each source file that has a hash.
pub(crate) fn read_hashes<R: gimli::Reader>(dwarf: &gimli::Dwarf<R>) -> Vec<(String, String)> {
    let mut hashes = Vec::new();
    let mut headers = dwarf.units();
    for _ in 0..MAX_UNITS {
        let Ok(Some(header)) = headers.next() else { break };
        let Some(text) = compiler_flags(dwarf, header) else { continue };
        hashes.extend(text.lines().filter_map(parse));
    }
    hashes.sort();
    hashes.dedup();
    hashes
}

fn compiler_flags<R: gimli::Reader>(dwarf: &gimli::Dwarf<R>, header: gimli::UnitHeader<R>) -> Option<String> {
    let unit = dwarf.unit(header).ok()?;
    let mut entries = unit.entries();
    let root = entries.next_dfs().ok()??;
    let values = [gimli::DW_AT_producer, gimli::DW_AT_APPLE_flags].map(|name| root.attr_value(name));
    let mut flags = String::new();
    for value in values.into_iter().flatten() {
        let text = dwarf.attr_string(&unit, value).ok()?;
        flags.push_str(&text.to_string_lossy().ok()?);
        flags.push('\n');
    }
    Some(flags)
}

fn parse(line: &str) -> Option<(String, String)> {
    let (hash, path) = line.split_once(HASH_PREFIX)?.1.split_once(' ')?;
    Some((super::source_path(path), hash.to_owned()))
}

/// Returns the hash of a file's bytes in the form that images contain.
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_follow_the_name_of_the_compiler() {
        let parsed = Some(("/a dir/prog.py".to_owned(), "0123".to_owned()));
        assert_eq!(parse("Numba, jitlisten jitlisten-source sha256:0123 /a dir/prog.py"), parsed);
        assert_eq!(parse("jitlisten-source sha256:0123 /a dir/prog.py"), parsed);
        assert_eq!(parse("clang version 14"), None);
        // Expected value from Python: hashlib.sha256(b"abc").hexdigest()[:32]
        assert_eq!(hash(b"abc"), "ba7816bf8f01cfea414140de5dae2223");
    }
}
