//! A library with LLVM. Its linkers are in `linkers.rs`, its GDB JIT list in `channels/gdb_list/`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jitlisten::options::{LlvmSource, LlvmSources};
use jitlisten::{ObjectId, log_line};

use crate::channels::gdb_list::descriptor::{DescriptorAddress, ListedObject};
use crate::channels::gdb_list::jit_interface::JitInterface;
use crate::channels::runtime_dyld;
use crate::doctor::discovered::DiscoveredLlvm;
use crate::doctor::facts::{self, Count};
use crate::doctor::unreported;
use crate::frame_pointers::codegen;
use crate::hook_table::{HookTable, SLOTS};
use crate::llvm::linkers::{self, Linkers};
use crate::llvm::recognise;
use crate::llvm::symbol_file::SymbolFile;
use crate::memory::import_slots::{self, MemorySlots};
use crate::process::detour::Callers;
use crate::process::forward::Function;
use crate::process::library::Library;
use crate::process::mapped_proof::{Identity, Mapped};

/// An observed LLVM.
pub(crate) struct Source {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    /// Path of the library as text, for messages.
    pub(crate) name: Arc<str>,
    /// Start address of the library's mapping.
    start: usize,
    /// Address of its GDB JIT list, if known.
    descriptor: Option<DescriptorAddress>,
    /// True if `__jit_debug_register_code` is hooked. Otherwise the list is read whenever memory becomes executable.
    pub(crate) detoured: bool,
    /// Hooks of its linkers.
    linkers: Linkers,
    /// Result of hooking code generation, which gives functions frame pointers.
    codegen: Result<(), codegen::Refusal>,
    /// Slot of this LLVM in the table of hooks.
    slot: usize,
    /// True if `JITLISTEN_LLVM` includes the list.
    wants_list: bool,
    /// LLVM release, if known.
    version: Option<String>,
    /// True if it is an llvmlite, whose functions have their own hooks.
    is_llvmlite: bool,
    /// Import slots of its memory functions.
    slots: MemorySlots,
    /// True once the slots were patched.
    memory_is_hooked: bool,
    /// List entries that were read, with the object of each; `None` if the object was refused.
    known_entries: BTreeMap<u64, KnownEntry>,
    /// True if its list ever had an entry.
    has_had_entries: bool,
    /// True if it seems to have compiled code without reporting it.
    is_silent: bool,
}

/// A list entry that was read.
struct KnownEntry {
    listed: ListedObject,
    id: Option<ObjectId>,
}

/// Changes of the list.
#[derive(Default)]
pub(crate) struct ListChanges {
    /// New entries, oldest first.
    pub(crate) added: Vec<ListedObject>,
    /// Objects whose entries were removed.
    pub(crate) removed: Vec<ObjectId>,
    /// Head of the list, if changes of the list are announced.
    pub(crate) head: Option<u64>,
}

