//! An object as the session and the sinks see it: its channel, its debug object.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::process::checked_read;
use crate::{AddressRange, LoadedObject};

/// Where an object comes from, and so where else it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From LLVM's GDB JIT list: gdb knows it, and libgcc has its `.eh_frame`. LLVM keeps the debug object there until
    /// *freeing*, for sinks that are switched on later.
    LlvmList {
        /// Where it keeps it.
        kept_at: Option<AddressRange>,
    },
    /// From an LLVM's linker, which has put it into no GDB JIT list yet: libgcc has its `.eh_frame`. The session keeps
    /// the debug object.
    LlvmLinker,
    /// From LLVM's GDB JIT list, which LLVM has taken it out of; the code lives on, and libgcc may have its
    /// `.eh_frame`. The session keeps the debug object.
    Unlisted,
    /// From an LLVM, whose host has copied the code elsewhere: what LLVM registers is about another place. libgcc is
    /// not asked what it knows all the same: it would read tables whose memory the host may have freed. The session
    /// keeps the debug object.
    Moved,
    /// From an LLVM, by a listener: libgcc has its `.eh_frame`. The session keeps the debug object.
    Llvm,
    /// From a producer that registers it nowhere else. The session keeps the debug object.
    Caller,
}

impl Origin {
    /// How the session learned of it.
    pub(crate) fn channel(self) -> Channel {
        match self {
            Origin::LlvmList { .. } | Origin::LlvmLinker | Origin::Unlisted | Origin::Moved => Channel::Discovered,
            Origin::Llvm | Origin::Caller => Channel::Api,
        }
    }

    /// Where LLVM keeps its debug object.
    pub(crate) fn kept_at(self) -> Option<AddressRange> {
        match self {
            Origin::LlvmList { kept_at } => kept_at,
            Origin::LlvmLinker | Origin::Unlisted | Origin::Moved | Origin::Llvm | Origin::Caller => None,
        }
    }

    /// Whether it is in a GDB JIT list already.
    pub(crate) fn registers_with_debuggers(self) -> bool {
        matches!(self, Origin::LlvmList { .. })
    }

    /// Whether libgcc, or LLVM's libunwind, has its `.eh_frame` already.
    pub(crate) fn registers_with_unwinders(self) -> bool {
        !matches!(self, Origin::Caller)
    }
}

/// How the session learned of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// By listening to an LLVM.
    Discovered,
    /// By a call of the producer.
    Api,
}

/// The debug object: a copy between *loaded* and *finalized*, and later where LLVM keeps none of its own.
pub(crate) struct DebugObject {
    pub(crate) copy: Option<Vec<u8>>,
    pub(crate) kept_at: Option<AddressRange>,
}

impl DebugObject {
    /// Its bytes, if they are still to be had and still speak of `object`.
    pub(crate) fn bytes(&self, object: &LoadedObject) -> Option<Cow<'_, [u8]>> {
        if let Some(copy) = &self.copy {
            return Some(Cow::Borrowed(copy));
        }
        let bytes = checked_read::copy(self.kept_at?).ok()?;
        LoadedObject::parse(&bytes).is_ok_and(|parsed| parsed == *object).then_some(Cow::Owned(bytes))
    }
}
