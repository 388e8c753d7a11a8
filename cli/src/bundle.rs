//! A folder with all that a reader of a recording needs, on any machine: `record --bundle` makes it, and what reads recordings
//! takes it in place of a file.
//!
//! ```text
//!   FOLDER/perf.data      the recording; of children, with -s, perf.data.PID
//!   FOLDER/root/...       images, libraries, sources, perf maps, each at its own path below
//! ```

#![forbid(unsafe_code)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use jitlisten_report::{Lookup, Options, Report, Selection, bundle, printable};

use crate::problem::Problem;

const RECORDING: &str = "perf.data";
const ROOT: &str = "root";

/// Where the recording of a folder is written to.
pub(crate) fn recording_in(folder: &Path) -> PathBuf {
    folder.join(RECORDING)
}

/// Makes the folder for a new recording. One that is there is taken if it is empty, or a bundle.
pub(crate) fn make(folder: &Path) -> Result<(), Problem> {
    let failed = |error: std::io::Error| Problem::new(format!("cannot make {}: {error}", folder.display()));
    if let Ok(mut entries) = fs::read_dir(folder)
        && entries.next().is_some()
    {
        if !folder.join(ROOT).is_dir() {
            return Err(Problem::new(format!("{} is there and is no bundle: choose another -o", folder.display())));
        }
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder.join(ROOT)).map_err(failed)
}

/// Copies what the folder's recordings name into it.
pub(crate) fn fill(folder: &Path) -> Result<(), Problem> {
    let recordings = recordings_of(folder);
    if recordings.is_empty() {
        return Err(Problem::new("nothing was recorded: see above, or try jitlisten doctor"));
    }
    let (mut files, mut bytes) = (0, 0);
    for file in &recordings {
        let options = Options { selection: Selection::default(), lookup: Lookup::default(), by_thread: false };
        let report =
            Report::open(file, &options).map_err(|error| Problem::new(format!("{}: {error}", file.display())))?;
        let done = bundle(&report, &folder.join(ROOT)).map_err(Problem::new)?;
        (files, bytes) = (files + done.files, bytes + done.bytes);
        for missing in &done.missing {
            let _ = writeln!(
                std::io::stderr(),
                "jitlisten: {} is not there any more",
                printable(&missing.to_string_lossy())
            );
        }
        // They are below the root now.
        let mut images = file.clone().into_os_string();
        images.push(".images");
        let _ = fs::remove_dir_all(images);
    }
    let megabytes = bytes as f64 / 1e6;
    let _ = writeln!(std::io::stderr(), "jitlisten: {}: {files} files, {megabytes:.1} MB", folder.display());
    Ok(())
}

fn recordings_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(RECORDING))
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found
}

/// The recordings that a path means, and where the files that they name are, if they are those of a bundle.
pub(crate) fn opened(path: &Path) -> (Vec<PathBuf>, Option<PathBuf>) {
    let root = |folder: &Path| Some(folder.join(ROOT)).filter(|root| root.is_dir());
    if path.is_dir() {
        return (recordings_of(path), root(path));
    }
    (vec![path.to_owned()], path.parent().and_then(root))
}
