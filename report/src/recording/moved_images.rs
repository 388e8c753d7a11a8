//! Images that `jitlisten record` keeps in `FILE.images` next to its recording. They are found even if both were moved.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use wire::recording::{IMAGES, images};

use super::Recording;
use crate::path_text::{path_of_text, text_of_path};

impl Recording {
    /// Replaces the paths of images that exist next to `recording`, under its current or its original name.
    pub(crate) fn find_moved_images(&mut self, recording: &Path) {
        let Ok(recording) = std::path::absolute(recording) else { return };
        for file in &mut self.files {
            if let Some(moved_path) = moved_image(&recording, &path_of_text(&file.path)) {
                file.path = text_of_path(moved_path.as_os_str().as_bytes());
            }
        }
    }
}

fn moved_image(recording: &Path, image: &Path) -> Option<PathBuf> {
    let (directory, name) = (image.parent()?.file_name()?, image.file_name()?);
    if !directory.as_bytes().ends_with(IMAGES.as_bytes()) {
        return None;
    }
    let directories = [images(recording), recording.with_file_name(directory)];
    directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}
