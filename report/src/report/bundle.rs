//! Copies of recordings and of the files that they name, for use on another machine.
//!
//! ```text
//!   FOLDER/NAME, FOLDER/NAME.images/   a recording and its images
//!   FOLDER/root/...                    images, libraries, sources and perf maps, each below its own path
//!   FOLDER/2/..., FOLDER/3/...         the same, for recordings of machines that have other files at these paths
//! ```
//! So a file that many processes have in common is stored once. Only the functions with samples and the unwind table of
//! a library are stored, unless whole libraries are requested.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use jitlisten_files::{OwnDirectory, open_regular};
use rustc_hash::FxHashMap;
use wire::recording::{COMPILATIONS, INTERPRETER, images};

use super::RecordingFile;
use crate::error::Error;
use crate::lookup::{Lookup, candidates};
use crate::recording::{Recording, Selection};
use crate::symbols::{self, Hash, Library, NamedFiles, RecordingFiles, Roots, SampledFile, hash_contents};

/// Name of the directory with the files of recordings.
pub const ROOT: &str = "root";
/// Name of the file that marks a directory as a bundle.
pub const MARKER: &str = "jitlisten-bundle";
/// Maximum size of a copied file. A recording can name sparse files of any size.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Number of bytes that are copied before a request to stop is noticed.
const COPIED_AT_ONCE_BYTES: u64 = 16 << 20;

/// Files of a bundle.
#[derive(Debug, Default)]
pub struct Bundle {
    /// Keep libraries whole.
    whole: bool,
    /// Files by their path in the bundle.
    files: BTreeMap<PathBuf, Content>,
    /// Directories with recordings and a root, below that of the bundle.
    parts: BTreeSet<PathBuf>,
    named_files: NamedFiles,
    /// Hashes of the files that were read.
    hashes: FxHashMap<PathBuf, Hash>,
    /// Files that are not in the bundle, with the reason.
    missing: BTreeMap<PathBuf, String>,
}

#[derive(Debug)]
enum Content {
    /// Recording or part of it.
    Own(PathBuf),
    /// File that other recordings may have, too.
    Shared {
        source: PathBuf,
        hash: Hash,
        max_bytes: u64,
    },
    Library(Library),
}

impl Bundle {
    /// Returns an empty bundle. `whole` keeps libraries whole, for disassembly and for lines of C code.
    #[must_use]
    pub fn new(whole: bool) -> Bundle {
        Bundle { whole, ..Bundle::default() }
    }

    /// Adds a recording under this name, or under a free one. `lookup` has the directories that are searched first.
    ///
    /// # Errors
    /// Returns an error if the recording is unreadable.
    pub fn add(&mut self, file: &RecordingFile, name: &OsStr, lookup: &Lookup) -> Result<(), Error> {
        let recording = file.read(&Selection::default(), lookup)?;
        let roots = Roots::new(&recording, lookup).all();
        let own_images = images(&std::path::absolute(&file.path).unwrap_or_default());
        let mut own: Vec<PathBuf> = [COMPILATIONS, INTERPRETER].iter().map(|name| own_images.join(name)).collect();
        own.retain(|path| path.is_file());
        let mut shared = BTreeMap::new();
        let RecordingFiles { sampled, sources } = self.named_files.find(&recording, lookup, self.whole);
        for (path, file) in sampled {
            if path.parent() == Some(&own_images) && path.is_file() {
                own.push(path);
                continue;
            }
            if let Ok(SampledFile::Library(_, Some(debug))) = &file
                && let Ok(content) = self.read(debug, MAX_FILE_BYTES)
            {
                let below_root = roots.iter().find_map(|root| debug.strip_prefix(root).ok());
                shared.insert(Path::new("/").join(below_root.unwrap_or(debug)), content);
            }
            match file.and_then(|file| self.content(file).map_err(|error| error.to_string())) {
                Ok(content) => _ = shared.insert(path, content),
                Err(error) => _ = self.missing.insert(path, error),
            }
        }
        for path in sources {
            match self.read_original(&roots, &path, MAX_FILE_BYTES) {
                Ok(content) => _ = shared.insert(path, content),
                Err(error) => _ = self.missing.insert(path, error.to_string()),
            }
        }
        for path in perf_maps(&recording) {
            // A missing perf map is normal and not reported.
            if let Ok(content) = self.read_original(&roots, &path, symbols::MAX_MAP_BYTES) {
                shared.insert(path, content);
            }
        }
        let shared = shared.into_iter().filter_map(|(path, content)| Some((relative_path(&path)?.to_owned(), content)));
        let shared: Vec<(PathBuf, Content)> = shared.collect();
        let is_free = |part: &PathBuf| {
            let in_part = |path: &Path| self.files.get(&part.join(ROOT).join(path));
            shared.iter().all(|(path, content)| in_part(path).is_none_or(|existing| existing.is_same(content)))
        };
        // A part without files has room for all.
        let part = (1..).map(part_directory).find(is_free).unwrap_or_default();
        for (path, content) in shared {
            match self.files.entry(part.join(ROOT).join(path)) {
                Entry::Vacant(entry) => _ = entry.insert(content),
                Entry::Occupied(mut entry) => entry.get_mut().merge(content),
            }
        }
        let recorded = free_name(&self.files, &part.join(name));
        for path in own {
            self.files.insert(images(&recorded).join(path.file_name().unwrap_or_default()), Content::Own(path));
        }
        self.files.insert(recorded, Content::Own(file.path.clone()));
        self.parts.insert(part);
        Ok(())
    }

