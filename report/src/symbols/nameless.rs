//! Names of library functions that have no symbol, from the compiled code that calls them.
//!
//! `dlsym("cos")` returns the address of a local function of libm, `__cos_fma` on most processors, whose symbol is only
//! in a debug package. Images have the names in their code's relocations (`jitlisten/src/sink/image/callees.rs`).
//! Two rules name a function, whose address range is that of its unwind table entry:
//!
//! 1. Compiled code refers to the function's start by this name.
//! 2. In all stacks with these instructions, compiled code calls into the library by this name, directly above the
//!    function or above others of the library. `acos` of libm, for example, jumps to a local function, which replaces
//!    its frame.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::files::Files;
use crate::recording::{FilePosition, Location, Recording};

/// Names by origin, pid and start of the function in the process.
type Starts = FxHashMap<(u32, u32, u64), Arc<str>>;

/// Location in a library function without a symbol.
struct Nameless {
    location: usize,
    /// File and start of the function.
    function: (u32, u64),
}

/// Sets the names of locations in library functions that have no symbol.
pub(super) fn name_callees(files: &mut Files, recording: &mut Recording) {
    let images = images_by_process(files, recording);
    if images.is_empty() {
        return;
    }
    let starts: Starts = images
        .iter()
        .flat_map(|(process, images)| images.iter().map(move |image| (*process, *image)))
        .flat_map(|((origin, pid), image)| {
            let starts = files.callees(image).into_iter().flat_map(|callees| &callees.starts);
            starts.map(|(start, name)| ((origin, pid, *start), Arc::clone(name))).collect::<Vec<_>>()
        })
        .collect();
    let mut nameless = Vec::new();
    for index in called_locations(files, recording) {
        let location = &mut recording.locations[index];
        let (Some(pid), Some(position)) = (location.pid, location.position) else { continue };
        let Some((address, function)) = files.nameless_function(position) else { continue };
        let start = function.start.wrapping_add(location.address.wrapping_sub(address));
        match starts.get(&(location.origin, pid, start)) {
            Some(name) => location.callee = Some(Arc::clone(name)),
            None => nameless.push(Nameless { location: index, function: (position.file, function.start) }),
        }
    }
    let names = names_of_entries(files, recording, &nameless, &starts);
    for Nameless { location, function } in nameless {
        recording.locations[location].callee = names.get(&function).cloned();
    }
}

/// Returns the locations in libraries that compiled code calls. Other libraries need not be opened.
fn called_locations(files: &Files, recording: &Recording) -> BTreeSet<usize> {
    let mut called = BTreeSet::new();
    for stack in 0..recording.stacks.len() as u32 {
        // Library that the previous location called: `None` for no library, `Some(None)` for any.
        let mut library = None;
        for location in recording.stacks.get(stack).iter().rev().map(|location| *location as usize) {
            let Some(FilePosition { file, .. }) = recording.locations[location].position else {
                library = None;
                continue;
            };
            if files.has_image_name(file) {
                library = Some(None);
            } else if library.is_some_and(|library: Option<u32>| library.is_none_or(|library| library == file)) {
                library = Some(Some(file));
                called.insert(location);
            } else {
                library = None;
            }
        }
    }
    called
}

/// Returns the images of each process that name functions outside of them.
fn images_by_process(files: &mut Files, recording: &Recording) -> FxHashMap<(u32, u32), Vec<u32>> {
    let mut images: FxHashMap<(u32, u32), Vec<u32>> = FxHashMap::default();
    let mut seen = FxHashSet::default();
    for location in &recording.locations {
        if let (Some(pid), Some(position)) = (location.pid, location.position)
            && seen.insert((location.origin, pid, position.file))
            && files.callees(position.file).is_some()
        {
            images.entry((location.origin, pid)).or_default().push(position.file);
        }
    }
    images
}

/// Returns the names of the functions that all stacks reach by one name.
fn names_of_entries(
    files: &mut Files,
    recording: &Recording,
    nameless: &[Nameless],
    starts: &Starts,
) -> FxHashMap<(u32, u64), Arc<str>> {
    let functions: FxHashMap<u32, (u32, u64)> =
        nameless.iter().map(|nameless| (nameless.location as u32, nameless.function)).collect();
    let mut names: FxHashMap<(u32, u64), Option<Arc<str>>> = FxHashMap::default();
    let mut entries: FxHashMap<(u32, u32), Option<Arc<str>>> = FxHashMap::default();
    let file = |location: u32| recording.locations[location as usize].position.map(|position| position.file);
    for stack in (0..recording.stacks.len() as u32).filter(|_| !functions.is_empty()) {
        let stack = recording.stacks.get(stack);
        for (index, location) in stack.iter().enumerate() {
            let Some(function) = functions.get(location) else { continue };
            let is_outside = |caller: &u32| file(*caller) != Some(function.0);
            let caller = stack[index..].iter().position(is_outside).map(|offset| index + offset);
            let name = caller.and_then(|caller| {
                let (entry, caller) = (stack[caller - 1], stack[caller]);
                let name = entries.entry((entry, caller));
                name.or_insert_with(|| entry_name(files, recording, (entry, caller), starts)).as_ref()
            });
            let first = names.entry(*function).or_insert_with(|| name.cloned());
            if first.as_ref() != name {
                *first = None;
            }
        }
    }
    names.into_iter().filter_map(|(function, name)| Some((function, name?))).collect()
}

/// Returns the name of the library function at `entry`, if `caller` is compiled code.
fn entry_name(
    files: &mut Files,
    recording: &Recording,
    (entry, caller): (u32, u32),
    starts: &Starts,
) -> Option<Arc<str>> {
    let (entry, caller) = (&recording.locations[entry as usize], &recording.locations[caller as usize]);
    files.callees(caller.position?.file)?;
    let symbol = entry.position.and_then(|position| files.symbol(position));
    symbol.map(Arc::from).or_else(|| called_name(files, caller, starts))
}

/// Returns the name of the function that compiled code calls at a location.
fn called_name(files: &mut Files, call: &Location, starts: &Starts) -> Option<Arc<str>> {
    let (pid, position) = (call.pid?, call.position?);
    let (_, elf) = files.open(position.file)?;
    let call_address = elf.address_of_offset(position.offset)?;
    if let Some(name) = files.callees(position.file)?.calls.get(&call_address) {
        return Some(Arc::clone(name));
    }
    let (_, target) = files.call_target(position, call.address)?;
    let target = target.wrapping_add(call.address.wrapping_sub(call_address));
    starts.get(&(call.origin, pid, target)).cloned()
}

impl Files {
    /// Returns the address of a position in a library and the range of its function, if that is in the unwind table but
    /// not among the symbols.
    fn nameless_function(&mut self, position: FilePosition) -> Option<(u64, Range<u64>)> {
        if !self.is_library(position.file) {
            return None;
        }
        let (_, elf) = self.open(position.file)?;
        let address = elf.address_of_offset(position.offset)?;
        if elf.function(address).is_some() {
            return None;
        }
        Some((address, elf.unwind_range(address)?))
    }
}
