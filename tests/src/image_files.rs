//! The files of the image sink, as they lie in a directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool;

/// The images below a directory that was `JITLISTEN_DIR`, by process and number.
#[must_use]
pub fn images(directory: &Path) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "so");
    let of_processes = entries(directory.to_owned()).filter(|path| path.is_dir());
    let mut found: Vec<PathBuf> = of_processes.flat_map(entries).filter(is_image).collect();
    found.sort();
    found
}

/// The functions of an image.
#[must_use]
pub fn functions(image: &Path) -> BTreeSet<String> {
    let done = tool::run(Command::new("nm").arg(image));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.lines().filter_map(|line| Some(line.split_once(" T ").or(line.split_once(" t "))?.1.to_owned())).collect()
}

/// What judges of ELF and DWARF say against an image; judges that are not installed say nothing.
///
/// # Panics
/// When none of them is installed.
#[must_use]
pub fn faults(image: &Path) -> Vec<String> {
    let judges = [
        ("readelf", "-aW"),
        ("llvm-dwarfdump-22", "--verify"),
        ("llvm-dwarfdump-14", "--verify"),
        ("eu-elflint", "--gnu-ld"),
    ];
    let mut asked = 0;
    let mut faults = Vec::new();
    for (judge, option) in judges {
        let Some(program) = tool::find(judge) else { continue };
        asked += 1;
        let done = tool::run(Command::new(program).arg(option).arg(image));
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr.clone()].concat()).to_lowercase();
        // clang 14 writes the first file of a line table twice in DWARF 5: a fault of the object.
        let warns = said.lines().any(|line| line.contains("warning") && !line.contains("is a duplicate of file_names"));
        if !done.status.success() || !done.stderr.is_empty() || warns {
            faults.push(format!("{judge} {}: {said}", image.display()));
        }
    }
    assert!(asked > 0, "no judge is installed");
    faults
}
