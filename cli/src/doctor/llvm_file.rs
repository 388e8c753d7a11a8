//! Version and engines of an LLVM library, read from its file, stripped or not.
//!
//! | property | source |
//! | --- | --- |
//! | version | the string `LLVM22.1.0` that the bitcode writer emits (`llvm/lib/Bitcode/Writer/BitcodeWriter.cpp`) |
//! | engines | RTTI names (`_ZTS`); without them, symbols: see `llvm.rs` |
//!
//! The file is read once, one megabyte at a time.

use std::io::{self, Read};

use memchr::memmem::{self, Finder};

const CHUNK_BYTES: usize = 1 << 20;
/// Size of the overlap between two chunks. It exceeds the length of any searched string plus the preceding byte, so a
/// string that spans two chunks is found.
const OVERLAP_BYTES: usize = 64;

/// RTTI names of the RuntimeDyld class that links ELF objects, and of JITLink's layer. Any LLVM that compiles for its
/// own process contains one of them.
pub(super) const LINKERS: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];

/// Messages of RuntimeDyld and JITLink that are the same in every release from 10 to 22.
const MESSAGES: [&str; 2] = ["Unable to allocate memory for common symbols!", "Generic JITLink error"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LlvmFile {
    /// LLVM version, such as `22.1.0` or `20.0.0git`.
    pub(super) version: Option<String>,
    /// For each requested type, true if the file contains its RTTI name.
    pub(super) types: Vec<bool>,
    /// True if the LLVM can link the objects that it compiles.
    pub(super) has_linker: bool,
    /// True if the file contains the RTTI name of a linker.
    pub(super) names_linker: bool,
}

impl LlvmFile {
    /// Reads `file` and searches it for the RTTI names in `types`.
    pub(super) fn read(mut file: impl Read, types: &[&str]) -> io::Result<LlvmFile> {
        let names: Vec<Finder<'_>> = types.iter().map(Finder::new).collect();
        let (linkers, messages) = (LINKERS.map(Finder::new), MESSAGES.map(Finder::new));
        let mut result = LlvmFile { types: vec![false; types.len()], ..LlvmFile::default() };
        let mut bytes = Vec::with_capacity(CHUNK_BYTES + OVERLAP_BYTES);
        loop {
            // Keep the end of the last chunk, and append the next chunk.
            bytes.drain(..bytes.len().saturating_sub(OVERLAP_BYTES));
            let kept_bytes = bytes.len();
            if file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut bytes)? == 0 {
                return Ok(result);
            }
            debug_assert!(kept_bytes <= OVERLAP_BYTES);
            result.names_linker = result.names_linker || linkers.iter().any(|linker| has_type(&bytes, linker));
            result.has_linker = result.has_linker
                || result.names_linker
                || messages.iter().any(|message| message.find(&bytes).is_some());
            for (is_present, name) in result.types.iter_mut().zip(&names) {
                *is_present = *is_present || has_type(&bytes, name);
            }
            if result.version.is_none() {
                result.version =
                    memmem::find_iter(&bytes, b"\0LLVM").find_map(|offset| parse_version(&bytes[offset + 1..]));
            }
        }
    }
}

/// Returns true if the name of a type occurs as a separate string. It must not be the end of a longer symbol, such as
/// `_ZTV` plus the name in a library that imports the vtable. Bytes of code may precede it.
fn has_type(bytes: &[u8], name: &Finder<'_>) -> bool {
    let is_separate = |offset: usize| {
        let preceding_byte = offset.checked_sub(1).map(|offset| bytes[offset]);
        preceding_byte.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
            && bytes.get(offset + name.needle().len()) == Some(&0)
    };
    name.find_iter(bytes).any(is_separate)
}

/// Parses an identification string such as `LLVM22.1.0\0` or `LLVM20.0.0git\0`.
fn parse_version(bytes: &[u8]) -> Option<String> {
    let end = memchr::memchr(0, &bytes[..bytes.len().min(OVERLAP_BYTES / 2)])?;
    let version = std::str::from_utf8(bytes[..end].strip_prefix(b"LLVM")?).ok()?;
    let [major, minor, patch]: [&str; 3] = version.split('.').collect::<Vec<_>>().try_into().ok()?;
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = patch.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let has_plain_suffix = suffix.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_version =
        is_number(major) && is_number(minor) && is_number(&patch[..patch.len() - suffix.len()]) && has_plain_suffix;
    is_version.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_string_of_its_own() {
        assert_eq!(parse_version(b"LLVM22.1.0\0").as_deref(), Some("22.1.0"));
        assert_eq!(parse_version(b"LLVM20.0.0git\0and more").as_deref(), Some("20.0.0git"));
        for text in ["LLVM\0", "LLVM22\0", "LLVM22.1.x\0", "LLVM22.1.0", "xLLVM22.1.0\0", "LLVM..\0", "LLVM1.2.3 x\0"] {
            assert_eq!(parse_version(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_read_in_pieces() {
        for border in [CHUNK_BYTES - 20, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 3, 2 * CHUNK_BYTES - 5] {
            let mut file = vec![b'x'; border];
            file.extend(b"\0LLVM21.1.8\0\0N4llvm5MCJITE\0\xff\xe0N4llvm14RuntimeDyldELFE\0");
            let file_facts = LlvmFile::read(&*file, &["N4llvm5MCJITE", "N4llvm5MCJIT", "5MCJITE"]).unwrap();
            assert_eq!(file_facts.version.as_deref(), Some("21.1.8"), "{border}");
            assert_eq!((file_facts.types, file_facts.names_linker), (vec![true, false, false], true), "{border}");
            assert!(file_facts.has_linker, "{border}");
        }
        assert_eq!(LlvmFile::read(&b""[..], &[]).unwrap(), LlvmFile::default());
        for text in ["\0_ZTVN4llvm14RuntimeDyldELFE\0", "\0N4llvm14RuntimeDyldELFEx\0", "N4llvm14RuntimeDyldELFE"] {
            assert!(!LlvmFile::read(text.as_bytes(), &[]).unwrap().has_linker, "{text}");
        }
        let nameless = LlvmFile::read(MESSAGES[1].as_bytes(), &[]).unwrap();
        assert_eq!((nameless.has_linker, nameless.names_linker), (true, false));
    }
}
