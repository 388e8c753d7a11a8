//! Runs hosts with `JITLISTEN=image` and reads their images.

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

/// A function in an image's symbol table. Addresses count from the beginning of the file, as every tool prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As the image spells it.
    pub name: String,
    /// Where it begins.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// The host with images and nothing else.
#[must_use]
pub fn with_images(host: Host) -> Host {
    host.variable("JITLISTEN", "image")
}

/// The images of a host's processes, by process and number.
#[must_use]
pub fn files(host: &Host) -> Vec<PathBuf> {
    files_in(&host.scratch(""))
}

/// The images below a directory that was `JITLISTEN_DIR`.
#[must_use]
pub fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "so");
    let of_processes = entries(directory.to_owned()).filter(|path| path.is_dir());
    let mut found: Vec<PathBuf> = of_processes.flat_map(entries).filter(is_image).collect();
    found.sort();
    found
}

/// Whether a tool shows a place in an image when it shows this file.
#[must_use]
pub fn is_image(object: &str) -> bool {
    object.contains("/image-") && object.ends_with(".so")
}

/// How many mappings of images a process may execute.
///
/// # Panics
/// When the process is gone.
#[must_use]
pub fn mapped(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_else(|error| panic!("maps of {pid}: {error}"));
    maps.lines().filter(|line| line.contains(" r-xp ") && is_image(line)).count()
}

/// The functions of an image.
///
/// # Panics
/// When it is no ELF file.
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

/// The names of the functions of an image.
///
/// # Panics
/// When it is no ELF file.
#[must_use]
pub fn names(image: &Path) -> BTreeSet<String> {
    functions(image).into_iter().map(|function| function.name).collect()
}

/// The function of this name that is not a wrapper of it, and the image that was made for it.
///
/// # Panics
/// When no image has it.
#[must_use]
pub fn function(host: &Host, name: &str) -> (PathBuf, Function) {
    let is_it = |function: &Function| scenario::names(&function.name, name) && !function.name.contains("::");
    let mut found = files(host).into_iter().filter_map(|image| {
        // An object begins with its own function; those it calls, which are copies, follow.
        let first = functions(&image).into_iter().filter(is_it).min_by_key(|function| function.address)?;
        Some((image, first))
    });
    let first = found.by_ref().min_by_key(|(_, function)| function.address);
    first.unwrap_or_else(|| panic!("no image has {name}\n{}", host.log()))
}

/// The samples whose leaf is in an image, and how many of them have the whole chain and then one of `callers`.
#[must_use]
pub fn complete(samples: &[Sample], callers: &[&str]) -> (usize, usize) {
    let jit = samples.iter().filter(|sample| sample.frames.first().is_some_and(|leaf| is_image(&leaf.object)));
    let is_complete = |sample: &&Sample| {
        let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
        let mut rest = symbols.iter();
        // The leaf may be gamma, or what it was inlined into.
        let chain = CHAIN[1..].iter().all(|function| rest.any(|symbol| scenario::names(symbol, function)));
        let named = symbols.first().is_some_and(|leaf| CHAIN.iter().any(|function| scenario::names(leaf, function)));
        chain && named && rest.any(|symbol| callers.iter().any(|caller| symbol.contains(caller)))
    };
    let jit: Vec<&Sample> = jit.collect();
    (jit.len(), jit.iter().copied().filter(is_complete).count())
}

/// What checkers of ELF and DWARF say against an image; those that are not installed say nothing.
///
/// # Panics
/// When none of them is installed.
#[must_use]
pub fn faults(image: &Path) -> Vec<String> {
    let check = [
        ("readelf", "-aW"),
        ("llvm-dwarfdump-22", "--verify"),
        ("llvm-dwarfdump-14", "--verify"),
        ("eu-elflint", "--gnu-ld"),
    ];
    let mut asked = 0;
    let mut faults = Vec::new();
    for (check, option) in check {
        let Some(program) = tool::find(check) else { continue };
        asked += 1;
        let done = tool::run(Command::new(program).arg(option).arg(image));
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr.clone()].concat()).to_lowercase();
        // clang 14 writes the first file of a line table twice in DWARF 5: a fault of the object.
        let warns = said.lines().any(|line| line.contains("warning") && !line.contains("is a duplicate of file_names"));
        if !done.status.success() || !done.stderr.is_empty() || warns {
            faults.push(format!("{check} {}: {said}", image.display()));
        }
    }
    assert!(asked > 0, "no check is installed");
    faults
}
