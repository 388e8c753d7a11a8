//! The interpreter's frames of the sampled thread: code objects, and instructions in them.
//!
//! ```text
//!   thread state ---> frame ---> previous ---> ...             3.8 to 3.10: PyFrameObject; later _PyInterpreterFrame
//!      ^                |  \---> instruction
//!      |                \------> code object ---> number       `known`, or else `definitions`
//!   PyGILState_GetThisThreadState, or the interpreter's list of threads
//! ```
//! Behind the coroutine of a running task stand those that await it (`tasks`).
//!
//! A word for each frame, the innermost first. An evaluator, a call of `_PyEval_EvalFrameDefault`, runs one frame or
//! several, the last of which is marked [`ENTRY`]: from 3.12 on a frame on the C stack is behind it, in 3.11 it says
//! so, before every frame is one. Where evaluators have something on the C stack, its address is an *anchor*: it tells
//! which native frame is the evaluator's.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::definitions::{self, Found, Piece};
use super::interpreter::Interpreter;
use super::known;
use super::layout::{Coroutines, NONE};
use super::memory::Reader;
use super::tasks::{MOST_COROUTINES, MOST_WAITERS};
use crate::slot::MAX_ANCHORS;

/// Frames of one stack, at most.
pub(crate) const MAX_PYTHON_FRAMES: u64 = 6144;
/// Frames in a row that are not shown, at most.
const MOST_HIDDEN: u32 = 16;
/// Code objects that are defined in one sample, at most.
const MOST_DEFINITIONS: u32 = 256;

/// A word that is no native address.
const PYTHON: u64 = 1 << 63;
/// The outermost frame that its evaluator runs.
const ENTRY: u64 = 1 << 62;
const NUMBER_AT: u32 = 24;
const INSTRUCTIONS: u64 = (1 << NUMBER_AT) - 1;
/// Behind a native frame: it is an evaluator's.
pub(crate) const EVALUATOR: u64 = PYTHON;
/// A code object that has no name: there was no space for it.
pub(super) const UNNAMED: u64 = 1;
/// A code object of the interpreter's own, which is not shown.
const HIDDEN: u64 = 2;
const FIRST_NUMBER: u64 = 3;
/// Longer ones are cut.
const LONGEST_TEXT: u32 = 1024;
const LONGEST_LINES: u32 = 48 << 10;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(FIRST_NUMBER);
/// Frames that could not be read, of samples that ended there.
pub(super) static DAMAGED: AtomicU64 = AtomicU64::new(0);
/// Frames whose code object could not be defined.
pub(super) static NAMELESS: AtomicU64 = AtomicU64::new(0);

/// A frame as it is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) number: u64,
    /// In units of two bytes.
    pub(super) instruction: u64,
    pub(super) is_entry: bool,
}

impl Word {
    pub(super) fn encode(self) -> u64 {
        let entry = if self.is_entry { ENTRY } else { 0 };
        PYTHON | entry | self.number << NUMBER_AT & !(PYTHON | ENTRY) | self.instruction.min(INSTRUCTIONS)
    }

    pub(super) fn decode(word: u64) -> Option<Word> {
        let number = (word & !(PYTHON | ENTRY)) >> NUMBER_AT;
        let is_frame = word & PYTHON != 0 && number != 0;
        is_frame.then_some(Word { number, instruction: word & INSTRUCTIONS, is_entry: word & ENTRY != 0 })
    }
}

/// What a walk of the interpreter's frames has found beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    pub(crate) frames: u64,
    pub(crate) anchors: usize,
    /// There are more than were asked for.
    pub(crate) is_truncated: bool,
}

/// Before a recording.
pub(super) fn begin() {
    NEXT_NUMBER.store(FIRST_NUMBER, Ordering::Release);
    DAMAGED.store(0, Ordering::Release);
    NAMELESS.store(0, Ordering::Release);
    known::clear();
}

/// Walks the frames of the calling thread and hands each of them to `frame`; anchors are put into `anchors`, the
/// innermost first.
pub(crate) fn walk(
    interpreter: &Interpreter,
    state: u64,
    time: u64,
    most: u64,
    anchors: &mut [u64],
    frame: impl FnMut(u64),
) -> Walked {
    let is_finalizing = interpreter.is_finalizing();
    let mut reader = Reader::new(!is_finalizing);
    let is_held = !is_finalizing && interpreter.is_held(state, &mut reader);
    reader.hold(is_held);
    let mut walk =
        Walk { interpreter, reader, anchors, frame, time, most, definitions: 0, walked: Walked::default(), last: None };
    if walk.run(state).is_none() {
        DAMAGED.fetch_add(1, Ordering::Relaxed);
    }
    walk.put_last();
    walk.walked
}

struct Walk<'a, F> {
    interpreter: &'a Interpreter,
    reader: Reader,
    anchors: &'a mut [u64],
    frame: F,
    time: u64,
    most: u64,
    definitions: u32,
    walked: Walked,
    /// Not handed over yet: what comes behind it says whether it is an entry.
    last: Option<Word>,
}

