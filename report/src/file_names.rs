//! File names that differ where files do.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::words::{CELL, file_name};

/// File names of a table, or of sentences. Files that share a name are shown with their directory.
pub(crate) struct FileNames<'a> {
    ambiguous: FxHashSet<&'a str>,
}

impl<'a> FileNames<'a> {
    pub(crate) fn new(paths: impl Iterator<Item = &'a str>) -> FileNames<'a> {
        let mut first_paths: FxHashMap<&str, &str> = FxHashMap::default();
        let mut ambiguous = FxHashSet::from_iter(["__init__.py"]);
        for path in paths {
            let name = file_name(path);
            if !name.starts_with(CELL) && *first_paths.entry(name).or_insert(path) != path {
                ambiguous.insert(name);
            }
        }
        FileNames { ambiguous }
    }

    pub(crate) fn name<'b>(&self, path: &'b str) -> &'b str {
        let name = file_name(path);
        if !self.ambiguous.contains(name) {
            return name;
        }
        let directory_start = path.strip_suffix(name).and_then(|directory| directory.trim_end_matches('/').rfind('/'));
        directory_start.map_or(path, |start| &path[start + 1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_are_shown_with_their_directory() {
        let paths = ["/a/interpolation/interpn.py", "/a/resampy/interpn.py", "/a/b.py", "/a/pkg/__init__.py", "x.py"];
        let names = FileNames::new(paths.into_iter());
        let shown: Vec<&str> = paths.iter().map(|path| names.name(path)).collect();
        assert_eq!(shown, ["interpolation/interpn.py", "resampy/interpn.py", "b.py", "pkg/__init__.py", "x.py"]);
    }

    #[test]
    fn cells_have_their_number() {
        let paths = ["<ipython-input-3-5cd641b23216>", "/saved/ipython-input-3-5cd641b23216-e638abc24ace.py", "/a/<x>"];
        let names = FileNames::new(paths.into_iter());
        assert_eq!(paths.map(|path| names.name(path)), ["ipython-input-3", "ipython-input-3", "<x>"]);
    }
}
