//! Readable names from linkage names.
//!
//! Numba borrows the C++ mangling, so a stack of its functions reads like this in a profiler:
//!
//! ```text
//!   _ZN8__main__5innerB2v2B38c8tJTIeFIjxB2IKSgI4CrvQClQZ6FczSBAA_3dEdx
//!     __main__::inner[abi:v2][abi:c8tJTIeFIjxB2IKSgI4CrvQClQZ6FczSBAA_3d](double, long long)     c++filt
//!     __main__.inner(float64, int64) [v2]                                                        here
//! ```
//!
//! The style is Numba's own: dotted Python names, types as `print(signature)` shows them
//! (`array(float64, 1d, C)`, `UniTuple(int64 x 2)`), and in front, with `::`, what the entry is for when it is not the
//! function itself (`cpython::`, `cfunc::`, `gufunc::`, `ufunc::`, `kernel::`).
//!
//! `[v2]` is Numba's count of compilations in this process. It is what distinguishes two specialisations with the same
//! argument types apart (closures made twice, `recompile()`, other compiler flags), and is short, so it is always kept.
//! The second tag (`c8tJT...`, the compiler flags, compressed) is left out.
//!
//! Names that are not Numba's: C++ and old Rust names are demangled, the rest is left as it is.
//!
//! Source: `numba/core/itanium_mangler.py`, `numba/core/funcdesc.py`, `numba/np/ufunc/wrappers.py` (0.56 to 0.68).
//! `testdata/names.tsv` has names and what comes out. To see a process' names: `f.inspect_llvm()`, or `readelf -Ws` of
//! its debug objects.

#![forbid(unsafe_code)]
// In the host's process nothing panics; where a panic is impossible, the reason stands beside it.
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::panic, clippy::unreachable, clippy::unwrap_used))]

mod escape;
mod itanium;
mod mangled;
mod numba;
mod numba_type;
mod printable;

use std::borrow::Cow;

pub use printable::{LONGEST, printable};

/// What kind of entry a symbol is.
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

/// A linkage name made readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadableName {
    /// One line of printable UTF-8, at least three characters and at most [`LONGEST`] bytes; does not begin with `0x`.
    pub text: String,
    /// What the symbol is.
    pub kind: EntryKind,
}

/// Makes a linkage name readable. `location` is the file and line of its first instruction, when known.
///
/// The location is shown only for code that has no name of its own ([`wants_location`]). The same name gives the same
/// text always. Different names of one process give different texts, unless they differ only by addresses in the types
/// of Numba's arguments: two generators of one name, or the destructors of two classes.
pub fn readable(linkage_name: &str, location: Option<(&str, u32)>) -> ReadableName {
    Reader::default().readable(linkage_name, location)
}

/// Reads the names of one object, which often say the same things again.
#[derive(Debug, Default)]
pub struct Reader<'a> {
    latest: mangled::Arguments<'a>,
    owner: Option<String>,
}

impl<'a> Reader<'a> {
    /// For the functions of one object. If there are kernels of `prange` loops and one function that they can be of,
    /// they are of that: Numba links a function with its kernels, and the address in their names says nothing to a
    /// person.
    pub fn of_object(linkage_names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut reader = Reader::default();
        if linkage_names.clone().any(numba::is_prange_kernel) {
            for name in linkage_names {
                match numba::written(name, &mut reader.latest) {
                    Some(written) if reader.owner.as_ref().is_some_and(|owner| *owner != written) => {
                        reader.owner = None;
                        break;
                    }
                    Some(written) => reader.owner = Some(written),
                    None => {}
                }
            }
        }
        reader
    }

    /// See [`readable`]; the result is the same.
    pub fn readable(&mut self, linkage_name: &'a str, location: Option<(&str, u32)>) -> ReadableName {
        if let Some(newer) = escape::with_newer_escapes(linkage_name)
            && let Some((text, kind)) = numba::readable(&newer, location, None, &mut mangled::Arguments::default())
        {
            return ReadableName { text: printable::printable(&text), kind };
        }
        let (text, kind) = match numba::readable(linkage_name, location, self.owner.as_deref(), &mut self.latest) {
            Some((text, kind)) => (Cow::Owned(text), kind),
            None => (itanium::demangle(linkage_name), EntryKind::Function),
        };
        ReadableName { text: printable::printable_text(text), kind }
    }
}

/// Whether [`readable`] makes use of a location for this symbol.
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
    const OWN: &str = "_ZN5numba2np6ufuncs3addB2v3B4c8tJEd";
    const OTHER: &str = "_ZN8__main__5otherB2v2B4c8tJEd";

    fn kernel_among(others: &[&'static str]) -> String {
        let names: Vec<&str> = others.iter().copied().chain([KERNEL]).collect();
        Reader::of_object(names.iter().copied()).readable(KERNEL, None).text
    }

    #[test]
    fn a_kernel_is_of_the_one_function_of_its_object() {
        let known = "gufunc::prange kernel in __main__.diffuse [v24]";
        assert_eq!(kernel_among(&[FUNCTION, OWN, WRAPPER, "NRT_decref"]), known);
        assert_eq!(kernel_among(&[WRAPPER]), known);
        let unknown = readable(KERNEL, None).text;
        assert!(unknown.contains("[0x7f50dd2e7110 v24]"), "{unknown}");
        assert_eq!(kernel_among(&[]), unknown);
        assert_eq!(kernel_among(&[OWN]), unknown);
        // Its own, or that of a function that was linked in: nothing says which.
        assert_eq!(kernel_among(&[FUNCTION, OTHER, WRAPPER]), unknown);
        // A line says more.
        let names = [FUNCTION, KERNEL];
        let named = Reader::of_object(names.iter().copied()).readable(KERNEL, Some(("/home/user/prog.py", 14)));
        assert_eq!(named.text, "gufunc::prange kernel prog.py:14 [v24]");
    }

    #[test]
    fn what_was_read_before_changes_nothing() {
        let table = include_str!("../testdata/names.tsv").lines().filter(|line| !line.starts_with('#'));
        let names: Vec<&str> = table.filter_map(|line| line.split('\t').nth(1)).collect();
        assert!(names.len() > 20);
        let mut reader = Reader::default();
        for pair in names.windows(2) {
            let cut = pair[0].get(..pair[0].len() - 1).unwrap_or_default();
            for name in [pair[1], pair[1], cut, pair[0]] {
                assert_eq!(reader.readable(name, None), readable(name, None), "{name}");
            }
        }
    }
}
