//! Hooks the code generation of an LLVM instance with dynamic symbols. Code generation is the last point at which
//! functions can get frame pointers ([`crate::frame_pointers::attributes`]). They get no unwind tables, because the
//! host manages the memory and LLVM reads the tables when the engine is destroyed.
//!
//! | engine | virtual function | held lock |
//! | --- | --- | --- |
//! | MCJIT | `MCJIT::generateCodeForModule(Module *)` | the engine's, or none yet |
//! | ORC | `operator()(Module &)` of `SimpleCompiler`, `ConcurrentIRCompiler` | the module context's |
//! | the program's own | `LLVMTargetMachineEmitToMemoryBuffer`, not virtual: see [`to_memory`] | |
//!
//! # Checks
//! * A vtable slot is patched only if it holds the address of that function's dynamic symbol.
//! * The release must be known from symbol versions or `LLVMGetVersion`, and every C function that we call must exist.
//! * The module must be for this machine's architecture, because bpftrace, for example, compiles for another one.
//! * MCJIT takes its lock inside the hooked function. While another thread is inside that function with the same
//!   engine, modules stay unchanged, because no module of a context may change while one of them is being compiled.
//!
//! A class with inline constructors has a vtable in each library that uses it (lli, MLIR). Therefore each function's
//! symbol value in LLVM's symbol table is patched as well, as are the vtable slots in libraries that are already
//! relocated.
//!
//! Functions that take an argument in the frame pointer register (GHC's convention and similar), and callers of such
//! functions, get no frame pointer. An LLVM instance that does not export its C functions is ignored. llvmlite has them
//! in `.symtab`, and `llvmlite.rs` contains its hooks.

pub(crate) mod hook;
mod to_memory;

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use jitlisten::log_line;
use jitlisten::options::FramePointerPolicy;
use jitlisten::plumbing::LogEvent;
use once_cell::race::OnceBox;

use crate::forwarding::{ArgumentWords, Forwarding};
use crate::frame_pointers::attributes::{ExportedFunctions, LlvmC, UnwindTables};
use crate::hook_table::{CODE_GENERATORS, SLOTS};
use crate::llvm::recognise;
use crate::llvm::vtable::{patch, read_words, search};
use crate::process::detour::Callers;
use crate::process::library::Library;
use to_memory::ToMemory;

/// A function that generates code, and the information needed to hook it.
struct HookPoint {
    /// Mangled name of the class whose vtable contains the function; `None` for a C function.
    class: Option<&'static str>,
    function: &'static str,
    /// Index of the argument that holds the module.
    module_argument: usize,
    /// True for the first of several hook points with the same function.
    is_first_with_function: bool,
}

const HOOK_POINTS: [HookPoint; CODE_GENERATORS] = [
    HookPoint {
        class: Some("N4llvm5MCJITE"),
        function: "_ZN4llvm5MCJIT21generateCodeForModuleEPNS_6ModuleE",
        module_argument: 1,
        is_first_with_function: true,
    },
    // The first argument is the address of the result.
    HookPoint {
        class: Some("N4llvm3orc14SimpleCompilerE"),
        function: SIMPLE_COMPILER,
        module_argument: 2,
        is_first_with_function: true,
    },
    HookPoint {
        class: Some("N4llvm3orc22TMOwningSimpleCompilerE"),
        function: SIMPLE_COMPILER,
        module_argument: 2,
        is_first_with_function: false,
    },
    HookPoint {
        class: Some("N4llvm3orc20ConcurrentIRCompilerE"),
        function: "_ZN4llvm3orc20ConcurrentIRCompilerclERNS_6ModuleE",
        module_argument: 2,
        is_first_with_function: true,
    },
    // Hook points without a class must come last.
    HookPoint {
        class: None,
        function: "LLVMTargetMachineEmitToMemoryBuffer",
        module_argument: 1,
        is_first_with_function: true,
    },
];

const SIMPLE_COMPILER: &str = "_ZN4llvm3orc14SimpleCompilerclERNS_6ModuleE";
const MCJIT: usize = 0;
const TO_MEMORY: usize = 4;

/// Maximum number of engines of one LLVM instance that generate code at the same time. Modules of any further engines
/// stay unchanged.
const MAX_ENGINES: usize = 32;

/// Reason why functions get no frame pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The library exports none of the functions that generate code.
    Missing,
    /// Some of the required C functions are not exported.
    NotExported,
    /// `JITLISTEN_LLVM` excludes vtables.
    Unwanted,
    /// The positions of the arguments are known for x86-64 only.
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

