//! Ownership of source files by path: the user, a package, or Python.

use rustc_hash::FxHashMap;

use crate::recording::Recording;

/// Returns true if a source belongs neither to a library nor to Python. Generated code has no file of its own.
pub(crate) fn is_user_source(path: &str) -> bool {
    !is_generated(path) && python_library(path).is_none()
}

/// Returns true for generated code without a file, such as `<string>`. `<frozen importlib._bootstrap>` belongs to the
/// standard library.
pub(crate) fn is_generated(path: &str) -> bool {
    path.starts_with('<') && !path.starts_with("<frozen ")
}

pub(super) const STANDARD_LIBRARY: &str = "Python's library";

/// Returns the package of an installed Python file or of jitlisten's own, and `Python's library` for the standard
/// library.
pub(crate) fn python_library(path: &str) -> Option<&str> {
    if path.starts_with("<frozen ") {
        return Some(STANDARD_LIBRARY);
    }
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = path.rsplit_once(folder) {
            let first = rest.split('/').next().unwrap_or(rest);
            return Some(first.strip_suffix(".py").unwrap_or(first));
        }
    }
    if path.contains("/jitlisten/_") {
        return Some("jitlisten");
    }
    let (_, rest) = path.rsplit_once("/lib/python")?;
    rest.starts_with(|digit: char| digit.is_ascii_digit()).then_some(STANDARD_LIBRARY)
}

/// Maps the file names of C libraries in a process to the packages that ship them.
pub(super) fn packages_of_files(recording: &Recording) -> FxHashMap<&str, &str> {
    let files = recording.files.iter().filter(|file| file.path.contains(".so"));
    let package = |path| {
        // Wheel repair tools such as auditwheel put copies of libraries into a directory next to the package.
        python_library(path).map(|package| package.strip_suffix(".libs").unwrap_or(package))
    };
    files.filter_map(|file| Some((file.path.rsplit('/').next()?, package(&file.path)?))).collect()
}
