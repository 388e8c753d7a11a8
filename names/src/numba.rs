//! The names Numba gives to its functions, wrappers, loops and kernels.

use std::borrow::Cow;

use crate::EntryKind;
use crate::escape;
use crate::mangled::{self, Arguments, Mangled};
use crate::numba_type;
use crate::printable::fingerprint;

/// What may stand before a mangled name, what it is shown as, and what it says about the entry.
const PREFIXES: [(&str, &str, EntryKind); 5] = [
    ("cfunc.", "cfunc::", EntryKind::CfuncWrapper),
    ("__gufunc__.", "gufunc::", EntryKind::Gufunc),
    ("__ufunc__.", "ufunc::", EntryKind::Gufunc),
    ("finalize_", "finalize::", EntryKind::Function),
    (".numba_", "", EntryKind::Function),
];

const PRANGE: &str = "prange kernel";

/// Frees the members of a jitclass.
const DESTRUCTOR: &str = "_Dtor.";

/// Functions Numba generates from an expression or a loop: they have an address for a name, and that as text.
const GENERATED: [(&str, &str); 3] =
    [("__numba_parfor_gufunc_", PRANGE), ("__numba_array_expr_", "array expression"), ("__numba_stencil_", "stencil")];

/// Code without a name of its own.
pub(super) fn wants_location(linkage_name: &str) -> bool {
    // Needles of eight bytes are found many times faster than longer ones.
    linkage_name.contains("_3clambd") && linkage_name.contains("_3clambda_3e")
        || linkage_name.contains("__numba_") && GENERATED.iter().any(|(prefix, _)| linkage_name.contains(prefix))
}

/// Whether the name is of a loop that Numba made a function of.
pub(super) fn is_prange_kernel(linkage_name: &str) -> bool {
    linkage_name.contains("__numba_") && linkage_name.contains("__numba_parfor_gufunc_")
}

/// Module and name of a function that a person has written, also from the name of its wrapper.
pub(super) fn written<'a>(linkage_name: &'a str, latest: &mut Arguments<'a>) -> Option<String> {
    let (.., mangled_name) = strip_prefixes(linkage_name);
    let mut mangled = mangled::parse(mangled_name, latest)?;
    if !is_numbas(&mangled) || generated(&mangled).is_some() {
        return None;
    }
    if mangled.path.len() > 1 && mangled.path.first() == Some(&"cpython") {
        mangled.path.remove(0);
    }
    // Numba's own have no such loops.
    let is_own = mangled.path.first() == Some(&"numba");
    let parts: Vec<_> = mangled.path.iter().map(|part| escape::identifier(part)).collect();
    (!is_own).then(|| parts.join("."))
}

/// The text for a name of Numba's; `None` for any other. `owner` is the function that `prange` kernels are of, if that
/// is known; `latest` are the arguments of the name before.
pub(super) fn readable<'a>(
    linkage_name: &'a str,
    location: Option<(&str, u32)>,
    owner: Option<&str>,
    latest: &mut Arguments<'a>,
) -> Option<(String, EntryKind)> {
    if linkage_name.starts_with(DESTRUCTOR) {
        return Some((numba_type::without_addresses(linkage_name).into_owned(), EntryKind::Function));
    }
    let (mut shown, kind, mangled_name) = strip_prefixes(linkage_name);
    let mut mangled = mangled::parse(mangled_name, latest)?;
    shown.reserve(linkage_name.len());
    if shown.is_empty() && !is_numbas(&mangled) {
        return None;
    }
    let mut kind = kind.unwrap_or(EntryKind::Function);
    if mangled.path.len() > 1 && mangled.path.first() == Some(&"cpython") {
        mangled.path.remove(0);
        shown.push_str("cpython::");
        kind = EntryKind::CpythonWrapper;
    }
    let place = location.filter(|_| wants_location(linkage_name)).and_then(place).unwrap_or_default();
    let version = mangled.tags.iter().find(|tag| is_version(tag)).copied();
    match generated(&mangled) {
        Some((what, identity)) => {
            shown.push_str(what);
            match version {
                // The count alone is unique, so where the text is known, the address in the name says nothing more.
                Some(version) if !place.is_empty() => {
                    shown.extend([" ", place.trim_matches([' ', '(', ')']), " [", version, "]"]);
                }
                Some(version) => match owner.filter(|_| what == PRANGE) {
                    Some(owner) => shown.extend([" in ", owner, " [", version, "]"]),
                    None => shown.extend([" [", identity, " ", version, "]"]),
                },
                None => shown.extend([&place, " [", identity, "]"]),
            }
            if kind == EntryKind::Function && what == PRANGE {
                kind = EntryKind::Gufunc;
            }
        }
        None => {
            for (index, part) in mangled.path.iter().enumerate() {
                shown.extend([if index == 0 { "" } else { "." }, &escape::identifier(part)]);
            }
            shown.extend(["(", &numba_type::without_addresses(&mangled.arguments.shown), ")", &place]);
            if let Some(mark) = version.map(Cow::Borrowed).or_else(|| flags_mark(&mangled).map(Cow::Owned)) {
                shown.extend([" [", &mark, "]"]);
            }
        }
    }
    shown.push_str(mangled.arguments.suffix);
    Some((shown, kind))
}

/// The prefixes as they are shown, the kind the outermost of them says, and the name behind them.
fn strip_prefixes(linkage_name: &str) -> (String, Option<EntryKind>, &str) {
    let (mut shown, mut kind, mut rest) = (String::new(), None, linkage_name);
    if let Some(behind) = rest.strip_prefix(".kernel.") {
        // The number is the address of an environment: another one in each process.
        rest = behind.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('_').unwrap_or(behind);
        shown.push_str("kernel::");
        kind = Some(EntryKind::Gufunc);
    }
    while let Some((prefix, text, says)) = PREFIXES.iter().find(|(prefix, ..)| rest.starts_with(prefix)) {
        rest = rest.strip_prefix(prefix).unwrap_or_default();
        shown.push_str(text);
        kind = kind.or(Some(*says));
    }
    (shown, kind, rest)
}

/// Whether a name that C++ could have made as well is Numba's.
fn is_numbas(mangled: &Mangled<'_, '_>) -> bool {
    mangled.tags.iter().any(|tag| is_version(tag) || is_flags(tag))
        || mangled.path.first() == Some(&"cpython")
        || mangled.path.iter().any(|part| part.contains("_3c") || part.contains("_24"))
        || mangled.arguments.escaped
}

fn is_version(tag: &str) -> bool {
    tag.strip_prefix('v').is_some_and(|count| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `TargetConfig.get_mangle_string()`: every one begins with the same compressed bytes.
fn is_flags(tag: &str) -> bool {
    tag.starts_with("c8tJT")
}

/// Stands in for a missing version.
fn flags_mark(mangled: &Mangled<'_, '_>) -> Option<String> {
    let flags = mangled.tags.iter().find(|tag| is_flags(tag))?;
    Some(format!("flags {:04x}", fingerprint(flags) & 0xffff))
}

/// What was generated, and the part of its name that distinguishes it from others.
fn generated<'a>(mangled: &Mangled<'a, '_>) -> Option<(&'static str, &'a str)> {
    let name = mangled.path.last()?;
    let (prefix, what) = GENERATED.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    Some((what, name.strip_prefix(prefix)?))
}

/// ` (prog.py:14)`. Numba compiles kernels from text it makes up, and calls that file `<string>`: no place at all.
fn place((file, line): (&str, u32)) -> Option<String> {
    let name = file.rsplit('/').next()?;
    (!name.is_empty() && name != "<string>").then(|| format!(" ({name}:{line})"))
}
