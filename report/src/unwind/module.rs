//! The unwind rules of one file.

use std::fs::File;
use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection as _, UnwindTableRow, Value,
};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, elf};

use super::machine::{Machine, Registers};
use crate::lookup::{candidates, open_file, same_id};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A section of rules that is longer is not read.
const LONGEST_SECTION: u64 = 256 << 20;
/// Functions of one file.
const MOST_ENTRIES: usize = 4 << 20;
/// Steps of an expression.
const MOST_STEPS: usize = 200;

/// See the module's head.
pub(super) struct Module {
    /// Executable parts: offset in the file, length, address.
    segments: Vec<(u64, u64, u64)>,
    section: Vec<u8>,
    bases: BaseAddresses,
    vendor: gimli::Vendor,
    /// Begin and end of each function, and its place in the section.
    entries: Vec<(u64, u64, usize)>,
    context: Box<UnwindContext<usize>>,
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
        let file = open_file(path).ok()?;
        let cache = ReadCache::new(file);
        let file = ElfFile64::<Endianness, &ReadCache<File>>::parse(&cache).ok()?;
        let own = file.build_id().ok().flatten().unwrap_or_default();
        if !build_id.is_empty() && !own.is_empty() && !same_id(own, build_id) {
            return None;
        }
        let (expected, vendor) = match machine {
            Machine::X86_64 => (elf::EM_X86_64, gimli::Vendor::Default),
            Machine::Aarch64 => (elf::EM_AARCH64, gimli::Vendor::AArch64),
        };
        let endian = file.endian();
        if endian != Endianness::Little || file.elf_header().e_machine.get(endian) != expected {
            return None;
        }
        let headers = file.elf_program_headers().iter();
        let segments = headers
            .filter(|header| header.p_type(endian) == elf::PT_LOAD)
            .map(|header| (header.p_offset(endian), header.p_filesz(endian), header.p_vaddr(endian)))
            .collect();
        let found = file.section_by_name(".eh_frame").filter(|section| section.size() < LONGEST_SECTION)?;
        let section = found.data().ok()?.to_vec();
        let mut bases = BaseAddresses::default().set_eh_frame(found.address());
        if let Some(text) = file.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        let entries = entries(&section, &bases, vendor);
        let context = Box::new(UnwindContext::new());
        Some(Module { segments, section, bases, vendor, entries, context })
    }

    fn address_of_offset(&self, offset: u64) -> Option<u64> {
        if self.segments.is_empty() {
            return Some(offset);
        }
        let inside = |(start, length, _): &&(u64, u64, u64)| offset.checked_sub(*start).is_some_and(|at| at < *length);
        let (start, _, address) = self.segments.iter().find(inside)?;
        (offset - start).checked_add(*address)
    }

    /// Changes `registers` to those of the caller; nothing where there is no rule for the address.
    pub(super) fn step(
        &mut self,
        registers: &mut Registers,
        at: u64,
        offset: u64,
        is_first: bool,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Option<Step> {
        let address = self.address_of_offset(offset)?;
        let last = self.entries.partition_point(|(start, ..)| *start <= address).checked_sub(1)?;
        let (_, _, place) = self.entries.get(last).filter(|(_, end, _)| address < *end)?;
        let mut section = EhFrame::new(&self.section, LittleEndian);
        section.set_vendor(self.vendor);
        let entry =
            section.fde_from_offset(&self.bases, gimli::EhFrameOffset(*place), EhFrame::cie_from_offset).ok()?;
        let row = entry.unwind_info_for_address(&section, &self.bases, &mut self.context, address).ok()?;
        let bias = at.wrapping_sub(address);
        let rules = Rules { section: &section, encoding: entry.cie().encoding(), bias, read };
        let column = entry.cie().return_address_register();
        Some(rules.follow(row, registers, column, is_first, entry.is_signal_trampoline()))
    }
}

fn entries(section: &[u8], bases: &BaseAddresses, vendor: gimli::Vendor) -> Vec<(u64, u64, usize)> {
    let mut frames = EhFrame::new(section, LittleEndian);
    frames.set_vendor(vendor);
    let mut all = Vec::new();
    let mut found = frames.entries(bases);
    while all.len() < MOST_ENTRIES {
        let Ok(Some(entry)) = found.next() else { break };
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(entry) = partial.parse(EhFrame::cie_from_offset) else { continue };
        let Some(end) = entry.initial_address().checked_add(entry.len()) else { continue };
        all.push((entry.initial_address(), end, entry.offset()));
    }
    all.sort_unstable();
    all
}

