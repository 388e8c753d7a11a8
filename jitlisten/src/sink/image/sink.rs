//! The sink: writes an image at *finalized* and puts it in the place of the pages.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::PathBuf;

use super::content::{Content, runs};
use super::directory::{Directory, ImageFile};
use super::encode::{Encoded, encode};
use super::mappings::{self, Mapping};
use super::pages;
use super::salt::Salt;
use crate::options::Options;
use crate::sink::{FinalizedObject, Forked, Sink, SinkError};
use crate::{Address, AddressRange, foreign, log_line};

/// This part of `vm.max_map_count` is left to the host.
const HEADROOM: u64 = 8;
/// So many images are made before mappings are counted again.
const COUNT_EVERY: u64 = 1024;

pub(crate) struct Image {
    options: Options,
    directory: Option<Directory>,
    /// Directories of processes we are the child of: their locks are held for as long as we share their mappings.
    inherited: Vec<Directory>,
    salt: Salt,
    /// What is mapped, or was when it was freed, by start address.
    images: BTreeMap<u64, Mapped>,
    /// Files of freed code, the oldest first.
    freed: VecDeque<Stored>,
    /// What is on disk.
    bytes: u64,
    /// How many images may be made before mappings are counted.
    uncounted: u64,
    /// See [`pages::show_to_valgrind`].
    under_valgrind: bool,
}

struct Mapped {
    end: u64,
    alive: bool,
    /// Its file, if it is of this process and not among the freed ones.
    file: Option<Stored>,
}

struct Stored {
    path: PathBuf,
    size: u64,
}

/// Why an object has no image; it is not an error.
enum Unfit {
    Unreadable,
    NotFinal,
    Shared,
}

impl Unfit {
    fn reason(&self) -> &'static str {
        match self {
            Unfit::Unreadable => "its memory cannot be read",
            Unfit::NotFinal => "its pages are writable, shared with other processes, or not executable",
            Unfit::Shared => "it shares a page with another object",
        }
    }
}

impl Image {
    pub(crate) fn new(options: &Options) -> Self {
        Image {
            options: options.clone(),
            directory: None,
            inherited: Vec::new(),
            salt: Salt::new(),
            images: BTreeMap::new(),
            freed: VecDeque::new(),
            bytes: 0,
            uncounted: 0,
            under_valgrind: under_valgrind(),
        }
    }

    /// One image for one run of pages.
    fn make(&mut self, object: &FinalizedObject<'_>, pages: AddressRange) -> Result<u64, SinkError> {
        let code = match self.fit(object, pages) {
            Ok(code) => code,
            Err(unfit) => {
                log_line!(Info, "no image for {:?} at {pages}: {}", object.id, unfit.reason());
                return Ok(0);
            }
        };
        self.check_mappings()?;
        let room = object.rooms.get(&pages.start()).map_or(0, |room| room.size());
        let Some(encoded) = self.encode(object, pages, &code, room) else { return Ok(0) };
        let size = encoded.bytes.len() as u64;
        self.make_space(size)?;
        let directory = match &mut self.directory {
            Some(directory) => directory,
            none => none.insert(Directory::open(&self.options)?),
        };
        let written = directory.write(&encoded.bytes)?;
        put_in_place(&encoded, pages, &written)?;
        if self.under_valgrind {
            pages::show_to_valgrind(&written.file);
        }
        self.forget(pages);
        let file = Some(Stored { path: written.path, size });
        self.images.insert(pages.start().0, Mapped { end: pages.end().0, alive: true, file });
        self.bytes += size;
        Ok(size)
    }

    /// The bytes of the pages, if they can be exchanged.
    fn fit(&self, object: &FinalizedObject<'_>, pages: AddressRange) -> Result<Vec<u8>, Unfit> {
        let is_final = |mapping: &Mapping| mapping.executable && !mapping.writable && !mapping.shared;
        let mappings = mappings::mappings_of(pages).ok().flatten().ok_or(Unfit::Unreadable)?;
        if !mappings.iter().all(is_final) {
            return Err(Unfit::NotFinal);
        }
        let own = || object.object.text().iter().map(|text| text.range);
        let mut at = pages.start();
        while let Some(next) = (object.next_code)(at).filter(|&next| next < pages.end()) {
            let Some(range) = own().find(|range| range.start() == next) else { return Err(Unfit::Shared) };
            at = range.end();
        }
        if self.overlapping(pages).any(|(_, image)| image.alive) {
            return Err(Unfit::Shared);
        }
        foreign::copy(pages).map_err(|_| Unfit::Unreadable)
    }

