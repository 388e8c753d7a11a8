//! Walks a stack by an `.eh_frame` that is anything, over a stack that is anything: it ends, and reads only what is
//! there.
//!
//! ```text
//!   2 bytes     size of the .eh_frame
//!   ...         the .eh_frame, and with the highest bit of the size an .eh_frame_hdr that is the same bytes
//!   rest        the stack
//! ```
#![no_main]

use jitlisten_sampler::unwind::{self, Code, CodeMap, FrameTable, Memory, REGISTERS, Registers, RuleCache, walk};
use libfuzzer_sys::fuzz_target;

const CODE: u64 = 0x10_0000;
const STACK: u64 = 0x7000_0000;

struct Map(FrameTable);

impl CodeMap for Map {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        match address {
            CODE..0x20_0000 => Some(Code::Table(&self.0)),
            0x20_0000..0x20_1000 => Some(Code::Trampoline),
            0x30_0000..0x30_1000 => Some(Code::Bare),
            _ => None,
        }
    }
}

struct Stack<'a>(&'a [u8]);

impl Memory for Stack<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(STACK)?).ok()?;
        Some(u64::from_le_bytes(self.0.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let size = usize::from(u16::from_le_bytes([*low, *high & 0x7f])).min(rest.len());
    let (section, stack) = rest.split_at(size);
    let table = if high & 0x80 == 0 {
        FrameTable::by_reading(section.to_vec().into(), CODE, CODE)
    } else {
        let Some(table) = FrameTable::with_header(section.to_vec().into(), CODE, CODE, section, CODE) else { return };
        table
    };
    let starts: Vec<u64> = table.starts().take(8).chain([0x20_0000, 0x30_0000]).collect();
    let map = Map(table);
    let mut cache = RuleCache::default();
    for start in starts {
        let mut values = [STACK + 64; REGISTERS];
        (values[unwind::PROGRAM], values[unwind::STACK]) = (start, STACK);
        let mut frames = 0;
        let mut registers = Registers::new(values);
        for _ in 0..2 {
            // The second time from the cache.
            frames = 0;
            walk(registers, &map, &mut Stack(stack), &mut cache, |_, _| {
                frames += 1;
                frames < 512
            });
            registers = Registers::new(values);
        }
        assert!(frames <= 512);
    }
});
