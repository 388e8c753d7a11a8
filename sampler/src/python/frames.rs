//! Walks the interpreter's frames of the sampled thread, and reads their code objects and current instructions.
//!
//! ```text
//!   thread state ---> frame ---> previous ---> ...             3.8 to 3.10: PyFrameObject; later _PyInterpreterFrame
//!      ^                |  \---> instruction
//!      |                \------> code object ---> number       `code_numbers`, or `definitions`
//!   PyGILState_GetThisThreadState, or the interpreter's list of threads
//! ```
//! The coroutine of a running task is followed by the coroutines that await it (`tasks`).
//!
//! A walk yields one word per frame, innermost first. An evaluator, that is, a call of `_PyEval_EvalFrameDefault`, runs
//! one or more frames; the outermost of them is marked [`ENTRY_FRAME`]. Since 3.12, a frame on the C stack follows the
//! entry frame; in 3.11, the entry frame has a flag; before 3.11, each frame has its own evaluator. If an evaluator
//! keeps data on the C stack, the address of that data is an *anchor*, which identifies the evaluator's native frame.

#![forbid(unsafe_code)]

use super::code_numbers::{self, HIDDEN_CODE, UNNAMED_CODE};
use super::definitions::{self, CodeObject, Piece};
use super::interpreter::Interpreter;
use super::layout::{Coroutines, NONE};
use super::memory::Reader;
use super::tasks::{MAX_COROUTINES, MAX_WAITERS};
use crate::recording::counters::{Count, Counters};
use crate::recording::current;
use crate::thread::slot::MAX_ANCHORS;

/// Maximum number of Python frames per stack.
pub(crate) const MAX_PYTHON_FRAMES: u64 = 6144;
const MAX_HIDDEN_FRAMES: u32 = 16;
/// Maximum number of code objects that one sample may define.
const MAX_DEFINITIONS: u32 = 256;

/// Bit set in words that hold a Python frame or an evaluator mark; clear in native addresses.
const PYTHON_FRAME: u64 = 1 << 63;
/// Bit set in the outermost frame that an evaluator runs.
const ENTRY_FRAME: u64 = 1 << 62;
/// Bit position of the code object's number.
const NUMBER_SHIFT: u32 = 24;
const INSTRUCTION_MASK: u64 = (1 << NUMBER_SHIFT) - 1;
/// Marker word after a native frame that belongs to the interpreter's eval loop.
pub(crate) const EVALUATOR_MARK: u64 = PYTHON_FRAME;
/// Maximum length of a name or path; longer ones are truncated.
const MAX_TEXT_CHARACTERS: u32 = 1024;
/// Maximum size of a line table; larger tables are dropped.
const MAX_LINE_TABLE_BYTES: u32 = 48 << 10;

/// A Python frame as stored in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameWord {
    pub(super) number: u64,
    /// Index of the instruction, in units of two bytes.
    pub(super) instruction: u64,
    pub(super) is_entry: bool,
}

impl FrameWord {
    pub(super) fn encode(self) -> u64 {
        let entry = if self.is_entry { ENTRY_FRAME } else { 0 };
        PYTHON_FRAME
            | entry
            | self.number << NUMBER_SHIFT & !(PYTHON_FRAME | ENTRY_FRAME)
            | self.instruction.min(INSTRUCTION_MASK)
    }

    pub(super) fn decode(word: u64) -> Option<FrameWord> {
        let number = (word & !(PYTHON_FRAME | ENTRY_FRAME)) >> NUMBER_SHIFT;
        let is_frame = word & PYTHON_FRAME != 0 && number != 0;
        is_frame.then_some(FrameWord {
            number,
            instruction: word & INSTRUCTION_MASK,
            is_entry: word & ENTRY_FRAME != 0,
        })
    }
}

/// Summary of a walk of Python frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkSummary {
    pub(crate) frames: u64,
    pub(crate) anchors: usize,
    /// True if there are more frames than requested.
    pub(crate) is_truncated: bool,
}

/// Increments a counter of the recording.
fn count(counter: impl Fn(&Counters) -> &Count) {
    if let Some(recording) = current::last() {
        counter(&recording.counters).add(1);
    }
}

