//! Where an LLVM with dynamic symbols generates code for a module: the last moment at which its functions can get frame pointers and
//! unwind tables ([`crate::attributes`]), whoever has made them.
//!
//! | engine | virtual function | under which lock |
//! | --- | --- | --- |
//! | MCJIT | `MCJIT::generateCodeForModule(Module *)` | the engine's, or none yet |
//! | ORC | `orc::SimpleCompiler::operator()(Module &)`, `orc::ConcurrentIRCompiler::operator()(Module &)` | that of the module's context |
//!
//! # Nothing is taken on trust
//! * A slot is changed only where it holds the address of the dynamic symbol of just that function: no number of slots is believed.
//! * The release must be known (the versions of the symbols, or `LLVMGetVersion`), and every C function that is called must be there.
//! * `this` must have the vtable that was found, and the module must be for this machine: bpftrace compiles for another one.
//! * MCJIT takes its lock inside the function. While another thread is in it with the same engine, a module is left as it is:
//!   modules of one context must not be changed while one is compiled.
//!
//! Functions that pass an argument in the frame pointer's register (GHC's convention and its like) keep it. An LLVM whose C functions are
//! not exported is left alone: llvmlite's are in `.symtab` and have entry points of their own (`llvmlite.rs`).

pub(crate) mod hook;

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use once_cell::race::OnceBox;

use crate::attributes::{Exported, LlvmC};
use crate::hook_table::{CODE_GENERATORS, GenerateCode, SLOTS};
use crate::library::Library;
use crate::vtable::{mapped, patch, words};

/// A class, the function in its vtable, and which word of a call is the module.
struct Point {
    class: &'static str,
    function: &'static str,
    module: usize,
}

const POINTS: [Point; CODE_GENERATORS] = [
    Point { class: "N4llvm5MCJITE", function: "_ZN4llvm5MCJIT21generateCodeForModuleEPNS_6ModuleE", module: 1 },
    // The result's address comes first.
    Point { class: "N4llvm3orc14SimpleCompilerE", function: SIMPLE_COMPILER, module: 2 },
    Point { class: "N4llvm3orc22TMOwningSimpleCompilerE", function: SIMPLE_COMPILER, module: 2 },
    Point {
        class: "N4llvm3orc20ConcurrentIRCompilerE",
        function: "_ZN4llvm3orc20ConcurrentIRCompilerclERNS_6ModuleE",
        module: 2,
    },
];

const SIMPLE_COMPILER: &str = "_ZN4llvm3orc14SimpleCompilerclERNS_6ModuleE";
const MCJIT: usize = 0;

/// Engines that generate code at the same time, of one LLVM. With more, modules stay as they are.
const MOST_ENGINES: usize = 32;

/// Why functions get neither frame pointers nor unwind tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No vtable has a slot with the function's symbol.
    Missing,
    /// C functions that it takes are not exported.
    NotExported,
    /// `JITLISTEN_LLVM` leaves vtables alone.
    Unwanted,
    /// Calls are written down for x86-64 only.
    Architecture,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Missing => "its engines have no symbols",
            Refusal::NotExported => "its C functions are not exported",
            Refusal::Unwanted => "switched off",
            Refusal::Architecture => "not done on this architecture",
        })
    }
}

/// What the hooks of one LLVM need. They run without any lock of ours.
struct Generator {
    points: [Hooked; CODE_GENERATORS],
    exported: Exported,
    /// As far as the versions of its symbols say.
    version: Option<u32>,
    llvm: OnceBox<Option<LlvmC>>,
    /// The MCJITs that threads are in.
    engines: [AtomicUsize; MOST_ENGINES],
}

#[derive(Default)]
struct Hooked {
    original: AtomicUsize,
    /// What objects of the class point at.
    vtable: AtomicUsize,
}

