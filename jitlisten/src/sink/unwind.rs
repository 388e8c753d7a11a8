//! The unwinders inside this process: nongnu libunwind, libgcc's, LLVM's libunwind.
//!
//! Memory profilers, signal-based profilers, crash handlers and C++ exceptions walk the stack with one of them. MCJIT
//! and ORC register every `.eh_frame` with libgcc (or LLVM's libunwind) themselves, so only objects are registered
//! there that have none and whose rules can be read from their code. Everything is registered with libunwind. How that
//! is done is described in the crate `unwind-register`.
//!
//! See it with any program that calls `unw_step` or `backtrace(3)` in a signal handler, or with `memray run --native`.
//!
//! Code that LLVM compiled elsewhere (Numba's cache) or before us may lack frame pointers and unwind entries. It is
//! counted. For functions without an `.eh_frame` entry, rules are derived from the machine code where they can be
//! *known* ([`crate::cfi`]), and registered with the unwinders of the process. perf and gdb do not benefit. A gap
//! inside a section that the host has registered is skipped: libgcc 13 and later keep one range for a whole section,
//! and abort if another one overlaps.
//!
//! A library opened later may contain an unwinder. `_r_debug.r_brk` announces it before it is relocated and can be
//! called; the next `dlsym` of any library then registers all living objects.
//!
//! memray and heaptrack walk with libunwind and name frames with modules: see the sink `modules`. vmprof 0.6 opens the
//! system's libunwind and samples through registered frames. With the structure of the wrong version, tried on purpose,
//! it crashes; the version is probed before anything is registered.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_register::{ByHost, Registration, Registry, Section};

use super::{FinalizedObject, Forked, Sink, SinkError};
use crate::log_line;
use crate::process::checked_read;
use crate::{AddressRange, ObjectId, cfi};

#[derive(Default)]
pub(crate) struct Unwind {
    registrations: BTreeMap<ObjectId, Vec<Registration>>,
}

impl Sink for Unwind {
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let text = ranges(object.object.text().iter().map(|text| text.range));
        let mut registrations = Vec::new();
        // A section that cannot be read is one that is not there: its functions are among those with made rules.
        if let Some(range) = object.object.eh_frame()
            && let Ok(bytes) = checked_read::copy(range)
        {
            // A JIT may have registered it with libgcc all the same.
            let by_host = if object.origin.registers_with_unwinders() { ByHost::Everything } else { ByHost::Unknown };
            let section = Section::new(&bytes, range.start().0 as usize).text(&text).by_host(by_host);
            registrations.extend(register(&section, object.id));
        }
        if !object.made_rules.is_empty() {
            // What is registered is copied, so the place the bytes are made for need not hold them.
            let place = cfi::place_behind(object.made_rules);
            if let Ok(bytes) = cfi::encode(object.made_rules, object.object.machine(), place) {
                // libgcc 13 and later keep one range for a whole section: a gap in one that the host has registered
                // cannot be filled there, and trying would end in an abort.
                let filled = object.origin.registers_with_unwinders() && object.object.eh_frame().is_some();
                let section = Section::new(&bytes, place.0 as usize).text(&text).by_host(by_host(filled));
                registrations.extend(register(&section, object.id));
            }
        }
        if !registrations.is_empty() {
            self.registrations.insert(object.id, registrations);
        }
        Ok(0)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        self.registrations.remove(&object.id);
        Ok(())
    }

    /// Unwinders and what is registered with them are memory, which the child has a copy of.
    fn forked(&mut self) -> Forked {
        Forked::KnowsEverything
    }
}

fn by_host(registers: bool) -> ByHost {
    if registers { ByHost::Everything } else { ByHost::Nothing }
}

fn register(section: &Section<'_>, id: ObjectId) -> Option<Registration> {
    // SAFETY: the session reports an object from the moment its code and tables are final until *freeing*, when the
    // registration is dropped; the rules are the compiler's own, or were read from the code.
    let registered = unsafe { Registry::process().register_with_known(section) };
    registered.inspect_err(|error| log_line!(Debug, "cannot register {id:?} with unwinders: {error}")).ok()
}

fn ranges(ranges: impl Iterator<Item = AddressRange>) -> Vec<Range<usize>> {
    ranges.map(|range| range.start().0 as usize..range.end().0 as usize).collect()
}

/// What a look at the libraries of the process has found out about unwinders in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinders {
    /// All of them are known.
    Known,
    /// Not looked for, because there is nothing to register yet.
    NotWanted,
    /// The loader is not done with the library of one: look again when it is.
    Unrelocated,
}

/// Looks for unwinders in libraries that have come since the last time. Takes the loader's locks.
pub(crate) fn look_for_unwinders() -> Unwinders {
    let found = Registry::process().rescan();
    if found.added > 0 {
        log_line!(Info, "{} unwinders found", found.added);
    }
    for error in found.refused {
        log_line!(Warn, "ignoring an unwinder: {error}");
    }
    if found.pending > 0 { Unwinders::Unrelocated } else { Unwinders::Known }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfi::{Cfa, FunctionRules, SavedRegister, UnwindRow};
    use crate::{Address, Machine, Offset};

    /// Code that never runs, at addresses that are ours.
    static CODE: [u8; 0x9c] = [0; 0x9c];

    fn row(offset: u64, register: u16, cfa: i64, saved: bool) -> UnwindRow {
        let pair = [(29, -32), (30, -24)].map(|(register, offset)| SavedRegister { register, offset });
        UnwindRow {
            offset: Offset(offset),
            cfa: Cfa { register, offset: cfa },
            saved: pair[..2 * usize::from(saved)].to_vec(),
        }
    }

    /// As `tests/hosts/no_tables.py` has them on aarch64. Two functions are where the pointers to them would be in a
    /// section that begins with the first: at 0x50 and 0x80.
    fn functions() -> Vec<FunctionRules> {
        let rows = vec![row(0, 31, 0, false), row(4, 31, 48, false), row(16, 29, 32, true), row(24, 31, 0, false)];
        let base = CODE.as_ptr() as u64;
        let range = |(start, end)| AddressRange::new(Address(base + start), end - start).expect("a range");
        [(0, 0x50), (0x50, 0x80), (0x80, 0x9c)].map(|at| FunctionRules { range: range(at), rows: rows.clone() }).into()
    }

    #[test]
    fn every_function_with_made_rules_is_registered() {
        let functions = functions();
        let place = cfi::place_behind(&functions);
        let bytes = cfi::encode(&functions, Machine::Aarch64, place).expect("encodes");
        let section = Section::new(&bytes, place.0 as usize).by_host(ByHost::Nothing);
        // SAFETY: no stack has these addresses, so nothing follows the rules; the section and the functions outlive the
        // call.
        let registration = unsafe { Registry::process().register(&section) }.expect("registers");
        assert_eq!((registration.coverage().covered, registration.coverage().refused), (3, 0));
    }
}
