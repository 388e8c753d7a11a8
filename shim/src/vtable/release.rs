//! Which release of LLVM a library has, and whether its classes are known.
//!
//! | what says so | e.g. | where |
//! | --- | --- | --- |
//! | versions of its symbols | `LLVM_19.1` | distributions' `libLLVM` |
//! | what the bitcode writer puts into each module (`llvm/lib/Bitcode/Writer/BitcodeWriter.cpp`) | `LLVM22.1.0`, `LLVM23.0.0git` | nearly every other |
//!
//! Between two releases the version has the number of the next one and ends in `git`: such a build may be as either. Where nothing says which
//! it is, every number of slots is believed that a known release has.

#![forbid(unsafe_code)]

use super::find::Segment;

/// The newest release whose vtables were looked at, in a build on the way to it.
const NEWEST: u32 = 24;

/// The oldest.
const OLDEST: u32 = 10;

/// Longer versions are none.
const LONGEST: usize = 64;

/// A release, or a build on the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) number: u32,
    is_on_the_way: bool,
    /// In full.
    pub(crate) version: String,
}

impl Release {
    /// The one of this version: `19.1`, `22.1.0`, `20.0.0git`.
    pub(crate) fn of(version: &str) -> Option<Release> {
        let number = version.split('.').next()?.parse().ok()?;
        Some(Release { number, is_on_the_way: version.contains("git"), version: version.to_owned() })
    }

    /// Whether it is newer than any that is known.
    pub(crate) fn is_too_new(&self) -> bool {
        self.number > NEWEST
    }

    /// Whether it may have what `is_of` a release.
    pub(crate) fn may_be(&self, is_of: impl Fn(u32) -> bool) -> bool {
        !self.is_too_new() && (is_of(self.number) || self.is_on_the_way && is_of(self.number.saturating_sub(1)))
    }
}

/// What the constants of a library say: up to the first release that is known, so that not all of them are read.
pub(super) fn said(constants: &[Segment<'_>]) -> Vec<Release> {
    let mut found = Vec::new();
    for segment in constants {
        for at in memchr::memmem::find_iter(segment.bytes, b"\0LLVM") {
            if let Some(release) = identification(&segment.bytes[at + 1..]) {
                let is_known = (OLDEST..=NEWEST).contains(&release.number);
                found.push(release);
                if is_known {
                    return found;
                }
            }
        }
    }
    found
}

/// `LLVM22.1.0\0`, `LLVM20.0.0git\0`, `LLVM17.0.6-rust-1.75.0-stable\0`
fn identification(bytes: &[u8]) -> Option<Release> {
    let end = memchr::memchr(0, &bytes[..bytes.len().min(LONGEST)])?;
    let version = std::str::from_utf8(bytes[..end].strip_prefix(b"LLVM")?).ok()?;
    let mut parts = version.splitn(3, '.');
    let [major, minor, patch] = [parts.next()?, parts.next()?, parts.next()?];
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = patch.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_plain = suffix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+.~_".contains(&byte));
    let is_one = is_number(major) && is_number(minor) && suffix.len() < patch.len() && is_plain;
    is_one.then(|| Release::of(version))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_string_of_its_own() {
        for version in ["22.1.0", "20.0.0git", "17.0.6-rust-1.75.0-stable", "16.0.6+rc1"] {
            let bytes = format!("LLVM{version}\0and more");
            assert_eq!(identification(bytes.as_bytes()).map(|found| found.version).as_deref(), Some(version));
        }
        for other in [
            "LLVM\0",
            "LLVM22\0",
            "LLVM22.1.x\0",
            "LLVM22.1.0",
            "xLLVM22.1.0\0",
            "LLVM..\0",
            "LLVM1.2.3 x\0",
            "LLVM_19.1.2\0",
        ] {
            assert_eq!(identification(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn constants_are_read_up_to_a_release_that_is_known() {
        let said = |texts: &[&str]| {
            let segments: Vec<Segment<'_>> =
                texts.iter().map(|text| Segment { address: 0x1000, bytes: text.as_bytes() }).collect();
            super::said(&segments).into_iter().map(|release| release.number).collect::<Vec<_>>()
        };
        assert_eq!(said(&["of nothing", "\0LLVM\0LLVM ERROR: \0"]), []);
        assert_eq!(said(&["x\0LLVM3.2.1\0", "\0LLVM18.1.8\0LLVM19.1.0\0"]), [3, 18]);
        assert_eq!(said(&["x\0LLVM25.0.0git\0more"]), [25]);
    }

    #[test]
    fn a_build_between_two_releases_may_be_as_either() {
        let may_be = |version: &str, number: u32| Release::of(version).unwrap().may_be(|of| of == number);
        assert!(may_be("19.1", 19) && !may_be("19.1", 18) && !may_be("19.1", 20));
        assert!(may_be("20.0.0git", 20) && may_be("20.0.0git", 19) && !may_be("20.0.0git", 21));
        let any = |version: &str| Release::of(version).unwrap().may_be(|_| true);
        assert!(any("24.0.0git") && any("24.1.3") && !any("25.0.0git") && !any("25.1.0"));
        assert_eq!(Release::of("x"), None);
    }
}