/// Each lives for ever: a call may be on its way. The place of one that was closed is given to the next.
static TABLE: [AtomicPtr<Generator>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

fn at(slot: usize) -> Option<&'static Generator> {
    // SAFETY: null, or leaked in `attach`.
    unsafe { TABLE.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Puts `hooks` where the LLVM in `library` generates code. `slot` is its place in the table of sources.
///
/// # Safety
/// As for `runtime_dyld::attach`.
pub(crate) unsafe fn attach(
    library: &Library,
    slot: usize,
    hooks: [GenerateCode; CODE_GENERATORS],
) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    let exported = unsafe { Exported::find(library) }.ok_or(Refusal::NotExported)?;
    if !cfg!(target_arch = "x86_64") {
        return Err(Refusal::Architecture);
    }
    // SAFETY: the caller's promise.
    let vtables = unsafe { mapped::exported_vtables(library, &POINTS.map(|point| point.class)) };
    let found = vtables.iter().filter_map(|vtable| {
        let function = library.dynamic_address(POINTS[vtable.class].function)? as u64;
        Some((vtable, vtable.slots.iter().position(|&address| address == function)?))
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() {
        return Err(Refusal::Missing);
    }
    let release = library.llvm_version();
    let version = release.and_then(|release| release.split('.').next()?.parse().ok());
    let (llvm, engines) = (OnceBox::new(), [const { AtomicUsize::new(0) }; MOST_ENGINES]);
    let generator = Generator { points: Default::default(), exported, version, llvm, engines };
    let generator: &Generator = Box::leak(Box::new(generator));
    for (vtable, index) in &found {
        let hooked = &generator.points[vtable.class];
        hooked.original.store(vtable.slots[*index] as usize, Ordering::Relaxed);
        hooked.vtable.store(vtable.address_point as usize, Ordering::Relaxed);
    }
    TABLE.get(slot).ok_or(Refusal::Missing)?.store(ptr::from_ref(generator).cast_mut(), Ordering::Release);
    for (vtable, index) in found {
        // SAFETY: the caller's promise; the hook passes on whatever it is called with.
        if let Err(error) = unsafe { patch::exchange(library, vtable, index, hooks[vtable.class] as usize) } {
            let path = library.path.display();
            log_line!(Info, "{path}: {} stays as it is: {error}", POINTS[vtable.class].class);
        }
    }
    Ok(())
}

/// While it lives, a thread is in an MCJIT.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Generator {
    /// Calls the function that a hook stands for.
    ///
    /// # Safety
    /// Only that hook may, with the words it was called with.
    unsafe fn call_original(&self, point: usize, words: [usize; 8]) -> usize {
        let [a, b, c, d, e, f, g, h] = words;
        let original = self.points[point].original.load(Ordering::Relaxed);
        // SAFETY: the function that was in the slot; the vtable leads to the hook only once this is written.
        let original: GenerateCode = unsafe { std::mem::transmute(original) };
        // SAFETY: the host's own call, passed on.
        unsafe { original(a, b, c, d, e, f, g, h) }
    }

    /// Enters an engine. `None` where another thread is in it, or in too many.
    fn enter(&self, engine: usize) -> Option<Inside<'_>> {
        let inside = self.engines.iter().find_map(|entry| {
            let taken = entry.compare_exchange(0, engine, Ordering::AcqRel, Ordering::Acquire);
            taken.is_ok().then_some(Inside(entry))
        })?;
        let same = self.engines.iter().filter(|entry| entry.load(Ordering::Acquire) == engine).count();
        (same == 1).then_some(inside)
    }

    /// Gives the functions of the module of a call what they are to have.
    ///
    /// # Safety
    /// Only in the hook of this point, with the words it was called with.
    unsafe fn prepare(&self, point: usize, words_of_call: [usize; 8], policy: FramePointerPolicy) {
        let this = words_of_call[POINTS[point].module - 1];
        let module = words_of_call[POINTS[point].module];
        let class = words::<1>(this).map(|[class]| class);
        // A module begins with the address of its context.
        let context = words::<1>(module).map_or(0, |[context]| context);
        if class != Some(self.points[point].vtable.load(Ordering::Relaxed))
            || context == 0
            || !context.is_multiple_of(8)
        {
            return;
        }
        let Some(llvm) = self.llvm() else { return };
        // SAFETY: by the symbol of its function, this is a module of this LLVM that is about to be compiled; nothing else has it.
        unsafe {
            if self.exported.is_for_this_machine(module as *mut c_void) {
                llvm.policy(module as *mut c_void, policy);
            }
        }
    }

    /// The C functions, once the library runs.
    fn llvm(&self) -> Option<&LlvmC> {
        let find = || {
            let version = self.version.or_else(|| self.exported.version());
            let llvm = self.exported.llvm(version?);
            match &llvm {
                Some(_) => {
                    log_line!(Info, "LLVM {}: frame pointers and unwind tables can be had", version.unwrap_or_default())
                }
                None => log_line!(
                    Info,
                    "LLVM {}: code is left as it is: a release that is not known",
                    version.unwrap_or_default()
                ),
            }
            llvm
        };
        self.llvm.get_or_init(|| Box::new(find())).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_in_an_engine() {
        let exported = Exported::none();
        let (llvm, engines) = (OnceBox::new(), [const { AtomicUsize::new(0) }; MOST_ENGINES]);
        let generator = Generator { points: Default::default(), exported, version: None, llvm, engines };
        let first = generator.enter(0x10);
        assert!(first.is_some() && generator.enter(0x10).is_none());
        let second = generator.enter(0x20);
        assert!(second.is_some());
        drop(first);
        assert!(generator.enter(0x10).is_some());
        let all: Vec<_> = (1..MOST_ENGINES).map(|engine| generator.enter(engine * 0x100)).collect();
        assert!(all.iter().all(Option::is_some) && generator.enter(0x7).is_none());
    }
}
