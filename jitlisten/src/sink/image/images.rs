//! The images of this process: their files, and the pages mapped from them.
//!
//! They outlive the sink: pages stay mapped while the sink is off, and even then a name must not outlive its code.
//! Therefore the session reports changes of memory whether the sink is on or not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::Content;
use super::directory::{Directory, ImageFile};
use super::encode::{Encoded, encode};
use super::group::Group;
use super::headers::ImageHeaders;
use super::pages::{self, NotExchanged};
use super::refusal::{Refusal, Refusals};
use super::salt::Salt;
use crate::options::Options;
use crate::process::alone::{MemoryAsFile, is_alone};
use crate::process::checked_read;
use crate::process::mappings::{self, Mapping};
use crate::sink::{FinalizedObject, HeaderPadding, SinkError};
use crate::statistics::ImageCounters;
use crate::{Address, AddressRange, ObjectId, log_line, modules, observer};

/// This part of `vm.max_map_count` is left to the host.
const HEADROOM: u64 = 8;
/// So many images are made before mappings are counted again.
const COUNT_EVERY: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Images {
    counters: Arc<ImageCounters>,
    refusals: Refusals,
    directory: Option<Directory>,
    /// Directories of processes we are the child of: their locks are held for as long as we share their mappings.
    inherited: Vec<Directory>,
    salt: Option<Salt>,
    /// Pages that are mapped from an image, by start address.
    mapped: BTreeMap<u64, Mapped>,
    /// Files of freed code, the oldest first.
    freed: VecDeque<Stored>,
    /// Those that are not ours to remove. To give their memory back would take a child of a fork long.
    not_ours: Vec<VecDeque<Stored>>,
    /// How often [`Images::begin_anew`] was called: files of an earlier time are not ours to remove.
    generation: u32,
    /// What is on disk.
    bytes: u64,
    /// How many images may be made before mappings are counted.
    uncounted: u64,
    memory_as_file: MemoryAsFile,
    /// See [`pages::show_to_valgrind`].
    under_valgrind: bool,
}

/// A run of pages, or the rest of one.
#[derive(Clone, Debug)]
struct Mapped {
    end: u64,
    /// The objects in it that are alive.
    members: Vec<ObjectId>,
    /// True if the objects that it was made for own its pages.
    owns_pages: bool,
    /// Its file, if it is not among the freed ones.
    file: Option<Arc<Stored>>,
    /// Of [`Images::generation`], when it was made.
    generation: u32,
    /// `None` where pages were taken out of it.
    headers: Option<Arc<ImageHeaders>>,
}

