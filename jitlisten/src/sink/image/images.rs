//! Images of this process: their files and the pages mapped from them.
//!
//! Images outlive the sink: their pages stay mapped while the sink is disabled. Even then, a name must not outlive the
//! code that it describes. Therefore the session reports memory changes to the images whether or not the sink is
//! enabled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::build_ids::BuildIds;
use super::content::Content;
use super::directory::{Directory, ImageFile};
use super::encode::{Encoded, encode};
use super::group::Group;
use super::headers::ImageHeaders;
use super::pages::{self, ExchangeError};
use super::refusal::{Refusal, Refusals};
use crate::options::Options;
use crate::process::checked_read;
use crate::process::mappings::{self, Mapping};
use crate::process::memory_writers::{ProcSelfMem, is_alone};
use crate::sink::{FinalizedObject, HeaderPadding, SinkError};
use crate::statistics::ImageCounters;
use crate::{Address, AddressRange, ObjectId, log_line, modules, observer};

/// The host keeps at least `vm.max_map_count` divided by this number of mappings for itself.
const HEADROOM_DIVISOR: u64 = 8;
/// Maximum number of images to make between two counts of the process's mappings.
const MAX_UNCOUNTED_IMAGES: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Images {
    counters: Arc<ImageCounters>,
    refusals: Refusals,
    directory: Option<Directory>,
    /// Image directories of our parent processes. We hold their locks while we share their mappings.
    inherited_directories: Vec<Directory>,
    build_ids: Option<BuildIds>,
    /// Mapped images, keyed by the start address of their pages.
    by_start: BTreeMap<u64, MappedImage>,
    /// Files of freed code, oldest first.
    freed_files: VecDeque<StoredFile>,
    /// Freed files of parent processes, which we must not remove. Dropping these lists in the child of a fork would
    /// take too long.
    inherited_files: Vec<VecDeque<StoredFile>>,
    /// Number of calls to [`Images::start_generation`]. Files of earlier generations must not be removed.
    generation: u32,
    /// Total size of our files on disk.
    stored_bytes: u64,
    /// Number of images that may be made before the mappings are counted again.
    images_until_count: u64,
    memory_as_file: ProcSelfMem,
    /// True if each image needs [`pages::show_to_valgrind`].
    is_under_valgrind: bool,
}

/// Pages mapped from one image, excluding those unmapped since.
#[derive(Clone, Debug)]
struct MappedImage {
    end: u64,
    /// Live objects in the image.
    members: Vec<ObjectId>,
    /// True if all objects of the image own their pages.
    owns_pages: bool,
    /// File of the image; `None` once it is among the freed files.
    file: Option<Arc<StoredFile>>,
    /// Value of [`Images::generation`] when the image was made.
    generation: u32,
    /// Program headers; `None` if some of the pages were unmapped.
    headers: Option<Arc<ImageHeaders>>,
}

#[derive(Debug)]
struct StoredFile {
    path: PathBuf,
    size: u64,
}

impl Default for Images {
    fn default() -> Self {
        Images::new(Arc::default())
    }
}

impl Images {
    pub(crate) fn new(counters: Arc<ImageCounters>) -> Self {
        Images {
            counters,
            refusals: Refusals::default(),
            directory: None,
            inherited_directories: Vec::new(),
            build_ids: None,
            by_start: BTreeMap::new(),
            freed_files: VecDeque::new(),
            inherited_files: Vec::new(),
            generation: 0,
            stored_bytes: 0,
            images_until_count: 0,
            memory_as_file: ProcSelfMem::default(),
            is_under_valgrind: is_under_valgrind(),
        }
    }

