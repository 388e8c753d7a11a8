//! Tests of integrations whose program itself links to the library, with every consumer.
//!
//! The host runs the chain without a preloaded library. As in the other integrations, every function must have a name
//! and every stack must be whole.

use std::path::PathBuf;

use crate::host::{Host, Preload};
use crate::paths::{self, Scratch};
use crate::perf_script::{Frame, Sample};
use crate::scenario::{self, Verdict};
use crate::support_table;
use crate::tool::{self, Absence};
use crate::{gdb, perf, perf_inject, perf_map, walk};

/// Compiles `tests/hosts/NAME.c`, a JIT that writes its machine code by hand, and links it to the library; `None` if
/// the test is skipped.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn compile_jit(name: &str, build_dir: &Scratch) -> Option<PathBuf> {
    if cfg!(not(target_arch = "x86_64")) {
        tool::skip(name, "its machine code is that of x86-64", Absence::IsAllowed);
        return None;
    }
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let library = paths::library();
    let directory = library.parent().expect("a file lies somewhere").display().to_string();
    let include = format!("-I{}", paths::root().join("include").display());
    let [link_path, run_path] = [format!("-L{directory}"), format!("-Wl,-rpath,{directory}")];
    // `-ljitlisten` precedes the source file, so `--as-needed` would drop the library.
    let flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer", "-pthread"];
    let link_flags = ["-Wl,--no-as-needed", &include, &link_path, "-ljitlisten", &run_path];
    let program = build_dir.join(name);
    tool::compile(&compiler, &[&flags[..], &link_flags].concat(), &paths::host(&format!("{name}.c")), &program);
    Some(program)
}

/// Minimum number of samples in JIT code for a meaningful check.
const MIN_SAMPLES: usize = 100;

/// An integration whose program links to the library.
#[derive(Clone, Copy, Debug)]
pub struct LinkedIntegration {
    /// Name of the integration's row in the support table.
    pub name: &'static str,
    /// Creates the host that runs the chain for the given number of seconds, with further arguments; `None` after a
    /// skip.
    pub host: fn(u32, &[&str]) -> Option<Host>,
    /// Substring of the file name of the code that calls the JIT code.
    pub caller_object: &'static str,
    /// Substring of gdb's line for the frame that calls the JIT code.
    pub caller_frame: &'static str,
}

impl LinkedIntegration {
    fn host_with_sinks(&self, sinks: &str, seconds: u32, words: &[&str]) -> Option<Host> {
        Some((self.host)(seconds, words)?.variable("JITLISTEN", sinks))
    }

    /// Checks `perf record -g` with the perf map.
    pub fn check_perf_map(&self) {
        let (Some(()), Some(host)) = (perf::is_available(), self.host_with_sinks("perfmap", 2, &[])) else { return };
        let recording = perf::record(&host, Preload::Nothing);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::from_samples(&recording.samples, self.caller_object).assert_complete();
        support_table::record_cell(self.name, "perf map");
    }

    /// Checks `perf inject --jit` with the jitdump.
    pub fn check_jitdump(&self) {
        let (Some(()), Some(host)) = (perf::is_available(), self.host_with_sinks("jitdump", 2, &[])) else { return };
        let injected = perf_inject::record_with(host, Preload::Nothing, 997, "fp");
        let is_in_jitdump = |frame: &Frame| frame.object.contains("/jitted-");
        self.check_stacks(&injected.samples, is_in_jitdump);
        support_table::record_cell(self.name, "jitdump");
    }

    /// Checks `perf record -g` with images, which perf treats as shared libraries.
    pub fn check_image(&self) {
        let (Some(()), Some(host)) = (perf::is_available(), self.host_with_sinks("image", 2, &[])) else { return };
        let recording = perf::record(&host, Preload::Nothing);
        assert_eq!(recording.map, None, "no perf map was asked for");
        self.check_stacks(&recording.samples, |frame| frame.object.contains("/image-"));
        support_table::record_cell(self.name, "image");
    }

    /// Checks gdb's backtrace.
    pub fn check_gdb(&self) {
        let (Some(()), Some(host)) = (gdb::is_available(), self.host_with_sinks("perfmap", 60, &["timer"])) else {
            return;
        };
        let session = gdb::start(&host, Preload::Nothing);
        let _ = session.pid.and_then(perf_map::take);
        if let Err(problem) = scenario::check_backtrace(&session.backtrace, self.caller_frame, session.symbols) {
            panic!("{problem}\ngdb said:\n{}", session.output);
        }
        support_table::record_cell(self.name, "gdb");
    }

    /// Checks nongnu libunwind inside the process. The host loads all its libraries at startup.
    pub fn check_libunwind(&self) {
        self.check_unwinder("libunwind");
    }

    /// Checks libgcc's unwinder inside the process. The host loads all its libraries at startup.
    pub fn check_libgcc(&self) {
        self.check_unwinder("libgcc");
    }

    fn check_unwinder(&self, unwinder: &str) {
        let Some(host) = self.host_with_sinks("unwind", 2, &[]) else { return };
        let Some(walk_counts) = walk::run_with_walker(host, unwinder, Preload::Nothing) else { return };
        walk_counts.assert_complete();
        support_table::record_cell(self.name, unwinder);
    }

    /// Requires that in 95 % of the samples in JIT code the leaf belongs to the chain, followed by the rest of the
    /// chain and the caller.
    fn check_stacks(&self, samples: &[Sample], is_jit: impl Fn(&Frame) -> bool) {
        let jit_samples: Vec<&Sample> =
            samples.iter().filter(|sample| sample.frames.first().is_some_and(&is_jit)).collect();
        assert!(jit_samples.len() >= MIN_SAMPLES, "only {} samples in JIT code", jit_samples.len());
        let is_whole = |sample: &&&Sample| {
            let outside = sample.frames.iter().find(|frame| !is_jit(frame));
            scenario::begins_with_chain(&sample.frames)
                && outside.is_some_and(|frame| frame.object.contains(self.caller_object))
        };
        let whole_count = jit_samples.iter().filter(is_whole).count();
        assert!(
            whole_count * 100 >= jit_samples.len() * 95,
            "{whole_count} of {} stacks are whole; not {:?}",
            jit_samples.len(),
            { jit_samples.iter().find(|sample| !is_whole(sample)) }
        );
    }
}
