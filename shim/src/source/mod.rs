//! An observed LLVM instance: what was found in its library, and the channels that report its objects.

#![forbid(unsafe_code)]

mod linkers;

use std::path::PathBuf;
use std::sync::Arc;

use jitlisten::options::{LlvmSource, LlvmSources};
use jitlisten::plumbing::LogEvent;
use jitlisten::{ObjectId, log_line};
use wire::facts::{Channel, Count, Missing, ObservedLlvm, Part};

use crate::channels::gdb_list::jit_interface::JitInterface;
use crate::channels::gdb_list::list::{JitList, ListChanges};
use crate::channels::{jitlink, runtime_dyld};
use crate::doctor::discovered::DiscoveredLlvm;
use crate::doctor::facts::{self, FACTS};
use crate::frame_pointers::codegen;
use crate::hook_table::{HookTable, SLOTS};
use crate::llvm::recognise;
use crate::llvm::symbol_file::SymbolFile;
use crate::memory::import_slots::{self, MemorySlots};
use crate::process::detour::Callers;
use crate::process::forward::Function;
use crate::process::library::Library;
use crate::process::mapped_proof::{Identity, Mapped};
use linkers::Linkers;

/// Reason why no object is known although the linkers are hooked.
const UNCALLED_LINKERS: &str = "its linkers were not called through the hooked vtables";

/// An observed LLVM instance.
pub(crate) struct Source {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    /// Path of the library as a string, for messages.
    pub(crate) name: Arc<str>,
    /// Start address of the library's mapping.
    start: usize,
    /// GDB JIT list, if known.
    pub(crate) list: Option<JitList>,
    linkers: Linkers,
    /// Result of hooking code generation, through which functions get frame pointers.
    codegen: Result<(), codegen::Refusal>,
    /// Slot of this LLVM instance in the table of hooks.
    slot: usize,
    /// True if `JITLISTEN_LLVM` selects the GDB JIT list as a source.
    wants_list: bool,
    /// LLVM release, if known.
    version: Option<String>,
    /// True if the library is llvmlite, whose functions have their own hooks.
    is_llvmlite: bool,
    /// Import slots of the library's memory functions.
    slots: MemorySlots,
    /// True once the import slots were patched.
    memory_is_hooked: bool,
    /// True if this LLVM instance seems to have compiled code without reporting it.
    is_silent: bool,
}

/// Finds the import slots of a library's memory functions. If the loader has not relocated them yet, makes the loader
/// bind them to our hooks.
fn find_memory_slots(library: &Library<'_>, hooks: &'static HookTable) -> MemorySlots {
    let slots = MemorySlots::find(library, hooks);
    if !slots.are_relocated(library.mapped())
        && let Err(error) = import_slots::bind_memory_hooks_before_relocation(library, hooks)
    {
        let path = library.path.display();
        log_line!(Info, "{path}: memory calls are hooked only when its first object is loaded: {error}");
    }
    slots
}

