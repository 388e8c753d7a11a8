//! Stacks of call chains that were seen before. A million samples may have a hundred thousand stacks of a hundred
//! addresses each, so a known chain is not looked up address by address.

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use super::sample::RawSample;

/// Known call chains.
#[derive(Debug, Default)]
pub(super) struct Chains(FxHashMap<u64, KnownChain>);

/// Stack of a call chain, and the time span in which all of its locations are valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownChain {
    pub(super) stack: u32,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Chains {
    /// Returns the hash of a sample's chain.
    pub(super) fn hash(sample: &RawSample<'_>, is_kernel: bool) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write_u32(sample.pid);
        hasher.write_u8(is_kernel.into());
        hasher.write(sample.chain);
        hasher.finish()
    }

    /// Returns the stack of a chain with this hash, which the caller compares with the sample's.
    pub(super) fn find(&self, hash: u64, time: u64) -> Option<u32> {
        self.0.get(&hash).filter(|known| known.from <= time && time < known.to).map(|known| known.stack)
    }

    pub(super) fn insert(&mut self, hash: u64, known: KnownChain) {
        self.0.insert(hash, known);
    }
}
