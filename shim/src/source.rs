//! One library with an LLVM in it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jitlisten::options::{LlvmSource, LlvmSources};
use jitlisten::{ObjectId, log_line};

use crate::codegen;
use crate::descriptor::{DescriptorAddress, ListedObject};
use crate::detour::{self, Callers};
use crate::discovered::DiscoveredLlvm;
use crate::hook_table::{HookTable, SLOTS};
use crate::jitlink;
use crate::library::{Identity, Library};
use crate::next::Function;
use crate::relocation_slot::{self, MemorySlots};
use crate::symbol_file::SymbolFile;
use crate::unheard;
use crate::vtable::find::Vtable;
use crate::vtable::patch::Patched;
use crate::vtable::runtime_dyld::{self, Refusal};
use crate::vtable::{self, mapped};

/// Below this much code a library cannot hold LLVM with a code generator (Debian's smallest is past 40 MB).
const SMALLEST_LLVM: u64 = 4 << 20;

const DESCRIPTOR: &str = "__jit_debug_descriptor";
const RENDEZVOUS_FUNCTION: &str = "__jit_debug_register_code";

/// An LLVM we listen to.
pub(crate) struct Source {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    /// Its list for debuggers, if it has one that can be found.
    descriptor: Option<DescriptorAddress>,
    /// Whether calls of the rendezvous reach us; otherwise the list is read whenever memory becomes executable.
    pub(crate) detoured: bool,
    /// Whether its linker calls us for each object.
    linker: Result<Patched, Refusal>,
    jitlink: Result<(), jitlink::Refusal>,
    /// Whether functions get frame pointers and unwind tables when it generates code.
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

/// None where nothing is to be done with vtables.
fn wanted_classes(wanted: LlvmSources) -> &'static [&'static str] {
    let any = wanted.contains(LlvmSource::RuntimeDyld) || wanted.contains(LlvmSource::JitLink);
    if any { &vtable::CLASSES } else { &[] }
}

/// The vtables of the classes that are wanted, and whether there seems to be a linker although none of them shows it. Where an LLVM
/// has neither dynamic symbols nor names of types, its file may have symbols.
///
/// # Safety
/// The library must be mapped, and stay so during the call.
unsafe fn vtables(library: &Library, symbols: &mut Option<SymbolFile>, wanted: LlvmSources) -> (Vec<Vtable>, bool) {
    let classes = wanted_classes(wanted);
    // SAFETY: the caller's promise; so below.
    let found = unsafe { mapped::vtables(library, classes, symbols.as_ref()) };
    // SAFETY: as above.
    if classes.is_empty() || !found.is_empty() || !unsafe { mapped::seems_to_have_linker(library) } {
        return (found, false);
    }
    if symbols.is_none() {
        *symbols =
            SymbolFile::open(library).inspect_err(|error| log_line!(Info, "{}: {error}", library.path.display())).ok();
    }
    // SAFETY: as above.
    let found = unsafe { mapped::vtables(library, classes, symbols.as_ref()) };
    let is_unseen = found.is_empty();
    (found, is_unseen)
}

/// An LLVM that nothing is heard of, or little, is worth a warning.
fn say_unheard(library: &Library, linker: Refusal, jitlink: jitlink::Refusal, is_unseen: bool, is_listed: bool) {
    let path = library.path.display();
    match (linker, jitlink) {
        (Refusal::Unwanted, _) | (_, jitlink::Refusal::Unwanted) => {}
        (Refusal::Missing, jitlink::Refusal::Missing) if !is_unseen => {}
        (Refusal::Missing, jitlink::Refusal::Missing) if is_listed => log_line!(
            Warn,
            "{path}: an LLVM that is heard by its list for debuggers only: its linkers have neither symbols nor names of types; what \
             the program does not register there has no names"
        ),
        (Refusal::Missing, jitlink::Refusal::Missing) => log_line!(
            Warn,
            "{path}: an LLVM that is not listened to: its linkers have neither symbols nor names of types; what it compiles has \
             no names"
        ),
        _ if is_listed => {}
        _ => log_line!(
            Warn,
            "{path}: an LLVM that is not listened to: {linker}; {jitlink}; what it compiles has no names"
        ),
    }
}