#[derive(Debug)]
struct Stored {
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
            inherited: Vec::new(),
            salt: None,
            mapped: BTreeMap::new(),
            freed: VecDeque::new(),
            not_ours: Vec::new(),
            generation: 0,
            bytes: 0,
            uncounted: 0,
            memory_as_file: MemoryAsFile::default(),
            under_valgrind: under_valgrind(),
        }
    }

    /// One image for one run of pages of an object, and for everything that shares them. Returns its size.
    pub(super) fn make(
        &mut self,
        options: &Options,
        object: &FinalizedObject<'_>,
        run: AddressRange,
    ) -> Result<u64, SinkError> {
        let Some(group) = Group::around(object, run, pages::page_size()) else {
            log_line!(Debug, "{:?} shares {run} with an object that is not final; its image waits", object.id);
            return Ok(0);
        };
        if self.has(&group) {
            return Ok(0);
        }
        let mappings = mappings::mappings_of(group.pages).map_err(|error| SinkError::Io {
            verb: "read",
            path: "/proc/self/maps".into(),
            error,
        })?;
        let fit = self.fit(&group, mappings);
        let encoded = fit.and_then(|code| Ok((self.encode(options, object, &group, &code)?, code)));
        match encoded {
            Ok((encoded, code)) => self.put(options, &group, &encoded, &code),
            Err(refusal) => {
                self.refusals.count(&self.counters, &refusal, object.id);
                Ok(0)
            }
        }
    }

    /// Whether these very objects are in an image of these pages already.
    fn has(&self, group: &Group<'_>) -> bool {
        self.mapped
            .get(&group.pages.start().0)
            .is_some_and(|image| image.end == group.pages.end().0 && group.ids().all(|id| image.members.contains(&id)))
    }

    /// The bytes of the pages, if they can be exchanged. `mappings` are those of the pages.
    fn fit(&mut self, group: &Group<'_>, mappings: Option<Vec<Mapping>>) -> Result<Vec<u8>, Refusal> {
        let mappings = mappings.ok_or(Refusal::Unreadable)?;
        let is_ours = |mapping: &Mapping| !mapping.of_file || self.has_all_of(mapping.range, group.pages);
        if group.is_changing || !mappings.iter().all(|mapping| is_final(mapping) && is_ours(mapping)) {
            return Err(Refusal::NotFinal);
        }
        if !self.nobody_writes(group.owns_pages) {
            return Err(Refusal::NotOwned);
        }
        checked_read::copy(group.pages).map_err(|_| Refusal::Unreadable)
    }

    /// Returns whether no other thread can write to pages that are not writable, until the session's lock is given
    /// back: see [`pages`].
    fn nobody_writes(&mut self, owns_pages: bool) -> bool {
        owns_pages && !self.memory_as_file.is_open() || is_alone()
    }

    /// Returns whether all of `mapping` that is in `pages` is mapped from images.
    fn has_all_of(&self, mapping: AddressRange, pages: AddressRange) -> bool {
        let (mut at, end) = (mapping.start().0.max(pages.start().0), mapping.end().0.min(pages.end().0));
        while at < end {
            let Some((_, image)) = self.mapped.range(..=at).next_back().filter(|(_, image)| image.end > at) else {
                return false;
            };
            at = image.end;
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
            build_id: self.salt.get_or_insert_with(Salt::new).next(),
        };
        encode(&content, pages::page_size()).map_err(Refusal::NotEncoded)
    }

    fn put(&mut self, options: &Options, group: &Group<'_>, encoded: &Encoded, code: &[u8]) -> Result<u64, SinkError> {
        self.check_mappings()?;
        let size = encoded.bytes.len() as u64;
        self.make_space(size, options.quota)?;
        let written = self.write(options, &encoded.bytes)?;
        put_in_place(encoded, &written, code, &self.counters)?;
        if let Some(observer) = observer::observer() {
            observer.image_mapped(group.pages, encoded.layout.code, &written.path);
        }
        if self.under_valgrind {
            pages::show_to_valgrind(&written.file);
        } else {
            // SAFETY: `Images::fit` found that nobody writes to the pages until the session's lock is given back.
            let put = unsafe { pages::put_into_core(encoded.layout.mapped_range(), &encoded.in_core) };
            if let Err(error) = put {
                log_line!(Debug, "core files will lack {}: {error}", written.path.display());
            }
        }
        self.counters.written.add(1);
        if encoded.layout.mapped > 0 {
            self.counters.without_padding.add(1);
            log_line!(Debug, "{} has no padding in front of it", written.path.display());
        }
        self.forget(group.pages);
        let file = Some(Arc::new(Stored { path: written.path, size }));
        let generation = self.generation;
        let headers = Some(Arc::new(ImageHeaders::of(encoded)));
        let (end, members, owns_pages) = (group.pages.end().0, group.ids().collect(), group.owns_pages);
        let image = Mapped { end, members, owns_pages, file, generation, headers };
        self.mapped.insert(group.pages.start().0, image);
        self.bytes += size;
        Ok(size)
    }

    /// Writes a file. A directory that was removed is made again.
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

    /// Stops well before the host would run out of mappings: an image may split one.
    fn check_mappings(&mut self) -> Result<(), SinkError> {
        if self.uncounted == 0 {
            let limit = mappings::limit();
            let path = || PathBuf::from("/proc/self/maps");
            let used = mappings::count().map_err(|error| SinkError::Io { verb: "read", path: path(), error })?;
            let free = (limit - limit / HEADROOM).saturating_sub(used);
            if free < 3 {
                let error = io::Error::other(format!("{used} mappings of {limit} (vm.max_map_count) are in use"));
                return Err(SinkError::Io { verb: "add to", path: path(), error });
            }
            self.uncounted = (free / 3).min(COUNT_EVERY);
        }
        self.uncounted -= 1;
        Ok(())
    }

    /// Removes files of freed code, the oldest first, when there are too many bytes.
    fn make_space(&mut self, size: u64, quota: u64) -> Result<(), SinkError> {
        while self.bytes + size > quota {
            let Some(oldest) = self.freed.pop_front() else {
                let error = io::Error::other(format!("{} bytes are enough", self.bytes));
                return Err(SinkError::Io { verb: "add to", path: "images of this process".into(), error });
            };
            self.bytes = self.bytes.saturating_sub(oldest.size);
            let _ = fs::remove_file(oldest.path);
        }
        Ok(())
    }

    /// The object's code is freed. Its pages keep their name until they change: see [`Images::withdraw`].
    pub(super) fn freeing(&mut self, id: ObjectId, run: AddressRange) {
        for start in self.overlapping(run) {
            let Some(image) = self.mapped.get_mut(&start) else { continue };
            image.members.retain(|&member| member != id);
            if image.members.is_empty() {
                let (file, generation, end) = (image.file.take(), image.generation, image.end);
                if let Some(range) = AddressRange::new(Address(start), end - start) {
                    modules::withdraw(range);
                }
                self.retire(file, generation);
            }
        }
    }

    /// What is in `range` may change from now on: its pages become the anonymous memory they were, with the bytes and
    /// the protection they have.
    pub(crate) fn withdraw(&mut self, range: AddressRange, padding: &HeaderPadding) {
        modules::withdraw(range);
        for start in self.overlapping(range) {
            let Some(image) = self.mapped.get(&start) else { continue };
            let (from, to, owns_pages) = (start.max(range.start().0), image.end.min(range.end().0), image.owns_pages);
            if !self.nobody_writes(owns_pages) {
                continue;
            }
            let Some(pages) = AddressRange::new(Address(from), to - from) else { continue };
            // Memory may have been unmapped without our notice, and have another owner by now.
            let of_file = |mapping: &Mapping| mapping.of_file && is_final(mapping);
            if !mappings::mappings_of(pages).ok().flatten().is_some_and(|all| all.iter().all(of_file)) {
                self.forget(pages);
                continue;
            }
            let padding = padding.get(&pages.start()).copied();
            // SAFETY: these pages are mapped from a file and not writable; their owner is in this very call, or has
            // promised not to change them until it returns, or is this thread, the only one. The header padding is
            // listed as ours.
            match unsafe { pages::withdraw(pages, padding) } {
                Ok(()) => self.counters.withdrawn.add(1),
                Err(error) => log_line!(Warn, "{pages} keeps the name of an image: {error}"),
            }
            self.forget(pages);
        }
    }

    /// The mappings of `range` are gone, or others are there. The files stay for recordings that have samples in them.
    pub(crate) fn forget(&mut self, range: AddressRange) {
        modules::withdraw(range);
        for start in self.overlapping(range) {
            let Some(image) = self.mapped.remove(&start) else { continue };
            let image = Mapped { headers: None, ..image };
            if start < range.start().0 {
                self.mapped.insert(start, Mapped { end: range.start().0, ..image.clone() });
            }
            if image.end > range.end().0 {
                self.mapped.insert(range.end().0, image.clone());
            }
            self.retire(image.file, image.generation);
        }
    }

    /// A file whose last page is gone waits among the freed ones.
    fn retire(&mut self, file: Option<Arc<Stored>>, generation: u32) {
        let ours = generation == self.generation;
        self.freed.extend(file.and_then(Arc::into_inner).filter(|_| ours));
    }

    /// The record of the image of exactly these pages, and its file.
    pub(super) fn headers_of(&self, pages: AddressRange) -> Option<(&ImageHeaders, &Path)> {
        let image = self.mapped.get(&pages.start().0).filter(|image| image.end == pages.end().0)?;
        Some((image.headers.as_deref()?, &image.file.as_deref()?.path))
    }

    /// The pages of each image with a byte of `text`.
    pub(crate) fn around(&self, text: &[AddressRange]) -> BTreeSet<AddressRange> {
        let starts = text.iter().flat_map(|&text| self.overlapping(text));
        starts.filter_map(|start| AddressRange::new(Address(start), self.mapped.get(&start)?.end - start)).collect()
    }

    fn overlapping(&self, range: AddressRange) -> Vec<u64> {
        let below = self.mapped.range(..range.end().0).rev();
        below.take_while(|(_, image)| image.end > range.start().0).map(|(&start, _)| start).collect()
    }

    /// In the child of a fork, or as another user: the files so far are not ours to remove, and new ones get a
    /// directory of their own. Images that are mapped stay mapped, and need no new file.
    pub(crate) fn begin_anew(&mut self) {
        self.inherited.extend(self.directory.take());
        self.salt = None;
        self.not_ours.push(std::mem::take(&mut self.freed));
        self.bytes = 0;
        self.generation += 1;
    }
}

