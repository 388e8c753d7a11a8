//! Names that Numba gives to functions, wrappers, loops and kernels.

use std::borrow::Cow;

use crate::EntryKind;
use crate::escape;
use crate::mangled::{self, Arguments, Mangled};
use crate::numba_type;
use crate::printable::hash;

/// Prefixes of Numba's mangled names, each with its readable form and the kind of entry it implies.
const PREFIXES: [(&str, &str, EntryKind); 5] = [
    ("cfunc.", "cfunc::", EntryKind::CfuncWrapper),
    ("__gufunc__.", "gufunc::", EntryKind::Gufunc),
    ("__ufunc__.", "ufunc::", EntryKind::Gufunc),
    ("finalize_", "finalize::", EntryKind::Function),
    (".numba_", "", EntryKind::Function),
];

const PRANGE_KERNEL: &str = "prange kernel";

/// Prefix of the function that frees the members of a jitclass.
const DESTRUCTOR_PREFIX: &str = "_Dtor.";

/// Name prefixes of functions that Numba generates from an expression or a loop, each with its description. The rest of
/// such a name is an address.
const GENERATED_PREFIXES: [(&str, &str); 3] = [
    ("__numba_parfor_gufunc_", PRANGE_KERNEL),
    ("__numba_array_expr_", "array expression"),
    ("__numba_stencil_", "stencil"),
];

/// Returns true for code without a name of its own, such as a lambda.
pub(super) fn wants_location(linkage_name: &str) -> bool {
    // Searching for an eight-byte string is much faster than searching for a longer one.
    linkage_name.contains("_3clambd") && linkage_name.contains("_3clambda_3e")
        || linkage_name.contains("__numba_")
            && GENERATED_PREFIXES.iter().any(|(prefix, _)| linkage_name.contains(prefix))
}

/// Returns true for a `prange` loop that Numba turned into a function.
pub(super) fn is_prange_kernel(linkage_name: &str) -> bool {
    linkage_name.contains("__numba_") && linkage_name.contains("__numba_parfor_gufunc_")
}

/// Returns the module and name of a user-written function. Also accepts the linkage name of the function's wrapper.
pub(super) fn user_function<'a>(linkage_name: &'a str, cache: &mut Arguments<'a>) -> Option<String> {
    let (.., mangled_name) = strip_prefixes(linkage_name);
    let mut mangled = mangled::parse(mangled_name, cache)?;
    if !is_numba_name(&mangled) || generated_kind(&mangled).is_some() {
        return None;
    }
    if mangled.path.len() > 1 && mangled.path.first() == Some(&"cpython") {
        mangled.path.remove(0);
    }
    // Functions defined in Numba itself are excluded, because they contain no `prange` loops.
    let is_from_numba = mangled.path.first() == Some(&"numba");
    let parts: Vec<_> = mangled.path.iter().map(|part| escape::unescape_identifier(part)).collect();
    (!is_from_numba).then(|| parts.join("."))
}

