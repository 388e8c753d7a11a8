//! Hooks the code generation of an LLVM with dynamic symbols: the last moment at which functions can get frame pointers
//! ([`crate::frame_pointers::attributes`]). They get no unwind tables, because the host manages that memory, and LLVM
//! reads the tables when the engine ends.
//!
//! | engine | virtual function | under which lock |
//! | --- | --- | --- |
//! | MCJIT | `MCJIT::generateCodeForModule(Module *)` | the engine's, or none yet |
//! | ORC | `operator()(Module &)` of `SimpleCompiler`, `ConcurrentIRCompiler` | that of the module's context |
//! | the program's own | `LLVMTargetMachineEmitToMemoryBuffer`, no virtual function: see [`to_memory`] | |
//!
//! # Checks
//! * A word is patched only if it equals the address of the dynamic symbol of that function.
//! * The release must be known (symbol versions, or `LLVMGetVersion`), and every C function that is called must exist.
//! * The module must be for this machine: bpftrace compiles for another one.
//! * MCJIT takes its lock inside the function. While another thread is in it with the same engine, a module is not
//!   changed: modules of one context must not be changed while one is compiled.
//!
//! A class with inline constructors has its vtable in each library that uses it (lli, MLIR). Therefore the value of
//! each function in LLVM's symbol table is patched, too, and words in libraries that are relocated already.
//!
//! Functions that get an argument in the frame pointer's register (GHC's convention and similar), and those that call
//! such functions, get no frame pointer. An LLVM that does not export its C functions is ignored; llvmlite's are in
//! `.symtab`, with hooks of their own (`llvmlite.rs`).

pub(crate) mod hook;
mod to_memory;

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use once_cell::race::OnceBox;

use crate::frame_pointers::attributes::{Exported, LlvmC, UnwindTables};
use crate::hook_table::{CODE_GENERATORS, GenerateCode, SLOTS};
use crate::llvm::vtable::{mapped, patch, words};
use crate::process::detour::Callers;
use crate::process::library::Library;
use to_memory::ToMemory;

/// A function, the class in whose vtable it is, if it is in one, and which word of a call is the module.
struct Point {
    class: Option<&'static str>,
    function: &'static str,
    module: usize,
    /// Of those with this function.
    is_first: bool,
}

const POINTS: [Point; CODE_GENERATORS] = [
    Point {
        class: Some("N4llvm5MCJITE"),
        function: "_ZN4llvm5MCJIT21generateCodeForModuleEPNS_6ModuleE",
        module: 1,
        is_first: true,
    },
    // The result's address comes first.
    Point { class: Some("N4llvm3orc14SimpleCompilerE"), function: SIMPLE_COMPILER, module: 2, is_first: true },
    Point { class: Some("N4llvm3orc22TMOwningSimpleCompilerE"), function: SIMPLE_COMPILER, module: 2, is_first: false },
    Point {
        class: Some("N4llvm3orc20ConcurrentIRCompilerE"),
        function: "_ZN4llvm3orc20ConcurrentIRCompilerclERNS_6ModuleE",
        module: 2,
        is_first: true,
    },
    // Behind those with a class.
    Point { class: None, function: "LLVMTargetMachineEmitToMemoryBuffer", module: 1, is_first: true },
];

const SIMPLE_COMPILER: &str = "_ZN4llvm3orc14SimpleCompilerclERNS_6ModuleE";
const MCJIT: usize = 0;
const TO_MEMORY: usize = 4;

/// Engines that generate code at the same time, of one LLVM. With more, modules stay as they are.
const MOST_ENGINES: usize = 32;

/// Why functions get no frame pointers.
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
    /// The function at each point.
    originals: [usize; CODE_GENERATORS],
    exported: Exported,
    /// What the hook of [`TO_MEMORY`] calls.
    to_memory: Option<ToMemory>,
    /// As far as the versions of its symbols say.
    version: Option<u32>,
    llvm: OnceBox<Option<LlvmC>>,
    /// The MCJITs that threads are in.
    engines: [AtomicUsize; MOST_ENGINES],
}

