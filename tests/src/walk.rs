//! An unwinder inside the process: `hosts/walker.c`, preloaded, walks from a signal handler at 1 kHz.

use std::path::PathBuf;

use crate::host::{Host, Preload};
use crate::paths;
use crate::tool::{self, Absence};

/// nongnu libunwind and libgcc.
pub const UNWINDERS: [&str; 2] = ["libunwind", "libgcc"];

/// What the walker says at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Samples in code outside of the program's libraries.
    pub samples: u32,
    /// Those whose walk reached the start of the program.
    pub complete: u32,
    /// The most compiled frames one of these had.
    pub deepest: u32,
}

/// Compiles the walker into the host's scratch directory, or `None` after a loud skip.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn walker(host: &Host) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    if !["", "x86_64-linux-gnu/", "aarch64-linux-gnu/"]
        .iter()
        .any(|place| PathBuf::from(format!("/usr/include/{place}libunwind.h")).exists())
    {
        tool::skip("libunwind", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let walker = host.scratch("walker.so");
    // The library comes before the source in the arguments of the linker.
    let arguments =
        ["-O1", "-g", "-shared", "-fPIC", "-fexceptions", "-Wall", "-Werror", "-Wl,--no-as-needed", "-lunwind"];
    tool::compile(&compiler, &arguments, &paths::host("walker.c"), &walker);
    Some(walker)
}

/// Runs a host that has all its libraries from the start, once, with this unwinder inside; `None` after a loud skip.
///
/// # Panics
/// When the host fails or the walker says nothing.
#[must_use]
pub fn from_inside(host: Host, unwinder: &str, preload: Preload) -> Option<Walked> {
    let walker = walker(&host)?.into_os_string();
    let mut preloaded = walker;
    if preload == Preload::Library {
        preloaded.push(" ");
        preloaded.push(paths::library());
    }
    let host = host.variable("LD_PRELOAD", preloaded).variable("WALK_WITH", unwinder);
    let ended = host.run(Preload::Nothing).well();
    let said = ended.stderr.lines().rev().find_map(|line| {
        let mut numbers = line.strip_prefix(unwinder)?.split_ascii_whitespace().map(str::parse);
        let mut number = || numbers.next()?.ok();
        Some(Walked { samples: number()?, complete: number()?, deepest: number()? })
    });
    Some(said.unwrap_or_else(|| panic!("the walker said nothing:\n{}", ended.stderr)))
}

impl Walked {
    /// Requires that every walk reached the start, and one had at least the chain in it.
    ///
    /// # Panics
    /// When they did not.
    #[track_caller]
    pub fn is_complete(self) {
        assert!(self.samples >= 50 && self.samples == self.complete && self.deepest >= 3, "{self:?}");
    }
}