/// Whether a linker is there and is not listened to, although that was wanted.
fn is_left_alone(linker: Option<Refusal>, jitlink: Option<jitlink::Refusal>) -> bool {
    let linker = linker.is_some_and(|refusal| !matches!(refusal, Refusal::Missing | Refusal::Unwanted));
    linker || jitlink.is_some_and(|refusal| !matches!(refusal, jitlink::Refusal::Missing | jitlink::Refusal::Unwanted))
}

/// An LLVM for which there is no place in the table of hooks any more.
///
/// # Safety
/// As for [`vtables`].
unsafe fn say_no_place(library: &Library, symbols: &mut Option<SymbolFile>, wanted: LlvmSources) {
    // SAFETY: the caller's promise.
    let (vtables, is_unseen) = unsafe { vtables(library, symbols, wanted) };
    if !vtables.is_empty() || is_unseen || library.dynamic_address(DESCRIPTOR).is_some() {
        log_line!(
            Warn,
            "{}: an LLVM that is not listened to: {SLOTS} others are; what it compiles has no names",
            library.path.display()
        );
    }
}

/// Where the two symbols of the JIT interface are.
struct JitInterface {
    descriptor: usize,
    function: usize,
}

impl JitInterface {
    /// Looks where it costs little first: most libraries have no LLVM in them. Among symbols that are not exported only with `hidden`.
    fn find(library: &Library, symbols: &mut Option<SymbolFile>, hidden: bool) -> Option<JitInterface> {
        if let (Some(descriptor), Some(function)) =
            (library.dynamic_address(DESCRIPTOR), library.dynamic_address(RENDEZVOUS_FUNCTION))
        {
            return Some(JitInterface { descriptor, function });
        }
        if !hidden || library.code_size() < SMALLEST_LLVM || !library.mentions("mprotect") {
            return None;
        }
        if symbols.is_none() {
            *symbols = SymbolFile::open(library)
                .inspect_err(|error| log_line!(Info, "{}: {error}", library.path.display()))
                .ok();
        }
        let values = symbols.as_ref()?.find("__jit_debug_", &[DESCRIPTOR, RENDEZVOUS_FUNCTION]);
        let address = |name| Some(library.identity.bias.wrapping_add(*values.get(name)? as usize));
        Some(JitInterface { descriptor: address(DESCRIPTOR)?, function: address(RENDEZVOUS_FUNCTION)? })
    }

    /// Sends calls of the function to `hook`, or says why not. `linker_is_heard`: it does not matter much.
    ///
    /// # Safety
    /// The library must be mapped, and stay so during the call.
    unsafe fn detour(
        &self,
        library: &Library,
        hook: unsafe extern "C" fn(),
        callers: Callers,
        linker_is_heard: bool,
    ) -> bool {
        // SAFETY: the address is that of a function in the mapped library; the hook takes no argument and may be called
        // from anywhere, for ever.
        let detoured = unsafe { detour::detour(self.function, hook, callers) };
        if let Err(refusal) = &detoured {
            let path = library.path.display();
            if linker_is_heard {
                log_line!(Info, "{path}: the rendezvous stays as it is: {refusal}");
            } else {
                log_line!(
                    Warn,
                    "{path}: the rendezvous stays as it is: {refusal}; its list is read when memory becomes executable, which \
                     some objects miss"
                );
            }
        }
        detoured.is_ok()
    }
}

