//! The LLVM release of a library, and the differences between releases.
//!
//! | source of the version | example | found in |
//! | --- | --- | --- |
//! | versions of its symbols | `LLVM_19.1` | distributions' `libLLVM` |
//! | the string of the bitcode writer (`BitcodeWriter.cpp`) | `LLVM22.1.0`, `LLVM23.0.0git` | nearly all other
//! libraries |
//!
//! A development build between two releases has the number of the next release, and its version ends in `git`. Such a
//! build may have the layout of either release. Without a version, the slot counts of all known releases are accepted.

#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use crate::llvm::vtable::find::Segment;

/// Supported releases with the same layout. This table alone defines which LLVM releases are supported, and to what
/// extent.
pub(crate) struct ReleaseRow {
    releases: RangeInclusive<u32>,
    /// Possible numbers of slots in the vtable of `RuntimeDyldELF`.
    runtime_dyld_slots: &'static [usize],
    /// Possible numbers of slots in the consecutive vtables of `ObjectLinkingLayer`.
    jitlink_slots: &'static [&'static [usize]],
    /// Value of the `uwtable` attribute; `None` if functions must not get attributes. Since LLVM 15 the attribute has a
    /// value (2: asynchronous, correct at every instruction).
    uwtable: Option<u64>,
    /// True if the layout of `DiagnosticInfoOptimizationBase` was checked, which holds for the releases used by Numba
    /// 0.57 to 0.68.
    has_remarks: bool,
}

type Slots = &'static [usize];

const fn row(
    releases: RangeInclusive<u32>,
    runtime_dyld_slots: Slots,
    jitlink_slots: &'static [Slots],
    uwtable: Option<u64>,
    has_remarks: bool,
) -> ReleaseRow {
    ReleaseRow { releases, runtime_dyld_slots, jitlink_slots, uwtable, has_remarks }
}

/// Known releases in ascending order. The vtable layouts of LLVM 20 were taken from development builds between two
/// releases, and those of LLVM 24 from builds before its release. Only some of the releases before 10 were tested.
const ROWS: [ReleaseRow; 11] = [
    row(0..=9, &[16, 17, 19], &[], None, false),
    row(10..=12, &[16], &[], Some(0), false),
    row(13..=13, &[16], &[&[9, 4]], Some(0), false),
    row(14..=14, &[16], &[&[9, 4]], Some(0), true),
    row(15..=15, &[16], &[&[9, 4]], Some(2), true),
    row(16..=19, &[17], &[&[9, 4]], Some(2), false),
    row(20..=20, &[17, 19], &[&[9, 4], &[7, 4, 7]], Some(2), true),
    row(21..=21, &[19], &[&[7, 4, 7]], Some(2), false),
    row(22..=22, &[19], &[&[7, 4, 7]], Some(2), true),
    row(23..=23, &[19], &[&[7, 4, 7]], Some(2), false),
    row(24..=24, &[19], &[&[7, 4, 7]], None, false),
];

impl ReleaseRow {
    pub(crate) fn has_runtime_dyld(&self, slots: usize) -> bool {
        self.runtime_dyld_slots.contains(&slots)
    }

    pub(crate) fn has_jitlink(&self, slots: &[usize]) -> bool {
        self.jitlink_slots.contains(&slots)
    }
}

fn find_row(release: u32) -> Option<&'static ReleaseRow> {
    ROWS.iter().find(|row| row.releases.contains(&release))
}

/// Returns the value of the `uwtable` attribute; `None` for a release whose attributes are unknown.
pub(crate) fn uwtable(release: u32) -> Option<u64> {
    find_row(release)?.uwtable
}

/// Returns true if the remarks of this release can be read.
pub(crate) fn has_remarks(release: u32) -> bool {
    find_row(release).is_some_and(|row| row.has_remarks)
}

/// Checks that `fits` accepts the table row of at least one of `releases`. If `releases` is empty, any supported
/// release counts.
///
/// # Errors
/// If no release fits, returns the first release that is newer than all supported ones, if any.
pub(crate) fn check(releases: &[Release], fits: impl Fn(&ReleaseRow) -> bool) -> Result<(), Option<u32>> {
    let is_plausible = |release: &Release| ROWS.iter().any(|row| fits(row) && release.may_be_in(&row.releases));
    let is_known = if releases.is_empty() { ROWS.iter().any(&fits) } else { releases.iter().any(is_plausible) };
    let newest = ROWS.iter().map(|row| *row.releases.end()).max().unwrap_or(0);
    let too_new = || releases.iter().map(|release| release.number).find(|&number| number > newest);
    is_known.then_some(()).ok_or_else(too_new)
}

/// Minimum release number to trust in a constant; a string with a lower number may mean something else.
const MIN_TRUSTED_RELEASE: u32 = 10;

fn is_supported(number: u32) -> bool {
    find_row(number).is_some()
}

/// Maximum length of a version string with its prefix; longer strings are not versions.
const MAX_VERSION_BYTES: usize = 64;

/// An LLVM release, or a development build that precedes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) number: u32,
    is_development_build: bool,
    pub(crate) version: String,
}

impl Release {
    /// Parses a version string such as `19.1`, `22.1.0` or `20.0.0git`.
    pub(crate) fn parse(version: &str) -> Option<Release> {
        let number = version.split('.').next()?.parse().ok()?;
        Some(Release { number, is_development_build: version.contains("git"), version: version.to_owned() })
    }

