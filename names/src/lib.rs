//! Readable names from linkage names.
//!
//! Numba uses C++ mangling, so profilers show a stack of its functions like this:
//!
//! ```text
//!   _ZN8__main__5innerB2v2B38c8tJTIeFIjxB2IKSgI4CrvQClQZ6FczSBAA_3dEdx
//!     __main__::inner[abi:v2][abi:c8tJTIeFIjxB2IKSgI4CrvQClQZ6FczSBAA_3d](double, long long)     c++filt
//!     __main__.inner(float64, int64) [v2]                                                        this crate
//! ```
//!
//! The style is Numba's own: dotted Python names, and types as `print(signature)` shows them (`array(float64, 1d, C)`,
//! `UniTuple(int64 x 2)`). A prefix with `::` tells the purpose of an entry that is not the function itself
//! (`cpython::`, `cfunc::`, `gufunc::`, `ufunc::`, `kernel::`).
//!
//! `[v2]` is Numba's count of compilations in this process. It tells two specialisations with the same argument types
//! apart (closures made twice, `recompile()`, other compiler flags). It is short, so it is always kept. The second tag
//! (`c8tJT...`, the compressed compiler flags) is omitted.
//!
//! C++ names and old Rust names are demangled. Other names stay as they are.
//!
//! Source: `numba/core/itanium_mangler.py`, `numba/core/funcdesc.py`, `numba/np/ufunc/wrappers.py` (0.56 to 0.68).
//! `testdata/names.tsv` has names with their readable forms. To see the names of a process, use `f.inspect_llvm()`, or
//! `readelf -Ws` on its debug objects.

#![forbid(unsafe_code)]
// Code in the host's process must not panic. An exception needs a comment that tells why it cannot panic.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod escape;
mod itanium;
mod mangled;
mod numba;
mod numba_type;
mod printable;

use std::borrow::Cow;

pub use printable::{MAX_NAME_BYTES, printable};

/// Kind of entry that a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// The compiled function itself.
    Function,
    /// Numba's wrapper that the Python dispatcher calls (`cpython::`).
    CpythonWrapper,
    /// Numba's wrapper with a C calling convention (`cfunc.`).
    CfuncWrapper,
    /// A `prange` kernel or a (g)ufunc loop of Numba.
    Gufunc,
}

/// Readable form of a linkage name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadableName {
    /// One line of printable UTF-8, at least three characters and at most [`MAX_NAME_BYTES`] bytes; does not begin with
    /// `0x`.
    pub text: String,
    /// Kind of entry that the symbol names.
    pub kind: EntryKind,
}

/// Converts a linkage name to a readable one. `location` is the file and line of its first instruction, if known.
///
/// The location is only shown for code without a name of its own ([`wants_location`]). The result depends on the
/// arguments only. Different names of one process give different texts, unless they differ only by addresses in the
/// types of Numba's arguments: two generators with the same name, or the destructors of two classes.
pub fn readable(linkage_name: &str, location: Option<(&str, u32)>) -> ReadableName {
    Reader::default().readable(linkage_name, location)
}

/// Converter for the names of one object. It caches parsed arguments, which consecutive names often share.
#[derive(Debug, Default)]
pub struct Reader<'a> {
    cached_arguments: mangled::Arguments<'a>,
    owner: Option<String>,
}

impl<'a> Reader<'a> {
    /// Creates a converter for the functions of one object. If the object has `prange` kernels and exactly one
    /// user-written function, the kernels are named after it. Numba links a function with its kernels, and the address
    /// in a kernel's name is meaningless to users.
    pub fn for_object(linkage_names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut reader = Reader::default();
        if linkage_names.clone().any(numba::is_prange_kernel) {
            for name in linkage_names {
                match numba::user_function(name, &mut reader.cached_arguments) {
                    Some(function) if reader.owner.as_ref().is_some_and(|owner| *owner != function) => {
                        reader.owner = None;
                        break;
                    }
                    Some(function) => reader.owner = Some(function),
                    None => {}
                }
            }
        }
        reader
    }

    /// Converts a name with the same result as the function [`readable`].
    pub fn readable(&mut self, linkage_name: &'a str, location: Option<(&str, u32)>) -> ReadableName {
        if let Some(current_name) = escape::with_current_escapes(linkage_name)
            && let Some((text, kind)) =
                numba::readable(&current_name, location, None, &mut mangled::Arguments::default())
        {
            return ReadableName { text: printable::printable(&text), kind };
        }
        let (text, kind) =
            match numba::readable(linkage_name, location, self.owner.as_deref(), &mut self.cached_arguments) {
                Some((text, kind)) => (Cow::Owned(text), kind),
                None => (itanium::demangle(linkage_name), EntryKind::Function),
            };
        ReadableName { text: printable::into_printable(text), kind }
    }
}

/// Returns true if [`readable`] uses a location for this symbol.
pub fn wants_location(linkage_name: &str) -> bool {
    numba::wants_location(linkage_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "__gufunc__._ZN13_3cdynamic_3e36__numba_parfor_gufunc_0x7f50dd2e7110B3v24B4c8tJ\
        E5ArrayIdLi1E1C7mutable7alignedE";
    const FUNCTION: &str = "_ZN8__main__7diffuseB2v1B4c8tJEd";
    const WRAPPER: &str = "_ZN7cpython8__main__7diffuseB2v1B4c8tJEd";
    const NUMBA_FUNCTION: &str = "_ZN5numba2np6ufuncs3addB2v3B4c8tJEd";
    const OTHER_FUNCTION: &str = "_ZN8__main__5otherB2v2B4c8tJEd";

    fn kernel_name(other_names: &[&'static str]) -> String {
        let names: Vec<&str> = other_names.iter().copied().chain([KERNEL]).collect();
        Reader::for_object(names.iter().copied()).readable(KERNEL, None).text
    }

    #[test]
    fn a_kernel_is_of_the_one_function_of_its_object() {
        let with_owner = "gufunc::prange kernel in __main__.diffuse [v24]";
        assert_eq!(kernel_name(&[FUNCTION, NUMBA_FUNCTION, WRAPPER, "NRT_decref"]), with_owner);
        assert_eq!(kernel_name(&[WRAPPER]), with_owner);
        let without_owner = readable(KERNEL, None).text;
        assert!(without_owner.contains("[0x7f50dd2e7110 v24]"), "{without_owner}");
        assert_eq!(kernel_name(&[]), without_owner);
        assert_eq!(kernel_name(&[NUMBA_FUNCTION]), without_owner);
        // The kernel may belong to either function: Numba may have linked in the other.
        assert_eq!(kernel_name(&[FUNCTION, OTHER_FUNCTION, WRAPPER]), without_owner);
        // A location is more precise than the owner.
        let names = [FUNCTION, KERNEL];
        let named = Reader::for_object(names.iter().copied()).readable(KERNEL, Some(("/home/user/prog.py", 14)));
        assert_eq!(named.text, "gufunc::prange kernel prog.py:14 [v24]");
    }

    #[test]
    fn what_was_read_before_changes_nothing() {
        let table = include_str!("../testdata/names.tsv").lines().filter(|line| !line.starts_with('#'));
        let names: Vec<&str> = table.filter_map(|line| line.split('\t').nth(1)).collect();
        assert!(names.len() > 20);
        let mut reader = Reader::default();
        for pair in names.windows(2) {
            let truncated = pair[0].get(..pair[0].len() - 1).unwrap_or_default();
            for name in [pair[1], pair[1], truncated, pair[0]] {
                assert_eq!(reader.readable(name, None), readable(name, None), "{name}");
            }
        }
    }
}