impl Source {
    /// Looks for an LLVM in `library` and starts to listen to it; `slot` is its place in the table of `hooks`. Leaves the
    /// library's file in `symbols` if it had to be opened.
    ///
    /// # Safety
    /// The library must be mapped, and stay so during the call. It need not be relocated.
    pub(crate) unsafe fn attach(
        library: &Library,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        wanted: LlvmSources,
    ) -> Option<Source> {
        let Some(&hook) = hooks.rendezvous.get(slot) else {
            // SAFETY: the caller's promise.
            unsafe { say_no_place(library, symbols, wanted) };
            return None;
        };
        if library.is_llvmlite() {
            // Its symbols are needed for other things, and its constants are 60 MB.
            *symbols = SymbolFile::open(library).ok();
        }
        // SAFETY: the caller's promise; a library at this place of the table was closed before.
        let (vtables, is_unseen) = unsafe { vtables(library, symbols, wanted) };
        let linker = match wanted.contains(LlvmSource::RuntimeDyld) {
            // SAFETY: as above.
            true => unsafe { runtime_dyld::attach(library, slot, &vtables, *hooks.load_object.get(slot)?) },
            false => Err(Refusal::Unwanted),
        };
        let jitlink = match wanted.contains(LlvmSource::JitLink) {
            // SAFETY: as above.
            true => unsafe { jitlink::attach(library, slot, &vtables, *hooks.emit.get(slot)?) },
            false => Err(jitlink::Refusal::Unwanted),
        };
        // llvmlite's file is opened for other functions anyway; elsewhere the list adds nothing that the linkers do not say.
        let linkers_are_heard = linker.is_ok() && matches!(jitlink, Ok(()) | Err(jitlink::Refusal::Missing));
        let hidden = !linkers_are_heard || library.is_llvmlite();
        let interface =
            if wanted.contains(LlvmSource::List) { JitInterface::find(library, symbols, hidden) } else { None };
        if let (Err(linker), Err(jitlink)) = (linker, jitlink) {
            say_unheard(library, linker, jitlink, is_unseen, interface.is_some());
            interface.as_ref()?;
        }
        log_line!(Info, "LLVM in {}, slot {slot}", library.path.display());
        if is_left_alone(linker.as_ref().err().copied(), jitlink.err()) {
            unheard::may_be();
        }
        let codegen = match wanted_classes(wanted) {
            [] => Err(codegen::Refusal::Unwanted),
            // SAFETY: as above.
            _ => unsafe { codegen::attach(library, slot, *hooks.generate_code.get(slot)?) },
        };
        if let Err(refusal) = linker {
            log_line!(Info, "{}: its linker is not listened to: {refusal}", library.path.display());
        }
        if let Err(refusal) = jitlink {
            log_line!(Info, "{}: JITLink is not listened to: {refusal}", library.path.display());
        }
        // SAFETY: the interface is the mapped library's.
        let detoured = interface
            .as_ref()
            .is_none_or(|interface| unsafe { interface.detour(library, hook, callers, linker.is_ok()) });
        let slots = MemorySlots::find(library, hooks);
        // SAFETY: the caller vouches for the mapping.
        if !unsafe { slots.are_relocated() } {
            // SAFETY: the loader has not come to it yet.
            if let Err(error) = unsafe { relocation_slot::listen_from_the_start(library, hooks) } {
                log_line!(Info, "{}: memory is listened to from its first object on: {error}", library.path.display());
            }
        }
        Some(Source {
            identity: library.identity,
            path: library.path.clone(),
            descriptor: interface.map(|interface| DescriptorAddress(interface.descriptor)),
            detoured,
            linker,
            jitlink,
            codegen,
            slot,
            wants_list: wanted.contains(LlvmSource::List),
            version: library.llvm_version(),
            is_llvmlite: library.is_llvmlite(),
            slots,
            listening: false,
            known: BTreeMap::new(),
            has_listed: false,
        })
    }

    /// Changes the relocation slots, the first time and whenever others have changed them. Returns whether this was the first
    /// time, and what others had put there.
    ///
    /// # Safety
    /// The library must be mapped and relocated.
    pub(crate) unsafe fn hook_memory(&mut self) -> (bool, Vec<(Function, usize)>) {
        let first = !std::mem::replace(&mut self.listening, true);
        // SAFETY: the caller vouches that the library is relocated.
        let found = unsafe { self.slots.listen() };
        let found = found.inspect_err(|error| {
            if first {
                log_line!(Warn, "mprotect of an LLVM cannot be listened to: {error}");
            }
        });
        (first, found.unwrap_or_default())
    }