/// Converts a Numba name; `None` for any other name. `owner` is the function that `prange` kernels belong to, if
/// known. `cache` contains the arguments of the previous name.
pub(super) fn readable<'a>(
    linkage_name: &'a str,
    location: Option<(&str, u32)>,
    owner: Option<&str>,
    cache: &mut Arguments<'a>,
) -> Option<(String, EntryKind)> {
    if linkage_name.starts_with(DESTRUCTOR_PREFIX) {
        return Some((numba_type::without_addresses(linkage_name).into_owned(), EntryKind::Function));
    }
    let (mut text, kind, mangled_name) = strip_prefixes(linkage_name);
    let mut mangled = mangled::parse(mangled_name, cache)?;
    text.reserve(linkage_name.len());
    if text.is_empty() && !is_numba_name(&mangled) {
        return None;
    }
    let mut kind = kind.unwrap_or(EntryKind::Function);
    if mangled.path.len() > 1 && mangled.path.first() == Some(&"cpython") {
        mangled.path.remove(0);
        text.push_str("cpython::");
        kind = EntryKind::CpythonWrapper;
    }
    let location_text = location.filter(|_| wants_location(linkage_name)).and_then(location_text).unwrap_or_default();
    let version = mangled.tags.iter().find(|tag| is_version(tag)).copied();
    match generated_kind(&mangled) {
        Some((description, identity)) => {
            text.push_str(description);
            match version {
                // The version is unique, so the address would be redundant next to a location.
                Some(version) if !location_text.is_empty() => {
                    text.extend([" ", location_text.trim_matches([' ', '(', ')']), " [", version, "]"]);
                }
                Some(version) => match owner.filter(|_| description == PRANGE_KERNEL) {
                    Some(owner) => text.extend([" in ", owner, " [", version, "]"]),
                    None => text.extend([" [", identity, " ", version, "]"]),
                },
                None => text.extend([&location_text, " [", identity, "]"]),
            }
            if kind == EntryKind::Function && description == PRANGE_KERNEL {
                kind = EntryKind::Gufunc;
            }
        }
        None => {
            for (index, part) in mangled.path.iter().enumerate() {
                text.extend([if index == 0 { "" } else { "." }, &escape::unescape_identifier(part)]);
            }
            text.extend(["(", &numba_type::without_addresses(&mangled.arguments.text), ")", &location_text]);
            if let Some(suffix) = version.map(Cow::Borrowed).or_else(|| flags_hash(&mangled).map(Cow::Owned)) {
                text.extend([" [", &suffix, "]"]);
            }
        }
    }
    text.push_str(mangled.arguments.suffix);
    Some((text, kind))
}

/// Returns the readable prefixes, the entry kind that the outermost prefix implies, and the rest of the name.
fn strip_prefixes(linkage_name: &str) -> (String, Option<EntryKind>, &str) {
    let (mut text, mut kind, mut rest) = (String::new(), None, linkage_name);
    if let Some(number_and_name) = rest.strip_prefix(".kernel.") {
        // The number is the address of an environment object, which differs between processes.
        rest = number_and_name
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .strip_prefix('_')
            .unwrap_or(number_and_name);
        text.push_str("kernel::");
        kind = Some(EntryKind::Gufunc);
    }
    while let Some((prefix, readable_prefix, implied_kind)) =
        PREFIXES.iter().find(|(prefix, ..)| rest.starts_with(prefix))
    {
        rest = rest.strip_prefix(prefix).unwrap_or_default();
        text.push_str(readable_prefix);
        kind = kind.or(Some(*implied_kind));
    }
    (text, kind, rest)
}

/// Returns true if a name that C++ could also have produced comes from Numba.
fn is_numba_name(mangled: &Mangled<'_, '_>) -> bool {
    mangled.tags.iter().any(|tag| is_version(tag) || is_flags(tag))
        || mangled.path.first() == Some(&"cpython")
        || mangled.path.iter().any(|part| part.contains("_3c") || part.contains("_24"))
        || mangled.arguments.has_escaped_bracket
}

fn is_version(tag: &str) -> bool {
    tag.strip_prefix('v').is_some_and(|count| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true for the result of `TargetConfig.get_mangle_string()`. All such tags begin with the same compressed
/// bytes.
fn is_flags(tag: &str) -> bool {
    tag.starts_with("c8tJT")
}

/// Returns a hash of the compiler flags, which stands in for a missing version.
fn flags_hash(mangled: &Mangled<'_, '_>) -> Option<String> {
    let flags = mangled.tags.iter().find(|tag| is_flags(tag))?;
    Some(format!("flags {:04x}", hash(flags) & 0xffff))
}

/// Returns the description of a generated function, and the part of its name that distinguishes it from others.
fn generated_kind<'a>(mangled: &Mangled<'a, '_>) -> Option<(&'static str, &'a str)> {
    let name = mangled.path.last()?;
    let (prefix, description) = GENERATED_PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    Some((description, name.strip_prefix(prefix)?))
}

/// Formats a location as ` (prog.py:14)`. Returns `None` for `<string>`, the file name of kernels that Numba compiles
/// from a string.
fn location_text((file, line): (&str, u32)) -> Option<String> {
    let name = file.rsplit('/').next()?;
    (!name.is_empty() && name != "<string>").then(|| format!(" ({name}:{line})"))
}