impl<F: FnMut(u64)> Walk<'_, F> {
    /// `None` where something could not be read.
    fn run(&mut self, state: u64) -> Option<()> {
        let release = self.interpreter.layout.release;
        let mut at = self.reader.word(state.checked_add(u64::from(release.thread_frame))?)?;
        if release.cframe_current != NONE {
            let cframe = at;
            at = self.reader.word(cframe.checked_add(u64::from(release.cframe_current))?)?;
            if release.frame_is_entry != NONE {
                self.anchor_cframes(cframe);
            }
        }
        let task = self.running_task(state);
        let mut hidden = 0;
        while hidden < MOST_HIDDEN {
            if at == 0 {
                return Some(());
            }
            let owner = match release.frame_owner {
                NONE => 0,
                offset => self.reader.byte(at.checked_add(u64::from(offset))?)?,
            };
            let before = self.walked.frames;
            if release.minor >= 12 && owner >= 3 {
                self.is_entered_from(at);
            } else if !self.step(at)? {
                return Some(());
            }
            hidden = if self.walked.frames == before { hidden + 1 } else { 0 };
            if let Some((task, _)) = task.filter(|(_, coroutine)| *coroutine == at) {
                self.waiting(task);
            }
            at = self.reader.word(at.checked_add(u64::from(release.frame_previous))?)?;
        }
        None
    }

    /// The task that the thread runs, and the frame of its coroutine.
    fn running_task(&mut self, state: u64) -> Option<(u64, u64)> {
        let (tasks, coroutines) = (self.interpreter.tasks.get()?, self.interpreter.layout.coroutines.as_ref()?);
        let task = tasks.running(state, &mut self.reader)?;
        let coroutine = tasks.coroutine(task, &mut self.reader)?;
        Some((task, coroutines.frame(coroutine)?))
    }

    /// The coroutines of the tasks that await `task`. `None`: no more are known.
    fn waiting(&mut self, mut task: u64) -> Option<()> {
        let (tasks, coroutines) = (self.interpreter.tasks.get()?, self.interpreter.layout.coroutines.as_ref()?);
        // Free-threaded, another thread may free what awaits this one.
        let is_held = self.reader.is_held();
        self.reader.hold(is_held && self.interpreter.layout.copies.is_none());
        for _ in 0..MOST_WAITERS {
            let Some(waiter) = tasks.waiter(task, coroutines, &mut self.reader) else { break };
            task = waiter;
            if let Some(coroutine) = tasks.coroutine(task, &mut self.reader)
                && self.suspended(coroutine, coroutines).is_none()
            {
                break;
            }
        }
        self.reader.hold(is_held);
        Some(())
    }

    /// A coroutine that waits, and those that it awaits, the innermost first.
    fn suspended(&mut self, outermost: u64, coroutines: &Coroutines) -> Option<()> {
        let mut chain = [0; MOST_COROUTINES];
        let (mut coroutine, mut count) = (outermost, 0);
        while let Some(place) = chain.get_mut(count)
            && self.is_coroutine(coroutine)
            && coroutines.is_suspended(coroutine, &mut self.reader) == Some(true)
        {
            (*place, count) = (coroutine, count + 1);
            let Some(awaited) = coroutines.awaited(coroutine, &mut self.reader) else { break };
            coroutine = awaited;
        }
        for &coroutine in chain.iter().take(count).rev() {
            self.step(coroutines.frame(coroutine)?)?.then_some(())?;
        }
        (count != 0).then_some(())
    }

    fn is_coroutine(&mut self, object: u64) -> bool {
        let types = self.interpreter.types;
        self.is(object, types.coroutine) || self.is(object, types.generator)
    }

    /// One frame. Returns whether there may be more.
    fn step(&mut self, at: u64) -> Option<bool> {
        if self.walked.frames + u64::from(self.last.is_some()) >= self.most {
            self.walked.is_truncated = true;
            return Some(false);
        }
        let release = &self.interpreter.layout.release;
        // References to code objects are tagged from 3.14 on.
        let code = self.reader.word(at.checked_add(u64::from(release.frame_code))?)? & !7;
        let is_entry = match release.frame_is_entry {
            NONE => release.minor <= 10,
            offset => self.reader.byte(at.checked_add(u64::from(offset))?)? != 0,
        };
        let number = self.number(code)?;
        if number == HIDDEN {
            if is_entry && let Some(last) = &mut self.last {
                last.is_entry = true;
            }
            return Some(true);
        }
        let instruction = self.instruction(at, code)?;
        self.put_last();
        self.last = Some(Word { number, instruction, is_entry });
        Some(true)
    }

    fn put_last(&mut self) {
        if let Some(last) = self.last.take() {
            (self.frame)(last.encode());
            self.walked.frames += 1;
        }
    }

    /// The evaluator's own frame, which lies on the C stack.
    fn is_entered_from(&mut self, at: u64) {
        if let Some(last) = self.last.as_mut().filter(|last| !last.is_entry) {
            last.is_entry = true;
            self.anchor(at);
        }
    }

    fn anchor(&mut self, at: u64) {
        if let Some(anchor) = self.anchors.get_mut(self.walked.anchors) {
            *anchor = at;
            self.walked.anchors += 1;
        }
    }

    /// In 3.11 each evaluator has a `_PyCFrame` on the C stack; the outermost is the thread's.
    fn anchor_cframes(&mut self, mut cframe: u64) {
        let offset = u64::from(self.interpreter.layout.release.cframe_previous);
        for _ in 0..MAX_ANCHORS {
            match cframe.checked_add(offset).and_then(|at| self.reader.word(at)) {
                Some(previous) if previous != 0 => self.anchor(std::mem::replace(&mut cframe, previous)),
                _ => return,
            }
        }
    }

    /// Where in its code object a frame is.
    fn instruction(&mut self, at: u64, code: u64) -> Option<u64> {
        let layout = &self.interpreter.layout;
        let release = &layout.release;
        let place = at.checked_add(u64::from(release.frame_instruction))?;
        if release.code_instructions == NONE {
            // `f_lasti`, of bytes before 3.10; negative before the first.
            let index = self.reader.half(place)? as i32;
            let index = u64::try_from(index).unwrap_or(0);
            return Some(if release.minor < 10 { index / 2 } else { index });
        }
        let mut start = code.checked_add(u64::from(release.code_instructions))?;
        if let Some((index, copies)) = layout.copies
            && let index @ 1.. = self.reader.half(at.checked_add(u64::from(index))?)?
        {
            let copies = self.reader.word(code.checked_add(u64::from(copies))?)?;
            start = self.reader.word(copies.checked_add(8 + 8 * u64::from(index))?)?;
        }
        // Before the first one it is one less.
        let distance = self.reader.word(place)?.wrapping_sub(start) as i64;
        Some(u64::try_from(distance).unwrap_or(0) / 2)
    }

    /// The number of a code object; a new one if needed. `None`: not a code object.
    fn number(&mut self, code: u64) -> Option<u64> {
        if let Some(number) = known::find(code) {
            return Some(number);
        }
        if !self.is(code, self.interpreter.types.code) || !self.is_alive(code) {
            return None;
        }
        self.definitions += 1;
        let is_allowed = self.definitions <= MOST_DEFINITIONS;
        let number = if is_allowed { self.define(code) } else { None }.unwrap_or(UNNAMED);
        if number == UNNAMED {
            NAMELESS.fetch_add(1, Ordering::Relaxed);
        } else {
            known::insert(code, number);
        }
        Some(number)
    }

    fn is(&mut self, object: u64, kind: u64) -> bool {
        let place = object.checked_add(u64::from(self.interpreter.layout.object_type));
        place.and_then(|place| self.reader.word(place)) == Some(kind)
    }

    /// An object that was freed has a pointer where its count of references was. Where threads count apart, that says
    /// nothing.
    fn is_alive(&mut self, code: u64) -> bool {
        let is_counted_apart = self.interpreter.layout.object_type != 8;
        let is_count = |count: u64| count != 0 && !(1 << 40..1 << 48).contains(&count);
        is_counted_apart || self.reader.word(code).is_some_and(is_count)
    }

    fn define(&mut self, code: u64) -> Option<u64> {
        let release = self.interpreter.layout.release;
        let mut field = |offset: u16| self.reader.word(code.checked_add(u64::from(offset))?);
        let (name, file, lines) = (field(release.code_name)?, field(release.code_file)?, field(release.code_lines)?);
        if name == 0 || file == 0 {
            return Some(HIDDEN);
        }
        let first_line = self.reader.half(code.checked_add(u64::from(release.code_first_line))?)?;
        let (name, file) = (self.text(name)?, self.text(file)?);
        let lines = self.bytes(lines)?;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let found = Found { number, time: self.time, first_line, name, file, lines };
        let reader = &mut self.reader;
        definitions::write(&found, |from, to, size| reader.copy(from, to, size))?;
        Some(number)
    }

    /// The characters of a `str`.
    fn text(&mut self, object: u64) -> Option<Piece> {
        if !self.is(object, self.interpreter.types.text) {
            return None;
        }
        let layout = &self.interpreter.layout;
        let length = self.reader.word(object.checked_add(u64::from(layout.text_length))?)?;
        let state = super::text::State::parse(self.reader.half(object.checked_add(u64::from(layout.text_state))?)?)?;
        let header = if state.is_ascii { layout.release.text_header } else { layout.release.text_wide_header };
        let size = length.min(u64::from(LONGEST_TEXT)) as u32 * u32::from(state.width);
        Some(Piece { address: object.checked_add(u64::from(header))?, size, state: u32::from(state.width) })
    }

    /// The bytes of a `bytes`; none of one that is too long.
    fn bytes(&mut self, object: u64) -> Option<Piece> {
        if !self.is(object, self.interpreter.types.bytes) {
            return None;
        }
        let layout = &self.interpreter.layout;
        let size = self.reader.word(object.checked_add(u64::from(layout.bytes_size))?)?;
        let size = if size > u64::from(LONGEST_LINES) { 0 } else { size as u32 };
        Some(Piece { address: object.checked_add(u64::from(layout.bytes_value))?, size, state: 0 })
    }
}
