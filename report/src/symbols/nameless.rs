//! Names of library functions that have no symbol, from the compiled code that calls them.
//!
//! `dlsym("cos")` returns the address of a local function of libm, `__cos_fma` on most processors, whose symbol is only
//! in a debug package. Images have the names in their code's relocations (`jitlisten/src/sink/image/callees.rs`).
//! Two rules name a function, whose address range is that of its unwind table entry:
//!
//! 1. Compiled code refers to the function's start by this name, or calls a function of another library that jumps to
//!    it. Numba's `cos`, for example, jumps to that of libm.
//! 2. In all stacks with these instructions, compiled code calls into the library by this name, directly above the
//!    function or above others of the library. `acos` of libm, for example, jumps to a local function, which replaces
//!    its frame. A symbol in a debug package precedes this name.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::callees::replace_by_usual;
use super::files::Files;
use crate::recording::{FilePosition, Location, Recording};

/// Origin and pid.
type Process = (u32, u32);
/// File and start of a function.
type Function = (u32, u64);

/// Location in a library function without a symbol.
struct Nameless {
    location: u32,
    function: Function,
    process: Process,
    /// Start of the function in the process.
    start: u64,
}

/// Sets the names of locations in library functions that have no symbol. In a merged recording, the first rule has been
/// applied to each part.
pub(super) fn name_callees(files: &mut Files, recording: &mut Recording) {
    let nameless = name_by_references(files, recording);
    let names = names_of_entries(files, recording, &nameless);
    for (location, function) in nameless {
        let location = &mut recording.locations[location as usize];
        if let Some(name) = names.get(&function)
            && location.position.is_some_and(|position| files.debug_symbol(position).is_none())
        {
            location.callee = Some(Arc::clone(name));
        }
    }
}

/// Applies the first rule to all locations of the functions. Returns the locations that compiled code calls and that
/// still have no name.
pub(super) fn name_by_references(files: &mut Files, recording: &mut Recording) -> FxHashMap<u32, Function> {
    let called = called_locations(files, recording);
    let called_positions = recording.locations.iter().zip(&called).filter(|(_, is_called)| **is_called);
    let libraries: FxHashSet<u32> =
        called_positions.filter_map(|(location, _)| Some(location.position?.file)).collect();
    let mut nameless = Vec::new();
    let mut starts: FxHashMap<Process, FxHashMap<u64, Option<Arc<str>>>> = FxHashMap::default();
    for (location, index) in recording.locations.iter().zip(0..) {
        if let (Some(pid), Some(position)) = (location.pid, location.position)
            && libraries.contains(&position.file)
            && let Some((address, range)) = files.nameless_function(position)
        {
            let process = (location.origin, pid);
            let start = range.start.wrapping_add(location.address.wrapping_sub(address));
            starts.entry(process).or_default().insert(start, None);
            nameless.push(Nameless { location: index, function: (position.file, range.start), process, start });
        }
    }
    find_references(files, recording, &mut starts);
    let mut names: FxHashMap<Function, Option<Arc<str>>> = FxHashMap::default();
    for Nameless { location, function, process, start } in &nameless {
        let usual_name = names.entry(*function).or_default();
        let own = &recording.locations[*location as usize].callee;
        for name in own.iter().chain(&starts[process][start]) {
            replace_by_usual(usual_name, name);
        }
    }
    let unnamed = nameless.iter().filter(|nameless| names[&nameless.function].is_none());
    let unnamed = unnamed.map(|nameless| (nameless.location, nameless.function)).collect();
    names.extend(names_of_jumps(files, recording, &unnamed));
    for Nameless { location, function, .. } in &nameless {
        recording.locations[*location as usize].callee.clone_from(&names[function]);
    }
    nameless.retain(|nameless| names[&nameless.function].is_none() && called[nameless.location as usize]);
    nameless.into_iter().map(|nameless| (nameless.location, nameless.function)).collect()
}

/// Tells for each location whether it is in a library that compiled code calls. Other libraries need not be opened.
fn called_locations(files: &Files, recording: &Recording) -> Vec<bool> {
    let mut called = vec![false; recording.locations.len()];
    let is_image: Vec<bool> = (0..recording.files.len() as u32).map(|file| files.has_image_name(file)).collect();
    let file = |location: &Location| location.position.map(|position| position.file);
    let file_of_location: Vec<Option<u32>> = recording.locations.iter().map(file).collect();
    for stack in 0..recording.stacks.len() as u32 {
        // Library that the previous location called: `None` for no library, `Some(None)` for any.
        let mut library = None;
        for location in recording.stacks.get(stack).iter().rev() {
            let Some(file) = file_of_location[*location as usize] else {
                library = None;
                continue;
            };
            if is_image.get(file as usize).is_some_and(|is_image| *is_image) {
                library = Some(None);
            } else if library.is_some_and(|library: Option<u32>| library.is_none_or(|library| library == file)) {
                library = Some(Some(file));
                called[*location as usize] = true;
            } else {
                library = None;
            }
        }
    }
    called
}

