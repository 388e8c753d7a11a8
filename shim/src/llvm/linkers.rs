//! LLVM's two linkers, and whether they are hooked.

#![forbid(unsafe_code)]

use jitlisten::log::{self, Level};
use jitlisten::log_line;
use jitlisten::options::{LlvmSource, LlvmSources};

use crate::channels::jitlink;
use crate::channels::runtime_dyld::{self, Refusal};
use crate::hook_table::{HookTable, SLOTS};
use crate::llvm::symbol_file::{DESCRIPTOR, SymbolFile};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::patch::Patched;
use crate::llvm::vtable::{self, mapped};
use crate::process::detour::Callers;
use crate::process::library::Library;

const NAMELESS: &str = "its linkers have neither symbols nor RTTI";
const UNLISTED: &str = "if it registers no object there, its code has addresses for names";

/// Each of the two: it calls us, or why not.
pub(crate) struct Linkers {
    pub(crate) runtime_dyld: Result<Patched, Refusal>,
    pub(crate) jitlink: Result<(), jitlink::Refusal>,
    /// Whether there seems to be one, although no vtable shows it. Known where that changes anything: its code gets
    /// addresses for names, or the log says so.
    pub(crate) is_unseen: bool,
    /// What the library says of itself.
    pub(crate) version: Option<String>,
}

impl Linkers {
    /// Looks for them in `library`, and leads those that are wanted to `hooks`; `slot` is the place there. Opens the
    /// library's file, and leaves it in `symbols`, where nothing else shows the vtables. A library that was at this
    /// place of the table must have been closed.
    pub(crate) fn attach(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        wanted: LlvmSources,
    ) -> Option<Linkers> {
        let (vtables, is_unseen) = vtables(library, symbols, wanted);
        // Constants are read for that: only of what has a linker.
        let releases = if vtables.is_empty() { Vec::new() } else { mapped::releases(library) };
        let runtime_dyld = match wanted.contains(LlvmSource::RuntimeDyld) {
            true => runtime_dyld::attach(library, slot, &vtables, &releases, *hooks.load_object.get(slot)?, callers),
            false => Err(Refusal::Unwanted),
        };
        let jitlink = match wanted.contains(LlvmSource::JitLink) {
            true => jitlink::attach(library, slot, &vtables, &releases, *hooks.emit.get(slot)?, callers),
            false => Err(jitlink::Refusal::Unwanted),
        };
        let version = releases.last().map(|release| release.version.clone());
        Some(Linkers { runtime_dyld, jitlink, is_unseen, version })
    }

    /// Whether every object that LLVM links is reported to us.
    pub(crate) fn report_all(&self) -> bool {
        self.runtime_dyld.is_ok() && matches!(self.jitlink, Ok(()) | Err(jitlink::Refusal::Missing))
    }

    /// Whether neither reports anything.
    pub(crate) fn report_nothing(&self) -> bool {
        self.runtime_dyld.is_err() && self.jitlink.is_err()
    }

    /// Why a linker that exists and is wanted is not observed.
    pub(crate) fn left_alone(&self) -> Option<String> {
        let runtime_dyld = self.runtime_dyld.as_ref().err();
        let jitlink = self.jitlink.as_ref().err();
        let is_left_alone = runtime_dyld
            .is_some_and(|refusal| !matches!(refusal, Refusal::Missing | Refusal::Unwanted))
            || jitlink
                .is_some_and(|refusal| !matches!(refusal, jitlink::Refusal::Missing | jitlink::Refusal::Unwanted));
        is_left_alone.then(|| {
            let refusals = [runtime_dyld.map(ToString::to_string), jitlink.map(ToString::to_string)];
            refusals.into_iter().flatten().collect::<Vec<_>>().join("; ")
        })
    }