    /// Whether the slots were changed.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening
    }

    /// Whether the library is relocated, as far as its slots show.
    ///
    /// # Safety
    /// The library must be mapped.
    pub(crate) unsafe fn is_relocated(&self) -> bool {
        // SAFETY: the caller vouches for the mapping.
        unsafe { self.slots.are_relocated() }
    }

    /// Whether its compilers lead to us.
    pub(crate) fn generates_for_us(&self) -> bool {
        self.codegen.is_ok()
    }

    /// Its linker is not understood after all: from now on its list for debuggers is read, also where that is not exported.
    ///
    /// # Safety
    /// The library must be mapped, and stay so during the call.
    pub(crate) unsafe fn fall_back_to_list(&mut self, hooks: &HookTable) {
        if self.descriptor.is_some() || !self.wants_list {
            return;
        }
        let name = if self.path == Path::new("/proc/self/exe") { c"".to_owned() } else { self.c_path() };
        // SAFETY: the caller's promise.
        let Some(library) = (unsafe { Library::read(self.identity, &name) }) else { return };
        let Some(interface) = JitInterface::find(&library, &mut None, true) else {
            log_line!(Warn, "{}: it has no list for debuggers either", self.path.display());
            return;
        };
        // SAFETY: as above.
        self.detoured = unsafe { interface.detour(&library, hooks.rendezvous[self.slot], Callers::Any, false) };
        self.descriptor = Some(DescriptorAddress(interface.descriptor));
    }

    fn c_path(&self) -> CString {
        CString::new(self.path.as_os_str().as_bytes()).unwrap_or_default()
    }

    /// Reads the list.
    pub(crate) fn read(&mut self) -> News {
        let Some(descriptor) = self.descriptor else { return News::default() };
        let Ok(reading) = descriptor.read().inspect_err(|error| log_line!(Warn, "the JIT interface: {error}")) else {
            return News::default();
        };
        let first = Some(reading.first).filter(|_| self.detoured);
        let left = reading.unregistered.and_then(|entry| self.known.remove(&entry)?.id);
        let mut news = News { left: left.into_iter().collect(), first, ..News::default() };
        if self.detoured {
            news.appeared = reading.entries().take_while(|listed| !self.known.contains_key(&listed.entry)).collect();
        } else {
            self.read_all(reading.entries().collect(), &mut news);
        }
        news.appeared.reverse();
        news
    }

    /// Without the rendezvous nothing announces that an entry is taken out, and its memory may hold another one by now.
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

    /// How many objects its linker has reported. What the place in the table counted for an earlier library is not this one's.
    fn linked(&self) -> u64 {
        if self.linker.is_ok() { runtime_dyld::reported(self.slot) } else { 0 }
    }

    /// Why code of it may have no names, where a linker is not understood and no object was ever heard.
    pub(crate) fn unheard(&self) -> Option<String> {
        let (linker, jitlink) = (self.linker.as_ref().err().copied(), self.jitlink.err());
        let is_heard = self.has_listed || self.linked() > 0;
        (!is_heard && is_left_alone(linker, jitlink)).then(|| {
            let refusals = [linker.map(|refusal| refusal.to_string()), jitlink.map(|refusal| refusal.to_string())];
            refusals.into_iter().flatten().collect::<Vec<_>>().join("; ")
        })
    }

    /// What people are shown who ask.
    pub(crate) fn describe(&self) -> DiscoveredLlvm {
        let (mut heard_by, mut missing) = (Vec::new(), Vec::new());
        match &self.linker {
            Ok(_) if runtime_dyld::is_trusted(self.slot) => heard_by.push("runtimedyld"),
            Ok(_) => missing.push("RuntimeDyld: its objects were not what they should be".to_owned()),
            Err(refusal) => missing.push(format!("RuntimeDyld: {refusal}")),
        }
        match &self.jitlink {
            Ok(()) => heard_by.push("jitlink"),
            Err(refusal) => missing.push(format!("JITLink: {refusal}")),
        }
        match (self.descriptor, self.detoured) {
            (Some(_), true) => heard_by.push("list-call"),
            (Some(_), false) => heard_by.push("list-poll"),
            (None, _) => missing.push("list for debuggers: not found".to_owned()),
        }
        if let (Err(refusal), false) = (&self.codegen, self.is_llvmlite) {
            missing.push(format!("frame pointers and unwind tables: {refusal}"));
        }
        DiscoveredLlvm {
            path: self.path.clone(),
            detoured: self.detoured,
            objects: self.objects().len(),
            version: self.version.clone(),
            heard_by,
            linked: self.linked(),
            missing,
        }
    }

    /// Every object it has reported, when the library is closed.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.known.values().filter_map(|known| known.id).collect()
    }
}
