//! Code that several recordings have in common.
//!
//! Each process has images of its own, and libraries at addresses of its own. Locations of the same code become one
//! location, that of the first recording. So a merged recording grows with the program's different stacks, not with the
//! number of its processes, and the same code is read from one image.

use rustc_hash::{FxHashMap, FxHashSet};

use super::files::{Files, ImageFunction, OpenLibraries, is_anonymous};
use super::nameless::name_by_references;
use super::names::parse_python_name;
use super::perf_map::has_map;
use super::source_frame::SourceFrame;
use crate::distinct::Distinct;
use crate::lookup::Lookup;
use crate::lookup::segments::Segments;
use crate::recording::{FilePosition, Location, MappedFile, Origin, Recording};

/// Code of the recordings so far.
#[derive(Default)]
pub(crate) struct SharedCode {
    /// First location of each code, with indices into `files` and `origins`. That of a compiled function is its start.
    locations: FxHashMap<Code, Location>,
    files: Distinct<MappedFile>,
    origins: Distinct<Origin>,
    /// Libraries and programs; `None` for one that cannot be read.
    libraries: FxHashMap<MappedFile, Option<Segments>>,
    /// Reading the symbols of a library takes longer than the rest of a recording.
    open_libraries: OpenLibraries,
}

/// Code that several processes may have.
#[derive(PartialEq, Eq, Hash)]
enum Code {
    /// Offset in a library or program, an index into [`SharedCode::files`].
    Library { file: u32, offset: u64 },
    /// Compiled function. Functions of the same name, size and lines differ only in the addresses that their code
    /// contains. A function without lines is not shared.
    Compiled { name: String, size: u64, lines: [u8; 32] },
    /// Line of a Python function, which has another position in the image of each process, with the hashes of its
    /// source.
    Python { name: String, frames: Vec<SourceFrame>, hashes: Vec<String> },
    /// Code in no file, of a process without a perf map.
    Unknown,
}

impl SharedCode {
    /// Replaces locations of code that an earlier recording has, too, by those of that recording.
    pub(crate) fn share(&mut self, recording: &mut Recording, lookup: &Lookup) {
        let mut files = Files::default();
        files.extend(recording, lookup);
        files.take_libraries(&mut self.open_libraries);
        // Images of the process have these names at the process's own addresses.
        name_by_references(&mut files, recording);
        let mut own = OwnIndices::default();
        let mut has_maps = FxHashMap::default();
        for index in 0..recording.locations.len() {
            let location = recording.locations[index].clone();
            let Some(pid) = location.pid else { continue };
            let has_map = || {
                *has_maps.entry((location.origin, pid)).or_insert_with(|| {
                    let origin = recording.origins.get(location.origin as usize);
                    has_map(origin, &lookup.roots, pid)
                })
            };
            let file = location.position.and_then(|position| recording.files.get(position.file as usize));
            let callee = location.callee.clone();
            let Some((code, offset)) = self.code(location.position.zip(file), &mut files, has_map) else { continue };
            let (shared_files, origins) = (&mut self.files, &mut self.origins);
            let first = self.locations.entry(code).or_insert_with(|| Location {
                origin: origins.number(recording.origins.get(location.origin as usize).cloned().unwrap_or_default()),
                address: location.address.wrapping_sub(offset),
                position: location.position.zip(file).map(|(position, file)| FilePosition {
                    file: shared_files.number(file.clone()),
                    offset: position.offset.wrapping_sub(offset),
                }),
                ..location
            });
            let position = first.position.map(|position| FilePosition {
                file: own.file(position.file, shared_files, recording),
                offset: position.offset.wrapping_add(offset),
            });
            let (origin, address) = (own.origin(first.origin, origins, recording), first.address.wrapping_add(offset));
            first.callee = callee.or(first.callee.take());
            recording.locations[index] = Location { origin, address, position, ..first.clone() };
        }
        remove_unused_images(recording, &files);
        files.into_libraries(&mut self.open_libraries);
    }

    /// Returns the code at a position that other processes may have, too, and the offset of the position in it.
    fn code(
        &mut self,
        position: Option<(FilePosition, &MappedFile)>,
        files: &mut Files,
        mut has_map: impl FnMut() -> bool,
    ) -> Option<(Code, u64)> {
        let Some((position, file)) = position.filter(|(_, file)| !is_anonymous(&file.path)) else {
            return (!has_map()).then_some((Code::Unknown, 0));
        };
        if !self.libraries.contains_key(file) {
            if let Some(ImageFunction { name, size, offset, lines }) = files.image_function(position) {
                if parse_python_name(&name).is_none() {
                    return Some((Code::Compiled { name, size, lines: lines? }, offset));
                }
                let frames = files.find(position.file, position.offset, false)?.frames;
                let hashes = files.hashes_of(position.file, &frames);
                return Some((Code::Python { name, frames, hashes }, 0));
            }
            if files.is_image(position.file) {
                return None;
            }
            self.libraries.insert(file.clone(), files.segments(position.file).cloned());
        }
        let segments = self.libraries.get(file)?.as_ref();
        let has_symbols = segments.is_some_and(|segments| segments.address_of_offset(position.offset).is_some());
        // The name of other code may be in the perf map of its process.
        (has_symbols || !has_map())
            .then(|| (Code::Library { file: self.files.number(file.clone()), offset: position.offset }, 0))
    }
}

/// Indices of shared files and origins in one recording.
#[derive(Default)]
struct OwnIndices {
    files: FxHashMap<u32, u32>,
    origins: FxHashMap<u32, u32>,
}

impl OwnIndices {
    fn file(&mut self, shared: u32, all: &Distinct<MappedFile>, recording: &mut Recording) -> u32 {
        *self.files.entry(shared).or_insert_with(|| {
            recording.files.push(all.values[shared as usize].clone());
            recording.files.len() as u32 - 1
        })
    }

    fn origin(&mut self, shared: u32, all: &Distinct<Origin>, recording: &mut Recording) -> u32 {
        *self.origins.entry(shared).or_insert_with(|| {
            let origin = &all.values[shared as usize];
            let index = recording.origins.iter().position(|own| own == origin);
            index.unwrap_or_else(|| {
                recording.origins.push(origin.clone());
                recording.origins.len() - 1
            }) as u32
        })
    }
}

/// Removes the images that no location refers to.
fn remove_unused_images(recording: &mut Recording, own_files: &Files) {
    let positions = recording.locations.iter().filter_map(|location| location.position);
    let used: FxHashSet<u32> = positions.map(|position| position.file).collect();
    let mut indices = Vec::with_capacity(recording.files.len());
    let mut files = Vec::new();
    for (file, index) in std::mem::take(&mut recording.files).into_iter().zip(0..) {
        indices.push(files.len() as u32);
        if used.contains(&index) || !own_files.is_image(index) {
            files.push(file);
        }
    }
    recording.files = files;
    for position in recording.locations.iter_mut().filter_map(|location| location.position.as_mut()) {
        position.file = indices[position.file as usize];
    }
}
