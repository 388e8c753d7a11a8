//! Searches several strings in one pass over uncached memory.

#![forbid(unsafe_code)]

use memchr::memmem::Finder;

/// So much stays in a processor's own cache while it is searched for one string after the other.
const PIECE: usize = 256 << 10;

/// Calls `found` with the index of a string and where it is, for each place of each string that is in `bytes`, until
/// that returns `false`.
pub(crate) fn each(bytes: &[u8], strings: &[&[u8]], mut found: impl FnMut(usize, usize) -> bool) {
    let finders: Vec<Finder<'_>> = strings.iter().map(Finder::new).collect();
    for start in (0..bytes.len()).step_by(PIECE) {
        for (which, finder) in finders.iter().enumerate() {
            // What begins in this piece may end in the next one.
            let end = start.saturating_add(PIECE + finder.needle().len() - 1).min(bytes.len());
            for at in finder.find_iter(&bytes[start..end]) {
                if !found(which, start + at) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_the_border_of_two_pieces_is_found_once() {
        let mut bytes = vec![b'x'; 3 * PIECE + 100];
        let places = [0, PIECE - 6, PIECE - 3, PIECE + 3, 2 * PIECE - 1, 2 * PIECE + 5, 3 * PIECE + 97];
        for place in places {
            bytes[place..place + 3].copy_from_slice(b"abc");
        }
        bytes[3 * PIECE - 2..][..4].copy_from_slice(b"here");
        let mut found = Vec::new();
        each(&bytes, &[b"abc", b"here", b"not here"], |which, at| {
            found.push((at, which));
            true
        });
        found.sort_unstable();
        let mut expected: Vec<(usize, usize)> = places.map(|place| (place, 0)).to_vec();
        expected.push((3 * PIECE - 2, 1));
        expected.sort_unstable();
        assert_eq!(found, expected);
        let mut calls = 0;
        each(&bytes, &[b"abc"], |_, _| {
            calls += 1;
            calls < 2
        });
        assert_eq!(calls, 2);
        each(b"", &[b"abc"], |_, _| panic!("nothing is there"));
    }
}