    /// Makes an image for one page run of an object, including all objects that share the pages. Returns the file size.
    pub(super) fn make_image(
        &mut self,
        options: &Options,
        object: &FinalizedObject<'_>,
        run: AddressRange,
    ) -> Result<u64, SinkError> {
        let Some(group) = Group::containing(object, run, pages::page_size()) else {
            log_line!(Debug, "object {} shares {run} with an object that is not final; its image waits", object.id);
            return Ok(0);
        };
        if self.has_image_of(&group) {
            return Ok(0);
        }
        let mappings = mappings::mappings_in(group.pages).map_err(|error| SinkError::Io {
            verb: "read",
            path: "/proc/self/maps".into(),
            error,
        })?;
        let code = self.copy_if_exchangeable(&group, mappings);
        let encoded = code.and_then(|code| Ok((self.encode(options, object, &group, &code)?, code)));
        match encoded {
            Ok((encoded, code)) => self.map_image(options, &group, &encoded, &code),
            Err(refusal) => {
                self.refusals.count_and_log(&self.counters, &refusal, object.id);
                Ok(0)
            }
        }
    }

    /// Returns true if the pages already have an image of exactly these objects.
    fn has_image_of(&self, group: &Group<'_>) -> bool {
        self.by_start.get(&group.pages.start().0).is_some_and(|image| {
            image.end == group.pages.end().0 && group.object_ids().all(|id| image.members.contains(&id))
        })
    }

    /// Returns a copy of the pages if they can be exchanged. `mappings` lists the mappings of the pages.
    fn copy_if_exchangeable(&mut self, group: &Group<'_>, mappings: Option<Vec<Mapping>>) -> Result<Vec<u8>, Refusal> {
        let mappings = mappings.ok_or(Refusal::Unreadable)?;
        let is_ours =
            |mapping: &Mapping| !mapping.is_file_backed || self.is_mapped_from_images(mapping.range, group.pages);
        if group.is_changing || !mappings.iter().all(|mapping| is_final(mapping) && is_ours(mapping)) {
            return Err(Refusal::NotFinal);
        }
        if !self.excludes_writers(group.owns_pages) {
            return Err(Refusal::NotOwned);
        }
        checked_read::copy(group.pages).map_err(|_| Refusal::Unreadable)
    }

    /// Returns true if no other thread can write to non-writable pages while the session is locked; see [`pages`].
    fn excludes_writers(&mut self, owns_pages: bool) -> bool {
        owns_pages && !self.memory_as_file.is_open() || is_alone()
    }

    /// Returns true if the part of `mapping` inside `pages` is completely mapped from images.
    fn is_mapped_from_images(&self, mapping: AddressRange, pages: AddressRange) -> bool {
        let (mut address, end) = (mapping.start().0.max(pages.start().0), mapping.end().0.min(pages.end().0));
        while address < end {
            let Some((_, image)) = self.by_start.range(..=address).next_back().filter(|(_, image)| image.end > address)
            else {
                return false;
            };
            address = image.end;
        }
        true
    }

    fn encode(
        &mut self,
        options: &Options,
        object: &FinalizedObject<'_>,
        group: &Group<'_>,
        code: &[u8],
    ) -> Result<Encoded, Refusal> {
        let padding = object.padding.get(&group.pages.start()).map_or(0, |padding| padding.size());
        let debug_objects = group.debug_objects(object);
        let content = Content {
            parts: group.parts(object, &debug_objects),
            style: options.names,
            pages: group.pages,
            code,
            padding,
            build_id: self.build_ids.get_or_insert_with(BuildIds::new).next(),
        };
        encode(&content, pages::page_size()).map_err(Refusal::NotEncoded)
    }

