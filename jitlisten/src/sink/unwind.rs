//! The `unwind` sink: registers unwind tables with the unwinders inside this process (nongnu libunwind, libgcc, LLVM's
//! libunwind).
//!
//! Memory profilers, signal-based profilers, crash handlers and C++ exceptions walk the stack with one of these
//! unwinders. MCJIT and ORC themselves register every `.eh_frame` with libgcc (or LLVM's libunwind). There we only
//! register objects without an `.eh_frame`, if rules can be derived from their code. With nongnu libunwind we register
//! everything. The `unwind-register` crate describes the mechanism.
//!
//! Try it with any program that calls `unw_step` or `backtrace(3)` in a signal handler, or with `memray run --native`.
//!
//! Code that LLVM compiled elsewhere (as in Numba's cache), or before we were loaded, may lack frame pointers and
//! unwind entries. We count such functions. If a function lacks an `.eh_frame` entry, we derive rules from the machine
//! code where they are *certain* ([`crate::cfi`]), and register them with the unwinders of the process. perf and gdb do
//! not see these rules. Gaps in a section that the host has registered are not filled, because libgcc 13 and later keep
//! one address range per section, and abort if another range overlaps it.
//!
//! A library that is opened later may contain an unwinder. `_r_debug.r_brk` announces the library before it is
//! relocated, when its functions cannot be called yet. Therefore live objects are registered at the next call of
//! `dlsym`, from whatever library.
//!
//! memray and heaptrack unwind with libunwind, and name frames by module: see the `modules` sink. vmprof 0.6 opens the
//! system's libunwind, and unwinds its samples through registered tables. It crashes if a registered structure has the
//! wrong version (as we have tested), so the version is probed before anything is registered.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_register::{ByHost, Registration, Registry, Section};

use super::{FinalizedObject, Sink, SinkError, SinkState};
use crate::log_line;
use crate::process::checked_read;
use crate::{AddressRange, ObjectId, cfi};

#[derive(Default)]
pub(crate) struct Unwind {
    registrations: BTreeMap<ObjectId, Vec<Registration>>,
}

impl Sink for Unwind {
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let text_ranges = to_usize_ranges(object.object.text().iter().map(|text_ranges| text_ranges.range));
        let mut registrations = Vec::new();
        // Treat an unreadable section as missing, so that its functions get derived rules.
        if let Some(range) = object.object.eh_frame()
            && let Ok(bytes) = checked_read::copy(range)
        {
            // `Unknown`, because a JIT may still have registered the section with libgcc.
            let by_host = if object.origin.registers_with_unwinders() { ByHost::Everything } else { ByHost::Unknown };
            let section = Section::new(&bytes, range.start().0 as usize).text(&text_ranges).by_host(by_host);
            registrations.extend(register(&section, object.id));
        }
        if !object.derived_rules.is_empty() {
            // Registration copies the bytes, so they need not be at the address that they are encoded for.
            let address = cfi::address_after(object.derived_rules);
            if let Ok(bytes) = cfi::encode(object.derived_rules, object.object.machine(), address) {
                // libgcc 13 and later keep one range per section, and would abort if we filled a gap in a section that
                // the host has registered.
                let has_registered_section =
                    object.origin.registers_with_unwinders() && object.object.eh_frame().is_some();
                let section = Section::new(&bytes, address.0 as usize)
                    .text(&text_ranges)
                    .by_host(by_host(has_registered_section));
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

    /// Keeps the registrations, because the child has a copy of the unwinders' memory.
    fn forked(&mut self) -> SinkState {
        SinkState::Kept
    }
}

fn by_host(registers_all: bool) -> ByHost {
    if registers_all { ByHost::Everything } else { ByHost::Nothing }
}

fn register(section: &Section<'_>, id: ObjectId) -> Option<Registration> {
    // SAFETY: the code and tables of an object are final from the moment the session reports it until *freeing*, when
    // the registration is dropped. The rules are the compiler's own, or were derived from the code.
    let registered = unsafe { Registry::process().register_with_known_unwinders(section) };
    registered.inspect_err(|error| log_line!(Debug, "cannot register object {id} with unwinders: {error}")).ok()
}

fn to_usize_ranges(ranges: impl Iterator<Item = AddressRange>) -> Vec<Range<usize>> {
    ranges.map(|range| range.start().0 as usize..range.end().0 as usize).collect()
}

/// Result of the search for unwinders in the process's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwinderSearch {
    /// All unwinders are known.
    Known,
    /// The search was skipped, because no object needs to be registered yet.
    NotNeeded,
    /// The loader has not yet relocated a library with an unwinder, so the search must be repeated later.
    Unrelocated,
}

/// Searches the libraries loaded since the last search for unwinders. Takes the loader's locks.
pub(crate) fn find_unwinders() -> UnwinderSearch {
    let scan = Registry::process().rescan();
    if scan.added > 0 {
        log_line!(Info, "{} unwinders found", scan.added);
    }
    for error in scan.ignored {
        log_line!(Warn, "ignoring an unwinder: {error}");
    }
    if scan.pending > 0 { UnwinderSearch::Unrelocated } else { UnwinderSearch::Known }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfi::{Cfa, FunctionRules, UnwindRow};
    use crate::{Address, Machine, Offset};

    /// Code that never runs, at addresses that no other code uses.
    static CODE: [u8; 0x9c] = [0; 0x9c];

    /// Three functions without a frame. Those at 0x50 and 0x80 lie at the addresses that their pointers would have in a
    /// section that starts with the first function.
    fn functions() -> Vec<FunctionRules> {
        let (register, offset) = if cfg!(target_arch = "aarch64") { (31, 0) } else { (7, 8) };
        let rows = vec![UnwindRow { offset: Offset(0), cfa: Cfa { register, offset }, saved: Vec::new() }];
        let base = CODE.as_ptr() as u64;
        let range = |(start, end)| AddressRange::new(Address(base + start), end - start).expect("a range");
        [(0, 0x50), (0x50, 0x80), (0x80, 0x9c)]
            .map(|bounds| FunctionRules { range: range(bounds), rows: rows.clone() })
            .into()
    }

    #[test]
    fn every_function_with_derived_rules_is_registered() {
        let functions = functions();
        let address = cfi::address_after(&functions);
        let bytes = cfi::encode(&functions, Machine::HERE, address).expect("encodes");
        let section = Section::new(&bytes, address.0 as usize).by_host(ByHost::Nothing);
        // SAFETY: no stack contains these addresses, so no unwinder follows the rules. The section and the functions
        // outlive the call.
        let registration = unsafe { Registry::process().register(&section) }.expect("registers");
        assert_eq!((registration.coverage().covered, registration.coverage().ignored), (3, 0));
    }
}
