//! Version and engines of an LLVM, read from the file of its library, stripped or not.
//!
//! | fact | from |
//! | --- | --- |
//! | version | the string `LLVM22.1.0` that the bitcode writer emits (`llvm/lib/Bitcode/Writer/BitcodeWriter.cpp`) |
//! | engines | names of types, as `typeid` has them (`_ZTS`); without them, symbols: see `llvm.rs` |
//!
//! The file is read once, one megabyte at a time.

#![forbid(unsafe_code)]

use std::io::{self, Read};

use memchr::memmem::{self, Finder};

const CHUNK: usize = 1 << 20;
/// What stands on the border of two chunks is shorter, with the byte in front of it.
const OVERLAP: usize = 64;

/// The class of RuntimeDyld that links ELF objects, and JITLink's layer. What compiles for its process has one of them.
pub(super) const LINKERS: [&str; 2] = ["N4llvm14RuntimeDyldELFE", "N4llvm3orc18ObjectLinkingLayerE"];

/// Messages of both, in every release from 10 to 22.
const MESSAGES: [&str; 2] = ["Unable to allocate memory for common symbols!", "Generic JITLink error"];

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LlvmFile {
    /// `22.1.0`, `20.0.0git`
    pub(super) version: Option<String>,
    /// Which of the types that were asked for it has.
    pub(super) types: Vec<bool>,
    /// Whether it can link what it compiles.
    pub(super) has_linker: bool,
    /// Whether a linker of it has its type's name there.
    pub(super) names_linker: bool,
}

impl LlvmFile {
    /// Reads `file`, and looks for `types` in it.
    pub(super) fn read(mut file: impl Read, types: &[&str]) -> io::Result<LlvmFile> {
        let names: Vec<Finder<'_>> = types.iter().map(Finder::new).collect();
        let (linkers, messages) = (LINKERS.map(Finder::new), MESSAGES.map(Finder::new));
        let mut found = LlvmFile { types: vec![false; types.len()], ..LlvmFile::default() };
        let mut bytes = Vec::with_capacity(CHUNK + OVERLAP);
        loop {
            // The rest of the last chunk, and the next one.
            bytes.drain(..bytes.len().saturating_sub(OVERLAP));
            let old = bytes.len();
            if file.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)? == 0 {
                return Ok(found);
            }
            debug_assert!(old <= OVERLAP);
            found.names_linker = found.names_linker || linkers.iter().any(|linker| has_type(&bytes, linker));
            found.has_linker =
                found.has_linker || found.names_linker || messages.iter().any(|message| message.find(&bytes).is_some());
            for (is_there, name) in found.types.iter_mut().zip(&names) {
                *is_there = *is_there || has_type(&bytes, name);
            }
            if found.version.is_none() {
                found.version = memmem::find_iter(&bytes, b"\0LLVM").find_map(|at| identification(&bytes[at + 1..]));
            }
        }
    }
}

/// Whether the name of a type is there by itself, and not the end of a symbol (`_ZTV` and the name, in a library that
/// imports it). In front of it may be code.
fn has_type(bytes: &[u8], name: &Finder<'_>) -> bool {
    let is_apart = |at: usize| {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        before.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
            && bytes.get(at + name.needle().len()) == Some(&0)
    };
    name.find_iter(bytes).any(is_apart)
}

/// `LLVM22.1.0\0`, `LLVM20.0.0git\0`
fn identification(bytes: &[u8]) -> Option<String> {
    let end = memchr::memchr(0, &bytes[..bytes.len().min(OVERLAP / 2)])?;
    let version = std::str::from_utf8(bytes[..end].strip_prefix(b"LLVM")?).ok()?;
    let [major, minor, patch]: [&str; 3] = version.split('.').collect::<Vec<_>>().try_into().ok()?;
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = patch.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_plain = suffix.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_one = is_number(major) && is_number(minor) && is_number(&patch[..patch.len() - suffix.len()]) && is_plain;
    is_one.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_string_of_its_own() {
        assert_eq!(identification(b"LLVM22.1.0\0").as_deref(), Some("22.1.0"));
        assert_eq!(identification(b"LLVM20.0.0git\0and more").as_deref(), Some("20.0.0git"));
        for other in ["LLVM\0", "LLVM22\0", "LLVM22.1.x\0", "LLVM22.1.0", "xLLVM22.1.0\0", "LLVM..\0", "LLVM1.2.3 x\0"]
        {
            assert_eq!(identification(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_file_that_is_read_in_pieces() {
        for border in [CHUNK - 20, CHUNK - 1, CHUNK, CHUNK + 3, 2 * CHUNK - 5] {
            let mut file = vec![b'x'; border];
            file.extend(b"\0LLVM21.1.8\0\0N4llvm5MCJITE\0\xff\xe0N4llvm14RuntimeDyldELFE\0");
            let found = LlvmFile::read(&*file, &["N4llvm5MCJITE", "N4llvm5MCJIT", "5MCJITE"]).unwrap();
            assert_eq!(found.version.as_deref(), Some("21.1.8"), "{border}");
            assert_eq!((found.types, found.names_linker), (vec![true, false, false], true), "{border}");
            assert!(found.has_linker, "{border}");
        }
        assert_eq!(LlvmFile::read(&b""[..], &[]).unwrap(), LlvmFile::default());
        for near in ["\0_ZTVN4llvm14RuntimeDyldELFE\0", "\0N4llvm14RuntimeDyldELFEx\0", "N4llvm14RuntimeDyldELFE"] {
            assert!(!LlvmFile::read(near.as_bytes(), &[]).unwrap().has_linker, "{near}");
        }
        let nameless = LlvmFile::read(MESSAGES[1].as_bytes(), &[]).unwrap();
        assert_eq!((nameless.has_linker, nameless.names_linker), (true, false));
    }
}
