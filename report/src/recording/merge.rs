//! Merging of several recordings: of a program's processes, of its ranks on several machines, or of repeated runs.

use rustc_hash::{FxHashMap, FxHashSet};

use super::interner::{FilePosition, Location, StackNumbers};
use super::{MappedFile, Origin, Recording, Sample, Thread};
use crate::error::Error;
use crate::words::count_notes;

/// Recordings that are merged one by one. The memory grows with their samples, threads and different stacks.
#[derive(Default)]
pub(crate) struct Merger {
    merged: Option<Recording>,
    /// Indices into `merged`, once it has several recordings.
    indices: Option<Indices>,
}

impl Merger {
    /// Adds a recording of the same event.
    ///
    /// # Errors
    /// Returns an error if the recording's samples count another event.
    pub(crate) fn add(&mut self, recording: Recording) -> Result<(), Error> {
        match &mut self.merged {
            Some(merged) => {
                let indices = self.indices.get_or_insert_with(|| merged.make_distinct());
                merged.add(recording, indices)?;
            }
            None => self.merged = Some(recording),
        }
        Ok(())
    }

    /// Returns the merged recording.
    ///
    /// # Errors
    /// Returns an error if there are no recordings.
    pub(crate) fn finish(self) -> Result<Recording, Error> {
        let mut merged = self.merged.ok_or(Error::NoEvent)?;
        merged.scale_short_processes();
        merged.notes = count_notes(merged.notes);
        Ok(merged)
    }
}

impl Recording {
    /// Merges recordings of the same event.
    ///
    /// # Errors
    /// Returns an error if there are no recordings, or their samples count different events.
    pub fn merged(recordings: Vec<Recording>) -> Result<Recording, Error> {
        let mut merger = Merger::default();
        recordings.into_iter().try_for_each(|recording| merger.add(recording))?;
        merger.finish()
    }

    fn add(&mut self, mut other: Recording, indices: &mut Indices) -> Result<(), Error> {
        let (ours, theirs) = (self.event_name(), other.event_name());
        if without_modifiers(&ours) != without_modifiers(&theirs) {
            return Err(Error::DifferentEvents { first: ours, other: theirs });
        }
        self.add_samples(&mut other, indices);
        let count = other.events.get(other.event).map_or(0, |(_, count)| *count);
        if let Some((_, ours)) = self.events.get_mut(self.event) {
            *ours += count;
        }
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
        facts.unrecorded_children_ns = facts.unrecorded_children_ns.saturating_add(other.facts.unrecorded_children_ns);
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

    /// Adds the samples of a recording, with their threads, stacks, locations and files.
    fn add_samples(&mut self, other: &mut Recording, indices: &mut Indices) {
        let threads: Vec<u32> =
            other.threads.iter().map(|thread| indices.thread_index(thread, &mut self.threads)).collect();
        let files: Vec<u32> = other.files.iter().map(|file| indices.file_index(file, &mut self.files)).collect();
        let origins: Vec<u32> = other.origins.iter().map(|origin| origin_index(origin, &mut self.origins)).collect();
        let own_origin = |origin: u32| origins.get(origin as usize).copied().unwrap_or_default();
        self.processes.extend(other.processes.iter().map(|(origin, pid)| (own_origin(*origin), *pid)));
        let locations = std::mem::take(&mut other.locations).into_iter().map(|location| {
            let position =
                location.position.map(|position| FilePosition { file: files[position.file as usize], ..position });
            let location = Location { origin: own_origin(location.origin), position, ..location };
            indices.location_index(location, &mut self.locations)
        });
        let locations: Vec<u32> = locations.collect();
        let mut stack = Vec::new();
        let stacks = (0..other.stacks.len() as u32).map(|index| {
            stack.clear();
            stack.extend(other.stacks.get(index).iter().map(|location| locations[*location as usize]));
            self.stacks.number(&stack, &mut indices.stacks)
        });
        let stacks: Vec<u32> = stacks.collect();
        self.samples.extend(other.samples.drain(..).map(|sample| Sample {
            thread: threads[sample.thread as usize],
            stack: stacks.get(sample.stack as usize).copied().unwrap_or_default(),
            ..sample
        }));
        self.short_processes.add(&other.short_processes, &threads);
    }

    /// Returns the indices of a recording that others are added to. Its own stacks and locations become distinct.
    fn make_distinct(&mut self) -> Indices {
        let mut own = Recording {
            threads: std::mem::take(&mut self.threads),
            origins: std::mem::take(&mut self.origins),
            processes: std::mem::take(&mut self.processes),
            files: std::mem::take(&mut self.files),
            locations: std::mem::take(&mut self.locations),
            stacks: std::mem::take(&mut self.stacks),
            samples: std::mem::take(&mut self.samples),
            short_processes: std::mem::take(&mut self.short_processes),
            ..Recording::default()
        };
        let mut indices = Indices::default();
        indices.commands.extend(self.facts.other_commands.iter().cloned());
        self.add_samples(&mut own, &mut indices);
        indices
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

/// Indices of threads, files, locations and stacks in the merged recording.
#[derive(Default)]
struct Indices {
    threads: FxHashMap<Thread, u32>,
    files: FxHashMap<MappedFile, u32>,
    locations: FxHashMap<Location, u32>,
    stacks: StackNumbers,
    /// Command lines other than the first recording's.
    commands: FxHashSet<Vec<String>>,
}

impl Indices {
    fn thread_index(&mut self, thread: &Thread, entries: &mut Vec<Thread>) -> u32 {
        *self.threads.entry(thread.clone()).or_insert_with(|| {
            entries.push(thread.clone());
            entries.len() as u32 - 1
        })
    }

    fn location_index(&mut self, location: Location, entries: &mut Vec<Location>) -> u32 {
        *self.locations.entry(location).or_insert_with_key(|location| {
            entries.push(location.clone());
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