/// Data for the hooks of one LLVM instance. The hooks run without any of our locks.
struct Generator {
    /// Original function of each hook point; 0 if this LLVM instance lacks it.
    originals: [usize; CODE_GENERATORS],
    exported: ExportedFunctions,
    /// Functions that the hook of [`TO_MEMORY`] calls.
    to_memory: Option<ToMemory>,
    /// LLVM major version, if it can be determined from the library's symbol versions.
    version: Option<u32>,
    llvm: OnceBox<Option<LlvmC>>,
    /// Addresses of the MCJIT engines with a thread inside; 0 marks a free entry.
    engines: [AtomicUsize; MAX_ENGINES],
}

/// Hooked code generators, by slot. They are never freed, because a call may be in progress. After an LLVM instance is
/// closed, its slot is reused.
static GENERATORS: [AtomicPtr<Generator>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

fn generator_in_slot(slot: usize) -> Option<&'static Generator> {
    // SAFETY: the pointer is null, or `attach` leaked the generator that it points to.
    unsafe { GENERATORS.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Hooks the code generation of the LLVM instance in `library`, which has this slot in the table of sources.
pub(crate) fn attach(
    library: &Library<'_>,
    slot: usize,
    hooks: [Forwarding; CODE_GENERATORS],
    callers: Callers,
) -> Result<(), Refusal> {
    let exported = ExportedFunctions::find(library).ok_or(Refusal::NotExported)?;
    if !cfg!(target_arch = "x86_64") {
        return Err(Refusal::Architecture);
    }
    let originals = HOOK_POINTS.map(|point| library.dynamic_address(point.function).unwrap_or_default());
    if originals == [0; CODE_GENERATORS] {
        return Err(Refusal::Missing);
    }
    let version = recognise::major_version(library);
    let (llvm, engines) = (OnceBox::new(), [const { AtomicUsize::new(0) }; MAX_ENGINES]);
    let to_memory = ToMemory::find(library);
    let generator = Generator { originals, exported, to_memory, version, llvm, engines };
    GENERATORS.get(slot).ok_or(Refusal::Missing)?.store(Box::leak(Box::new(generator)), Ordering::Release);
    change_vtables(library, &originals, hooks, callers);
    for (point, hook) in HOOK_POINTS.iter().zip(hooks).filter(|(point, _)| point.is_first_with_function) {
        // SAFETY: the hook for this hook point forwards all its arguments.
        if let Some(Err(error)) = unsafe { library.redefine(point.function, hook as usize) } {
            library.log_unhooked(point.function, &error);
        }
    }
    Ok(())
}

/// Patches the vtables in LLVM's own library.
fn change_vtables(
    library: &Library<'_>,
    originals: &[usize; CODE_GENERATORS],
    hooks: [Forwarding; CODE_GENERATORS],
    callers: Callers,
) {
    let classes: Vec<&str> = HOOK_POINTS.iter().filter_map(|point| point.class).collect();
    for vtable in search::exported_vtables(library, &classes) {
        let is_original = |&address: &u64| address != 0 && address as usize == originals[vtable.class];
        let Some(index) = vtable.slots.iter().position(is_original) else { continue };
        let hook = hooks[vtable.class] as usize;
        // SAFETY: the hook for this hook point forwards all its arguments, and `callers` tells which threads may be
        // calling through the slot.
        if let Err(error) = unsafe { patch::replace_slot(library, &vtable, index, hook, callers) } {
            library.log_unhooked(classes[vtable.class], &error);
        }
    }
}

/// Patches vtables in `library` that contain functions of the LLVM instance in `slot`, if the loader has already
/// relocated them.
pub(crate) fn patch_words_of_library(library: &Library<'_>, slot: usize, hooks: [Forwarding; CODE_GENERATORS]) {
    let Some(generator) = generator_in_slot(slot) else { return };
    let points = (0..CODE_GENERATORS)
        .filter(|&point| HOOK_POINTS[point].is_first_with_function && generator.originals[point] != 0);
    let points: Vec<usize> = points.collect();
    let values: Vec<usize> = points.iter().map(|&point| generator.originals[point]).collect();
    for (word, index) in library.slots_holding(&values) {
        // SAFETY: the loader has stored the address of this hook point's original function in the word, so the hook may
        // replace it.
        if let Err(error) = unsafe { word.write(hooks[points[index]] as usize) } {
            library.log_unhooked("a compiler of LLVM", &error);
        }
    }
}

/// Marks an engine as in use until dropped.
struct EngineGuard<'a> {
    entry: &'a AtomicUsize,
    /// True if no other thread was inside the engine when this guard was created.
    is_only_user: bool,
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        self.entry.store(0, Ordering::Release);
    }
}

