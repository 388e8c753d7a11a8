//! Detection of unobserved code: code that an LLVM instance compiles with an unknown linker, or through a vtable that
//! is not hooked, in a program that does not register its code with debuggers.
//!
//! Most programs do register their objects. An ignored linker is worth a warning only if it produces code. Three
//! conditions must hold: LLVM itself has made memory executable, no object is known in that memory after a second, and
//! that LLVM instance has never reported an object.

#![forbid(unsafe_code)]

use jitlisten::AddressRange;

/// Delay before a warning, in ns. ORC lists an object only once it is final, so earlier warnings could be wrong.
const WARNING_DELAY_NS: u64 = 1_000_000_000;

/// Candidate memory that may contain code of an unobserved linker.
#[derive(Default)]
pub(crate) struct UnreportedCode {
    /// Executable memory without a known object, and the time at which it became executable.
    candidate: Option<(AddressRange, u64)>,
    warned: bool,
}

impl UnreportedCode {
    /// Records that `range`, which contains no known object, became executable at `now`.
    pub(crate) fn add(&mut self, range: AddressRange, now: u64) {
        if !self.warned && self.candidate.is_none() {
            self.candidate = Some((range, now));
        }
    }

    /// Removes and returns the candidate range if it has been executable for a second.
    pub(crate) fn take(&mut self, now: u64) -> Option<AddressRange> {
        self.candidate.take_if(|(_, since)| now.saturating_sub(*since) >= WARNING_DELAY_NS).map(|(range, _)| range)
    }

    /// Records that the warning was printed.
    pub(crate) fn set_warned(&mut self) {
        self.warned = true;
    }
}