/// Each lives for ever: a call may be on its way. The place of one that was closed is given to the next.
static TABLE: [AtomicPtr<Generator>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

fn at(slot: usize) -> Option<&'static Generator> {
    // SAFETY: null, or leaked in `attach`.
    unsafe { TABLE.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Puts `hooks` where the LLVM in `library` generates code. `slot` is its place in the table of sources.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    hooks: [GenerateCode; CODE_GENERATORS],
    callers: Callers,
) -> Result<(), Refusal> {
    let exported = Exported::find(library).ok_or(Refusal::NotExported)?;
    if !cfg!(target_arch = "x86_64") {
        return Err(Refusal::Architecture);
    }
    let originals = POINTS.map(|point| library.dynamic_address(point.function).unwrap_or_default());
    if originals == [0; CODE_GENERATORS] {
        return Err(Refusal::Missing);
    }
    let version = library.llvm_release();
    let (llvm, engines) = (OnceBox::new(), [const { AtomicUsize::new(0) }; MOST_ENGINES]);
    let to_memory = ToMemory::find(library);
    let generator = Generator { originals, exported, to_memory, version, llvm, engines };
    TABLE.get(slot).ok_or(Refusal::Missing)?.store(Box::leak(Box::new(generator)), Ordering::Release);
    change_vtables(library, &originals, hooks, callers);
    for (point, hook) in POINTS.iter().zip(hooks).filter(|(point, _)| point.is_first) {
        // SAFETY: this point's hook passes on whatever it is called with.
        if let Some(Err(error)) = unsafe { library.redefine(point.function, hook as usize) } {
            log_line!(Info, "{}: could not hook {}: {error}", library.path.display(), point.function);
        }
    }
    Ok(())
}

/// The vtables of LLVM itself.
fn change_vtables(
    library: &Library<'_>,
    originals: &[usize; CODE_GENERATORS],
    hooks: [GenerateCode; CODE_GENERATORS],
    callers: Callers,
) {
    let classes: Vec<&str> = POINTS.iter().filter_map(|point| point.class).collect();
    for vtable in mapped::exported_vtables(library, &classes) {
        let is_it = |&address: &u64| address != 0 && address as usize == originals[vtable.class];
        let Some(index) = vtable.slots.iter().position(is_it) else { continue };
        // SAFETY: this point's hook passes on whatever it is called with; `callers` says whose thread this is.
        if let Err(error) = unsafe { patch::exchange(library, &vtable, index, hooks[vtable.class] as usize, callers) } {
            log_line!(Info, "{}: could not hook {}: {error}", library.path.display(), classes[vtable.class]);
        }
    }
}

/// Vtables in `other` whose functions are those of the LLVM in `slot`: what the loader is done with.
pub(crate) fn change_words(other: &Library<'_>, slot: usize, hooks: [GenerateCode; CODE_GENERATORS]) {
    let Some(generator) = at(slot) else { return };
    let first = (0..CODE_GENERATORS).filter(|&point| POINTS[point].is_first && generator.originals[point] != 0);
    let first: Vec<usize> = first.collect();
    let values: Vec<usize> = first.iter().map(|&point| generator.originals[point]).collect();
    for (word, index) in other.words_with(&values) {
        // SAFETY: the loader has put the address of this point's function there, as which the hook may be called.
        if let Err(error) = unsafe { word.write(hooks[first[index]] as usize) } {
            log_line!(Info, "{}: could not hook a compiler of LLVM: {error}", other.path.display());
        }
    }
}

/// While it lives, a thread is in an MCJIT.
struct Inside<'a> {
    entry: &'a AtomicUsize,
    /// Whether no other thread was in it.
    is_alone: bool,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.entry.store(0, Ordering::Release);
    }
}

