//! The `modules` sink: adds images to the modules that tools inside the process see.
//!
//! Memory profilers, crash handlers and unwinders look up addresses with `dl_iterate_phdr`, `dladdr` and similar
//! functions. This sink maintains a list of modules ([`crate::modules`]), which hooks in the shim add to the results.
//! It requires the `image` sink, because the file and the program headers of each module are those of an image.
//!
//! Try it with `JITLISTEN=image,unwind,modules LD_PRELOAD=... memray run --native program.py`.

use std::sync::{Arc, Mutex, PoisonError};

use super::image::{Images, object_page_runs};
use super::{FinalizedObject, Sink, SinkError, SinkState};
use crate::modules;
use crate::options::NameStyle;

pub(crate) struct Modules {
    style: NameStyle,
    images: Arc<Mutex<Images>>,
}

impl Modules {
    pub(crate) fn new(style: NameStyle, images: &Arc<Mutex<Images>>) -> Self {
        Modules { style, images: Arc::clone(images) }
    }
}

impl Sink for Modules {
    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        for run in object_page_runs(object.object) {
            if let Some(module) = images.module(object, run, self.style) {
                modules::publish(module);
            }
        }
        Ok(0)
    }

    /// Does nothing, because the image withdraws its module when the last object in it is freed.
    fn freeing(&mut self, _: &FinalizedObject<'_>) -> Result<(), SinkError> {
        Ok(())
    }

    fn forked(&mut self) -> SinkState {
        SinkState::Kept
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        modules::clear();
    }
}
