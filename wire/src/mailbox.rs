//! Memory that the command maps in the process that it attaches to, for a request and its result. The process runs the
//! request in Python (`cli/src/inject/request.py`) or in a thread (`capi/src/attached.rs`).
//!
//! ```text
//!   0      Mailbox
//!   4096   the request: Python code, or an encoded `Request`; ends with a zero byte
//! ```
//!
//! The two sides may have different versions of jitlisten. Only the request contains a version, so this layout must not
//! change.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Offset of the request: the mailbox fills one page.
pub const REQUEST_OFFSET: usize = size_of::<Mailbox>();
/// Offset of the state, a word.
pub const STATE_OFFSET: usize = offset_of!(Mailbox, state);
/// Offset of the length of the result, a word.
pub const LENGTH_OFFSET: usize = offset_of!(Mailbox, length);
/// Offset of the result.
pub const RESULT_OFFSET: usize = offset_of!(Mailbox, result);
/// Maximum length of a result.
pub const MAX_RESULT_BYTES: usize = 4096 - 16;

/// State of a request and its result, in native byte order.
#[repr(C)]
#[derive(Debug)]
pub struct Mailbox {
    state: AtomicU64,
    length: AtomicU64,
    result: [AtomicU8; MAX_RESULT_BYTES],
}

/// State of a request.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started; the command may cancel it.
    Waiting = 0,
    /// The process runs it.
    Started = 1,
    /// The result describes the outcome.
    Succeeded = 2,
    /// The command cancelled it; the process does nothing.
    Cancelled = 3,
    /// The result is the error.
    Failed = 4,
}

impl State {
    /// State with this number. Any number that neither side writes counts as started, so the request is not cancelled.
    pub fn from_number(number: u64) -> State {
        let states = [State::Waiting, State::Succeeded, State::Cancelled, State::Failed];
        states.into_iter().find(|&state| state as u64 == number).unwrap_or(State::Started)
    }
}

impl Mailbox {
    /// Starts the request. Returns false if it was cancelled.
    pub fn start(&self) -> bool {
        let (waiting, started) = (State::Waiting as u64, State::Started as u64);
        self.state.compare_exchange(waiting, started, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Writes the result, then the state: the command may unmap the memory as soon as it is set.
    pub fn finish(&self, state: State, result: &[u8]) {
        self.result.iter().zip(result).for_each(|(shared, byte)| shared.store(*byte, Ordering::Relaxed));
        self.length.store(result.len().min(MAX_RESULT_BYTES) as u64, Ordering::Relaxed);
        self.state.store(state as u64, Ordering::Release);
    }
}

/// Returns the result in the bytes of a mailbox; `None` until there is one. The process may have written anything.
pub fn read_result(bytes: &[u8]) -> Option<Result<String, String>> {
    let word = |offset: usize| Some(u64::from_ne_bytes(bytes.get(offset..)?.first_chunk().copied()?));
    let length = usize::try_from(word(LENGTH_OFFSET)?).ok()?.min(MAX_RESULT_BYTES);
    let text = String::from_utf8_lossy(bytes.get(RESULT_OFFSET..)?.get(..length)?).into_owned();
    match State::from_number(word(STATE_OFFSET)?) {
        State::Succeeded => Some(Ok(text)),
        State::Failed => Some(Err(text)),
        State::Waiting | State::Started | State::Cancelled => None,
    }
}

/// Request to the thread: start a recording, or run Python code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Version of the command, which must be that of the library.
    pub version: &'a [u8],
    /// Sinks to enable, in the form of `JITLISTEN`; none if empty.
    pub sinks: &'a [u8],
    /// Options of the recording, in the form of `JITLISTEN_RECORD`; Python code if `sinks` is [`PYTHON`].
    pub options: &'a [u8],
}

/// In place of sinks: the request is Python code, which itself changes the state of the mailbox.
pub const PYTHON: &[u8] = b"@python";

impl Request<'_> {
    /// Encodes the request as a C string.
    pub fn encode(&self) -> Vec<u8> {
        [self.version, b"\n", self.sinks, b"\n", self.options, b"\0"].concat()
    }

    /// Decodes a request without its terminator.
    pub fn decode(text: &[u8]) -> Request<'_> {
        let mut lines = text.splitn(3, |&byte| byte == b'\n');
        let mut next_line = || lines.next().unwrap_or_default();
        Request { version: next_line(), sinks: next_line(), options: next_line() }
    }
}

/// Result of `jitlisten_record_end`, which the command calls in the process until the recording has ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No recording.
    NotRecording = 0,
    /// The recording is being written.
    Writing = 1,
    /// The file is complete.
    Complete = 2,
}

impl Ending {
    /// Result with this number.
    pub fn from_number(number: u32) -> Option<Ending> {
        [Ending::NotRecording, Ending::Writing, Ending::Complete].into_iter().find(|&ending| ending as u32 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(mailbox: &Mailbox) -> Vec<u8> {
        let words = [&mailbox.state, &mailbox.length].map(|word| word.load(Ordering::Acquire).to_ne_bytes());
        words.concat().into_iter().chain(mailbox.result.iter().map(|byte| byte.load(Ordering::Relaxed))).collect()
    }

    fn mailbox(state: State) -> Mailbox {
        let result = [const { AtomicU8::new(0) }; MAX_RESULT_BYTES];
        Mailbox { state: AtomicU64::new(state as u64), length: AtomicU64::new(0), result }
    }

    #[test]
    fn a_result_is_read_once_it_is_complete() {
        let shared = mailbox(State::Waiting);
        assert_eq!((bytes(&shared).len(), REQUEST_OFFSET, read_result(&bytes(&shared))), (4096, 4096, None));
        assert!(shared.start() && !shared.start() && !mailbox(State::Cancelled).start());
        shared.finish(State::Failed, b"out of memory");
        assert_eq!(read_result(&bytes(&shared)), Some(Err("out of memory".to_owned())));
        shared.finish(State::Succeeded, &[b'a'; 5000]);
        assert_eq!(read_result(&bytes(&shared)), Some(Ok("a".repeat(MAX_RESULT_BYTES))));
        // The process lies about the length.
        shared.length.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(read_result(&bytes(&shared)), Some(Ok("a".repeat(MAX_RESULT_BYTES))));
        assert_eq!(read_result(&bytes(&shared)[..20]), None);
        assert_eq!(State::from_number(77), State::Started);
    }

    #[test]
    fn a_request_is_decoded_as_it_was_encoded() {
        for options in [&b"/a,b\nc,,hz=9"[..], b""] {
            let request = Request { version: b"0.1.0", sinks: b"image,unwind", options };
            let encoded = request.encode();
            assert_eq!(encoded.strip_suffix(b"\0").map(Request::decode), Some(request));
        }
    }
}