impl Generator {
    /// Calls the original function of a hook.
    ///
    /// # Safety
    /// Only that hook may, with the words it was called with.
    unsafe fn call_original(&self, point: usize, words: [usize; 8]) -> usize {
        let [a, b, c, d, e, f, g, h] = words;
        let original = self.originals[point];
        // SAFETY: the hook's original function (nothing points to the hook before that is written), and the host's own
        // call, passed on.
        unsafe { std::mem::transmute::<usize, GenerateCode>(original)(a, b, c, d, e, f, g, h) }
    }

    /// Enters an engine, also where another thread is in it: that is seen by the next. `None` where threads are in too
    /// many.
    fn enter(&self, engine: usize) -> Option<Inside<'_>> {
        let is_free =
            |entry: &&AtomicUsize| entry.compare_exchange(0, engine, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let entry = self.engines.iter().find(is_free)?;
        let same = self.engines.iter().filter(|entry| entry.load(Ordering::SeqCst) == engine).count();
        Some(Inside { entry, is_alone: same == 1 })
    }

    /// Gives the functions of the module of a call what they are to have.
    ///
    /// # Safety
    /// Only in the hook of this point, with the words it was called with.
    unsafe fn prepare(&self, point: usize, words_of_call: [usize; 8], policy: FramePointerPolicy) {
        if point == TO_MEMORY {
            // SAFETY: the words of such a call.
            let is_for_us = |to_memory: &ToMemory| unsafe { to_memory.is_object_for_this_machine(words_of_call) };
            if !self.to_memory.as_ref().is_some_and(is_for_us) {
                return;
            }
        }
        let module = words_of_call[POINTS[point].module];
        // A module begins with the address of its context.
        let context = words::<1>(module).map_or(0, |[context]| context);
        if context == 0 || !context.is_multiple_of(8) {
            return;
        }
        let Some(llvm) = self.llvm() else { return };
        // SAFETY: by the symbol of its function, this is a module of this LLVM that is about to be compiled; nothing
        // else has it.
        unsafe {
            if self.exported.is_for_this_machine(module as *mut c_void) {
                llvm.patch_module(module as *mut c_void, policy, UnwindTables::AsTheyAre);
            }
        }
    }

    /// The object that a call of [`TO_MEMORY`] has made, if there is memory for it.
    ///
    /// # Safety
    /// As for [`ToMemory::object`].
    unsafe fn compiled_to_memory(
        &self,
        words_of_call: [usize; 8],
        returned: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Option<Vec<u8>> {
        // SAFETY: the words of a call that has returned this, as the caller promises.
        unsafe { self.to_memory.as_ref()?.object(words_of_call, returned, has_memory) }
    }

    /// The C functions, once the library runs.
    fn llvm(&self) -> Option<&LlvmC> {
        let find = || {
            let Some(version) = self.version.or_else(|| self.exported.version()) else {
                log_line!(Info, "LLVM of an unknown release: its code is unchanged");
                return None;
            };
            let llvm = self.exported.llvm(version);
            match &llvm {
                Some(_) => log_line!(Info, "LLVM {version}: frame pointers enabled"),
                None => log_line!(Info, "LLVM {version}: unknown release, its code is unchanged"),
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
        let originals = [0; CODE_GENERATORS];
        let generator = Generator { originals, exported, to_memory: None, version: None, llvm, engines };
        let is_alone = |inside: &Option<Inside<'_>>| inside.as_ref().is_some_and(|inside| inside.is_alone);
        let first = generator.enter(0x10);
        let second = generator.enter(0x10);
        assert!(is_alone(&first) && second.is_some() && !is_alone(&second));
        let other = generator.enter(0x20);
        assert!(is_alone(&other));
        drop(first);
        assert!(!is_alone(&generator.enter(0x10)), "the second thread is in it still");
        drop(second);
        assert!(is_alone(&generator.enter(0x10)));
        let all: Vec<_> = (1..MOST_ENGINES).map(|engine| generator.enter(engine * 0x100)).collect();
        assert!(all.iter().all(is_alone) && generator.enter(0x7).is_none());
    }
}
