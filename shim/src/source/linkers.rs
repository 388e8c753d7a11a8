//! The two linkers of an LLVM instance, and their hooks.

#![forbid(unsafe_code)]

use jitlisten::log::{self, Level};
use jitlisten::log_line;
use jitlisten::options::{LlvmSource, LlvmSources};
use jitlisten::plumbing::LogEvent;
use wire::facts::NO_SYMBOLS_OR_RTTI;

use crate::channels::jitlink;
use crate::channels::runtime_dyld::{self, Refusal};
use crate::hook_table::{HookTable, SLOTS};
use crate::llvm::recognise;
use crate::llvm::symbol_file::{DESCRIPTOR_SYMBOL, SymbolFile};
use crate::llvm::vtable::find::Vtable;
use crate::llvm::vtable::patch::PatchedSlot;
use crate::llvm::vtable::{self, search};
use crate::process::detour::Callers;
use crate::process::library::Library;

const UNLISTED_CODE_NOTE: &str = "if it registers no object there, its code has addresses for names";

/// State of both linkers: hooked, or the reason why not.
pub(crate) struct Linkers {
    pub(crate) runtime_dyld: Result<PatchedSlot, Refusal>,
    pub(crate) jitlink: Result<(), jitlink::Refusal>,
    /// True if a linker seems to be present although no vtable was found. This is determined only if it matters: if the
    /// linker's code would be shown by address, or if the log would mention the linker.
    pub(crate) has_hidden_linker: bool,
    /// LLVM release, if the library reveals it.
    pub(crate) version: Option<String>,
}

impl Linkers {
    /// Finds the linkers in `library` and hooks those in `enabled`; `slot` is the library's index in the table of
    /// `hooks`. If nothing else reveals the vtables, opens the library's file and stores it in `symbols`. Any library
    /// that had this slot before must have been closed.
    pub(crate) fn attach(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        slot: usize,
        hooks: &'static HookTable,
        callers: Callers,
        enabled: LlvmSources,
    ) -> Option<Linkers> {
        let (vtables, has_hidden_linker) = find_vtables(library, symbols, enabled);
        // Finding the releases reads all constants, so it is only done if there is a linker.
        let releases = if vtables.is_empty() { Vec::new() } else { recognise::releases(library, symbols.as_ref()) };
        let runtime_dyld = match enabled.contains(LlvmSource::RuntimeDyld) {
            true => runtime_dyld::attach(library, slot, &vtables, &releases, *hooks.load_object.get(slot)?, callers),
            false => Err(Refusal::Unwanted),
        };
        let jitlink = match enabled.contains(LlvmSource::JitLink) {
            true => jitlink::attach(library, slot, &vtables, &releases, *hooks.emit.get(slot)?, callers),
            false => Err(jitlink::Refusal::Unwanted),
        };
        let version = releases.last().map(|release| release.version.clone());
        Some(Linkers { runtime_dyld, jitlink, has_hidden_linker, version })
    }

    /// Returns true if every object that LLVM links is reported to us.
    pub(crate) fn reports_everything(&self) -> bool {
        self.runtime_dyld.is_ok() && matches!(self.jitlink, Ok(()) | Err(jitlink::Refusal::Missing))
    }

    /// Returns true if neither linker is observed.
    pub(crate) fn reports_nothing(&self) -> bool {
        self.runtime_dyld.is_err() && self.jitlink.is_err()
    }

    /// Reason why a linker that is present and enabled is not observed.
    pub(crate) fn ignored_reason(&self) -> Option<String> {
        let runtime_dyld = self.runtime_dyld.as_ref().err();
        let jitlink = self.jitlink.as_ref().err();
        let is_ignored = runtime_dyld.is_some_and(|refusal| !matches!(refusal, Refusal::Missing | Refusal::Unwanted))
            || jitlink
                .is_some_and(|refusal| !matches!(refusal, jitlink::Refusal::Missing | jitlink::Refusal::Unwanted));
        is_ignored.then(|| {
            let refusals = [runtime_dyld.map(ToString::to_string), jitlink.map(ToString::to_string)];
            refusals.into_iter().flatten().collect::<Vec<_>>().join("; ")
        })
    }

    /// Returns the reason why linkers are not observed, if any, and logs it as a warning. `is_listed` is true if this
    /// LLVM instance's GDB JIT list can be read.
    pub(crate) fn warn(&self, library: &Library<'_>, is_listed: bool) -> Option<String> {
        let (Err(runtime_dyld), Err(jitlink)) = (self.runtime_dyld, self.jitlink) else { return None };
        let reason = warning_reason(runtime_dyld, jitlink, self.has_hidden_linker, is_listed)?;
        if is_listed {
            let reason = format!("{reason}; {UNLISTED_CODE_NOTE}");
            log_line!(Warn, "{}", LogEvent::OnlyListed { library: &library.name(), reason: &reason });
            return Some(reason);
        }
        let names = if recognise::may_compile(library) { "has addresses for names" } else { "stays unnamed" };
        Some(log_unobserved(library, format!("{reason}; its code {names}")))
    }