    /// Returns true if the layout may be that of one of `releases`. A development build of an unsupported release never
    /// matches.
    fn may_be_in(&self, releases: &RangeInclusive<u32>) -> bool {
        let may_have_previous_layout = self.is_development_build && is_supported(self.number);
        releases.contains(&self.number) || may_have_previous_layout && releases.contains(&self.number.saturating_sub(1))
    }
}

/// Finds releases in a library's constants. Stops at the first supported release, so that it need not read all
/// constants.
pub(crate) fn find_in_constants(constants: &[Segment<'_>]) -> Vec<Release> {
    let mut releases = Vec::new();
    for segment in constants {
        for offset in memchr::memmem::find_iter(segment.bytes, b"\0LLVM") {
            if let Some(release) = parse_identification(&segment.bytes[offset + 1..]) {
                let is_known = release.number >= MIN_TRUSTED_RELEASE && is_supported(release.number);
                releases.push(release);
                if is_known {
                    return releases;
                }
            }
        }
    }
    releases
}

/// Parses an identification string such as `LLVM22.1.0\0`, `LLVM20.0.0git\0` or `LLVM17.0.6-rust-1.75.0-stable\0`.
fn parse_identification(bytes: &[u8]) -> Option<Release> {
    let end = memchr::memchr(0, &bytes[..bytes.len().min(MAX_VERSION_BYTES)])?;
    let version = std::str::from_utf8(bytes[..end].strip_prefix(b"LLVM")?).ok()?;
    let mut parts = version.splitn(3, '.');
    let [major, minor, patch] = [parts.next()?, parts.next()?, parts.next()?];
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = patch.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_plain = suffix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+.~_".contains(&byte));
    let is_version = is_number(major) && is_number(minor) && suffix.len() < patch.len() && is_plain;
    is_version.then(|| Release::parse(version))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_must_be_a_complete_string() {
        for version in ["22.1.0", "20.0.0git", "17.0.6-rust-1.75.0-stable", "16.0.6+rc1"] {
            let bytes = format!("LLVM{version}\0and more");
            assert_eq!(parse_identification(bytes.as_bytes()).map(|release| release.version).as_deref(), Some(version));
        }
        for malformed in [
            "LLVM\0",
            "LLVM22\0",
            "LLVM22.1.x\0",
            "LLVM22.1.0",
            "xLLVM22.1.0\0",
            "LLVM..\0",
            "LLVM1.2.3 x\0",
            "LLVM_19.1.2\0",
        ] {
            assert_eq!(parse_identification(malformed.as_bytes()), None, "{malformed}");
        }
    }

    #[test]
    fn search_stops_at_the_first_known_release() {
        let find_releases = |texts: &[&str]| {
            let segments: Vec<Segment<'_>> =
                texts.iter().map(|text| Segment { address: 0x1000, bytes: text.as_bytes() }).collect();
            super::find_in_constants(&segments).into_iter().map(|release| release.number).collect::<Vec<_>>()
        };
        assert_eq!(find_releases(&["of nothing", "\0LLVM\0LLVM ERROR: \0"]), []);
        assert_eq!(find_releases(&["x\0LLVM3.2.1\0", "\0LLVM18.1.8\0LLVM19.1.0\0"]), [3, 18]);
        assert_eq!(find_releases(&["x\0LLVM25.0.0git\0more"]), [25]);
    }

    #[test]
    fn development_build_may_have_either_layout() {
        let may_be = |version: &str, number: u32| Release::parse(version).unwrap().may_be_in(&(number..=number));
        assert!(may_be("19.1", 19) && !may_be("19.1", 18) && !may_be("19.1", 20));
        assert!(may_be("20.0.0git", 20) && may_be("20.0.0git", 19) && !may_be("20.0.0git", 21));
        assert!(may_be("24.0.0git", 24) && !may_be("25.0.0git", 24));
        assert_eq!(Release::parse("x"), None);
    }

    #[test]
    fn each_release_is_in_at_most_one_row() {
        for pair in ROWS.windows(2) {
            assert_eq!(*pair[0].releases.end() + 1, *pair[1].releases.start());
        }
        let check = |versions: &[&str], slots| {
            let releases: Vec<Release> = versions.iter().filter_map(|version| Release::parse(version)).collect();
            super::check(&releases, |row| row.has_runtime_dyld(slots))
        };
        assert_eq!([check(&[], 16), check(&[], 18)], [Ok(()), Err(None)]);
        assert_eq!([check(&["9.0.1"], 17), check(&["9.0.1"], 18)], [Ok(()), Err(None)]);
        assert_eq!([check(&["14.0.6"], 16), check(&["14.0.6"], 17)], [Ok(()), Err(None)]);
        assert_eq!([9, 10, 14, 15, 23, 24, 25].map(uwtable), [None, Some(0), Some(0), Some(2), Some(2), None, None]);
        assert_eq!((0..30).filter(|&release| has_remarks(release)).collect::<Vec<_>>(), [14, 15, 20, 22]);
        assert_eq!([check(&["25.0.0git"], 19), check(&["25.1.0", "24.1.0"], 19)], [Err(Some(25)), Ok(())]);
    }
}