    fn overlapping(&self, pages: AddressRange) -> impl Iterator<Item = (&u64, &Mapped)> {
        let below = self.images.range(..pages.end().0).rev();
        below.take_while(move |(_, image)| image.end > pages.start().0)
    }

    fn encode(&mut self, object: &FinalizedObject<'_>, pages: AddressRange, code: &[u8], room: u64) -> Option<Encoded> {
        let eh_frame = object.object.eh_frame().and_then(|range| Some((range, foreign::copy(range).ok()?)));
        let content = Content {
            object: object.object,
            names: object.names,
            style: self.options.names,
            pages,
            code,
            room,
            eh_frame: eh_frame.as_ref().map(|(range, bytes)| (*range, bytes.as_slice())),
            made_rules: object.made_rules,
            debug_object: object.debug_object,
            build_id: self.salt.next(),
        };
        let encoded = encode(&content, pages::page_size());
        encoded.inspect_err(|error| log_line!(Warn, "no image for {:?}: {error}", object.id)).ok()
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
    fn make_space(&mut self, size: u64) -> Result<(), SinkError> {
        while self.bytes + size > self.options.quota {
            let Some(oldest) = self.freed.pop_front() else {
                let error = io::Error::other(format!("{} bytes are enough", self.bytes));
                return Err(SinkError::Io { verb: "add to", path: "images of this process".into(), error });
            };
            self.bytes -= oldest.size;
            let _ = fs::remove_file(oldest.path);
        }
        Ok(())
    }

    /// Forgets freed images that had these pages; their files stay for whoever has recorded samples in them.
    fn forget(&mut self, pages: AddressRange) {
        let gone: Vec<u64> = self.overlapping(pages).map(|(&start, _)| start).collect();
        for start in gone {
            self.images.remove(&start);
        }
    }
}

/// valgrind preloads a library of its own into the programs it runs.
fn under_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_core"))
}

/// Maps the file over the pages, and over the room in front of them.
fn put_in_place(encoded: &Encoded, pages: AddressRange, written: &ImageFile) -> Result<(), SinkError> {
    let layout = &encoded.layout;
    let front = layout.code - layout.mapped;
    let range = AddressRange::new(Address(pages.start().0.wrapping_sub(front)), front + pages.size());
    let bytes = encoded.bytes.get(layout.code as usize..layout.code_end as usize).unwrap_or_default();
    let range = range.unwrap_or_default();
    // SAFETY: the pages were found private, executable and not writable, and hold these bytes but for zeros behind the
    // text; their owner is finalizing them in this very call, or lists them as code that is alive; the room in front of
    // them was reserved for this. The file is in a private directory, and nobody writes to it again.
    let exchanged = unsafe { pages::exchange(range, &written.file, layout.mapped, bytes) };
    exchanged.map_err(|error| {
        let _ = fs::remove_file(&written.path);
        SinkError::Io { verb: "map", path: written.path.clone(), error }
    })
}

impl Sink for Image {
    fn wants_debug_object(&self) -> bool {
        true
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let mut bytes = 0;
        for pages in runs(object.object, pages::page_size()) {
            bytes += self.make(object, pages)?;
        }
        Ok(bytes)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        for pages in runs(object.object, pages::page_size()) {
            if let Some(image) = self.images.get_mut(&pages.start().0) {
                image.alive = false;
                self.freed.extend(image.file.take());
            }
        }
        Ok(())
    }

    fn forked(&mut self) -> Forked {
        self.inherited.extend(self.directory.take());
        self.salt = Salt::new();
        // The parent's files are not ours to remove.
        self.freed.clear();
        self.bytes = 0;
        self.images.values_mut().for_each(|image| image.file = None);
        Forked::KnowsEverything
    }
}