    fn map_image(
        &mut self,
        options: &Options,
        group: &Group<'_>,
        encoded: &Encoded,
        code: &[u8],
    ) -> Result<u64, SinkError> {
        self.check_mapping_count()?;
        let size = encoded.bytes.len() as u64;
        self.free_space(size, options.quota)?;
        let image_file = self.write(options, &encoded.bytes)?;
        exchange_pages(encoded, &image_file, code, &self.counters)?;
        if let Some(observer) = observer::observer() {
            observer.image_mapped(group.pages, encoded.layout.code_start, &image_file.path);
        }
        if self.is_under_valgrind {
            pages::show_to_valgrind(&image_file.file);
        } else {
            // SAFETY: `Images::copy_if_exchangeable` found that no thread writes to the pages while the session is
            // locked.
            let included = unsafe { pages::include_in_core_dumps(encoded.layout.mapped_range(), &encoded.core_header) };
            if let Err(error) = included {
                log_line!(Debug, "core files will lack {}: {error}", image_file.path.display());
            }
        }
        self.counters.written.add(1);
        if encoded.layout.mapped_start > 0 {
            self.counters.without_padding.add(1);
            log_line!(Debug, "{} has no padding in front of it", image_file.path.display());
        }
        self.forget(group.pages);
        let file = Some(Arc::new(StoredFile { path: image_file.path, size }));
        let generation = self.generation;
        let headers = Some(Arc::new(ImageHeaders::from_encoded(encoded)));
        let (end, members, owns_pages) = (group.pages.end().0, group.object_ids().collect(), group.owns_pages);
        let image = MappedImage { end, members, owns_pages, file, generation, headers };
        self.by_start.insert(group.pages.start().0, image);
        self.stored_bytes += size;
        Ok(size)
    }

