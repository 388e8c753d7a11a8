//! Fuzz target that unwinds an arbitrary stack with an arbitrary `.eh_frame`. The walk must terminate and must read
//! only mapped memory.
//!
//! ```text
//!   2 bytes     size of the .eh_frame
//!   ...         .eh_frame; if the highest bit of the size is set, it also serves as .eh_frame_hdr
//!   rest        stack
//! ```
#![no_main]

use jitlisten_sampler::unwind::{self, Code, CodeMap, FrameTable, Memory, REGISTERS, Registers, RuleCache, walk};
use libfuzzer_sys::fuzz_target;

const CODE_ADDRESS: u64 = 0x10_0000;
const STACK_ADDRESS: u64 = 0x7000_0000;

struct Map(FrameTable);

impl CodeMap for Map {
    fn find(&self, address: u64) -> Option<Code<'_>> {
        match address {
            CODE_ADDRESS..0x20_0000 => Some(Code::Table(&self.0)),
            0x20_0000..0x20_1000 => Some(Code::Trampoline),
            0x30_0000..0x30_1000 => Some(Code::Bare),
            _ => None,
        }
    }
}

struct Stack<'a>(&'a [u8]);

impl Memory for Stack<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(STACK_ADDRESS)?).ok()?;
        Some(u64::from_le_bytes(self.0.get(offset..offset.checked_add(8)?)?.try_into().ok()?))
    }
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let size = usize::from(u16::from_le_bytes([*low, *high & 0x7f])).min(rest.len());
    let (section, stack) = rest.split_at(size);
    let table = if high & 0x80 == 0 {
        FrameTable::from_section(section.to_vec().into(), CODE_ADDRESS, CODE_ADDRESS)
    } else {
        let Some(table) =
            FrameTable::with_header(section.to_vec().into(), CODE_ADDRESS, CODE_ADDRESS, section, CODE_ADDRESS)
        else {
            return;
        };
        table
    };
    let start_addresses: Vec<u64> = table.starts().take(8).chain([0x20_0000, 0x30_0000]).collect();
    let map = Map(table);
    let mut cache = RuleCache::default();
    for start in start_addresses {
        let mut values = [STACK_ADDRESS + 64; REGISTERS];
        (values[unwind::PROGRAM], values[unwind::STACK]) = (start, STACK_ADDRESS);
        let mut frames = 0;
        let mut registers = Registers::new(values);
        for _ in 0..2 {
            // The second walk uses the rules that the first one has cached.
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
