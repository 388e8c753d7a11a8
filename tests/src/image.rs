//! Runner for hosts with `JITLISTEN=image`, and reader of their images.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSymbol as _, SymbolKind};

use crate::host::Host;
use crate::perf_script::Sample;
use crate::scenario::{self, CHAIN};
use crate::tool;

/// A function in an image's symbol table. Addresses are relative to the start of the file, as tools print them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name as the image spells it.
    pub name: String,
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Enables the image sink and disables all others.
#[must_use]
pub fn with_images(host: Host) -> Host {
    host.variable("JITLISTEN", "image")
}

/// Images that the host's processes wrote, sorted by process and number.
#[must_use]
pub fn files(host: &Host) -> Vec<PathBuf> {
    files_in(&host.scratch(""))
}

/// Images below the directory that `JITLISTEN_DIR` named.
#[must_use]
pub fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "so");
    let process_directories = entries(directory.to_owned()).filter(|path| path.is_dir());
    let mut images: Vec<PathBuf> = process_directories.flat_map(entries).filter(is_image).collect();
    images.sort();
    images
}

/// Returns true if the file name that a tool printed for a frame is that of an image.
#[must_use]
pub fn is_image(object: &str) -> bool {
    object.contains("/image-") && object.ends_with(".so")
}

/// Counts the executable mappings of images in a process.
///
/// # Panics
/// If the process has exited.
#[must_use]
pub fn count_mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_else(|error| panic!("maps of {pid}: {error}"));
    maps.lines().filter(|line| line.contains(" r-xp ") && is_image(line)).count()
}

/// Reads the functions in an image's symbol table.
///
/// # Panics
/// If the file is not an ELF file.
#[must_use]
pub fn functions(image: &Path) -> Vec<Function> {
    let bytes = fs::read(image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let function = |symbol: object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
        let name = symbol.name().unwrap_or_default().to_owned();
        Function { name, address: symbol.address(), size: symbol.size() }
    };
    functions.map(function).collect()
}

/// Names of the functions in an image.
///
/// # Panics
/// If the file is not an ELF file.
#[must_use]
pub fn function_names(image: &Path) -> BTreeSet<String> {
    functions(image).into_iter().map(|function| function.name).collect()
}

/// Finds the function with this name, not its wrapper, and the image of the object that defines it.
///
/// # Panics
/// If no image contains the function.
#[must_use]
pub fn function(host: &Host, name: &str) -> (PathBuf, Function) {
    let is_match =
        |function: &Function| scenario::names_function(&function.name, name) && !function.name.contains("::");
    let mut candidates = files(host).into_iter().filter_map(|image| {
        // An object begins with its own function; copies of its callees follow.
        let candidate = functions(&image).into_iter().filter(is_match).min_by_key(|function| function.address)?;
        Some((image, candidate))
    });
    let candidate = candidates.by_ref().min_by_key(|(_, function)| function.address);
    candidate.unwrap_or_else(|| panic!("no image has {name}\n{}", host.log()))
}

/// Counts the samples whose leaf is in an image, and those of them that contain the whole chain followed by one of
/// `callers`.
#[must_use]
pub fn count_complete(samples: &[Sample], callers: &[&str]) -> (usize, usize) {
    let jit_samples = samples.iter().filter(|sample| sample.frames.first().is_some_and(|leaf| is_image(&leaf.object)));
    let is_complete = |sample: &&Sample| {
        let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
        let mut remaining = symbols.iter();
        // gamma may be inlined, in which case its caller is the leaf.
        let has_callers =
            CHAIN[1..].iter().all(|function| remaining.any(|symbol| scenario::names_function(symbol, function)));
        let has_named_leaf =
            symbols.first().is_some_and(|leaf| CHAIN.iter().any(|function| scenario::names_function(leaf, function)));
        has_callers && has_named_leaf && remaining.any(|symbol| callers.iter().any(|caller| symbol.contains(caller)))
    };
    let jit_samples: Vec<&Sample> = jit_samples.collect();
    (jit_samples.len(), jit_samples.iter().copied().filter(is_complete).count())
}

/// Errors that the installed ELF and DWARF checkers report for an image.
///
/// # Panics
/// If no checker is installed.
#[must_use]
pub fn find_faults(image: &Path) -> Vec<String> {
    let checkers = [
        ("readelf", "-aW"),
        ("llvm-dwarfdump-22", "--verify"),
        ("llvm-dwarfdump-14", "--verify"),
        ("eu-elflint", "--gnu-ld"),
    ];
    let mut checker_count = 0;
    let mut faults = Vec::new();
    for (checker, option) in checkers {
        let Some(program) = tool::find(checker) else { continue };
        checker_count += 1;
        let output = tool::run(Command::new(program).arg(option).arg(image));
        let report = String::from_utf8_lossy(&[output.stdout, output.stderr.clone()].concat()).to_lowercase();
        // With DWARF 5, clang 14 writes the first file of a line table twice. The object has this fault already; the
        // image only copies it.
        let has_warning =
            report.lines().any(|line| line.contains("warning") && !line.contains("is a duplicate of file_names"));
        if !output.status.success() || !output.stderr.is_empty() || has_warning {
            faults.push(format!("{checker} {}: {report}", image.display()));
        }
    }
    assert!(checker_count > 0, "no check is installed");
    faults
}