    fn content(&mut self, file: SampledFile) -> io::Result<Content> {
        match file {
            SampledFile::Library(library, _) if !self.whole => Ok(Content::Library(library)),
            SampledFile::Library(library, _) => self.read(library.source(), MAX_FILE_BYTES),
            SampledFile::Image(source) => self.read(&source, MAX_FILE_BYTES),
        }
    }

    /// Reads the file in the first root that has it.
    fn read_original(&mut self, roots: &[PathBuf], path: &Path, max_bytes: u64) -> io::Result<Content> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for candidate in candidates(roots, path) {
            result = self.read(&candidate, max_bytes);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn read(&mut self, source: &Path, max_bytes: u64) -> io::Result<Content> {
        let hash = match self.hashes.get(source) {
            Some(hash) => *hash,
            None => {
                let file = open_regular(source)?;
                if file.metadata()?.len() > max_bytes {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                let hash = hash_contents(file.take(max_bytes))?;
                self.hashes.insert(source.to_owned(), hash);
                hash
            }
        };
        Ok(Content::Shared { source: source.to_owned(), hash, max_bytes })
    }

    /// Returns the paths of all files in the bundle.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Returns the files that are not in the bundle, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.missing.iter().map(|(path, reason)| (path.as_path(), reason.as_str()))
    }

    /// Writes the files. Recordings and images that are in the directory already stay. Returns the size of all files.
    ///
    /// Files have mode 0600 in directories of mode 0700, because a source may be private.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written or the disk is full, a recording cannot be copied, or
    /// `is_interrupted` returns true.
    pub fn write(&mut self, folder: &OwnDirectory, is_interrupted: &dyn Fn() -> bool) -> Result<u64, Error> {
        for part in &self.parts {
            let root = part.join(ROOT);
            folder.create_below(&root).map_err(|error| Error::io("create", folder.path().join(root), error))?;
        }
        let mut bytes = 0;
        for (path, content) in &self.files {
            match (content.write(folder, path, is_interrupted), content) {
                (Ok(size), _) => bytes += size,
                (Err(error), Content::Shared { .. } | Content::Library(_)) if !ends_writing(&error) => {
                    self.missing.insert(path.clone(), error.to_string());
                }
                (Err(error), _) => return Err(Error::io("write", folder.path().join(path), error)),
            }
        }
        Ok(bytes)
    }
}

impl Content {
    /// Returns true if two files may have the same path in the bundle.
    fn is_same(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::Shared { hash, .. }, Content::Shared { hash: other, .. }) => hash == other,
            (Content::Library(library), Content::Library(other)) => library.is_same(other),
            _ => false,
        }
    }

    fn merge(&mut self, other: Content) {
        if let (Content::Library(library), Content::Library(other)) = (self, other) {
            library.merge(other);
        }
    }

    fn write(&self, folder: &OwnDirectory, path: &Path, is_interrupted: &dyn Fn() -> bool) -> io::Result<u64> {
        let directory = || folder.create_below(path.parent().unwrap_or(Path::new("")));
        let name = path.file_name().unwrap_or_default();
        let copy = |source: &Path, max_bytes: u64| {
            let mut source = open_regular(source)?.take(max_bytes);
            let (mut replacement, mut size) = (directory()?.replacement(name)?, 0);
            loop {
                if is_interrupted() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                match io::copy(&mut source.by_ref().take(COPIED_AT_ONCE_BYTES), replacement.file())? {
                    0 => return replacement.commit().map(|()| size),
                    bytes => size += bytes,
                }
            }
        };
        match self {
            Content::Own(source) if *source == folder.path().join(path) => Ok(source.metadata()?.len()),
            Content::Own(source) => copy(source, u64::MAX),
            Content::Shared { source, max_bytes, .. } => copy(source, *max_bytes),
            Content::Library(_) if is_interrupted() => Err(io::ErrorKind::Interrupted.into()),
            Content::Library(library) => {
                let bytes = library.to_elf()?;
                directory()?.write(name, &bytes).map(|()| bytes.len() as u64)
            }
        }
    }
}