impl Source {
    /// Finds and hooks LLVM in `library`; `slot` is the library's index in the table of `hooks`. If the library's file
    /// must be opened, it is stored in `symbols`. The error is the reason why this LLVM instance is not observed, or
    /// `None` for a library without LLVM. The library need not be relocated.
    pub(crate) fn attach(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        enabled: LlvmSources,
    ) -> Result<Source, Option<String>> {
        // An unoptimised build of our own library is as large as LLVM, and has its own GDB JIT list.
        if library.is_jitlisten() {
            return Err(None);
        }
        if slot >= SLOTS {
            return Err(linkers::warn_too_many_llvms(library, symbols, enabled));
        }
        // Reset the counters before LLVM can report anything.
        FACTS.reset_counts(slot);
        if recognise::is_llvmlite(library) {
            // Open llvmlite's file now: its symbols are needed anyway, and searching the constants instead would read
            // 60 MB.
            *symbols = SymbolFile::open(library).ok();
        }
        let linkers = Linkers::attach(library, symbols, slot, hooks, callers, enabled).ok_or(None)?;
        // llvmlite's file is open anyway. In other libraries, a hidden list adds nothing if the linkers report all
        // objects.
        let searches_file = !linkers.reports_everything() || recognise::is_llvmlite(library);
        let interface =
            if enabled.contains(LlvmSource::List) { JitInterface::find(library, symbols, searches_file) } else { None };
        if linkers.reports_nothing() {
            let reason = linkers.warn(library, interface.is_some());
            if interface.is_none() {
                return Err(reason);
            }
        }
        log_line!(Info, "{}", LogEvent::Observed { library: &library.name(), slot: &slot.to_string() });
        let codegen = match linkers::enabled_classes(enabled) {
            [] => Err(codegen::Refusal::Unwanted),
            _ => codegen::attach(library, slot, hooks.generate_code[slot], callers),
        };
        linkers.log_refusals(library);
        let is_linker_observed = linkers.runtime_dyld.is_ok();
        let observe =
            |list: JitInterface| list.observe(library, hooks.register_code[slot], callers, is_linker_observed);
        Ok(Source {
            identity: library.identity,
            path: library.path.clone(),
            name: library.name().into(),
            start: library.range().start,
            list: interface.map(observe),
            version: linkers.version.clone().or_else(|| recognise::version(library)),
            linkers,
            codegen,
            slot,
            wants_list: enabled.contains(LlvmSource::List),
            is_llvmlite: recognise::is_llvmlite(library),
            slots: find_memory_slots(library, hooks),
            memory_is_hooked: false,
            is_silent: false,
        })
    }

    /// Patches the import slots, or patches them again if other tools have overwritten them. Returns whether this is
    /// the first call, and the functions that other tools had stored in the slots. The library must be relocated.
    pub(crate) fn hook_memory(&mut self, mapped: Mapped<'_>) -> (bool, Vec<(Function, usize)>) {
        let is_first = !std::mem::replace(&mut self.memory_is_hooked, true);
        let replaced = self.slots.hook(mapped);
        let replaced = replaced.inspect_err(|error| {
            if is_first {
                log_line!(Warn, "{}: its mprotect cannot be observed: {error}", self.path.display());
            }
        });
        (is_first, replaced.unwrap_or_default())
    }

    /// Returns true if the import slots were patched.
    pub(crate) fn memory_is_hooked(&self) -> bool {
        self.memory_is_hooked
    }

    /// Returns true if the loader has relocated the library's import slots.
    pub(crate) fn is_relocated(&self, mapped: Mapped<'_>) -> bool {
        self.slots.are_relocated(mapped)
    }

    /// Hooks the code generators and JITLink of this LLVM instance in the vtables of a library.
    pub(crate) fn hook_words_of(&self, library: &Library<'_>, hooks: &HookTable) {
        if self.codegen.is_ok() {
            codegen::patch_words_of_library(library, self.slot, hooks.generate_code[self.slot]);
        }
        if self.linkers.jitlink.is_ok() && self.identity != library.identity {
            jitlink::patch_words_of_library(library, self.slot, hooks.emit[self.slot]);
        }
    }

    /// Starts to read the GDB JIT list, even if its symbol is not exported, because a linker turned out to have an
    /// unknown layout.
    pub(crate) fn fall_back_to_list(&mut self, mapped: Mapped<'_>, hooks: &HookTable) {
        if self.list.is_some() || !self.wants_list {
            return;
        }
        let Some(library) = Library::reopen(mapped, self.identity, &self.path) else { return };
        let Some(interface) = JitInterface::find(&library, &mut None, true) else {
            log_line!(Warn, "{}: no GDB JIT list either", self.path.display());
            return;
        };
        self.list = Some(interface.observe(&library, hooks.register_code[self.slot], Callers::Any, false));
    }

    /// Reads the changes of the GDB JIT list.
    pub(crate) fn read_list(&mut self) -> ListChanges {
        let Some(changes) = self.list.as_mut().map(JitList::read) else { return ListChanges::default() };
        let log_error = |error: &_| log_line!(Warn, "{}: GDB JIT list: {error}", self.path.display());
        changes.inspect_err(log_error).unwrap_or_default()
    }

