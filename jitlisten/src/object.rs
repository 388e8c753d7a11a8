//! Origin of an object, and the debug object that describes it.

use std::borrow::Cow;

use crate::process::checked_read;
use crate::{AddressRange, LoadedObject};

/// Source of an object, which also determines where else the object is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// LLVM's GDB JIT list. gdb already knows the object, and libgcc has its `.eh_frame`. LLVM keeps the debug object
    /// until *freeing*, for sinks that are enabled later.
    LlvmList {
        /// Address of LLVM's debug object.
        kept_at: Option<AddressRange>,
    },
    /// One of LLVM's linkers, before the object is in any GDB JIT list. libgcc has its `.eh_frame`. The session keeps
    /// the debug object.
    LlvmLinker,
    /// LLVM's GDB JIT list, after LLVM removed the entry while the code stayed live. libgcc may still have its
    /// `.eh_frame`. The session keeps the debug object.
    Unlisted,
    /// LLVM, but the host has copied the code elsewhere, so LLVM's registrations refer to the old address. libgcc is
    /// treated as if it had the `.eh_frame`, but is never queried, because it would read tables whose memory the host
    /// may have freed. The session keeps the debug object.
    Moved,
    /// LLVM's event listener. libgcc has the `.eh_frame`. The session keeps the debug object.
    Llvm,
    /// A producer that registers the object only with jitlisten. The session keeps the debug object.
    Caller,
}

impl Origin {
    /// Channel through which the session learned of the object.
    pub(crate) fn channel(self) -> Channel {
        match self {
            Origin::LlvmList { .. } | Origin::LlvmLinker | Origin::Unlisted | Origin::Moved => Channel::Discovered,
            Origin::Llvm | Origin::Caller => Channel::Api,
        }
    }

    /// Address of LLVM's debug object, if LLVM keeps it.
    pub(crate) fn kept_at(self) -> Option<AddressRange> {
        match self {
            Origin::LlvmList { kept_at } => kept_at,
            Origin::LlvmLinker | Origin::Unlisted | Origin::Moved | Origin::Llvm | Origin::Caller => None,
        }
    }

    /// Returns true if the object is already in a GDB JIT list.
    pub(crate) fn registers_with_debuggers(self) -> bool {
        matches!(self, Origin::LlvmList { .. })
    }

    /// Returns true if libgcc, or LLVM's libunwind, already has the `.eh_frame`.
    pub(crate) fn registers_with_unwinders(self) -> bool {
        !matches!(self, Origin::Caller)
    }
}

/// Channel through which the session learned of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Hooks in an LLVM library.
    Discovered,
    /// Calls to the producer API.
    Api,
}

/// Debug object of a loaded object. A copy is kept between *loaded* and *finalized*, and after that only if LLVM keeps
/// none.
pub(crate) struct DebugObject {
    pub(crate) copy: Option<Vec<u8>>,
    pub(crate) kept_at: Option<AddressRange>,
}

impl DebugObject {
    /// Bytes of the debug object, if they are still readable and still describe `object`.
    pub(crate) fn bytes(&self, object: &LoadedObject) -> Option<Cow<'_, [u8]>> {
        if let Some(copy) = &self.copy {
            return Some(Cow::Borrowed(copy));
        }
        let bytes = checked_read::copy(self.kept_at?).ok()?;
        LoadedObject::parse(&bytes).is_ok_and(|parsed| parsed == *object).then_some(Cow::Owned(bytes))
    }
}