/// Finds the import slots of its memory functions. If the loader has not relocated them yet, it will bind them to our
/// hooks.
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
    /// Finds and hooks an LLVM in `library`; `slot` is its index in the table of `hooks`. If the library's file must be
    /// opened, it is left in `symbols`. The error is the reason why an LLVM is not observed, or `None` for a library
    /// without LLVM. The library need not be relocated.
    pub(crate) fn attach(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        enabled: LlvmSources,
    ) -> Result<Source, Option<String>> {
        // An unoptimised build of this library is as large as an LLVM, and has its own GDB JIT list.
        if library.is_jitlisten() {
            return Err(None);
        }
        if slot >= SLOTS {
            return Err(linkers::warn_too_many_llvms(library, symbols, enabled));
        }
        // Reset the counters before LLVM can report anything.
        facts::reset_counts(slot);
        if recognise::is_llvmlite(library) {
            // Its symbols are needed anyway, and searching its constants would read 60 MB.
            *symbols = SymbolFile::open(library).ok();
        }
        let linkers = Linkers::attach(library, symbols, slot, hooks, callers, enabled).ok_or(None)?;
        // llvmlite's file is open anyway. In other libraries a hidden list adds nothing if the linkers report all
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
        log_line!(Info, "LLVM in {}, slot {slot}", library.path.display());
        if linkers.ignored_reason().is_some() || linkers.has_hidden_linker {
            unreported::enable_checks();
        }
        let codegen = match linkers::enabled_classes(enabled) {
            [] => Err(codegen::Refusal::Unwanted),
            _ => codegen::attach(library, slot, hooks.generate_code[slot], callers),
        };
        linkers.log_refusals(library);
        let detoured = interface.as_ref().is_none_or(|interface| {
            interface.detour(library, hooks.register_code[slot], callers, linkers.runtime_dyld.is_ok())
        });
        let slots = find_memory_slots(library, hooks);
        Ok(Source {
            identity: library.identity,
            path: library.path.clone(),
            name: library.path.to_string_lossy().into(),
            start: library.range().start,
            descriptor: interface.map(|interface| DescriptorAddress(interface.descriptor)),
            detoured,
            version: linkers.version.clone().or_else(|| recognise::version(library)),
            linkers,
            codegen,
            slot,
            wants_list: enabled.contains(LlvmSource::List),
            is_llvmlite: recognise::is_llvmlite(library),
            slots,
            memory_is_hooked: false,
            known_entries: BTreeMap::new(),
            has_had_entries: false,
            is_silent: false,
        })
    }

    /// Patches the import slots: the first time, and again if others have overwritten them. Returns true if this was
    /// the first time, and the functions that others had stored there. The library must be relocated.
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

    /// Returns true if the library is relocated, as far as its slots show.
    pub(crate) fn is_relocated(&self, mapped: Mapped<'_>) -> bool {
        self.slots.are_relocated(mapped)
    }

    /// Returns true if its code generation is hooked.
    pub(crate) fn code_generation_is_hooked(&self) -> bool {
        self.codegen.is_ok()
    }

    /// Reads its GDB JIT list from now on, even if it is not exported: its linker turned out to have an unknown layout.
    pub(crate) fn fall_back_to_list(&mut self, mapped: Mapped<'_>, hooks: &HookTable) {
        if self.descriptor.is_some() || !self.wants_list {
            return;
        }
        let Some(library) = Library::reopen(mapped, self.identity, &self.path) else { return };
        let Some(interface) = JitInterface::find(&library, &mut None, true) else {
            log_line!(Warn, "{}: no GDB JIT list either", self.path.display());
            return;
        };
        self.detoured = interface.detour(&library, hooks.register_code[self.slot], Callers::Any, false);
        self.descriptor = Some(DescriptorAddress(interface.descriptor));
    }

    /// Reads the changes of the GDB JIT list.
    pub(crate) fn read(&mut self) -> ListChanges {
        let Some(descriptor) = self.descriptor else { return ListChanges::default() };
        let log_error = |error: &_| log_line!(Warn, "{}: GDB JIT list: {error}", self.path.display());
        let Ok(reading) = descriptor.read().inspect_err(log_error) else {
            return ListChanges::default();
        };
        let head = Some(reading.first).filter(|_| self.detoured);
        let removed = reading.unregistered.and_then(|entry| self.known_entries.remove(&entry)?.id);
        let mut changes = ListChanges { removed: removed.into_iter().collect(), head, ..ListChanges::default() };
        if self.detoured {
            changes.added = reading.entries_until(|entry| self.known_entries.contains_key(&entry)).collect();
        } else {
            self.read_all(reading.entries_until(|_| false).collect(), &mut changes);
        }
        changes.added.reverse();
        changes
    }

    /// Compares the whole list with the known entries. Without the hook, removals are not announced, and the memory of
    /// a removed entry may contain another entry by now.
    fn read_all(&mut self, listed_objects: Vec<ListedObject>, changes: &mut ListChanges) {
        let listed: BTreeMap<u64, ListedObject> = listed_objects.iter().map(|listed| (listed.entry, *listed)).collect();
        self.known_entries.retain(|entry, known_entry| {
            let is_unchanged = listed.get(entry) == Some(&known_entry.listed);
            if !is_unchanged {
                changes.removed.extend(known_entry.id);
            }
            is_unchanged
        });
        changes.added =
            listed_objects.into_iter().filter(|listed| !self.known_entries.contains_key(&listed.entry)).collect();
    }

    /// Remembers the object of a list entry; `None` if the object was refused.
    pub(crate) fn remember(&mut self, listed: ListedObject, id: Option<ObjectId>) {
        self.has_had_entries = true;
        self.known_entries.insert(listed.entry, KnownEntry { listed, id });
    }

    /// Number of objects that its linkers have reported.
    fn linked(&self) -> u64 {
        facts::read_count(self.slot, Count::RuntimeDyld) + facts::read_count(self.slot, Count::JitLink)
    }

    /// Reason why its code may lack names: a linker is unknown, and no object was ever reported.
    pub(crate) fn unobserved_reason(&self) -> Option<String> {
        // Reports by JITLink do not count: they do not cover code that RuntimeDyld links.
        let has_reported = self.has_had_entries || facts::read_count(self.slot, Count::RuntimeDyld) > 0;
        self.linkers.ignored_reason().filter(|_| !has_reported)
    }

    /// Returns true if its linkers cannot be found and its list has never had an object.
    pub(crate) fn may_compile_unnamed_code(&self) -> bool {
        self.linkers.has_hidden_linker && !self.has_had_entries
    }

    /// Records that code became executable without a report by any LLVM.
    pub(crate) fn mark_silent(&mut self) {
        self.is_silent = self.unobserved_reason().is_some();
    }

    /// Describes this LLVM for the API and the doctor.
    pub(crate) fn describe(&self) -> DiscoveredLlvm {
        let (mut heard_by, mut missing) = (Vec::new(), Vec::new());
        match &self.linkers.runtime_dyld {
            Ok(_) if runtime_dyld::is_trusted(self.slot) => heard_by.push("runtimedyld"),
            Ok(_) => missing.push("RuntimeDyld: objects with an unexpected layout".to_owned()),
            Err(refusal) => missing.push(format!("RuntimeDyld: {refusal}")),
        }
        match &self.linkers.jitlink {
            Ok(()) => heard_by.push("jitlink"),
            Err(refusal) => missing.push(format!("JITLink: {refusal}")),
        }
        match (self.descriptor, self.detoured) {
            (Some(_), true) => heard_by.push("list-call"),
            (Some(_), false) => heard_by.push("list-poll"),
            (None, _) => missing.push("GDB JIT list: not found".to_owned()),
        }
        missing.extend(self.linkers.hidden_linker_note());
        if self.is_silent && self.unobserved_reason().is_some() {
            missing.push("code became executable without a report".to_owned());
        }
        if let (Err(refusal), false) = (&self.codegen, self.is_llvmlite) {
            missing.push(format!("frame pointers: {refusal}"));
        }
        DiscoveredLlvm {
            path: self.path.clone(),
            start: self.start,
            detoured: self.detoured,
            objects: self.objects().len(),
            version: self.version.clone(),
            heard_by,
            linked: self.linked(),
            missing,
        }
    }

    /// Number of entries in its list, including refused ones.
    pub(crate) fn listed_count(&self) -> usize {
        self.known_entries.len()
    }

    /// All objects in its list. They are freed when the library is closed.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.known_entries.values().filter_map(|known_entry| known_entry.id).collect()
    }
}
