//! Unwinds copied stacks: `perf record --call-graph dwarf` stores registers and a piece of the stack with each sample,
//! and the reader walks it.
//!
//! The rules are in the `.eh_frame` of the files that were mapped (images have one, too), and are evaluated by the
//! crate `jitlisten-unwinder`, as in the sampler. Code without a rule is left by its frame pointer, or, if it is one of
//! CPython's trampolines, by their one shape. A return address that is in no mapping is not believed. What is read is
//! the copy and the files; nothing in them is trusted.

mod machine;
mod module;

use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

pub(crate) use machine::Machine;
use machine::Registers;
use module::{Module, Step};

/// A stack has no more frames.
const MOST_FRAMES: usize = 1024;

/// What a sample has of its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied<'a> {
    /// `PERF_REG_*` numbers, a bit for each register that is there.
    pub(crate) mask: u64,
    /// Eight bytes for each.
    pub(crate) registers: &'a [u8],
    /// From the stack pointer on.
    pub(crate) stack: &'a [u8],
}

/// Where an address is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped<'a> {
    /// Index of the file.
    pub(crate) file: u32,
    /// Offset in it.
    pub(crate) offset: u64,
    pub(crate) path: &'a str,
    pub(crate) build_id: &'a [u8],
}

/// The files that are open, and how the walks ended.
#[derive(Debug, Default)]
pub(crate) struct Unwinder {
    roots: Vec<PathBuf>,
    machine: Machine,
    modules: FxHashMap<u32, Option<Module>>,
    /// Stacks that end at a frame whose caller could not be found, and not at the outermost one or at the end of the
    /// copy.
    pub(crate) broken: u64,
    /// Stacks that go on behind the end of the copy.
    pub(crate) cut: u64,
}

/// How a step to the caller ends.
enum Outcome {
    Caller {
        is_exact: bool,
    },
    /// The outermost frame.
    Outermost,
    /// Something that is needed is behind the end of the copy.
    BehindTheCopy,
    Broken,
}

impl Unwinder {
    pub(crate) fn new(roots: &[PathBuf], machine: Machine) -> Unwinder {
        Unwinder { roots: roots.to_vec(), machine, ..Unwinder::default() }
    }

    /// The frames of a stack, the innermost first: the instruction, of callers the last byte of the call.
    pub(crate) fn walk<'m>(&mut self, copied: &Copied<'_>, find: impl Fn(u64) -> Option<Mapped<'m>>) -> Vec<u64> {
        let Some(mut registers) = Registers::new(self.machine, copied) else { return Vec::new() };
        let (start, stack) = (registers.stack_pointer(), copied.stack);
        let read = move |address: u64| {
            let at = usize::try_from(address.checked_sub(start)?).ok()?;
            stack.get(at..at.checked_add(8)?)?.try_into().map(u64::from_le_bytes).ok()
        };
        let mut frames = Vec::new();
        let mut is_exact = true;
        let mut callee: Option<u32> = None;
        while frames.len() < MOST_FRAMES {
            let at = if is_exact { registers.pc } else { registers.pc.wrapping_sub(1) };
            let mapped = find(at);
            if !frames.is_empty() && mapped.is_none() {
                self.broken += 1;
                break;
            }
            frames.push(at);
            let before = (registers.pc, registers.stack_pointer());
            match self.step(&mut registers, mapped, callee, frames.len() == 1, &find, &read) {
                Outcome::Caller { is_exact: exact } if (registers.pc, registers.stack_pointer()) != before => {
                    is_exact = exact;
                }
                Outcome::Outermost => break,
                Outcome::BehindTheCopy => {
                    self.cut += 1;
                    break;
                }
                Outcome::Caller { .. } | Outcome::Broken => {
                    self.broken += 1;
                    break;
                }
            }
            callee = mapped.map(|mapped| mapped.file);
        }
        frames
    }

    fn step<'m>(
        &mut self,
        registers: &mut Registers,
        mapped: Option<Mapped<'m>>,
        callee: Option<u32>,
        is_first: bool,
        find: &impl Fn(u64) -> Option<Mapped<'m>>,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Outcome {
        if let Some(mapped) = mapped
            && let Some(module) = self.module(mapped)
            && let Some(step) = module.step(registers, mapped.offset, is_first, read)
        {
            return match step {
                Step::Caller { is_signal_frame } => Outcome::Caller { is_exact: is_signal_frame },
                Step::Outermost => Outcome::Outermost,
                Step::BehindTheCopy => Outcome::BehindTheCopy,
                Step::Broken => Outcome::Broken,
            };
        }
        // A trampoline stands between two frames of the interpreter.
        let in_interpreter =
            |address: u64| callee.is_some() && find(address.wrapping_sub(1)).map(|mapped| mapped.file) == callee;
        if mapped.is_none_or(|mapped| is_anonymous(mapped.path)) && registers.leave_trampoline(read, in_interpreter) {
            return Outcome::Caller { is_exact: false };
        }
        match registers.leave_by_frame_pointer(read) {
            true => Outcome::Caller { is_exact: false },
            false => Outcome::Broken,
        }
    }

    fn module(&mut self, mapped: Mapped<'_>) -> Option<&mut Module> {
        let (roots, machine) = (&self.roots, self.machine);
        let open = || {
            (!is_anonymous(mapped.path))
                .then(|| Module::open(roots, Path::new(mapped.path), mapped.build_id, machine))?
        };
        self.modules.entry(mapped.file).or_insert_with(open).as_mut()
    }
}

fn is_anonymous(path: &str) -> bool {
    !path.starts_with('/') || path.starts_with("//anon")
}
