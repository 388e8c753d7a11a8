//! The unwind rules of one file.

use std::fs::File;
use std::path::{Path, PathBuf};

use jitlisten_files::open_regular;
use jitlisten_unwinder::{Entry, Rule, Section};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, elf};

use super::machine::{Machine, Registers, Row};
use crate::lookup::{build_ids_match, candidates};
use crate::segments::Segments;

/// A section of rules that is longer is not read.
const LONGEST_SECTION: u64 = 256 << 20;
/// Functions of one file.
const MOST_ENTRIES: usize = 4 << 20;

/// See the module's head.
pub(super) struct Module {
    segments: Segments,
    section: Vec<u8>,
    /// Where the section is.
    address: u64,
    machine: Machine,
    /// By address.
    entries: Vec<Place>,
}

/// Where the entry of a function is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    start: u64,
    end: u64,
    /// In the section.
    offset: usize,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Module").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

/// Where a step leads.
pub(super) enum Step {
    Caller { is_signal_frame: bool },
    Outermost,
    BehindTheCopy,
    Broken,
}

/// A rule that cannot be followed.
enum Stop {
    BehindTheCopy,
    Broken,
}

impl Module {
    pub(super) fn open(roots: &[PathBuf], path: &Path, build_id: &[u8], machine: Machine) -> Option<Module> {
        candidates(roots, path).find_map(|path| Module::open_one(&path, build_id, machine))
    }

    fn open_one(path: &Path, build_id: &[u8], machine: Machine) -> Option<Module> {
        let file = open_regular(path).ok()?;
        let cache = ReadCache::new(file);
        let file = ElfFile64::<Endianness, &ReadCache<File>>::parse(&cache).ok()?;
        let own = file.build_id().ok().flatten().unwrap_or_default();
        if !build_id.is_empty() && !own.is_empty() && !build_ids_match(own, build_id) {
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
        let segments = Segments::of(file.elf_program_headers(), endian);
        let found = file.section_by_name(".eh_frame").filter(|section| section.size() < LONGEST_SECTION)?;
        let section = found.data().ok()?.to_vec();
        let address = found.address();
        let entries = entries(table(&section, address));
        Some(Module { segments, section, address, machine, entries })
    }

    /// Changes `registers` to those of the caller; nothing where there is no rule for the address.
    pub(super) fn step(
        &self,
        registers: &mut Registers,
        offset: u64,
        is_first: bool,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Option<Step> {
        let address = self.segments.address_of_offset(offset)?;
        let last = self.entries.partition_point(|place| place.start <= address).checked_sub(1)?;
        let place = self.entries.get(last).filter(|place| address < place.end)?;
        let entry = table(&self.section, self.address).entry(place.offset).ok()?;
        let row = Row::find(&entry, address, self.machine)?;
        Some(match caller(&entry, &row, registers, is_first, read) {
            Ok(Some(caller)) => {
                *registers = caller;
                Step::Caller { is_signal_frame: entry.common.is_signal_frame }
            }
            Ok(None) => Step::Outermost,
            Err(Stop::BehindTheCopy) => Step::BehindTheCopy,
            Err(Stop::Broken) => Step::Broken,
        })
    }
}

fn table(bytes: &[u8], address: u64) -> Section<'_> {
    Section { bytes, address, data_base: None }
}

fn entries(section: Section<'_>) -> Vec<Place> {
    let entry = |record: jitlisten_unwinder::Record| {
        let entry = section.entry_of(record, section.common(record.common?).ok()?).ok()?;
        Some(Place { start: entry.start, end: entry.start.checked_add(entry.size)?, offset: record.start })
    };
    let mut all: Vec<_> = section.records(0).map_while(Result::ok).filter_map(entry).take(MOST_ENTRIES).collect();
    all.sort_unstable();
    all
}

/// The caller's registers; `None` for the outermost frame.
fn caller(
    entry: &Entry<'_>,
    row: &Row,
    registers: &Registers,
    is_first: bool,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<Option<Registers>, Stop> {
    let stack = registers.stack_pointer();
    let known = |number: u64| u16::try_from(number).ok().and_then(|number| registers.get(number));
    let mut is_behind = false;
    let mut load = |address: u64| {
        let value = read(address);
        is_behind |= value.is_none();
        value
    };
    let base = row.frame_address(entry.section, &known, &mut load);
    let base = base.ok_or(if is_behind { Stop::BehindTheCopy } else { Stop::Broken })?;
    // The stack grows downwards: a caller's frame is above.
    if base < stack {
        return Err(Stop::Broken);
    }
    let mut caller = registers.clone();
    for ((number, value), rule) in caller.values.iter_mut().enumerate().zip(&row.rules) {
        let own = registers.values[number];
        let is_kept = registers.is_kept(number);
        // What is below the stack pointer is not in the copy; a register whose place is there has been restored
        // already. One that is behind the end is not known, which matters only if it is needed.
        let mut load = |address: u64| read(address).or(own.filter(|_| address < stack && is_kept));
        *value = match *rule {
            Rule::Expression(start) => {
                let address = Rule::ValueExpression(start);
                address.value(entry.section, base, None, &known, &mut |address| read(address)).and_then(load)
            }
            rule => rule.value(entry.section, base, own.filter(|_| is_kept), &known, &mut load),
        };
    }
    let stack_column = caller.stack_column();
    if let Some(Rule::Same | Rule::Undefined) = row.rules.get(stack_column) {
        caller.values[stack_column] = Some(base);
    }
    // A leaf may have its return address in a register; any other frame has saved it, or is the outermost.
    let column = usize::try_from(entry.common.return_address).map_err(|_| Stop::Broken)?;
    let back = match row.rules.get(column) {
        Some(Rule::Undefined) => return Ok(None),
        None | Some(Rule::Same) if !is_first => return Ok(None),
        _ => caller.values.get(column).copied().flatten(),
    };
    let back = caller.address(back.ok_or(Stop::BehindTheCopy)?);
    if back == 0 {
        return Ok(None);
    }
    caller.pc = back;
    Ok(Some(caller))
}
