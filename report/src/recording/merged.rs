//! Several recordings as one: of the processes of a program, of its ranks on several machines, of repetitions.

use rustc_hash::FxHashMap;

use super::Origin;
use super::{Location, MappedFile, Place, Recording, Sample, Thread};
use crate::Error;

impl Recording {
    /// Adds them up. They have to be of the same event.
    ///
    /// # Errors
    /// When there is none, or their samples count different things.
    pub fn merged(recordings: Vec<Recording>) -> Result<Recording, Error> {
        let mut all = recordings.into_iter();
        let mut merged = all.next().ok_or(Error::NoEvent)?;
        let mut numbers = Numbers::of(&merged);
        for recording in all {
            merged.add(recording, &mut numbers)?;
        }
        Ok(merged)
    }

    fn add(&mut self, other: Recording, numbers: &mut Numbers) -> Result<(), Error> {
        let (ours, theirs) = (self.event_name(), other.event_name());
        if plain(&ours) != plain(&theirs) {
            return Err(Error::DifferentEvents { first: ours, other: theirs });
        }
        let threads: Vec<u32> = other.threads.iter().map(|thread| numbers.thread(thread, &mut self.threads)).collect();
        let files: Vec<u32> = other.files.iter().map(|file| numbers.file(file, &mut self.files)).collect();
        let origins: Vec<u32> = other.origins.iter().map(|origin| number_of(origin, &mut self.origins)).collect();
        let (first_location, first_stack) = (self.locations.len() as u32, self.stacks.len() as u32);
        self.locations.extend(other.locations.into_iter().map(|location| {
            let place = location.place.map(|place| Place { file: files[place.file as usize], ..place });
            let origin = origins.get(location.origin as usize).copied().unwrap_or_default();
            Location { origin, place, ..location }
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
        self.lost = self.lost.saturating_add(other.lost);
        self.parts += other.parts;
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        let facts = &mut self.facts;
        if facts.host != other.facts.host {
            facts.host.clear();
        }
        if facts.command != other.facts.command {
            facts.command.clear();
        }
        Ok(())
    }

    fn event_name(&self) -> String {
        self.events.get(self.event).map(|(event, _)| event.name.clone()).unwrap_or_default()
    }
}

/// There are as many as machines.
fn number_of(origin: &Origin, all: &mut Vec<Origin>) -> u32 {
    let known = all.iter().position(|known| known == origin);
    known.unwrap_or_else(|| {
        all.push(origin.clone());
        all.len() - 1
    }) as u32
}

/// `cycles` and `cycles:u` are the same where the kernel may not be counted.
fn plain(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// What has a number in the sum already.
struct Numbers {
    threads: FxHashMap<Thread, u32>,
    files: FxHashMap<MappedFile, u32>,
}

impl Numbers {
    fn of(recording: &Recording) -> Numbers {
        Numbers {
            threads: recording.threads.iter().cloned().zip(0..).collect(),
            files: recording.files.iter().cloned().zip(0..).collect(),
        }
    }

    fn thread(&mut self, thread: &Thread, all: &mut Vec<Thread>) -> u32 {
        *self.threads.entry(thread.clone()).or_insert_with(|| {
            all.push(thread.clone());
            all.len() as u32 - 1
        })
    }

    fn file(&mut self, file: &MappedFile, all: &mut Vec<MappedFile>) -> u32 {
        *self.files.entry(file.clone()).or_insert_with(|| {
            all.push(file.clone());
            all.len() as u32 - 1
        })
    }
}