/// Walks the frames of the calling thread. Passes each of them to `frame`, and stores anchors in `anchors`, both
/// innermost first.
pub(crate) fn walk(
    interpreter: &Interpreter,
    state: u64,
    time: u64,
    max_frames: u64,
    anchors: &mut [u64],
    frame: impl FnMut(u64),
) -> WalkSummary {
    let is_finalizing = interpreter.is_finalizing();
    let mut reader = Reader::new(!is_finalizing);
    let is_held = !is_finalizing && interpreter.is_held(state, &mut reader);
    reader.set_held(is_held);
    let mut walk = Walk {
        interpreter,
        reader,
        anchors,
        frame,
        time,
        max_frames,
        definitions: 0,
        walked: WalkSummary::default(),
        pending_frame: None,
    };
    if walk.run(state).is_none() {
        count(|counters| &counters.unreadable_stacks);
    }
    walk.flush_pending();
    walk.walked
}

struct Walk<'a, F> {
    interpreter: &'a Interpreter,
    reader: Reader,
    anchors: &'a mut [u64],
    frame: F,
    time: u64,
    max_frames: u64,
    definitions: u32,
    walked: WalkSummary,
    /// Frame that is held back until the next one shows whether it is an entry frame.
    pending_frame: Option<FrameWord>,
}

