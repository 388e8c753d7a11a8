//! An integration in which the program calls the library itself, with every consumer.
//!
//! The host runs the chain; nothing is preloaded. The expectation is that of the table: names, and whole stacks.

use crate::host::{Host, Preload};
use crate::perf_script::{Frame, Sample};
use crate::scenario::{self, Verdict};
use crate::support_table;
use crate::{gdb, perf, perf_inject, perf_map, walk};

/// How many samples a proof by sampling needs at least.
const ENOUGH: usize = 100;

/// The integration.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    /// Its name in the table of integrations.
    pub name: &'static str,
    /// The host that runs the chain for so many seconds, with these words behind, or `None` after a loud skip.
    pub host: fn(u32, &[&str]) -> Option<Host>,
    /// Part of the file name of the code that calls the JIT code.
    pub caller_object: &'static str,
    /// Part of what gdb prints for the frame that calls the JIT code.
    pub caller_frame: &'static str,
}

impl Linked {
    fn with(&self, sinks: &str, seconds: u32, words: &[&str]) -> Option<Host> {
        Some((self.host)(seconds, words)?.variable("JITLISTEN", sinks))
    }

    /// `perf record -g` with the perf map.
    pub fn perf_map(&self) {
        let (Some(()), Some(host)) = (perf::is_here(), self.with("perfmap", 2, &[])) else { return };
        let recording = perf::record(&host, Preload::Nothing);
        scenario::every_sample_is_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::of(&recording.samples, self.caller_object).is_complete();
        support_table::seen(self.name, "perf map");
    }

    /// `perf inject --jit` with the jitdump.
    pub fn jitdump(&self) {
        let (Some(()), Some(host)) = (perf::is_here(), self.with("jitdump", 2, &[])) else { return };
        let injected = perf_inject::record_with(host, Preload::Nothing, 997, "fp");
        let of_dump = |frame: &Frame| frame.object.contains("/jitted-");
        self.is_whole(&injected.samples, of_dump);
        support_table::seen(self.name, "jitdump");
    }

    /// perf, which takes images for shared libraries.
    pub fn image(&self) {
        let (Some(()), Some(host)) = (perf::is_here(), self.with("image", 2, &[])) else { return };
        let recording = perf::record(&host, Preload::Nothing);
        assert_eq!(recording.map, None, "no perf map was asked for");
        self.is_whole(&recording.samples, |frame| frame.object.contains("/image-"));
        support_table::seen(self.name, "image");
    }

    /// gdb's backtrace.
    pub fn gdb(&self) {
        let (Some(()), Some(host)) = (gdb::is_here(), self.with("perfmap", 60, &["timer"])) else { return };
        let session = gdb::start(&host, Preload::Nothing);
        let _ = session.pid.and_then(perf_map::take);
        if let Err(what) = scenario::check_backtrace(&session.backtrace, self.caller_frame, session.symbols) {
            panic!("{what}\ngdb said:\n{}", session.output);
        }
        support_table::seen(self.name, "gdb");
    }

    /// nongnu libunwind inside the process, which has all its libraries from the start.
    pub fn libunwind(&self) {
        self.walked("libunwind");
    }

    /// libgcc inside the process, likewise.
    pub fn libgcc(&self) {
        self.walked("libgcc");
    }

    fn walked(&self, unwinder: &str) {
        let Some(host) = self.with("unwind", 2, &[]) else { return };
        let Some(walked) = walk::from_inside(host, unwinder, Preload::Nothing) else { return };
        walked.is_complete();
        support_table::seen(self.name, unwinder);
    }

    /// Every sample in the JIT's code is one of the chain's, and its stack shows the rest of it and then the caller.
    fn is_whole(&self, samples: &[Sample], is_jit: impl Fn(&Frame) -> bool) {
        let jit: Vec<&Sample> = samples.iter().filter(|sample| sample.frames.first().is_some_and(&is_jit)).collect();
        assert!(jit.len() >= ENOUGH, "only {} samples in JIT code", jit.len());
        let is_whole = |sample: &&&Sample| {
            let outside = sample.frames.iter().find(|frame| !is_jit(frame));
            scenario::begins_with_chain(&sample.frames)
                && outside.is_some_and(|frame| frame.object.contains(self.caller_object))
        };
        let whole = jit.iter().filter(is_whole).count();
        assert!(whole * 100 >= jit.len() * 95, "{whole} of {} stacks are whole; not {:?}", jit.len(), {
            jit.iter().find(|sample| !is_whole(sample))
        });
    }
}
