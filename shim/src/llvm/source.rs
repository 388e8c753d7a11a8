//! One library with an LLVM in it; its linkers are in `linkers.rs`, its GDB JIT list in `channels/gdb_list/`.

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
use crate::doctor::unheard;
use crate::frame_pointers::codegen;
use crate::hook_table::{HookTable, SLOTS};
use crate::llvm::linkers::{self, Linkers};
use crate::llvm::symbol_file::SymbolFile;
use crate::process::detour::Callers;
use crate::process::held::{Identity, Mapped};
use crate::process::library::Library;
use crate::process::next::Function;
use crate::process::relocation_slot::{self, MemorySlots};

/// An observed LLVM.
pub(crate) struct Source {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    /// The same, as text.
    pub(crate) name: Arc<str>,
    /// Where it is mapped.
    start: usize,
    /// Its GDB JIT list, if it has one that can be found.
    descriptor: Option<DescriptorAddress>,
    /// Whether `__jit_debug_register_code` is hooked; otherwise the list is read whenever memory becomes executable.
    pub(crate) detoured: bool,
    /// Whether they call us for each object.
    linkers: Linkers,
    /// Whether functions get frame pointers when it generates code.
    codegen: Result<(), codegen::Refusal>,
    /// Its place in the table of hooks.
    slot: usize,
    /// Whether `JITLISTEN_LLVM` has the list.
    wants_list: bool,
    version: Option<String>,
    /// Whether it has llvmlite's functions, which are hooked apart.
    is_llvmlite: bool,
    /// The slots through which it calls for memory.
    slots: MemorySlots,
    /// Whether they were changed.
    listening: bool,
    /// The list entries that were read, and what became of them; `None` for one that was refused.
    known: BTreeMap<u64, Known>,
    /// Whether there ever was one.
    has_listed: bool,
    /// Whether it seems to have compiled code without a report.
    is_silent: bool,
}

struct Known {
    listed: ListedObject,
    id: Option<ObjectId>,
}

/// What is new in the list.
#[derive(Default)]
pub(crate) struct News {
    /// Entries not seen before, the oldest first.
    pub(crate) appeared: Vec<ListedObject>,
    /// Objects whose entry was taken out.
    pub(crate) left: Vec<ObjectId>,
    /// The head of the list, if its changes are announced.
    pub(crate) first: Option<u64>,
}

/// The slots through which it calls for memory. Where the loader has not come to them yet, it will find our hooks.
fn memory_slots(library: &Library<'_>, hooks: &'static HookTable) -> MemorySlots {
    let slots = MemorySlots::find(library, hooks);
    if !slots.are_relocated(library.mapped())
        && let Err(error) = relocation_slot::listen_from_the_start(library, hooks)
    {
        let path = library.path.display();
        log_line!(Info, "{path}: memory calls are hooked only when its first object is loaded: {error}");
    }
    slots
}

impl Source {
    /// Looks for an LLVM in `library` and hooks it; `slot` is its index in the table of `hooks`. Leaves the library's
    /// file in `symbols` if it had to be opened. The error is the reason why an LLVM is not observed, or `None` for a
    /// library without LLVM. It need not be relocated.
    pub(crate) fn attach(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        wanted: LlvmSources,
    ) -> Result<Source, Option<String>> {
        // Built without optimisation, it is as large as an LLVM, and it has a GDB JIT list of its own.
        if library.is_this() {
            return Err(None);
        }
        if slot >= SLOTS {
            return Err(linkers::say_no_place(library, symbols, wanted));
        }
        // Before it can report anything.
        facts::begin(slot);
        if library.is_llvmlite() {
            // Its symbols are needed for other things, and its constants are 60 MB.
            *symbols = SymbolFile::open(library).ok();
        }
        let linkers = Linkers::attach(library, symbols, slot, hooks, callers, wanted).ok_or(None)?;
        // llvmlite's file is opened for other functions anyway; elsewhere the list adds nothing that the linkers do not
        // say.
        let hidden = !linkers.report_all() || library.is_llvmlite();
        let interface =
            if wanted.contains(LlvmSource::List) { JitInterface::find(library, symbols, hidden) } else { None };
        if linkers.report_nothing() {
            let why = linkers.warn(library, interface.is_some());
            if interface.is_none() {
                return Err(why);
            }
        }
        log_line!(Info, "LLVM in {}, slot {slot}", library.path.display());
        if linkers.left_alone().is_some() || linkers.is_unseen {
            unheard::may_be();
        }
        let codegen = match linkers::wanted_classes(wanted) {
            [] => Err(codegen::Refusal::Unwanted),
            _ => codegen::attach(library, slot, hooks.generate_code[slot], callers),
        };
        linkers.log_refusals(library);
        let detoured = interface.as_ref().is_none_or(|interface| {
            interface.detour(library, hooks.register_code[slot], callers, linkers.runtime_dyld.is_ok())
        });
        let slots = memory_slots(library, hooks);
        Ok(Source {
            identity: library.identity,
            path: library.path.clone(),
            name: library.path.to_string_lossy().into(),
            start: library.range().start,
            descriptor: interface.map(|interface| DescriptorAddress(interface.descriptor)),
            detoured,
            version: linkers.version.clone().or_else(|| library.llvm_version()),
            linkers,
            codegen,
            slot,
            wants_list: wanted.contains(LlvmSource::List),
            is_llvmlite: library.is_llvmlite(),
            slots,
            listening: false,
            known: BTreeMap::new(),
            has_listed: false,
            is_silent: false,
        })
    }

