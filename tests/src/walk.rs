//! Unwinding inside the process: `hosts/walker.c` is preloaded and walks the stack from a signal handler at 1 kHz.

use std::path::PathBuf;

use crate::host::{Host, Preload};
use crate::paths;
use crate::tool::{self, Absence};

/// Unwinders that the walker can use: nongnu libunwind and libgcc.
pub const UNWINDERS: [&str; 2] = ["libunwind", "libgcc"];

/// Counts that the walker prints when the host exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkCounts {
    /// Number of samples in code outside the program's libraries.
    pub samples: u32,
    /// Number of samples whose walk reached the start of the program.
    pub complete: u32,
    /// Largest number of compiled frames in one walk.
    pub max_frames: u32,
}

/// Compiles the walker into the host's scratch directory, or returns `None` if the test is skipped.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn compile_walker(host: &Host) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    if !["", "x86_64-linux-gnu/", "aarch64-linux-gnu/"]
        .iter()
        .any(|directory| PathBuf::from(format!("/usr/include/{directory}libunwind.h")).exists())
    {
        tool::skip("libunwind", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let walker = host.scratch("walker.so");
    // The library precedes the source on the linker's command line, so --no-as-needed keeps it.
    let arguments =
        ["-O1", "-g", "-shared", "-fPIC", "-fexceptions", "-Wall", "-Werror", "-Wl,--no-as-needed", "-lunwind"];
    tool::compile(&compiler, &arguments, &paths::host("walker.c"), &walker);
    Some(walker)
}

/// Runs a host that samples itself with this unwinder; `None` if the test is skipped. The host must load all its
/// libraries at startup.
///
/// # Panics
/// If the host fails or the walker prints nothing.
#[must_use]
pub fn run_with_walker(host: Host, unwinder: &str, preload: Preload) -> Option<WalkCounts> {
    let walker = compile_walker(&host)?.into_os_string();
    let mut preloaded = walker;
    if preload == Preload::Library {
        preloaded.push(" ");
        preloaded.push(paths::library());
    }
    let host = host.variable("LD_PRELOAD", preloaded).variable("WALK_WITH", unwinder);
    let outcome = host.run(Preload::Nothing).expect_success();
    let counts = outcome.stderr.lines().rev().find_map(|line| {
        let mut numbers = line.strip_prefix(unwinder)?.split_ascii_whitespace().map(str::parse);
        let mut number = || numbers.next()?.ok();
        Some(WalkCounts { samples: number()?, complete: number()?, max_frames: number()? })
    });
    Some(counts.unwrap_or_else(|| panic!("the walker said nothing:\n{}", outcome.stderr)))
}

impl WalkCounts {
    /// Requires that there are enough walks, that every walk reached the start of the program, and that at least one
    /// contained the whole chain.
    ///
    /// # Panics
    /// If a walk is incomplete, or there are too few.
    #[track_caller]
    pub fn assert_complete(self) {
        assert!(self.samples >= 50 && self.samples == self.complete && self.max_frames >= 3, "{self:?}");
    }
}
