//! Images that `jitlisten record` keeps in `FILE.images` next to its recording. They are found even if both were moved.

use std::path::{Path, PathBuf};

use wire::recording::{IMAGES, images};

use super::Recording;

impl Recording {
    /// Replaces the paths of images that exist next to `recording`, under its current or its original name.
    pub(crate) fn find_moved_images(&mut self, recording: &Path) {
        let Ok(recording) = std::path::absolute(recording) else { return };
        for file in &mut self.files {
            if let Some(moved_path) =
                moved_image(&recording, Path::new(&file.path)).and_then(|path| path.to_str().map(str::to_owned))
            {
                file.path = moved_path;
            }
        }
    }
}

fn moved_image(recording: &Path, image: &Path) -> Option<PathBuf> {
    let (directory, name) = (image.parent()?.file_name()?, image.file_name()?);
    if !directory.to_str()?.ends_with(IMAGES) {
        return None;
    }
    let directories = [images(recording), recording.with_file_name(directory)];
    directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}
