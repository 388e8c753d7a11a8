//! Unique build-ids. perf caches files by build-id, so the build-id must not depend on the code alone: two images with
//! equal code (in two processes, or at two addresses of one process) have different symbols.

use std::fs::File;
use std::io::Read as _;

use crate::process::clock;

/// Generator of unique build-ids.
#[derive(Debug)]
pub(super) struct BuildIds {
    random: [u8; 12],
    count: u64,
}

impl BuildIds {
    /// Seeds the generator from `/dev/urandom`, or from the time and the PID if `/dev/urandom` cannot be read.
    pub(super) fn new() -> BuildIds {
        let mut random = [0; 12];
        let result = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        if result.is_err() {
            let now = clock::monotonic();
            random[..8].copy_from_slice(&now.to_le_bytes());
            random[8..].copy_from_slice(&std::process::id().to_le_bytes());
        }
        BuildIds { random, count: 0 }
    }

    /// Returns the next build-id.
    pub(super) fn next(&mut self) -> [u8; 20] {
        self.count += 1;
        let mut id = [0; 20];
        id[..12].copy_from_slice(&self.random);
        id[12..].copy_from_slice(&self.count.to_be_bytes());
        id
    }
}
