//! Unwinder for stack copies: `perf record --call-graph dwarf` stores registers and part of the stack with each sample,
//! and the reader unwinds it.
//!
//! The unwind rules come from the `.eh_frame` section of the mapped files, including images. The `jitlisten-unwinder`
//! crate evaluates them, as in the sampler. Code without a rule is unwound by its frame pointer. CPython's perf
//! trampolines lack rules, but all have the same frame layout. A return address outside of all mappings is rejected.
//! The unwinder reads only the stack copy and the files, and trusts neither.

mod machine;
mod module;

use std::path::PathBuf;

use rustc_hash::FxHashMap;

pub(crate) use machine::Machine;
use machine::Registers;
use module::{End, Module};

use crate::path_text::path_of_text;

const MAX_FRAMES: usize = 1024;

/// Registers and stack of a sample's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackCopy<'a> {
    /// Bit mask of the `PERF_REG_*` numbers that are present.
    pub(crate) mask: u64,
    /// Register values, eight bytes each.
    pub(crate) registers: &'a [u8],
    /// Copy of the stack, from the stack pointer on.
    pub(crate) stack: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedAddress<'a> {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) path: &'a str,
    pub(crate) build_id: &'a [u8],
}

/// Open files, and counts of incomplete walks.
#[derive(Debug, Default)]
pub(crate) struct Unwinder {
    roots: Vec<PathBuf>,
    machine: Machine,
    modules: FxHashMap<u32, Option<Module>>,
    /// Number of stacks that end because the caller was not found. Excludes stacks that end at the outermost frame or
    /// at the end of the copy.
    pub(crate) failed_walks: u64,
    /// Number of stacks that continue beyond the end of the copy.
    pub(crate) truncated_walks: u64,
}

impl Unwinder {
    pub(crate) fn new(roots: &[PathBuf], machine: Machine) -> Unwinder {
        Unwinder { roots: roots.to_vec(), machine, ..Unwinder::default() }
    }

    /// Unwinds a stack and returns its addresses, innermost first. The address of a caller is the last byte of its
    /// call.
    pub(crate) fn walk<'m>(
        &mut self,
        stack_copy: &StackCopy<'_>,
        find_mapping: impl Fn(u64) -> Option<MappedAddress<'m>>,
    ) -> Vec<u64> {
        let Some(mut registers) = Registers::new(self.machine, stack_copy) else { return Vec::new() };
        let (start, stack) = (registers.stack_pointer(), stack_copy.stack);
        let read = move |address: u64| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            stack.get(offset..offset.checked_add(8)?)?.try_into().map(u64::from_le_bytes).ok()
        };
        let mut frames = Vec::new();
        let mut is_exact = true;
        let mut callee: Option<u32> = None;
        while frames.len() < MAX_FRAMES {
            let address = if is_exact { registers.pc } else { registers.pc.wrapping_sub(1) };
            let mapped = find_mapping(address);
            if !frames.is_empty() && mapped.is_none() {
                self.failed_walks += 1;
                break;
            }
            frames.push(address);
            let previous = (registers.pc, registers.stack_pointer());
            match self.step(&mut registers, mapped, callee, frames.len() == 1, &find_mapping, &read) {
                Ok(caller_is_exact) if (registers.pc, registers.stack_pointer()) != previous => {
                    is_exact = caller_is_exact;
                }
                Err(End::Outermost) => break,
                Err(End::BeyondCopy) => {
                    self.truncated_walks += 1;
                    break;
                }
                Ok(_) | Err(End::Failed) => {
                    self.failed_walks += 1;
                    break;
                }
            }
            callee = mapped.map(|mapped| mapped.file);
        }
        frames
    }

    /// Steps to the caller. Returns true if the caller's address is exact, not a return address.
    fn step<'m>(
        &mut self,
        registers: &mut Registers,
        mapped: Option<MappedAddress<'m>>,
        callee: Option<u32>,
        is_first: bool,
        find_mapping: &impl Fn(u64) -> Option<MappedAddress<'m>>,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Result<bool, End> {
        if let Some(mapped) = mapped
            && let Some(module) = self.module(mapped)
            && let Some(step) = module.step(registers, mapped.offset, is_first, read)
        {
            return step;
        }
        // Trampolines occur between two frames of the interpreter.
        let in_interpreter = |address: u64| {
            callee.is_some() && find_mapping(address.wrapping_sub(1)).map(|mapped| mapped.file) == callee
        };
        if mapped.is_none_or(|mapped| is_anonymous(mapped.path)) && registers.step_over_trampoline(read, in_interpreter)
        {
            return Ok(false);
        }
        if registers.step_by_frame_pointer(read) { Ok(false) } else { Err(End::Failed) }
    }

    fn module(&mut self, mapped: MappedAddress<'_>) -> Option<&mut Module> {
        let (roots, machine) = (&self.roots, self.machine);
        let open = || {
            (!is_anonymous(mapped.path))
                .then(|| Module::open(roots, &path_of_text(mapped.path), mapped.build_id, machine))?
        };
        self.modules.entry(mapped.file).or_insert_with(open).as_mut()
    }
}

fn is_anonymous(path: &str) -> bool {
    !path.starts_with('/') || path.starts_with("//anon")
}