    /// Changes the relocation slots, the first time and whenever others have changed them. Returns whether this was the
    /// first time, and what others had put there. The library must be relocated.
    pub(crate) fn hook_memory(&mut self, mapped: Mapped<'_>) -> (bool, Vec<(Function, usize)>) {
        let first = !std::mem::replace(&mut self.listening, true);
        let found = self.slots.listen(mapped);
        let found = found.inspect_err(|error| {
            if first {
                log_line!(Warn, "{}: its mprotect cannot be observed: {error}", self.path.display());
            }
        });
        (first, found.unwrap_or_default())
    }

    /// Whether the slots were changed.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening
    }

    /// Whether the library is relocated, as far as its slots show.
    pub(crate) fn is_relocated(&self, mapped: Mapped<'_>) -> bool {
        self.slots.are_relocated(mapped)
    }

    /// Whether its compilers lead to us.
    pub(crate) fn generates_for_us(&self) -> bool {
        self.codegen.is_ok()
    }

    /// Its linker is not understood after all: from now on its GDB JIT list is read, also where that is not exported.
    pub(crate) fn fall_back_to_list(&mut self, mapped: Mapped<'_>, hooks: &HookTable) {
        if self.descriptor.is_some() || !self.wants_list {
            return;
        }
        let Some(library) = Library::remembered(mapped, self.identity, &self.path) else { return };
        let Some(interface) = JitInterface::find(&library, &mut None, true) else {
            log_line!(Warn, "{}: no GDB JIT list either", self.path.display());
            return;
        };
        self.detoured = interface.detour(&library, hooks.register_code[self.slot], Callers::Any, false);
        self.descriptor = Some(DescriptorAddress(interface.descriptor));
    }

    /// Reads the list.
    pub(crate) fn read(&mut self) -> News {
        let Some(descriptor) = self.descriptor else { return News::default() };
        let complain = |error: &_| log_line!(Warn, "{}: GDB JIT list: {error}", self.path.display());
        let Ok(reading) = descriptor.read().inspect_err(complain) else {
            return News::default();
        };
        let first = Some(reading.first).filter(|_| self.detoured);
        let left = reading.unregistered.and_then(|entry| self.known.remove(&entry)?.id);
        let mut news = News { left: left.into_iter().collect(), first, ..News::default() };
        if self.detoured {
            news.appeared = reading.entries_until(|entry| self.known.contains_key(&entry)).collect();
        } else {
            self.read_all(reading.entries_until(|_| false).collect(), &mut news);
        }
        news.appeared.reverse();
        news
    }

    /// Without the hook nothing announces that an entry was removed, and its memory may contain another entry by now.
    fn read_all(&mut self, all: Vec<ListedObject>, news: &mut News) {
        let listed: BTreeMap<u64, ListedObject> = all.iter().map(|listed| (listed.entry, *listed)).collect();
        self.known.retain(|entry, known| {
            let stays = listed.get(entry) == Some(&known.listed);
            if !stays {
                news.left.extend(known.id);
            }
            stays
        });
        news.appeared = all.into_iter().filter(|listed| !self.known.contains_key(&listed.entry)).collect();
    }

    /// Remembers what became of an entry.
    pub(crate) fn remember(&mut self, listed: ListedObject, id: Option<ObjectId>) {
        self.has_listed = true;
        self.known.insert(listed.entry, Known { listed, id });
    }

    /// How many objects its linkers have reported.
    fn linked(&self) -> u64 {
        facts::counted(self.slot, Count::RuntimeDyld) + facts::counted(self.slot, Count::JitLink)
    }

    /// Why code of it may have no names, where a linker is not understood and no object was ever heard.
    pub(crate) fn unheard(&self) -> Option<String> {
        // What JITLink links says nothing of the code that RuntimeDyld does.
        let is_heard = self.has_listed || facts::counted(self.slot, Count::RuntimeDyld) > 0;
        self.linkers.left_alone().filter(|_| !is_heard)
    }

    /// Whether it has linkers that cannot be found, and its list has never had an object.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.linkers.is_unseen && !self.has_listed
    }

    /// Code became executable of which no LLVM has reported anything.
    pub(crate) fn note_silent(&mut self) {
        self.is_silent = self.unheard().is_some();
    }

    /// What people are shown who ask.
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
        missing.extend(self.linkers.nameless());
        if self.is_silent && self.unheard().is_some() {
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

    /// How many entries its list has, also those that were refused.
    pub(crate) fn listed(&self) -> usize {
        self.known.len()
    }

    /// Every object it has reported, when the library is closed.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.known.values().filter_map(|known| known.id).collect()
    }
}
