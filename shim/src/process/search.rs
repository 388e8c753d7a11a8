//! Search for several strings in one pass over memory that is not in the processor's caches.

#![forbid(unsafe_code)]

use memchr::memmem::Finder;

/// Size of the chunks in bytes. Each chunk is searched for all strings in turn, so it stays in the core's own cache
/// meanwhile.
const CHUNK_BYTES: usize = 256 << 10;

/// Calls `on_match` with the index of a string and its offset, for each occurrence of each string in `bytes`, until
/// `on_match` returns `false`.
pub(crate) fn for_each_match(bytes: &[u8], strings: &[&[u8]], mut on_match: impl FnMut(usize, usize) -> bool) {
    let finders: Vec<Finder<'_>> = strings.iter().map(Finder::new).collect();
    for start in (0..bytes.len()).step_by(CHUNK_BYTES) {
        for (string, finder) in finders.iter().enumerate() {
            // A match that begins in this chunk may end in the next one.
            let end = start.saturating_add(CHUNK_BYTES + finder.needle().len() - 1).min(bytes.len());
            for offset in finder.find_iter(&bytes[start..end]) {
                if !on_match(string, start + offset) {
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
    fn match_across_two_chunks_is_reported_once() {
        let mut bytes = vec![b'x'; 3 * CHUNK_BYTES + 100];
        let offsets = [
            0,
            CHUNK_BYTES - 6,
            CHUNK_BYTES - 3,
            CHUNK_BYTES + 3,
            2 * CHUNK_BYTES - 1,
            2 * CHUNK_BYTES + 5,
            3 * CHUNK_BYTES + 97,
        ];
        for offset in offsets {
            bytes[offset..offset + 3].copy_from_slice(b"abc");
        }
        bytes[3 * CHUNK_BYTES - 2..][..4].copy_from_slice(b"here");
        let mut matches = Vec::new();
        for_each_match(&bytes, &[b"abc", b"here", b"not here"], |string, offset| {
            matches.push((offset, string));
            true
        });
        matches.sort_unstable();
        let mut expected: Vec<(usize, usize)> = offsets.map(|offset| (offset, 0)).to_vec();
        expected.push((3 * CHUNK_BYTES - 2, 1));
        expected.sort_unstable();
        assert_eq!(matches, expected);
        let mut calls = 0;
        for_each_match(&bytes, &[b"abc"], |_, _| {
            calls += 1;
            calls < 2
        });
        assert_eq!(calls, 2);
        for_each_match(b"", &[b"abc"], |_, _| panic!("nothing is there"));
    }
}
