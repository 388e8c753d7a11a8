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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::recording::MappedFile;

    #[test]
    fn images_are_found_in_a_folder_of_any_name() {
        let parent = std::env::temp_dir().join(format!("jitlisten-moved-{}", std::process::id()));
        let recording = parent.join(OsStr::from_bytes(b"\xe9")).join("new");
        let image = images(&recording).join("x.so");
        std::fs::create_dir_all(images(&recording)).unwrap();
        std::fs::write(&image, "").unwrap();
        let path = "/earlier/old.images/x.so".to_owned();
        let mut found =
            Recording { files: vec![MappedFile { path, build_id: Vec::new(), root: None }], ..Recording::default() };
        found.find_moved_images(&recording);
        assert_eq!(path_of_text(&found.files[0].path), image);
        std::fs::remove_dir_all(parent).unwrap();
    }
}
