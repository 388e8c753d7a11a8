//! The images that `jitlisten record` keeps beside its recording, in `FILE.images`: where FILE was moved to, they are,
//! too.

use std::path::{Path, PathBuf};

use perf_format::recording::{IMAGES, images};

use super::Recording;

impl Recording {
    /// Takes images for those that lie beside `recording`, under its present name or the one that it was made with.
    pub(crate) fn find_images_beside(&mut self, recording: &Path) {
        let Ok(recording) = std::path::absolute(recording) else { return };
        for file in &mut self.files {
            if let Some(found) =
                beside(&recording, Path::new(&file.path)).and_then(|path| path.to_str().map(str::to_owned))
            {
                file.path = found;
            }
        }
    }
}

fn beside(recording: &Path, image: &Path) -> Option<PathBuf> {
    let (directory, name) = (image.parent()?.file_name()?, image.file_name()?);
    if !directory.to_str()?.ends_with(IMAGES) {
        return None;
    }
    let places = [images(recording), recording.with_file_name(directory)];
    places.iter().map(|place| place.join(name)).find(|path| path.is_file())
}