    /// Warns of that, where it matters, and returns the reason. `is_listed`: LLVM's GDB JIT list can be read.
    pub(crate) fn warn(&self, library: &Library<'_>, is_listed: bool) -> Option<String> {
        let (Err(linker), Err(jitlink)) = (self.runtime_dyld, self.jitlink) else { return None };
        let why = unheard(linker, jitlink, self.is_unseen, is_listed)?;
        let path = library.path.display();
        let why = if is_listed {
            let why = format!("{why}; {UNLISTED}");
            log_line!(Warn, "{path}: only the GDB JIT list of this LLVM can be read: {why}");
            why
        } else {
            let names = if mapped::may_compile(library) { "has addresses for names" } else { "stays unnamed" };
            let why = format!("{why}; its code {names}");
            log_line!(Warn, "{path}: this LLVM is not observed: {why}");
            why
        };
        Some(why)
    }

    /// What cannot be told apart in its code, if there is any.
    pub(crate) fn nameless(&self) -> Option<String> {
        self.is_unseen.then(|| format!("{NAMELESS}; {UNLISTED}"))
    }

    /// Which of them does not, and why.
    pub(crate) fn log_refusals(&self, library: &Library<'_>) {
        if let Err(refusal) = self.runtime_dyld {
            log_line!(Info, "{}: RuntimeDyld is not observed: {refusal}", library.path.display());
        }
        if let Err(refusal) = self.jitlink {
            log_line!(Info, "{}: JITLink is not observed: {refusal}", library.path.display());
        }
    }
}

/// An LLVM for which there is no place in the table of hooks any more: returns why, if it is one.
pub(crate) fn say_no_place(
    library: &Library<'_>,
    symbols: &mut Option<SymbolFile>,
    wanted: LlvmSources,
) -> Option<String> {
    let (vtables, is_unseen) = vtables(library, symbols, wanted);
    if vtables.is_empty() && !is_unseen && library.dynamic_address(DESCRIPTOR).is_none() {
        return None;
    }
    let why = format!("too many LLVMs in this process (limit {SLOTS}); its code stays unnamed");
    log_line!(Warn, "{}: this LLVM is not observed: {why}", library.path.display());
    Some(why)
}

/// None where nothing is to be done with vtables.
pub(crate) fn wanted_classes(wanted: LlvmSources) -> &'static [&'static str] {
    let any = wanted.contains(LlvmSource::RuntimeDyld) || wanted.contains(LlvmSource::JitLink);
    if any { &vtable::CLASSES } else { &[] }
}

/// The vtables of the classes that are wanted, and whether there seems to be a linker although none of them shows it.
/// Where an LLVM has neither dynamic symbols nor names of types, its file may have symbols. Messages are looked for, in
/// all constants, only where that changes anything.
fn vtables(library: &Library<'_>, symbols: &mut Option<SymbolFile>, wanted: LlvmSources) -> (Vec<Vtable>, bool) {
    let classes = wanted_classes(wanted);
    if classes.is_empty() {
        return (Vec::new(), false);
    }
    let found = mapped::vtables(library, classes, symbols.as_ref());
    if !found.is_empty() || !mapped::may_have_llvm(library) {
        return (found, false);
    }
    if symbols.is_none()
        && let Some(file) = SymbolFile::opened(symbols, library)
    {
        let found = mapped::hidden_vtables(library, classes, file);
        if !found.is_empty() {
            return (found, false);
        }
    }
    let has_list = library.dynamic_address(DESCRIPTOR).is_some()
        || symbols.as_ref().is_some_and(|file| file.llvm_symbols().contains_key(DESCRIPTOR));
    let matters = has_list || mapped::may_compile(library) || log::enabled(Level::Warn);
    (found, matters && mapped::seems_to_have_linker(library))
}

/// Why an LLVM is not observed, or only in part, where that is worth a warning.
fn unheard(linker: Refusal, jitlink: jitlink::Refusal, is_unseen: bool, is_listed: bool) -> Option<String> {
    match (linker, jitlink) {
        (Refusal::Unwanted, _) | (_, jitlink::Refusal::Unwanted) => None,
        (Refusal::Missing, jitlink::Refusal::Missing) if !is_unseen => None,
        (Refusal::Missing, jitlink::Refusal::Missing) => Some(NAMELESS.to_owned()),
        _ if is_listed => None,
        _ => Some(format!("{linker}; {jitlink}")),
    }
}