impl<F: FnMut(u64)> Walk<'_, F> {
    /// Walks all frames. `None` if one is unreadable.
    fn run(&mut self, state: u64) -> Option<()> {
        let release = self.interpreter.layout.release;
        let mut frame_address = self.reader.read_word(state.checked_add(u64::from(release.thread_frame))?)?;
        if release.cframe_current != NONE {
            let cframe = frame_address;
            frame_address = self.reader.read_word(cframe.checked_add(u64::from(release.cframe_current))?)?;
            if release.frame_is_entry != NONE {
                self.add_cframe_anchors(cframe);
            }
        }
        let task = self.running_task(state);
        let mut hidden = 0;
        while hidden < MAX_HIDDEN_FRAMES {
            if frame_address == 0 {
                return Some(());
            }
            let owner = match release.frame_owner {
                NONE => 0,
                offset => self.reader.read_byte(frame_address.checked_add(u64::from(offset))?)?,
            };
            let frames_before = self.walked.frames;
            if release.minor >= 12 && owner >= 3 {
                self.mark_entry(frame_address);
            } else if !self.add_frame(frame_address)? {
                return Some(());
            }
            hidden = if self.walked.frames == frames_before { hidden + 1 } else { 0 };
            if let Some((task, _)) = task.filter(|(_, coroutine)| *coroutine == frame_address) {
                self.walk_waiters(task);
            }
            frame_address = self.reader.read_word(frame_address.checked_add(u64::from(release.frame_previous))?)?;
        }
        None
    }

    /// Returns the task that the thread runs, and the frame of its coroutine.
    fn running_task(&mut self, state: u64) -> Option<(u64, u64)> {
        let (tasks, coroutines) = (self.interpreter.tasks.get()?, self.interpreter.layout.coroutines.as_ref()?);
        let task = tasks.find_running_task(state, &mut self.reader)?;
        let coroutine = tasks.coroutine(task, &mut self.reader)?;
        Some((task, coroutines.frame(coroutine)?))
    }

    /// Adds the coroutines of the tasks that await `task`, as far as they are known.
    fn walk_waiters(&mut self, mut task: u64) -> Option<()> {
        let (tasks, coroutines) = (self.interpreter.tasks.get()?, self.interpreter.layout.coroutines.as_ref()?);
        // In a free-threaded build, another thread may free the waiting tasks.
        let is_held = self.reader.is_held();
        self.reader.set_held(is_held && self.interpreter.layout.copies.is_none());
        for _ in 0..MAX_WAITERS {
            let Some(waiter) = tasks.waiter(task, coroutines, &mut self.reader) else { break };
            task = waiter;
            if let Some(coroutine) = tasks.coroutine(task, &mut self.reader)
                && self.walk_suspended(coroutine, coroutines).is_none()
            {
                break;
            }
        }
        self.reader.set_held(is_held);
        Some(())
    }

    /// Adds a suspended coroutine and the coroutines that it awaits, innermost first.
    fn walk_suspended(&mut self, outermost: u64, coroutines: &Coroutines) -> Option<()> {
        let mut suspended_coroutines = [0; MAX_COROUTINES];
        let (mut coroutine, mut count) = (outermost, 0);
        while let Some(entry) = suspended_coroutines.get_mut(count)
            && self.is_coroutine(coroutine)
            && coroutines.is_suspended(coroutine, &mut self.reader) == Some(true)
        {
            (*entry, count) = (coroutine, count + 1);
            let Some(awaited) = coroutines.awaited(coroutine, &mut self.reader) else { break };
            coroutine = awaited;
        }
        for &coroutine in suspended_coroutines.iter().take(count).rev() {
            self.add_frame(coroutines.frame(coroutine)?)?.then_some(())?;
        }
        (count != 0).then_some(())
    }

    fn is_coroutine(&mut self, object: u64) -> bool {
        let types = self.interpreter.types;
        self.has_type(object, types.coroutine) || self.has_type(object, types.generator)
    }

    /// Adds one frame. Returns false if the walk must stop.
    fn add_frame(&mut self, frame_address: u64) -> Option<bool> {
        if self.walked.frames + u64::from(self.pending_frame.is_some()) >= self.max_frames {
            self.walked.is_truncated = true;
            return Some(false);
        }
        let release = &self.interpreter.layout.release;
        // From 3.14 on, references to code objects are tagged.
        let code = self.reader.read_word(frame_address.checked_add(u64::from(release.frame_code))?)? & !7;
        let is_entry = match release.frame_is_entry {
            NONE => release.minor <= 10,
            offset => self.reader.read_byte(frame_address.checked_add(u64::from(offset))?)? != 0,
        };
        let number = self.code_number(code)?;
        if number == HIDDEN_CODE {
            if is_entry && let Some(last) = &mut self.pending_frame {
                last.is_entry = true;
            }
            return Some(true);
        }
        let instruction = self.read_instruction(frame_address, code)?;
        self.flush_pending();
        self.pending_frame = Some(FrameWord { number, instruction, is_entry });
        Some(true)
    }

    fn flush_pending(&mut self) {
        if let Some(word) = self.pending_frame.take() {
            (self.frame)(word.encode());
            self.walked.frames += 1;
        }
    }

    /// Handles the evaluator's own frame, which lies on the C stack: marks the entry frame, and adds an anchor.
    fn mark_entry(&mut self, evaluator_frame: u64) {
        if let Some(last) = self.pending_frame.as_mut().filter(|last| !last.is_entry) {
            last.is_entry = true;
            self.add_anchor(evaluator_frame);
        }
    }

    fn add_anchor(&mut self, address: u64) {
        if let Some(anchor) = self.anchors.get_mut(self.walked.anchors) {
            *anchor = address;
            self.walked.anchors += 1;
        }
    }

    /// Adds the anchors of CPython 3.11, where each evaluator has a `_PyCFrame` on the C stack. The outermost
    /// `_PyCFrame` belongs to the thread.
    fn add_cframe_anchors(&mut self, mut cframe: u64) {
        let offset = u64::from(self.interpreter.layout.release.cframe_previous);
        for _ in 0..MAX_ANCHORS {
            match cframe.checked_add(offset).and_then(|address| self.reader.read_word(address)) {
                Some(previous) if previous != 0 => self.add_anchor(std::mem::replace(&mut cframe, previous)),
                _ => return,
            }
        }
    }

    /// Reads the index of the instruction that a frame executes.
    fn read_instruction(&mut self, frame_address: u64, code: u64) -> Option<u64> {
        let layout = &self.interpreter.layout;
        let release = &layout.release;
        let address = frame_address.checked_add(u64::from(release.frame_instruction))?;
        if release.code_instructions == NONE {
            // `f_lasti` is a byte offset before 3.10, and negative before the first instruction.
            let index = self.reader.read_half_word(address)? as i32;
            let index = u64::try_from(index).unwrap_or(0);
            return Some(if release.minor < 10 { index / 2 } else { index });
        }
        let mut start = code.checked_add(u64::from(release.code_instructions))?;
        if let Some((index, copies)) = layout.copies
            && let index @ 1.. = self.reader.read_half_word(frame_address.checked_add(u64::from(index))?)?
        {
            let copies = self.reader.read_word(code.checked_add(u64::from(copies))?)?;
            start = self.reader.read_word(copies.checked_add(8 + 8 * u64::from(index))?)?;
        }
        // Before the first instruction, the instruction pointer is one unit below the code's start.
        let distance = self.reader.read_word(address)?.wrapping_sub(start) as i64;
        Some(u64::try_from(distance).unwrap_or(0) / 2)
    }

    /// Returns the number of a code object; defines it if necessary. `None` if it is not a code object.
    fn code_number(&mut self, code: u64) -> Option<u64> {
        if let Some(number) = code_numbers::find(code) {
            return Some(number);
        }
        if !self.has_type(code, self.interpreter.types.code) || !self.is_alive(code) {
            return None;
        }
        self.definitions += 1;
        let is_allowed = self.definitions <= MAX_DEFINITIONS;
        let number = if is_allowed { self.define(code) } else { None }.unwrap_or(UNNAMED_CODE);
        if number == UNNAMED_CODE {
            count(|counters| &counters.unnamed_frames);
        } else {
            code_numbers::insert(code, number);
        }
        Some(number)
    }

    fn has_type(&mut self, object: u64, object_type: u64) -> bool {
        let address = object.checked_add(u64::from(self.interpreter.layout.object_type));
        address.and_then(|address| self.reader.read_word(address)) == Some(object_type)
    }

    /// True if the object has not been freed. A freed object has a pointer in place of its reference count.
    /// Free-threaded builds store reference counts differently, so this check is skipped for them.
    fn is_alive(&mut self, code: u64) -> bool {
        let is_counted_apart = self.interpreter.layout.object_type != 8;
        let is_count = |count: u64| count != 0 && !(1 << 40..1 << 48).contains(&count);
        is_counted_apart || self.reader.read_word(code).is_some_and(is_count)
    }

    /// Writes the definition of a code object, and returns its new number.
    fn define(&mut self, code: u64) -> Option<u64> {
        let release = self.interpreter.layout.release;
        let mut field = |offset: u16| self.reader.read_word(code.checked_add(u64::from(offset))?);
        let (name, file, lines) = (field(release.code_name)?, field(release.code_file)?, field(release.code_lines)?);
        if name == 0 || file == 0 {
            return Some(HIDDEN_CODE);
        }
        let first_line = self.reader.read_half_word(code.checked_add(u64::from(release.code_first_line))?)?;
        let (name, file) = (self.find_text(name)?, self.find_text(file)?);
        let lines = self.find_bytes(lines)?;
        let number = code_numbers::next();
        let code_object = CodeObject { number, time: self.time, first_line, name, file, lines };
        let reader = &mut self.reader;
        definitions::write(&code_object, |from, to, size| reader.copy(from, to, size))?;
        Some(number)
    }

    /// Locates the characters of a `str` object.
    fn find_text(&mut self, object: u64) -> Option<Piece> {
        if !self.has_type(object, self.interpreter.types.text) {
            return None;
        }
        let layout = &self.interpreter.layout;
        let length = self.reader.read_word(object.checked_add(u64::from(layout.text_length))?)?;
        let state = super::text::TextState::parse(
            self.reader.read_half_word(object.checked_add(u64::from(layout.text_state))?)?,
        )?;
        let header = if state.is_ascii { layout.release.text_header } else { layout.release.text_wide_header };
        let size = length.min(u64::from(MAX_TEXT_CHARACTERS)) as u32 * u32::from(state.width);
        Some(Piece { address: object.checked_add(u64::from(header))?, size, state: u32::from(state.width) })
    }

    /// Locates the contents of a `bytes` object; an empty piece if it is too long.
    fn find_bytes(&mut self, object: u64) -> Option<Piece> {
        if !self.has_type(object, self.interpreter.types.bytes) {
            return None;
        }
        let layout = &self.interpreter.layout;
        let size = self.reader.read_word(object.checked_add(u64::from(layout.bytes_size))?)?;
        let size = if size > u64::from(MAX_LINE_TABLE_BYTES) { 0 } else { size as u32 };
        Some(Piece { address: object.checked_add(u64::from(layout.bytes_value))?, size, state: 0 })
    }
}