    /// Returns a note that the code of a hidden linker may be shown by address instead of by name; `None` if there is
    /// no hidden linker.
    pub(crate) fn hidden_linker_note(&self) -> Option<String> {
        self.has_hidden_linker.then(|| format!("{NO_SYMBOLS_OR_RTTI}; {UNLISTED_CODE_NOTE}"))
    }

    /// Logs each unobserved linker with the reason.
    pub(crate) fn log_refusals(&self, library: &Library<'_>) {
        let library = &*library.name();
        let log = |linker, class, reason: String, is_absent| {
            let event = match is_absent {
                true => LogEvent::LinkerAbsent { library, linker, class },
                false => LogEvent::LinkerUnobserved { library, linker, reason: &reason },
            };
            log_line!(Info, "{event}");
        };
        if let Err(refusal) = self.runtime_dyld {
            log("RuntimeDyld", "RuntimeDyldELF", refusal.to_string(), refusal == Refusal::Missing);
        }
        if let Err(refusal) = self.jitlink {
            log("JITLink", "ObjectLinkingLayer", refusal.to_string(), refusal == jitlink::Refusal::Missing);
        }
    }
}

/// Warns that no slot is left for a library with LLVM. Returns the reason, or `None` if the library contains no LLVM.
pub(crate) fn warn_too_many_llvms(
    library: &Library<'_>,
    symbols: &mut Option<SymbolFile>,
    enabled: LlvmSources,
) -> Option<String> {
    let (vtables, has_hidden_linker) = find_vtables(library, symbols, enabled);
    if vtables.is_empty() && !has_hidden_linker && library.dynamic_address(DESCRIPTOR_SYMBOL).is_none() {
        return None;
    }
    Some(log_unobserved(library, format!("too many LLVMs in this process (limit {SLOTS}); its code stays unnamed")))
}

/// Warns that an LLVM is not observed, and returns the reason.
fn log_unobserved(library: &Library<'_>, reason: String) -> String {
    log_line!(Warn, "{}", LogEvent::Unobserved { library: &library.name(), reason: &reason });
    reason
}

/// Classes whose vtables must be found; empty if no linker is enabled.
pub(crate) fn enabled_classes(enabled: LlvmSources) -> &'static [&'static str] {
    let has_linker = enabled.contains(LlvmSource::RuntimeDyld) || enabled.contains(LlvmSource::JitLink);
    if has_linker { &vtable::CLASSES } else { &[] }
}

/// Finds the vtables of the enabled classes. The flag is true if a linker seems to be present although no vtable was
/// found. If an LLVM library has neither dynamic symbols nor RTTI, its file may have symbols. Searching all constants
/// for a linker's messages is expensive, so it is only done if the answer matters.
fn find_vtables(library: &Library<'_>, symbols: &mut Option<SymbolFile>, enabled: LlvmSources) -> (Vec<Vtable>, bool) {
    let classes = enabled_classes(enabled);
    if classes.is_empty() {
        return (Vec::new(), false);
    }
    let found_vtables = search::vtables(library, classes, symbols.as_ref());
    if !found_vtables.is_empty() || !recognise::may_have_llvm(library) {
        return (found_vtables, false);
    }
    if symbols.is_none()
        && let Some(file) = SymbolFile::open_once(symbols, library)
    {
        let found_vtables = search::hidden_vtables(library, classes, file);
        if !found_vtables.is_empty() {
            return (found_vtables, false);
        }
    }
    let has_list = library.dynamic_address(DESCRIPTOR_SYMBOL).is_some()
        || symbols.as_ref().is_some_and(|file| file.llvm_symbols().contains_key(DESCRIPTOR_SYMBOL));
    let is_relevant = has_list || recognise::may_compile(library) || log::enabled(Level::Warn);
    (found_vtables, is_relevant && recognise::seems_to_have_linker(library))
}

/// Reason why an LLVM instance is not fully observed, if that deserves a warning.
fn warning_reason(
    runtime_dyld: Refusal,
    jitlink: jitlink::Refusal,
    has_hidden_linker: bool,
    is_listed: bool,
) -> Option<String> {
    match (runtime_dyld, jitlink) {
        (Refusal::Unwanted, _) | (_, jitlink::Refusal::Unwanted) => None,
        (Refusal::Missing, jitlink::Refusal::Missing) if !has_hidden_linker => None,
        (Refusal::Missing, jitlink::Refusal::Missing) => Some(NO_SYMBOLS_OR_RTTI.to_owned()),
        _ if is_listed => None,
        _ => Some(format!("{runtime_dyld}; {jitlink}")),
    }
}
