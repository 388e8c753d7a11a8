//! The part of the writer that records mappings and compiled code.

#![forbid(unsafe_code)]

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::Writer;
use wire::perf_data::RANK_TID;

use crate::handler::code_map;
use crate::python::Python;
use crate::system::clock;
use crate::writer::file::initial_features;
use crate::writer::perf_data::{Mapping, SampleId};

impl Writer {
    /// Reads the mappings again if libraries have changed or a sample hit unknown code.
    pub(super) fn update_code(&mut self) {
        let now = clock::monotonic();
        let change_time = self.recording.code_events.take_library_change();
        let is_retry_due = code_map::has_unknown_code() && now >= self.next_mapping_read;
        if change_time == 0 && !is_retry_due {
            return;
        }
        code_map::forget_unknown_code();
        // The mappings have existed since the loader's notification, or else since some time after the last read.
        let since = if change_time != 0 { change_time } else { self.last_mapping_read + 1 };
        let has_new = self.read_mappings(since);
        // Back off: unknown code that stays unknown, such as another JIT's, must not cause ever more reads.
        self.mapping_backoff_ns =
            if has_new { 0 } else { (self.mapping_backoff_ns * 2).clamp(100_000_000, 5_000_000_000) };
        self.next_mapping_read = now + self.mapping_backoff_ns;
    }

    /// Writes records for code events, and pins the images that the events name.
    pub(super) fn write_code_events(&mut self) {
        for event in self.recording.code_events.take() {
            self.has_code = true;
            let id = SampleId { time: event.time, ..self.now() };
            let (start, end) = (event.range.start().0, event.range.end().0);
            let mut mapping =
                Mapping { start, end, offset: 0, device: (0, 0), inode: 0, build_id: None, path: b"//anon".to_vec() };
            if let Some((path, offset)) = event.image {
                let path = self.pins.pin(&path).unwrap_or(path);
                (mapping.path, mapping.offset) = (path.as_os_str().as_bytes().to_vec(), offset);
            }
            self.batch.mapping(id, &mapping);
        }
    }

    /// Reads the mappings and writes the new ones. Returns true if there were any.
    pub(super) fn read_mappings(&mut self, since: u64) -> bool {
        let id = SampleId { time: since, ..self.now() };
        if self.last_mapping_read == 0
            && let Some(output) = &self.output
        {
            self.batch.initial_features(&initial_features(), output.attribute());
            if let Some(rank) = self.rank {
                self.batch.process_fact(id, RANK_TID, &rank.number.to_string());
            }
        }
        self.last_mapping_read = clock::monotonic();
        let Some((text, new_mappings, ranges)) = self.mappings.refresh() else { return false };
        for mapping in &new_mappings {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&mapping.path));
            match is_image_path(&path).then(|| self.pins.pin(&path)).flatten() {
                Some(pinned) => {
                    let path = pinned.as_os_str().as_bytes().to_vec();
                    self.batch.mapping(id, &Mapping { path, ..mapping.clone() });
                }
                None => self.batch.mapping(id, mapping),
            }
        }
        if !new_mappings.is_empty() {
            self.has_new_mappings = true;
            code_map::publish_libraries(ranges);
            if self.wants_python && self.python.is_none() {
                self.python = Python::find(&text, &new_mappings, self.pins.directory());
            }
            if let Some(python) = &self.python {
                python.find_asyncio(&new_mappings);
            }
        }
        !new_mappings.is_empty()
    }
}

/// Returns true for the path of an image: `.../image-PID-START/object-N.so`.
fn is_image_path(path: &std::path::Path) -> bool {
    let starts_with = |name: Option<&std::ffi::OsStr>, prefix: &str| {
        name.and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    };
    starts_with(path.file_name(), "object-")
        && starts_with(path.parent().and_then(|parent| parent.file_name()), "image-")
}
