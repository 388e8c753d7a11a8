//! Stacks of call chains that were seen before. A million samples may have a hundred thousand stacks of a hundred
//! addresses each, so a known chain is not looked up address by address, but by 128 bits of hash.

use rustc_hash::FxHashMap;

use super::sample::RawSample;

/// Known call chains.
#[derive(Debug, Default)]
pub(super) struct Chains(FxHashMap<ChainHash, KnownChain>);

/// Hash of a call chain and its address spaces, long enough to stand for them.
pub(super) type ChainHash = (u64, u64);

/// Stack of a call chain, and the time span in which all of its locations are valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownChain {
    pub(super) stack: u32,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Chains {
    /// Returns the hash of a sample's chain.
    pub(super) fn hash(sample: &RawSample<'_>, is_kernel: bool) -> ChainHash {
        // Odd constants without a pattern: digits of pi.
        const A: u64 = 0x243f_6a88_85a3_08d3;
        const B: u64 = 0x1319_8a2e_0370_7345;
        let mix = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        // A chain without addresses stands for the sample's own address.
        let start = u64::from(sample.pid) << 1 | u64::from(is_kernel);
        let (mut first, mut second) = (mix(start ^ A, B ^ sample.ip), mix(start ^ B, A ^ sample.chain.len() as u64));
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        for numbers in sample.chain.chunks(16) {
            let (outer, inner) = numbers.split_at(8);
            let (outer, inner) = (number(outer), number(inner));
            (first, second) = (mix(first ^ outer, A ^ inner), mix(second ^ inner, B ^ outer.rotate_left(32)));
        }
        (first, second)
    }

    /// Returns the stack of a chain with this hash that is valid at a time.
    pub(super) fn find(&self, hash: ChainHash, time: u64) -> Option<u32> {
        self.0.get(&hash).filter(|known| known.from <= time && time < known.to).map(|known| known.stack)
    }

    pub(super) fn insert(&mut self, hash: ChainHash, known: KnownChain) {
        self.0.insert(hash, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `perf record -g` writes for a guest of a virtual machine.
    #[test]
    fn a_chain_without_addresses_stands_for_the_address_of_the_sample() {
        let chain = 0xffff_ffff_ffff_fe00_u64.to_le_bytes();
        let sample = |ip| RawSample { ip, pid: 1, tid: 1, time: 0, period: 1, chain: &chain, stack_copy: None };
        let hash = |ip| Chains::hash(&sample(ip), false);
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}
