//! Entry points of the fuzz target, which simulates an interpreter with arbitrary memory.
//!
//! ```text
//!   byte 0      release
//!   byte 1      bit 0: the thread holds its state
//!   from 8 on   memory; its first word belongs to the thread state. A word with the highest byte 0x5a is a pointer to
//!               the memory, at the offset in its lowest two bytes
//! ```

#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use super::functions::Functions;
use super::interpreter::{Interpreter, Types};
use super::layout::{Layout, NONE};
use super::merge::{FrameAddresses, merge};
use super::tasks::Tasks;
use super::{definitions, frames, tasks};
use crate::unwind::Outcome;

const POINTER_TAG: u64 = 0x5a << 56;
const RELEASES: RangeInclusive<u8> = 8..=15;
/// Word index of the running task in the thread state.
const RUNNING_TASK_WORD: u64 = 5;

/// Stand-in for `_PyRuntime`, larger than any 16-bit offset.
static RUNTIME: [u64; (1 << 13) + 1] = [0; (1 << 13) + 1];

extern "C" fn no_state() -> *mut c_void {
    std::ptr::null_mut()
}

struct Addresses<'a>(&'a Functions);

impl FrameAddresses for Addresses<'_> {
    fn address(&self, word: u64) -> u64 {
        self.0.address(word).unwrap_or_else(|| self.0.unnamed_address())
    }

    fn is_glue(&self, address: u64) -> bool {
        address & 1 != 0
    }
}

/// Walks the frames, and processes them as a recording does. Returns the number of frames.
pub fn frames(data: &[u8]) -> usize {
    let Some((head, rest)) = data.split_at_checked(8) else { return 0 };
    let minor = RELEASES.start() + head[0] % RELEASES.clone().count() as u8;
    let Some(layout) = Layout::example(minor) else { return 0 };
    crate::recording::current::publish_for_test();
    let mut memory: Vec<u64> =
        rest.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes)).collect();
    let (base, size) = (memory.as_ptr() as u64, memory.len() as u64 * 8);
    for word in &mut memory {
        if *word & !0x00ff_ffff_ffff_ffff == POINTER_TAG && size != 0 {
            *word = base + (*word & 0xffff) % size;
        }
    }
    let interpreter = Interpreter {
        layout,
        types: Types { code: base, text: base + 8, bytes: base + 16, coroutine: base + 24, generator: base + 32 },
        runtime: RUNTIME.as_ptr() as u64,
        this_state_getter: 0,
        current_state_getter: no_state as *const () as u64,
        evaluator: 0..0,
        code: 0..0,
        tasks: Tasks::parse(&tasks::example_section(8 * RUNNING_TASK_WORD)).map_or_else(OnceLock::new, OnceLock::from),
    };
    super::code_numbers::clear();
    definitions::clear();
    let mut words = Vec::new();
    let mut anchors = [0; 16];
    if size > 64 {
        let walked = frames::walk(&interpreter, base, 1, 64, &mut anchors, |word| words.push(word));
        assert!(words.len() as u64 == walked.frames && walked.frames <= 64 && walked.anchors <= 16);
    }
    let mut functions = Functions::new(minor, &std::env::temp_dir().join("jitlisten-fuzzed"));
    functions.take_definitions(|_, mapping| assert!(mapping.start < mapping.end));
    assert!(functions.encode_image().is_some());
    let frame_count = words.len();
    words.extend(memory.iter().take(64));
    let mut merged = Vec::new();
    for outcome in [Outcome::Complete, Outcome::Broken] {
        merge(&words, outcome, &Addresses(&functions), &mut merged);
    }
    frame_count
}