/// What is needed to follow the rules of a row.
struct Rules<'a, 's, F> {
    section: &'a EhFrame<Slice<'s>>,
    encoding: gimli::Encoding,
    /// Address in the process minus address in the file.
    bias: u64,
    read: &'a F,
}

impl<F: Fn(u64) -> Option<u64>> Rules<'_, '_, F> {
    fn follow(
        &self,
        row: &UnwindTableRow<usize>,
        registers: &mut Registers,
        column: gimli::Register,
        is_first: bool,
        is_signal_frame: bool,
    ) -> Step {
        let caller = match self.caller(row, registers, column, is_first) {
            Ok(Some(caller)) => caller,
            Ok(None) => return Step::Outermost,
            Err(Stop::BehindTheCopy) => return Step::BehindTheCopy,
            Err(Stop::Broken) => return Step::Broken,
        };
        *registers = caller;
        Step::Caller { is_signal_frame }
    }

    fn caller(
        &self,
        row: &UnwindTableRow<usize>,
        registers: &Registers,
        column: gimli::Register,
        is_first: bool,
    ) -> Result<Option<Registers>, Stop> {
        let base = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                registers.get(register.0).ok_or(Stop::Broken)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => self.evaluate(expression, registers, None)?,
        };
        // The stack grows downwards: a caller's frame is above.
        if base < registers.stack_pointer() {
            return Err(Stop::Broken);
        }
        let mut caller = registers.clone();
        for number in 0..caller.values.len() {
            let rule = row.register(gimli::Register(number as u16));
            caller.values[number] = match rule {
                None => registers.values[number].filter(|_| caller.is_kept(number)),
                Some(rule) => self.value(&rule, number, base, registers)?,
            };
        }
        caller.values[caller.stack_column()] = match row.register(gimli::Register(caller.stack_column() as u16)) {
            Some(rule) if !matches!(rule, RegisterRule::Undefined) => caller.values[caller.stack_column()],
            _ => Some(base),
        };
        // A leaf may have its return address in a register; any other frame has saved it, or is the outermost.
        let back = match row.register(column) {
            Some(RegisterRule::Undefined) => return Ok(None),
            None if !is_first => return Ok(None),
            _ => caller.get(column.0),
        };
        let back = caller.address(back.ok_or(Stop::BehindTheCopy)?);
        if back == 0 {
            return Ok(None);
        }
        caller.pc = back;
        Ok(Some(caller))
    }

    fn value(
        &self,
        rule: &RegisterRule<usize>,
        number: usize,
        base: u64,
        registers: &Registers,
    ) -> Result<Option<u64>, Stop> {
        let stack = registers.stack_pointer();
        // What is below the stack pointer is not in the copy; a register whose place is there has been restored already. One
        // that is behind the end is not known, which matters only if it is needed.
        let load = |address: u64| match (self.read)(address) {
            None if address < stack && registers.is_kept(number) => registers.values[number],
            found => found,
        };
        Ok(match rule {
            RegisterRule::SameValue => registers.values[number],
            RegisterRule::Offset(offset) => load(base.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(base.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => registers.get(other.0),
            RegisterRule::Expression(expression) => load(self.evaluate(expression, registers, Some(base))?),
            RegisterRule::ValExpression(expression) => Some(self.evaluate(expression, registers, Some(base))?),
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        })
    }

    /// The value of an expression, which begins with the frame's address on its stack unless it is what gives that.
    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        registers: &Registers,
        base: Option<u64>,
    ) -> Result<u64, Stop> {
        let broken = |_| Stop::Broken;
        let mut evaluation = expression.get(self.section).map_err(broken)?.evaluation(self.encoding);
        if let Some(base) = base {
            evaluation.set_initial_value(base);
        }
        evaluation.set_max_iterations(MOST_STEPS as u32);
        let mut result = evaluation.evaluate().map_err(broken)?;
        for _ in 0..MOST_STEPS {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = registers.get(register.0).ok_or(Stop::Broken)?;
                    evaluation.resume_with_register(Value::Generic(value)).map_err(broken)?
                }
                EvaluationResult::RequiresMemory { address, .. } => {
                    let value = (self.read)(address).ok_or(Stop::BehindTheCopy)?;
                    evaluation.resume_with_memory(Value::Generic(value)).map_err(broken)?
                }
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address.wrapping_add(self.bias)).map_err(broken)?
                }
                _ => return Err(Stop::Broken),
            };
        }
        match evaluation.result().as_slice() {
            [piece] => match piece.location {
                Location::Address { address } => Ok(address),
                Location::Value { value: Value::Generic(value) } => Ok(value),
                _ => Err(Stop::Broken),
            },
            _ => Err(Stop::Broken),
        }
    }
}
