//! Unwind rules of one file.

use std::fs::File;
use std::path::{Path, PathBuf};

use jitlisten_files::open_regular;
use jitlisten_unwinder::{Entry, Rule, Section};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, elf};

use super::machine::{Machine, Registers, Row};
use crate::lookup::segments::Segments;
use crate::lookup::{build_ids_match, candidates};

/// Maximum size of an unwind section; longer ones are not read.
const MAX_SECTION_BYTES: u64 = 256 << 20;
/// Maximum number of functions in one file.
const MAX_ENTRIES: usize = 4 << 20;

/// Unwind table of one mapped file.
pub(super) struct Module {
    segments: Segments,
    section: Vec<u8>,
    address: u64,
    machine: Machine,
    /// Functions, ordered by address.
    entries: Vec<FunctionEntry>,
}

/// Address range of a function, and position of its entry.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FunctionEntry {
    start: u64,
    end: u64,
    /// Offset of the entry in the section.
    offset: usize,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Module").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

/// Reason why a walk ends.
pub(super) enum End {
    /// The outermost frame is reached.
    Outermost,
    /// A required value is beyond the end of the copy.
    BeyondCopy,
    Failed,
}

impl Module {
    pub(super) fn open(roots: &[PathBuf], path: &Path, build_id: &[u8], machine: Machine) -> Option<Module> {
        candidates(roots, path).find_map(|path| Module::open_file(&path, build_id, machine))
    }

    fn open_file(path: &Path, build_id: &[u8], machine: Machine) -> Option<Module> {
        let file = open_regular(path).ok()?;
        let cache = ReadCache::new(file);
        let file = ElfFile64::<Endianness, &ReadCache<File>>::parse(&cache).ok()?;
        let file_build_id = file.build_id().ok().flatten().unwrap_or_default();
        if !build_id.is_empty() && !file_build_id.is_empty() && !build_ids_match(file_build_id, build_id) {
            return None;
        }
        let expected = match machine {
            Machine::X86_64 => elf::EM_X86_64,
            Machine::Aarch64 => elf::EM_AARCH64,
        };
        let endian = file.endian();
        if endian != Endianness::Little || file.elf_header().e_machine.get(endian) != expected {
            return None;
        }
        let segments = Segments::from_headers(file.elf_program_headers(), endian);
        let eh_frame = file.section_by_name(".eh_frame").filter(|section| section.size() < MAX_SECTION_BYTES)?;
        let section = eh_frame.data().ok()?.to_vec();
        let address = eh_frame.address();
        let entries = entries(table(&section, address));
        Some(Module { segments, section, address, machine, entries })
    }

    /// Replaces `registers` with the caller's. Returns true if a signal interrupted the caller, so that its address is
    /// exact. Returns `None` if no rule covers the address.
    pub(super) fn step(
        &self,
        registers: &mut Registers,
        offset: u64,
        is_first: bool,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Option<Result<bool, End>> {
        let address = self.segments.address_of_offset(offset)?;
        let index = self.entries.partition_point(|function| function.start <= address).checked_sub(1)?;
        let function = self.entries.get(index).filter(|function| address < function.end)?;
        let entry = table(&self.section, self.address).entry(function.offset).ok()?;
        let row = Row::find(&entry, address, self.machine)?;
        Some(caller_registers(&entry, &row, registers, is_first, read).map(|caller| {
            *registers = caller;
            entry.common.is_signal_frame
        }))
    }
}

fn table(bytes: &[u8], address: u64) -> Section<'_> {
    Section { bytes, address, data_base: None }
}

fn entries(section: Section<'_>) -> Vec<FunctionEntry> {
    let entry = |record: jitlisten_unwinder::Record| {
        let entry = section.entry_of(record, section.common(record.common?).ok()?).ok()?;
        Some(FunctionEntry { start: entry.start, end: entry.start.checked_add(entry.size)?, offset: record.start })
    };
    let mut functions: Vec<_> = section.records(0).map_while(Result::ok).filter_map(entry).take(MAX_ENTRIES).collect();
    functions.sort_unstable();
    functions
}

fn caller_registers(
    entry: &Entry<'_>,
    row: &Row,
    registers: &Registers,
    is_first: bool,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<Registers, End> {
    let stack = registers.stack_pointer();
    let register_value = |number: u64| u16::try_from(number).ok().and_then(|number| registers.get(number));
    let mut is_beyond_copy = false;
    let mut load = |address: u64| {
        let value = read(address);
        is_beyond_copy |= value.is_none();
        value
    };
    let frame_address = row.frame_address(entry.section, &register_value, &mut load);
    let frame_address = frame_address.ok_or(if is_beyond_copy { End::BeyondCopy } else { End::Failed })?;
    // The stack grows downwards, so a caller's frame has a higher address.
    if frame_address < stack {
        return Err(End::Failed);
    }
    let mut caller = registers.clone();
    for ((number, value), rule) in caller.values.iter_mut().enumerate().zip(&row.rules) {
        let old_value = registers.values[number];
        let is_saved = registers.is_callee_saved(number);
        // Memory below the stack pointer is not in the copy, but a register saved there has already been restored. A
        // value beyond the end of the copy is unknown, which is an error only if the value is needed.
        let mut load = |address: u64| read(address).or(old_value.filter(|_| address < stack && is_saved));
        *value = match *rule {
            Rule::Expression(start) => {
                let address = Rule::ValueExpression(start);
                address
                    .value(entry.section, frame_address, None, &register_value, &mut |address| read(address))
                    .and_then(load)
            }
            rule => {
                rule.value(entry.section, frame_address, old_value.filter(|_| is_saved), &register_value, &mut load)
            }
        };
    }
    let stack_column = caller.stack_column();
    if let Some(Rule::Same | Rule::Undefined) = row.rules.get(stack_column) {
        caller.values[stack_column] = Some(frame_address);
    }
    // A leaf function may still hold its return address in a register. Any other frame has saved the return address, or
    // is the outermost one.
    let column = usize::try_from(entry.common.return_address).map_err(|_| End::Failed)?;
    let return_address = match row.rules.get(column) {
        Some(Rule::Undefined) => return Err(End::Outermost),
        None | Some(Rule::Same) if !is_first => return Err(End::Outermost),
        _ => caller.values.get(column).copied().flatten(),
    };
    let return_address = caller.code_address(return_address.ok_or(End::BeyondCopy)?);
    if return_address == 0 {
        return Err(End::Outermost);
    }
    caller.pc = return_address;
    Ok(caller)
}
