//! Merging of several recordings: of a program's processes, of its ranks on several machines, or of repeated runs.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Origin;
use super::{FilePosition, Location, MappedFile, Recording, Sample, Thread};
use crate::error::Error;
use crate::words::count_notes;

impl Recording {
    /// Merges recordings of the same event.
    ///
    /// # Errors
    /// Returns an error if there are no recordings, or their samples count different events.
    pub fn merged(recordings: Vec<Recording>) -> Result<Recording, Error> {
        let mut remaining = recordings.into_iter();
        let mut merged = remaining.next().ok_or(Error::NoEvent)?;
        let mut indices = Indices::new(&merged);
        for recording in remaining {
            merged.add(recording, &mut indices)?;
        }
        merged.scale_short_processes();
        merged.notes = count_notes(merged.notes);
        Ok(merged)
    }

    fn add(&mut self, other: Recording, indices: &mut Indices) -> Result<(), Error> {
        let (ours, theirs) = (self.event_name(), other.event_name());
        if without_modifiers(&ours) != without_modifiers(&theirs) {
            return Err(Error::DifferentEvents { first: ours, other: theirs });
        }
        let threads: Vec<u32> =
            other.threads.iter().map(|thread| indices.thread_index(thread, &mut self.threads)).collect();
        let files: Vec<u32> = other.files.iter().map(|file| indices.file_index(file, &mut self.files)).collect();
        let origins: Vec<u32> = other.origins.iter().map(|origin| origin_index(origin, &mut self.origins)).collect();
        let (first_location, first_stack) = (self.locations.len() as u32, self.stacks.len() as u32);
        self.locations.extend(other.locations.into_iter().map(|location| {
            let position =
                location.position.map(|position| FilePosition { file: files[position.file as usize], ..position });
            let origin = origins.get(location.origin as usize).copied().unwrap_or_default();
            Location { origin, position, ..location }
        }));
        self.stacks.append(&other.stacks, first_location);
        self.samples.extend(other.samples.into_iter().map(|sample| Sample {
            thread: threads[sample.thread as usize],
            stack: sample.stack + first_stack,
            ..sample
        }));
        let count = other.events.get(other.event).map_or(0, |(_, count)| *count);
        if let Some((_, ours)) = self.events.get_mut(self.event) {
            *ours += count;
        }
        self.short_processes.add(&other.short_processes, &threads);
        self.lost = self.lost.saturating_add(other.lost);
        self.parts += other.parts;
        for interpreter in other.interpreters {
            if !self.interpreters.contains(&interpreter) {
                self.interpreters.push(interpreter);
            }
        }
        self.notes.extend(other.notes);
        let facts = &mut self.facts;
        facts.uses_cpu_clock |= other.facts.uses_cpu_clock;
        facts.run_queue_ns = facts.run_queue_ns.saturating_add(other.facts.run_queue_ns);
        if facts.host != other.facts.host {
            facts.host.clear();
        }
        if facts.rank != other.facts.rank {
            facts.rank = None;
        }
        if facts.process != other.facts.process {
            facts.process.clear();
        }
        for command in std::iter::once(other.facts.command).chain(other.facts.other_commands) {
            if command != facts.command && indices.commands.insert(command.clone()) {
                facts.other_commands.push(command);
            }
        }
        Ok(())
    }

    fn event_name(&self) -> String {
        self.events.get(self.event).map(|(event, _)| event.name.clone()).unwrap_or_default()
    }
}

/// Returns the index of an origin, which is added if new. A linear search suffices, because there is one origin per
/// machine.
fn origin_index(origin: &Origin, origins: &mut Vec<Origin>) -> u32 {
    let existing = origins.iter().position(|existing| existing == origin);
    existing.unwrap_or_else(|| {
        origins.push(origin.clone());
        origins.len() - 1
    }) as u32
}

/// Returns an event name without modifiers. `cycles` becomes `cycles:u` where users may not count events in the kernel.
fn without_modifiers(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// Indices of threads and files in the merged recording.
struct Indices {
    threads: FxHashMap<Thread, u32>,
    files: FxHashMap<MappedFile, u32>,
    /// Command lines other than the first recording's.
    commands: FxHashSet<Vec<String>>,
}

impl Indices {
    fn new(recording: &Recording) -> Indices {
        Indices {
            threads: recording.threads.iter().cloned().zip(0..).collect(),
            files: recording.files.iter().cloned().zip(0..).collect(),
            commands: recording.facts.other_commands.iter().cloned().collect(),
        }
    }

    fn thread_index(&mut self, thread: &Thread, entries: &mut Vec<Thread>) -> u32 {
        *self.threads.entry(thread.clone()).or_insert_with(|| {
            entries.push(thread.clone());
            entries.len() as u32 - 1
        })
    }

    fn file_index(&mut self, file: &MappedFile, entries: &mut Vec<MappedFile>) -> u32 {
        *self.files.entry(file.clone()).or_insert_with(|| {
            entries.push(file.clone());
            entries.len() as u32 - 1
        })
    }
}