/// Returns true for an error that a file alone does not explain.
fn ends_writing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, QuotaExceeded, StorageFull};
    matches!(error.kind(), Interrupted | QuotaExceeded | StorageFull)
}

/// Returns the directory of a part, below that of the bundle.
fn part_directory(number: u32) -> PathBuf {
    if number == 1 { PathBuf::new() } else { number.to_string().into() }
}

/// Returns a path for a recording that no file has, nor the recording's images: `path`, or else `path` with a number.
fn free_name(files: &BTreeMap<PathBuf, Content>, path: &Path) -> PathBuf {
    let with_number = |number: u32| {
        let mut path = path.as_os_str().to_owned();
        path.push(format!(".{number}"));
        PathBuf::from(path)
    };
    // Files below a directory follow its path in the order of the map.
    let is_free = |path: &Path| {
        let next = files.range(path.to_owned()..).next();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        next.is_none_or(|(next, _)| !next.starts_with(path)) && parent.is_none_or(|parent| !files.contains_key(parent))
    };
    let is_reserved = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        [ROOT, MARKER].contains(&name) || name.parse::<u32>().is_ok()
    };
    let mut paths = std::iter::once(path.to_owned()).chain((2..).map(with_number));
    paths.find(|path| is_free(path) && is_free(&images(path)) && !is_reserved(path)).unwrap_or_default()
}

fn perf_maps(recording: &Recording) -> BTreeSet<PathBuf> {
    let processes = recording.locations.iter().filter_map(|location| location.pid);
    processes.map(|pid| PathBuf::from(format!("/tmp/perf-{pid}.map"))).collect()
}

/// Returns the path below the output directory. A recording is untrusted, so no path in it may lead outside.
fn relative_path(path: &Path) -> Option<&Path> {
    let relative = path.strip_prefix("/").ok()?;
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && relative.components().next().is_some()).then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside_of_the_directory() {
        assert_eq!(relative_path(Path::new("/a/b.py")), Some(Path::new("a/b.py")));
        for path in ["/a/../../etc/passwd", "relative", "/", "/../x"] {
            assert_eq!(relative_path(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn writing_can_be_interrupted_before_and_in_each_file() {
        let path = std::env::temp_dir().join(format!("jitlisten-interrupted-{}", std::process::id()));
        let directory = OwnDirectory::create_new(&path).unwrap();
        let source = path.join("source");
        std::fs::write(&source, vec![1; COPIED_AT_ONCE_BYTES as usize + 1]).unwrap();
        let mut bundle = Bundle::default();
        for name in ["first", "second"] {
            bundle.files.insert(name.into(), Content::Own(source.clone()));
        }
        // Each copy asks before its two parts and at its end.
        for allowed in 0..6 {
            let calls = std::cell::Cell::new(0);
            let is_interrupted = || calls.replace(calls.get() + 1) == allowed;
            let error = bundle.write(&directory, &is_interrupted).expect_err("interrupted");
            assert!(matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted));
            assert_eq!(path.join("first").exists(), allowed >= 3);
            assert!(!path.join("second").exists());
        }
        assert_eq!(bundle.write(&directory, &|| false).unwrap(), 2 * (COPIED_AT_ONCE_BYTES + 1));
        std::fs::remove_dir_all(path).unwrap();
    }
}