    /// Returns true if the list must be read whenever memory becomes executable.
    pub(crate) fn polls_list(&self) -> bool {
        self.list.as_ref().is_some_and(|list| !list.detoured)
    }

    /// Returns true if the list ever had an entry.
    fn has_had_entries(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.has_had_entries)
    }

    /// Number of objects that the linkers have reported.
    fn linked(&self) -> u64 {
        facts::read_count(self.slot, Count::RuntimeDyld) + facts::read_count(self.slot, Count::JitLink)
    }

    /// Reason why this LLVM instance's code may lack names: one of its linkers is unknown, or none was called, and no
    /// object was ever reported.
    pub(crate) fn unobserved_reason(&self) -> Option<String> {
        // JITLink's reports do not count, because they do not cover code that RuntimeDyld links.
        if self.has_had_entries() || facts::read_count(self.slot, Count::RuntimeDyld) > 0 {
            return None;
        }
        let was_called = facts::read_count(self.slot, Count::ForJitLink) > 0;
        self.linkers.ignored_reason().or_else(|| (!was_called).then(|| UNCALLED_LINKERS.to_owned()))
    }

    /// Returns true if no linker can be found and the list has never had an entry.
    pub(crate) fn may_compile_unnamed_code(&self) -> bool {
        self.linkers.has_hidden_linker && !self.has_had_entries()
    }

    /// Records that unreported code became executable.
    pub(crate) fn mark_silent(&mut self) {
        self.is_silent = self.unobserved_reason().is_some();
    }

    /// Describes this LLVM instance for the API.
    pub(crate) fn describe(&self) -> DiscoveredLlvm {
        let (path, detoured, objects) = (self.path.clone(), !self.polls_list(), self.objects().count());
        DiscoveredLlvm { path, detoured, objects, linked: self.linked(), facts: self.facts() }
    }

    /// Describes this LLVM for other processes.
    pub(crate) fn facts(&self) -> ObservedLlvm {
        let (mut channels, mut missing) = (Vec::new(), Vec::new());
        match &self.linkers.runtime_dyld {
            Ok(_) if runtime_dyld::is_trusted(self.slot) => channels.push(Channel::RuntimeDyld),
            Ok(_) => missing.push(Missing::new(Part::RuntimeDyld, "objects with an unexpected layout")),
            Err(refusal) => missing.push(Missing {
                is_absent: matches!(refusal, runtime_dyld::Refusal::Missing),
                ..Missing::new(Part::RuntimeDyld, refusal.to_string())
            }),
        }
        match &self.linkers.jitlink {
            Ok(()) => channels.push(Channel::JitLink),
            Err(refusal) => missing.push(Missing {
                is_absent: matches!(refusal, jitlink::Refusal::Missing),
                ..Missing::new(Part::JitLink, refusal.to_string())
            }),
        }
        match &self.list {
            Some(list) => channels.push(if list.detoured { Channel::ListCall } else { Channel::ListPoll }),
            None => missing.push(Missing::new(Part::List, "not found")),
        }
        missing.extend(self.linkers.hidden_linker_note().map(|note| Missing::new(Part::NamelessLinkers, note)));
        if self.is_silent && self.unobserved_reason().is_some() {
            missing.push(Missing::new(Part::Code, "code became executable without a report"));
        }
        if let (Err(refusal), false) = (&self.codegen, self.is_llvmlite) {
            missing.push(Missing::new(Part::FramePointers, refusal.to_string()));
        }
        ObservedLlvm {
            slot: self.slot,
            start: self.start as u64,
            file: self.name.to_string(),
            version: self.version.clone(),
            channels,
            missing,
            ..ObservedLlvm::default()
        }
    }

    /// Number of entries in the list, including refused ones.
    pub(crate) fn listed_count(&self) -> usize {
        self.list.as_ref().map_or(0, JitList::len)
    }

    /// All objects in the list. The session frees them when the library is closed.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        self.list.iter().flat_map(JitList::objects)
    }
}
