//! The sink `modules`: lists images among the modules that tools inside the process see.
//!
//! Memory profilers, crash handlers and unwinders call `dl_iterate_phdr`, `dladdr` and similar functions for an
//! address. This sink maintains the list ([`crate::modules`]); hooks of the shim add it to the results. It requires the
//! image sink: a module's file and program headers are those of an image.
//!
//! Try it with `JITLISTEN=image,unwind,modules LD_PRELOAD=... memray run --native program.py`.

#![forbid(unsafe_code)]

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

    /// Does nothing: an image withdraws its module when the last of its objects is freed.
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