/// Returns a valid input as a seed for mutations: two frames of one code object, and a third frame in a task that
/// awaits the second frame's task.
pub fn seed(minor: u8) -> Vec<u8> {
    let Some(layout) = Layout::example(minor) else { return Vec::new() };
    let release = &layout.release;
    let mut memory = vec![0_u64; 240];
    let pointer_to = |word: usize| POINTER_TAG | (word as u64 * 8);
    let (cframe, frames, code, name, lines) = (32, [40, 56, 72], 90, 120, 140);
    let mut put = |object: usize, offset: u16, value: u64| {
        if let Some(word) = memory.get_mut(object + usize::from(offset) / 8).filter(|_| offset != NONE) {
            *word |= if offset.is_multiple_of(8) { value } else { value << (u64::from(offset % 8) * 8) };
        }
    };
    put(0, release.thread_frame, pointer_to(if release.cframe_current == NONE { frames[0] } else { cframe }));
    put(cframe, release.cframe_current, pointer_to(frames[0]));
    for pair in frames.windows(2) {
        put(pair[0], release.frame_code, pointer_to(code));
        if pair[1] != frames[2] || minor >= 12 {
            put(pair[0], release.frame_previous, pointer_to(pair[1]));
        }
        put(pair[0], release.frame_instruction, if minor <= 10 { 4 } else { pointer_to(code + 26) });
    }
    // The outermost frame is the evaluator's own.
    put(frames[1], release.frame_is_entry, 1);
    put(frames[2], release.frame_owner, 3);
    if let Some(coroutines) = &layout.coroutines {
        let (task, waiter, coroutine) = (160, 184, 208);
        let frame = usize::from(coroutines.frame) / 8;
        put(RUNNING_TASK_WORD as usize, 0, pointer_to(task));
        put(task, 128, pointer_to(frames[1] - frame));
        put(task, 96, pointer_to(waiter));
        put(waiter, 128, pointer_to(coroutine));
        [task, waiter].into_iter().for_each(|task| put(task, 108, 1));
        put(coroutine, layout.object_type, pointer_to(3));
        put(coroutine, coroutines.state, u64::from(coroutines.suspended[0] as u8));
        put(coroutine + frame, release.frame_code, pointer_to(code));
        put(coroutine + frame, release.frame_instruction, pointer_to(code + 26));
    }
    put(code, 0, 1);
    put(code, layout.object_type, pointer_to(0));
    put(code, release.code_name, pointer_to(name));
    put(code, release.code_file, pointer_to(name));
    put(code, release.code_lines, pointer_to(lines));
    put(code, release.code_first_line, 7);
    put(name, layout.object_type, pointer_to(1));
    put(name, layout.text_length, 4);
    put(name, layout.text_state, 0x65);
    put(name, release.text_header, u64::from_le_bytes(*b"name\0\0\0\0"));
    put(lines, layout.object_type, pointer_to(2));
    put(lines, layout.bytes_size, 8);
    put(lines, layout.bytes_value, 0x0201_80d8_0080_0102);
    let mut bytes = vec![minor - 8, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(memory.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_survive_corrupt_memory() {
        let _lock = crate::thread::slots::lock_for_test();
        for minor in RELEASES {
            let seed = seed(minor);
            assert_eq!(frames(&seed), if minor >= 14 { 3 } else { 2 }, "3.{minor}");
            let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(minor);
            let mut random = |limit: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 16) as usize % limit.max(1)
            };
            for _ in 0..400 {
                let mut damaged_input = seed.clone();
                for _ in 0..1 + random(6) {
                    let target = 8 + random(seed.len() - 8) / 8 * 8;
                    let source = 8 + random(seed.len() - 8) / 8 * 8;
                    let word: [u8; 8] = seed[source..source + 8].try_into().unwrap();
                    match random(3) {
                        0 => damaged_input[target + random(8)] ^= 1 << random(8),
                        1 => damaged_input[target..target + 8].copy_from_slice(&word),
                        _ => damaged_input[target..target + 8]
                            .copy_from_slice(&(random(usize::MAX) as u64).to_le_bytes()),
                    }
                }
                frames(&damaged_input);
            }
        }
    }
}
