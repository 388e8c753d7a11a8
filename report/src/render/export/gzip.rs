//! Compression of exports.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};

/// Compresses an export. The header names the program that created it.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().comment("jitlisten").write(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default()
}