    /// Writes a file. Creates the directory again if it was removed.
    fn write(&mut self, options: &Options, bytes: &[u8]) -> Result<ImageFile, SinkError> {
        if let Some(directory) = &mut self.directory {
            match directory.write(bytes) {
                Err(SinkError::Io { path, error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                    log_line!(Info, "{} was removed; created again", path.display());
                }
                other => return other,
            }
        }
        self.directory.insert(Directory::open(options)?).write(bytes)
    }

    /// Returns an error if the host might run out of mappings, because each image may split a mapping.
    fn check_mapping_count(&mut self) -> Result<(), SinkError> {
        if self.images_until_count == 0 {
            let limit = mappings::limit();
            let path = || PathBuf::from("/proc/self/maps");
            let used = mappings::count().map_err(|error| SinkError::Io { verb: "read", path: path(), error })?;
            let free = (limit - limit / HEADROOM_DIVISOR).saturating_sub(used);
            if free < 3 {
                let error = io::Error::other(format!("{used} mappings of {limit} (vm.max_map_count) are in use"));
                return Err(SinkError::Io { verb: "add to", path: path(), error });
            }
            self.images_until_count = (free / 3).min(MAX_UNCOUNTED_IMAGES);
        }
        self.images_until_count -= 1;
        Ok(())
    }

    /// Removes files of freed code, oldest first, until `size` bytes fit into the quota.
    fn free_space(&mut self, size: u64, quota: u64) -> Result<(), SinkError> {
        while self.stored_bytes + size > quota {
            let Some(oldest_file) = self.freed_files.pop_front() else {
                let error = io::Error::other(format!("{} bytes are enough", self.stored_bytes));
                return Err(SinkError::Io { verb: "add to", path: "images of this process".into(), error });
            };
            self.stored_bytes = self.stored_bytes.saturating_sub(oldest_file.size);
            let _ = fs::remove_file(oldest_file.path);
        }
        Ok(())
    }

    /// Removes a freed object. The pages keep their names until they change; see [`Images::withdraw`].
    pub(super) fn freeing(&mut self, id: ObjectId, run: AddressRange) {
        for start in self.overlapping(run) {
            let Some(image) = self.by_start.get_mut(&start) else { continue };
            image.members.retain(|&member| member != id);
            if image.members.is_empty() {
                let (file, generation, end) = (image.file.take(), image.generation, image.end);
                if let Some(range) = AddressRange::new(Address(start), end - start) {
                    modules::withdraw(range);
                }
                self.release_file(file, generation);
            }
        }
    }

    /// Turns images in `range`, which is about to change, back into anonymous memory with the same bytes and
    /// protection.
    pub(crate) fn withdraw(&mut self, range: AddressRange, padding: &HeaderPadding) {
        modules::withdraw(range);
        for start in self.overlapping(range) {
            let Some(image) = self.by_start.get(&start) else { continue };
            let (start_addr, end_addr, owns_pages) =
                (start.max(range.start().0), image.end.min(range.end().0), image.owns_pages);
            if !self.excludes_writers(owns_pages) {
                continue;
            }
            let Some(pages) = AddressRange::new(Address(start_addr), end_addr - start_addr) else { continue };
            // The memory may have been unmapped without our knowledge, and may have a new owner by now.
            let is_final_file = |mapping: &Mapping| mapping.is_file_backed && is_final(mapping);
            if !mappings::mappings_in(pages).ok().flatten().is_some_and(|mappings| mappings.iter().all(is_final_file)) {
                self.forget(pages);
                continue;
            }
            let padding = padding.get(&pages.start()).copied();
            // SAFETY: these pages are mapped from a file and not writable. Their owner makes this call or has promised
            // not to change them until it returns, or this thread is the only one. The header padding is recorded as
            // ours.
            match unsafe { pages::withdraw(pages, padding) } {
                Ok(()) => self.counters.withdrawn.add(1),
                Err(error) => log_line!(Warn, "{pages} keeps the name of an image: {error}"),
            }
            self.forget(pages);
        }
    }

    /// Removes the images of `range`, which was unmapped or replaced. Their files are kept, because recordings may have
    /// samples in that code.
    pub(crate) fn forget(&mut self, range: AddressRange) {
        modules::withdraw(range);
        for start in self.overlapping(range) {
            let Some(image) = self.by_start.remove(&start) else { continue };
            let image = MappedImage { headers: None, ..image };
            if start < range.start().0 {
                self.by_start.insert(start, MappedImage { end: range.start().0, ..image.clone() });
            }
            if image.end > range.end().0 {
                self.by_start.insert(range.end().0, image.clone());
            }
            self.release_file(image.file, image.generation);
        }
    }

    /// Moves a file to the freed files if no pages are mapped from it.
    fn release_file(&mut self, file: Option<Arc<StoredFile>>, generation: u32) {
        let is_ours = generation == self.generation;
        self.freed_files.extend(file.and_then(Arc::into_inner).filter(|_| is_ours));
    }

    /// Returns the headers and the path of the image that has exactly these pages.
    pub(super) fn find_headers(&self, pages: AddressRange) -> Option<(&ImageHeaders, &Path)> {
        let image = self.by_start.get(&pages.start().0).filter(|image| image.end == pages.end().0)?;
        Some((image.headers.as_deref()?, &image.file.as_deref()?.path))
    }

    /// Returns the pages of all images that overlap `text`.
    pub(crate) fn overlapping_pages(&self, text: &[AddressRange]) -> BTreeSet<AddressRange> {
        let starts = text.iter().flat_map(|&text| self.overlapping(text));
        starts.filter_map(|start| AddressRange::new(Address(start), self.by_start.get(&start)?.end - start)).collect()
    }

    fn overlapping(&self, range: AddressRange) -> Vec<u64> {
        let below = self.by_start.range(..range.end().0).rev();
        below.take_while(|(_, image)| image.end > range.start().0).map(|(&start, _)| start).collect()
    }

    /// Starts a new generation after a fork or a change of user. Earlier files must not be removed, and later files get
    /// a directory of their own. Existing images stay mapped and need no new file.
    pub(crate) fn start_generation(&mut self) {
        self.inherited_directories.extend(self.directory.take());
        self.build_ids = None;
        if !self.freed_files.is_empty() {
            self.inherited_files.push(std::mem::take(&mut self.freed_files));
        }
        self.stored_bytes = 0;
        self.generation += 1;
    }
}

fn is_final(mapping: &Mapping) -> bool {
    mapping.executable && !mapping.writable && !mapping.shared
}

/// Returns true under valgrind, which preloads its own library into the programs that it runs.
fn is_under_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_core"))
}

