//! Recognises the native frames that are evaluators, in the handler.

#![forbid(unsafe_code)]

use super::frames::{self, Walked};
use super::interpreter::{self, Interpreter};
use crate::slot::Slot;

/// Of one sample.
pub(crate) struct Evaluators<'a> {
    interpreter: Option<&'static Interpreter>,
    anchors: &'a [u64],
    /// Of the native frame before: its code, and where the stack was in it.
    address: u64,
    stack: u64,
    pub(crate) walked: Walked,
}

impl<'a> Evaluators<'a> {
    /// Reads the frames of the interpreter, `most` at most, in the thread whose slot it is: at `time`: `put` gets the
    /// word of each.
    pub(crate) fn look(
        slot: &Slot,
        time: u64,
        anchors: &'a mut [u64],
        most: u64,
        put: impl FnMut(u64),
    ) -> Evaluators<'a> {
        let none = Evaluators { interpreter: None, anchors: &[], address: 0, stack: 0, walked: Walked::default() };
        let Some(interpreter) = interpreter::published() else { return none };
        let state = interpreter.thread_state(slot);
        if state == 0 {
            return none;
        }
        let most = most.min(frames::MAX_PYTHON_FRAMES);
        let walked = frames::walk(interpreter, state, time, most, anchors, put);
        let anchors = anchors.get(..walked.anchors).unwrap_or_default();
        Evaluators { interpreter: Some(interpreter), anchors, address: 0, stack: 0, walked }
    }

    /// How many evaluators the native frame before this one was, in which the stack is there. A stack grows downwards,
    /// so what an evaluator has on it lies between.
    pub(crate) fn before(&mut self, address: u64, stack: u64) -> usize {
        let passed = self.anchors.iter().take_while(|anchor| **anchor < stack).count();
        let (now, rest) = self.anchors.split_at(passed);
        let found = now.iter().filter(|anchor| **anchor >= self.stack && self.stack != 0).count();
        let is_evaluator = self.interpreter.is_some_and(|interpreter| interpreter.has_code(self.address));
        (self.anchors, self.address, self.stack) = (rest, address, stack);
        if is_evaluator { found } else { 0 }
    }

    /// Whether the code there is an evaluator's, where evaluators leave nothing on the stack.
    pub(crate) fn is_at(&self, address: u64) -> bool {
        self.interpreter.is_some_and(|interpreter| interpreter.is_evaluator(address))
    }
}