impl Generator {
    /// Marks an engine as in use, even if another thread is already inside it, so that later callers notice. Returns
    /// `None` if too many engines are in use.
    fn enter(&self, engine: usize) -> Option<EngineGuard<'_>> {
        let is_free =
            |entry: &&AtomicUsize| entry.compare_exchange(0, engine, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let entry = self.engines.iter().find(is_free)?;
        let users = self.engines.iter().filter(|entry| entry.load(Ordering::SeqCst) == engine).count();
        Some(EngineGuard { entry, is_only_user: users == 1 })
    }

    /// Adds frame pointers to the functions of the module that this call compiles.
    ///
    /// # Safety
    /// Only the hook for this hook point may call this function, and it must pass its own arguments.
    unsafe fn patch_module_of_call(&self, point: usize, arguments: ArgumentWords, policy: FramePointerPolicy) {
        if point == TO_MEMORY {
            // SAFETY: these are the arguments of a call of `LLVMTargetMachineEmitToMemoryBuffer`.
            let is_supported = |to_memory: &ToMemory| unsafe { to_memory.is_object_for_this_machine(arguments) };
            if !self.to_memory.as_ref().is_some_and(is_supported) {
                return;
            }
        }
        let module = arguments[HOOK_POINTS[point].module_argument];
        // The first word of a module is the address of its context.
        let context = read_words::<1>(module).map_or(0, |[context]| context);
        if context == 0 || !context.is_multiple_of(8) {
            return;
        }
        let Some(llvm) = self.llvm() else { return };
        // SAFETY: the hooked function's symbol shows that this is a module of this LLVM instance, which is about to
        // compile it. No other code uses it.
        unsafe {
            if self.exported.is_for_this_machine(module as *mut c_void) {
                llvm.patch_module(module as *mut c_void, policy, UnwindTables::Unchanged);
            }
        }
    }

    /// Copies the object that a call of [`TO_MEMORY`] has emitted, if enough memory is available.
    ///
    /// # Safety
    /// Same contract as [`ToMemory::copy_object`].
    unsafe fn copy_emitted_object(
        &self,
        arguments: ArgumentWords,
        returned: usize,
        has_memory: impl Fn(usize) -> bool,
    ) -> Option<Vec<u8>> {
        // SAFETY: the caller promises that these are the arguments and the result of that call.
        unsafe { self.to_memory.as_ref()?.copy_object(arguments, returned, has_memory) }
    }

    /// Returns the C functions that edit modules. The library must be relocated.
    fn llvm(&self) -> Option<&LlvmC> {
        let find_functions = || {
            let Some(version) = self.version.or_else(|| self.exported.version()) else {
                log_line!(Info, "LLVM of an unknown release: its code is unchanged");
                return None;
            };
            let llvm = self.exported.llvm(version);
            match &llvm {
                Some(_) => {
                    let (version, attributes) = (&*version.to_string(), "frame pointers");
                    log_line!(Info, "{}", LogEvent::CodeChanged { version, attributes });
                }
                None => log_line!(Info, "LLVM {version}: unknown release, its code is unchanged"),
            }
            llvm
        };
        self.llvm.get_or_init(|| Box::new(find_functions())).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_thread_in_an_engine_is_detected() {
        let exported = ExportedFunctions::empty();
        let (llvm, engines) = (OnceBox::new(), [const { AtomicUsize::new(0) }; MAX_ENGINES]);
        let originals = [0; CODE_GENERATORS];
        let generator = Generator { originals, exported, to_memory: None, version: None, llvm, engines };
        let is_only_user = |guard: &Option<EngineGuard<'_>>| guard.as_ref().is_some_and(|guard| guard.is_only_user);
        let first = generator.enter(0x10);
        let second = generator.enter(0x10);
        assert!(is_only_user(&first) && second.is_some() && !is_only_user(&second));
        let other = generator.enter(0x20);
        assert!(is_only_user(&other));
        drop(first);
        assert!(!is_only_user(&generator.enter(0x10)), "the second thread is in it still");
        drop(second);
        assert!(is_only_user(&generator.enter(0x10)));
        let engine_guards: Vec<_> = (1..MAX_ENGINES).map(|engine| generator.enter(engine * 0x100)).collect();
        assert!(engine_guards.iter().all(is_only_user) && generator.enter(0x7).is_none());
    }
}