/// Maps the file over the pages, and over the header padding before them.
fn exchange_pages(
    encoded: &Encoded,
    image_file: &ImageFile,
    code: &[u8],
    counters: &ImageCounters,
) -> Result<(), SinkError> {
    let layout = &encoded.layout;
    let range = layout.mapped_range();
    let bytes = encoded.bytes.get(layout.mapped_start as usize..layout.code_end as usize).unwrap_or_default();
    // SAFETY: `Images::copy_if_exchangeable` found that the pages are private, executable and not writable, and that no
    // thread writes to them while the session is locked. Their header padding was reserved for an image. The file is in
    // a private directory and is not written to again.
    let exchanged = unsafe { pages::exchange(range, &image_file.file, layout.mapped_start, bytes, code) };
    exchanged.map_err(|ExchangeError { error, is_restored }| {
        counters.restored.add(u64::from(is_restored));
        let _ = fs::remove_file(&image_file.path);
        SinkError::Io { verb: "map", path: image_file.path.clone(), error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), end - start).unwrap()
    }

    /// Records an image of `pages` stored in the file `path`.
    fn add_image(images: &mut Images, pages: AddressRange, id: u64, path: PathBuf, size: u64) {
        let image = MappedImage {
            end: pages.end().0,
            members: vec![ObjectId(id)],
            owns_pages: true,
            file: Some(Arc::new(StoredFile { path, size })),
            generation: 0,
            headers: None,
        };
        images.by_start.insert(pages.start().0, image);
        images.stored_bytes += size;
    }

    #[test]
    fn a_file_is_released_with_its_last_page() {
        let mut images = Images::default();
        add_image(&mut images, range(0x1000, 0x5000), 1, "1".into(), 1);
        images.forget(range(0x2000, 0x3000));
        assert_eq!(images.by_start.keys().copied().collect::<Vec<_>>(), [0x1000, 0x3000]);
        assert_eq!(images.by_start[&0x1000].end, 0x2000);
        images.forget(range(0x0, 0x2000));
        assert!(images.freed_files.is_empty(), "0x3000 has it still");
        images.forget(range(0x4fff, 0x6000));
        images.forget(range(0x3000, 0x4fff));
        assert_eq!(images.freed_files.len(), 1);
        assert!(images.by_start.is_empty());
    }

    #[test]
    fn the_quota_only_removes_files_of_freed_code() {
        let directory = std::env::temp_dir().join(format!("jitlisten-quota-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write_file = |name| {
            fs::write(directory.join(name), "x").unwrap();
            directory.join(name)
        };
        const QUOTA: u64 = 100;
        let mut images = Images::default();
        add_image(&mut images, range(0x1000, 0x2000), 1, write_file("oldest"), 40);
        add_image(&mut images, range(0x2000, 0x3000), 2, write_file("freed"), 30);
        add_image(&mut images, range(0x3000, 0x4000), 3, write_file("alive"), 30);
        assert!(images.free_space(1, QUOTA).is_err(), "all code is alive");
        images.freeing(ObjectId(1), range(0x1000, 0x2000));
        images.freeing(ObjectId(2), range(0x2000, 0x3000));
        images.free_space(35, QUOTA).unwrap();
        assert_eq!(images.stored_bytes, 60);
        let exists = |name| directory.join(name).exists();
        assert_eq!([exists("oldest"), exists("freed"), exists("alive")], [false, true, true]);
        assert!(images.free_space(71, QUOTA).is_err());
        assert_eq!([exists("oldest"), exists("freed"), exists("alive")], [false, false, true]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_child_removes_no_file_of_its_parent() {
        let mut images = Images::default();
        add_image(&mut images, range(0x1000, 0x2000), 1, "/nowhere/1".into(), 10);
        images.start_generation();
        images.freeing(ObjectId(1), range(0x1000, 0x2000));
        assert!(images.freed_files.is_empty());
        assert!(images.free_space(10, 10).is_ok(), "the parent's bytes are not counted");
    }
}
