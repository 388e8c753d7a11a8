//! Event handlers of the `image` sink. At *finalized*, every page run whose code is final gets an image.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::content::page_runs;
use super::images::Images;
use super::pages;
use crate::options::Options;
use crate::sink::{FinalizedObject, Sink, SinkError, SinkState};

pub(crate) struct Image {
    options: Options,
    images: Arc<Mutex<Images>>,
}

impl Image {
    pub(crate) fn new(options: &Options, images: &Arc<Mutex<Images>>) -> Self {
        Image { options: options.clone(), images: Arc::clone(images) }
    }

    /// Locks the images. Never blocks, because the lock is only taken with the session locked.
    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Image {
    fn wants_debug_object(&self) -> bool {
        true
    }

    fn finalized(&mut self, object: &FinalizedObject<'_>) -> Result<u64, SinkError> {
        let mut bytes = 0;
        for run in page_runs(object.object, pages::page_size()) {
            bytes += self.images().make_image(&self.options, object, run)?;
        }
        Ok(bytes)
    }

    fn freeing(&mut self, object: &FinalizedObject<'_>) -> Result<(), SinkError> {
        for run in page_runs(object.object, pages::page_size()) {
            self.images().freeing(object.id, run);
        }
        Ok(())
    }

    fn forked(&mut self) -> SinkState {
        SinkState::Kept
    }
}