fn is_final(mapping: &Mapping) -> bool {
    mapping.executable && !mapping.writable && !mapping.shared
}

/// valgrind preloads a library of its own into the programs it runs.
fn under_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_core"))
}

/// Maps the file over the pages, and over the header padding in front of them.
fn put_in_place(
    encoded: &Encoded,
    written: &ImageFile,
    code: &[u8],
    counters: &ImageCounters,
) -> Result<(), SinkError> {
    let layout = &encoded.layout;
    let range = layout.mapped_range();
    let bytes = encoded.bytes.get(layout.mapped as usize..layout.code_end as usize).unwrap_or_default();
    // SAFETY: `Images::fit` found that the pages are private, executable and not writable, and that nobody writes to
    // them until the session's lock is given back; the header padding of them was reserved for this. The file is in a
    // private directory, and is not written to again.
    let exchanged = unsafe { pages::exchange(range, &written.file, layout.mapped, bytes, code) };
    exchanged.map_err(|NotExchanged { error, put_back }| {
        counters.put_back.add(u64::from(put_back));
        let _ = fs::remove_file(&written.path);
        SinkError::Io { verb: "map", path: written.path.clone(), error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), end - start).unwrap()
    }

    /// As if an image of `pages` had been written to `path`.
    fn put(images: &mut Images, pages: AddressRange, id: u64, path: PathBuf, size: u64) {
        let image = Mapped {
            end: pages.end().0,
            members: vec![ObjectId(id)],
            owns_pages: true,
            file: Some(Arc::new(Stored { path, size })),
            generation: 0,
            headers: None,
        };
        images.mapped.insert(pages.start().0, image);
        images.bytes += size;
    }

    #[test]
    fn a_file_is_free_when_its_last_page_is_gone() {
        let mut images = Images::default();
        put(&mut images, range(0x1000, 0x5000), 1, "1".into(), 1);
        images.forget(range(0x2000, 0x3000));
        assert_eq!(images.mapped.keys().copied().collect::<Vec<_>>(), [0x1000, 0x3000]);
        assert_eq!(images.mapped[&0x1000].end, 0x2000);
        images.forget(range(0x0, 0x2000));
        assert!(images.freed.is_empty(), "0x3000 has it still");
        images.forget(range(0x4fff, 0x6000));
        images.forget(range(0x3000, 0x4fff));
        assert_eq!(images.freed.len(), 1);
        assert!(images.mapped.is_empty());
    }

    #[test]
    fn the_quota_takes_files_of_freed_code_and_no_others() {
        let directory = std::env::temp_dir().join(format!("jitlisten-quota-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = |name| {
            fs::write(directory.join(name), "x").unwrap();
            directory.join(name)
        };
        const QUOTA: u64 = 100;
        let mut images = Images::default();
        put(&mut images, range(0x1000, 0x2000), 1, file("oldest"), 40);
        put(&mut images, range(0x2000, 0x3000), 2, file("freed"), 30);
        put(&mut images, range(0x3000, 0x4000), 3, file("alive"), 30);
        assert!(images.make_space(1, QUOTA).is_err(), "all code is alive");
        images.freeing(ObjectId(1), range(0x1000, 0x2000));
        images.freeing(ObjectId(2), range(0x2000, 0x3000));
        images.make_space(35, QUOTA).unwrap();
        assert_eq!(images.bytes, 60);
        let there = |name| directory.join(name).exists();
        assert_eq!([there("oldest"), there("freed"), there("alive")], [false, true, true]);
        assert!(images.make_space(71, QUOTA).is_err());
        assert_eq!([there("oldest"), there("freed"), there("alive")], [false, false, true]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_child_removes_none_of_its_parents_files() {
        let mut images = Images::default();
        put(&mut images, range(0x1000, 0x2000), 1, "/nowhere/1".into(), 10);
        images.begin_anew();
        images.freeing(ObjectId(1), range(0x1000, 0x2000));
        assert!(images.freed.is_empty());
        assert!(images.make_space(10, 10).is_ok(), "the parent's bytes are not counted");
    }
}
