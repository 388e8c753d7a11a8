//! The list in [`Facts`](super::Facts): one entry for each LLVM.

use std::fmt::{self, Display, Formatter};

use super::{COUNTS, Count, MAX_LLVMS};

/// Reason why an LLVM without names for its linkers is not observed.
pub const NO_SYMBOLS_OR_RTTI: &str = "its linkers have neither symbols nor RTTI";

/// An LLVM instance that the library observes.
#[derive(Clone, Debug, Default)]
pub struct ObservedLlvm {
    /// Index of its counters.
    pub slot: usize,
    /// Start address of its library.
    pub start: u64,
    /// Path of its library; `/proc/self/exe` for the program itself.
    pub file: String,
    /// Release as far as the library reveals it: `14`, `19.1`.
    pub version: Option<String>,
    /// Methods of observation.
    pub channels: Vec<Channel>,
    /// Parts that are not observed.
    pub missing: Vec<Missing>,
    /// Values of its counters at the time of reading. They are not part of the list.
    pub counts: [u64; COUNTS],
}

/// An LLVM instance that the library does not observe.
#[derive(Clone, Debug, Default)]
pub struct UnobservedLlvm {
    /// Start address of its library.
    pub start: u64,
    /// Path of its library.
    pub file: String,
    /// Reason why it is not observed.
    pub reason: String,
}

/// Method of observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Hooks of RuntimeDyld.
    RuntimeDyld,
    /// Hooks of JITLink.
    JitLink,
    /// Hook of `__jit_debug_register_code`.
    ListCall,
    /// The GDB JIT list, read when memory becomes executable.
    ListPoll,
}

impl Channel {
    const ALL: [Channel; 4] = [Channel::RuntimeDyld, Channel::JitLink, Channel::ListCall, Channel::ListPoll];
}

/// Part of an LLVM that may not be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its RuntimeDyld.
    RuntimeDyld,
    /// Its JITLink.
    JitLink,
    /// Its GDB JIT list.
    List,
    /// The linkers, for lack of names.
    NamelessLinkers,
    /// Code that became executable.
    Code,
    /// Its code generation, which would give functions frame pointers.
    FramePointers,
}

impl Part {
    const ALL: [Part; 6] =
        [Part::RuntimeDyld, Part::JitLink, Part::List, Part::NamelessLinkers, Part::Code, Part::FramePointers];
}

/// Part of an LLVM that is not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The part.
    pub part: Part,
    /// True if the library does not contain the part.
    pub is_absent: bool,
    /// Reason why it is not observed.
    pub reason: String,
}

impl Missing {
    /// A part that the library contains.
    pub fn new(part: Part, reason: impl Into<String>) -> Missing {
        Missing { part, is_absent: false, reason: reason.into() }
    }
}

impl Display for Missing {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.part {
            Part::RuntimeDyld => "RuntimeDyld: ",
            Part::JitLink => "JITLink: ",
            Part::List => "GDB JIT list: ",
            Part::NamelessLinkers | Part::Code => "",
            Part::FramePointers => "frame pointers: ",
        })?;
        formatter.write_str(&self.reason)
    }
}

impl ObservedLlvm {
    /// Value of a counter.
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// The missing part of this kind, if any.
    pub fn missing(&self, part: Part) -> Option<&Missing> {
        self.missing.iter().find(|missing| missing.part == part)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = [OBSERVED, self.slot as u64, self.start].map(u64::to_ne_bytes).concat();
        put_text(&mut bytes, &self.file);
        put_text(&mut bytes, self.version.as_deref().unwrap_or_default());
        put_number(&mut bytes, self.channels.len() as u64);
        self.channels.iter().for_each(|&channel| put_number(&mut bytes, channel as u64));
        put_number(&mut bytes, self.missing.len() as u64);
        for missing in &self.missing {
            put_number(&mut bytes, missing.part as u64);
            put_number(&mut bytes, missing.is_absent.into());
            put_text(&mut bytes, &missing.reason);
        }
        bytes
    }

    fn decode(bytes: &mut Bytes<'_>, counts: &[[u64; COUNTS]; MAX_LLVMS]) -> Option<ObservedLlvm> {
        let (slot, start) = (bytes.index()?, bytes.number()?);
        let (file, version) = (bytes.text()?, Some(bytes.text()?).filter(|version| !version.is_empty()));
        let channels = bytes.list(|bytes| Channel::ALL.get(bytes.index()?).copied())?;
        let missing = bytes.list(|bytes| {
            let (part, is_absent) = (*Part::ALL.get(bytes.index()?)?, bytes.number()? != 0);
            Some(Missing { part, is_absent, reason: bytes.text()? })
        })?;
        let counts = counts.get(slot).copied().unwrap_or_default();
        Some(ObservedLlvm { slot, start, file, version, channels, missing, counts })
    }
}

impl UnobservedLlvm {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = [UNOBSERVED, self.start].map(u64::to_ne_bytes).concat();
        put_text(&mut bytes, &self.file);
        put_text(&mut bytes, &self.reason);
        bytes
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<UnobservedLlvm> {
        Some(UnobservedLlvm { start: bytes.number()?, file: bytes.text()?, reason: bytes.text()? })
    }
}

const OBSERVED: u64 = 1;
const UNOBSERVED: u64 = 2;

/// Encodes the entries that fit into `max_bytes`, and returns the number of others.
pub(super) fn encode(observed: &[ObservedLlvm], unobserved: &[UnobservedLlvm], max_bytes: usize) -> (Vec<u8>, u64) {
    let entries = observed.iter().map(ObservedLlvm::encode).chain(unobserved.iter().map(UnobservedLlvm::encode));
    let (mut list, mut omitted) = (Vec::new(), 0);
    for entry in entries {
        if list.len() + entry.len() <= max_bytes {
            list.extend(entry);
        } else {
            omitted += 1;
        }
    }
    (list, omitted)
}

/// Decodes a list; `None` if it is malformed.
pub(super) fn decode(
    list: &[u8],
    counts: &[[u64; COUNTS]; MAX_LLVMS],
) -> Option<(Vec<ObservedLlvm>, Vec<UnobservedLlvm>)> {
    let (mut observed, mut unobserved) = (Vec::new(), Vec::new());
    let mut bytes = Bytes(list);
    while !bytes.0.is_empty() {
        match bytes.number()? {
            OBSERVED => observed.push(ObservedLlvm::decode(&mut bytes, counts)?),
            UNOBSERVED => unobserved.push(UnobservedLlvm::decode(&mut bytes)?),
            _ => return None,
        }
    }
    Some((observed, unobserved))
}

fn put_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_ne_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_number(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}

/// Bytes that are decoded from the front.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*number))
    }

    pub(super) fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Some(numbers)
    }

    fn index(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn text(&mut self) -> Option<String> {
        let length = self.index()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn list<T>(&mut self, decode: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.number()?).map(|_| decode(self)).collect()
    }
}
