//! Recognizes the native frames of evaluators, i.e., of CPython's eval loop. Runs in the handler.

#![forbid(unsafe_code)]

use super::frames::{self, WalkSummary};
use super::interpreter::{self, Interpreter};
use crate::thread::slot::Slot;

/// Python frames of one sample, and the anchors that are not yet matched.
pub(crate) struct Evaluators<'a> {
    interpreter: Option<&'static Interpreter>,
    anchors: &'a [u64],
    /// Code address of the previous native frame.
    previous_address: u64,
    /// Stack pointer of the previous native frame.
    previous_stack: u64,
    pub(crate) walked: WalkSummary,
}

impl<'a> Evaluators<'a> {
    /// Reads at most `max_frames` Python frames of the slot's thread, which must be the caller. Passes one word per
    /// frame to `put`.
    pub(crate) fn read(
        slot: &Slot,
        time: u64,
        anchors: &'a mut [u64],
        max_frames: u64,
        put: impl FnMut(u64),
    ) -> Evaluators<'a> {
        let no_frames = Evaluators {
            interpreter: None,
            anchors: &[],
            previous_address: 0,
            previous_stack: 0,
            walked: WalkSummary::default(),
        };
        let Some(interpreter) = interpreter::published() else { return no_frames };
        let state = interpreter.thread_state(slot);
        if state == 0 {
            return no_frames;
        }
        let max_frames = max_frames.min(frames::MAX_PYTHON_FRAMES);
        let walked = frames::walk(interpreter, state, time, max_frames, anchors, put);
        let anchors = anchors.get(..walked.anchors).unwrap_or_default();
        Evaluators { interpreter: Some(interpreter), anchors, previous_address: 0, previous_stack: 0, walked }
    }

    /// Returns the number of evaluators in the previous native frame, given the address and stack pointer of the
    /// current frame. The stack grows downwards, so the previous frame's data lies between the two stack pointers.
    pub(crate) fn count_before(&mut self, address: u64, stack: u64) -> usize {
        let passed_count = self.anchors.iter().take_while(|anchor| **anchor < stack).count();
        let (passed_anchors, rest) = self.anchors.split_at(passed_count);
        let count =
            passed_anchors.iter().filter(|anchor| **anchor >= self.previous_stack && self.previous_stack != 0).count();
        let is_evaluator = self.interpreter.is_some_and(|interpreter| interpreter.has_code(self.previous_address));
        (self.anchors, self.previous_address, self.previous_stack) = (rest, address, stack);
        if is_evaluator { count } else { 0 }
    }

    /// True if `address` is in the eval loop of a release whose evaluators leave no anchors.
    pub(crate) fn is_evaluator_at(&self, address: u64) -> bool {
        self.interpreter.is_some_and(|interpreter| interpreter.is_evaluator(address))
    }
}