/// Sets the names of the functions that start at these addresses and that images of the process refer to. Forked
/// processes may have thousands of images in common, so the names of other functions are not copied for each process.
fn find_references(
    files: &mut Files,
    recording: &Recording,
    starts: &mut FxHashMap<Process, FxHashMap<u64, Option<Arc<str>>>>,
) {
    let mut seen = FxHashSet::default();
    for location in &recording.locations {
        if let (Some(pid), Some(position)) = (location.pid, location.position)
            && let Some(starts) = starts.get_mut(&(location.origin, pid))
            && seen.insert((location.origin, pid, position.file))
            && let Some(callees) = files.callees(position.file)
        {
            if starts.len() < callees.starts.len() {
                for (start, known) in starts {
                    if let Some(name) = callees.starts.get(start) {
                        replace_by_usual(known, name);
                    }
                }
            } else {
                for (start, name) in &callees.starts {
                    if let Some(known) = starts.get_mut(start) {
                        replace_by_usual(known, name);
                    }
                }
            }
        }
    }
}

/// Adds a name by which a function is reached. A function that is reached by several has none.
fn add_name(names: &mut FxHashMap<Function, Option<Arc<str>>>, function: Function, name: Option<&Arc<str>>) {
    let only_name = names.entry(function).or_insert_with(|| name.cloned());
    if only_name.as_ref() != name {
        *only_name = None;
    }
}

/// Returns the names by which compiled code calls functions of other libraries that jump to these; `None` for several
/// names.
fn names_of_jumps(
    files: &mut Files,
    recording: &Recording,
    functions: &FxHashMap<u32, Function>,
) -> FxHashMap<Function, Option<Arc<str>>> {
    let mut names: FxHashMap<Function, Option<Arc<str>>> = FxHashMap::default();
    let mut seen = FxHashSet::default();
    for stack in (0..recording.stacks.len() as u32).filter(|_| !functions.is_empty()) {
        for edge in recording.stacks.get(stack).windows(2) {
            let (location, call) = (&recording.locations[edge[0] as usize], &recording.locations[edge[1] as usize]);
            if let Some(function) = functions.get(&edge[0])
                && seen.insert((edge[0], edge[1]))
                && let Some((name, Some(target))) = called_name(files, call)
                && !files.contains(location, target)
            {
                add_name(&mut names, *function, Some(&name));
            }
        }
    }
    names
}

/// Returns the names of the functions that all stacks with these locations reach by one name.
fn names_of_entries(
    files: &mut Files,
    recording: &Recording,
    functions: &FxHashMap<u32, Function>,
) -> FxHashMap<Function, Arc<str>> {
    let mut names: FxHashMap<Function, Option<Arc<str>>> = FxHashMap::default();
    let mut entries: FxHashMap<(u32, u32), Option<Arc<str>>> = FxHashMap::default();
    let file = |location: u32| recording.locations[location as usize].position.map(|position| position.file);
    for stack in (0..recording.stacks.len() as u32).filter(|_| !functions.is_empty()) {
        // Entry to the current file: its location there, and that of the caller.
        let mut entry: Option<(u32, u32)> = None;
        let mut previous = None;
        for location in recording.stacks.get(stack).iter().rev() {
            if previous.is_none_or(|previous| file(previous) != file(*location)) {
                entry = previous.map(|caller| (*location, caller));
            }
            previous = Some(*location);
            let Some(function) = functions.get(location) else { continue };
            let name = entry
                .and_then(|entry| entries.entry(entry).or_insert_with(|| entry_name(files, recording, entry)).as_ref());
            add_name(&mut names, *function, name);
        }
    }
    names.into_iter().filter_map(|(function, name)| Some((function, name?))).collect()
}

/// Returns the name of the library function at `entry`, if `caller` is compiled code.
fn entry_name(files: &mut Files, recording: &Recording, (entry, caller): (u32, u32)) -> Option<Arc<str>> {
    let (entry, caller) = (&recording.locations[entry as usize], &recording.locations[caller as usize]);
    files.callees(caller.position?.file)?;
    let symbol = entry.position.and_then(|position| files.symbol(position));
    symbol.map(Arc::from).or_else(|| called_name(files, caller).map(|(name, _)| name))
}

/// Returns the name of the function that compiled code calls at a location, and its address in the process if known.
fn called_name(files: &mut Files, call: &Location) -> Option<(Arc<str>, Option<u64>)> {
    let position = call.position?;
    files.callees(position.file)?;
    let call_address = files.address(position)?;
    if let Some(name) = files.callees(position.file)?.calls.get(&call_address) {
        return Some((Arc::clone(name), None));
    }
    let (_, target) = files.call_target(position, call.address)?;
    let target = target.wrapping_add(call.address.wrapping_sub(call_address));
    Some((Arc::clone(files.callees(position.file)?.starts.get(&target)?), Some(target)))
}

impl Files {
    fn address(&mut self, position: FilePosition) -> Option<u64> {
        self.open(position.file)?.address_of_offset(position.offset)
    }

    /// Returns true if an address in the process is in the same file as a location.
    fn contains(&mut self, location: &Location, address: u64) -> bool {
        let own = location.position.and_then(|position| Some((position.file, self.address(position)?)));
        own.is_some_and(|(file, own)| {
            let address = address.wrapping_add(own.wrapping_sub(location.address));
            self.segments(file).is_some_and(|segments| segments.contains(address))
        })
    }

    /// Returns the address of a position in a library and the range of its function, if that is in the unwind table but
    /// not among the symbols.
    fn nameless_function(&mut self, position: FilePosition) -> Option<(u64, Range<u64>)> {
        if !self.is_library(position.file) {
            return None;
        }
        let elf = self.open(position.file)?;
        let address = elf.address_of_offset(position.offset)?;
        if elf.function(address).is_some() {
            return None;
        }
        Some((address, elf.unwind_range(address)?))
    }
}
