//! The part of the writer that writes the file.

#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::{fs, io};

use jitlisten::log_line;
use jitlisten::plumbing::{LogEvent, clock_ns};

use super::{MAX_BATCH_BYTES, Writer};
use crate::recording::{family, process};
use crate::system::clock;
use crate::writer::held_file::Role;
use crate::writer::output::Output;
use crate::writer::perf_data::{Features, InitialFeatures};

impl Writer {
    /// Writes the batch, and the names of Python functions if that is due or `with_names`. A program without new
    /// samples may still have names from before that are not written.
    pub(super) fn flush(&mut self, with_names: bool) {
        if self.output.as_ref().is_some_and(Output::is_deferred) {
            let counters = &self.recording.counters;
            let has_no_events = counters.has_no_sample() && counters.threads_without_timer.get() == 0;
            let is_requested = self.recording.requests.file.load(Ordering::Acquire);
            let is_wanted =
                !has_no_events && !self.is_minor() || is_requested || self.batch.as_bytes().len() >= MAX_BATCH_BYTES;
            if self.batch.is_empty() || !is_wanted {
                return;
            }
            self.create_file();
        }
        if let Some(python) = &mut self.python {
            python.write_images(with_names);
        }
        if !self.batch.is_empty() {
            self.append();
        }
    }

    /// Returns true for a launcher or a tool that has neither compiled code nor taken long.
    pub(super) fn is_minor(&self) -> bool {
        let Some(role) = self.output.as_ref().map(|output| output.owner().role) else { return false };
        if !role.is_minor() || self.has_code {
            return false;
        }
        // A launcher waits for what it has started.
        let (counts_waits, min_time_ns) = match role {
            Role::Launcher => (false, 500_000_000),
            _ => (self.recording.uses_wall_clock(), 100_000_000),
        };
        let cpu_clock = libc::CLOCK_PROCESS_CPUTIME_ID;
        let time_ns = if counts_waits { clock::monotonic() - self.began } else { clock_ns(cpu_clock) };
        time_ns < min_time_ns
    }

    /// Creates the file if it does not exist yet. Until then nothing is written next to it, because the
    /// images of an earlier recording may be there.
    pub(super) fn create_file(&mut self) {
        if self.output.as_ref().is_some_and(Output::is_deferred) {
            self.append();
            self.pins.pin_deferred();
            self.recording.set_has_file();
        }
    }

    fn append(&mut self) {
        if let Some(output) = &mut self.output {
            match output.append(&self.batch) {
                Ok(()) => self.recording.counters.bytes.set(output.size()),
                Err(error) => self.give_up(&error),
            }
        }
        self.batch.clear();
    }

    /// Ends the recording after a write error. The records in the file remain readable.
    fn give_up(&mut self, error: &io::Error) {
        let path = self.output.take().map(|output| output.path().to_owned()).unwrap_or_default();
        self.recording.counters.failures.add(1);
        let (path, error) = (path.display().to_string(), error.to_string());
        log_line!(Error, "{}", LogEvent::RecordingStopped { path: &path, error: &error });
        self.end_sampling();
    }

    pub(super) fn features(&self) -> Features {
        if let Some(before) = self.children_before_ns {
            let children_ns = family::waited_children_ns().saturating_sub(before);
            self.recording.counters.unrecorded_children_ns.set(children_ns);
        }
        let (first_sample, last_sample) = (self.first_sample, self.last_sample);
        Features { initial: initial_features(), first_sample, last_sample, counters: self.recording.counters.to_wire() }
    }
}

const VERSION: &str = concat!("jitlisten ", env!("CARGO_PKG_VERSION"));

pub(super) fn initial_features() -> InitialFeatures {
    let (hostname, release) = process::host_and_release();
    let command_line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let command_line = command_line.strip_suffix(&[0]).unwrap_or(&command_line);
    let command_line = command_line.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    InitialFeatures { hostname, release, version: VERSION.to_owned(), command_line }
}
