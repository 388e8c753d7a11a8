//! Build-ids that are never given twice: perf keeps files by build-id, and equal code in two processes, or at two
//! addresses of one, has different symbols around it.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read as _;

use crate::process::clock;

/// A source of build-ids.
#[derive(Debug)]
pub(super) struct Salt {
    random: [u8; 12],
    count: u64,
}

impl Salt {
    /// A source unlike any other.
    pub(super) fn new() -> Salt {
        let mut random = [0; 12];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        if read.is_err() {
            let now = clock::monotonic();
            random[..8].copy_from_slice(&now.to_le_bytes());
            random[8..].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Salt { random, count: 0 }
    }

    /// The next build-id.
    pub(super) fn next(&mut self) -> [u8; 20] {
        self.count += 1;
        let mut id = [0; 20];
        id[..12].copy_from_slice(&self.random);
        id[12..].copy_from_slice(&self.count.to_be_bytes());
        id
    }
}
