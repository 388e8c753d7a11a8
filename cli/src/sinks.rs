//! Lists of sinks, as given to `--sinks` and in `JITLISTEN`.

use std::fmt::{self, Display, Formatter};
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;

use jitlisten::options::SinkKind;
use rustix::fs::{Access, access};

use crate::problem::Problem;

/// A nonempty list of sinks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sinks(Vec<SinkKind>);

impl Default for Sinks {
    fn default() -> Sinks {
        Sinks(vec![SinkKind::PerfMap, SinkKind::Image, SinkKind::Unwind, SinkKind::Modules])
    }
}

impl FromStr for Sinks {
    type Err = String;

    fn from_str(list: &str) -> Result<Sinks, String> {
        if list == "all" {
            return Ok(Sinks(SinkKind::ALL.to_vec()));
        }
        let names = SinkKind::ALL.map(SinkKind::name).join(", ");
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let kinds = words.map(|word| {
            SinkKind::from_name(word).ok_or_else(|| format!("unknown sink {word:?}: choose from {names}, all"))
        });
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        if kinds.is_empty() { Err(format!("name at least one of {names}")) } else { Ok(Sinks(kinds)) }
    }
}

impl Display for Sinks {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.names().collect::<Vec<_>>().join(","))
    }
}

impl Sinks {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|kind| kind.name())
    }

    /// Default sinks that work on this system. If `/tmp` is not writable, the perf map is left out with a message.
    pub(crate) fn available_defaults() -> Sinks {
        let mut sinks = Sinks::default();
        if !is_writable(Path::new("/tmp")) {
            let _ = writeln!(std::io::stderr(), "jitlisten: /tmp cannot be written: no perf map, only images");
            sinks.0.retain(|kind| *kind != SinkKind::PerfMap);
        }
        sinks
    }

    /// Checks that the directories where these sinks create files are writable.
    pub(crate) fn check_places(&self) -> Result<(), Problem> {
        if self.0.contains(&SinkKind::PerfMap) && !is_writable(Path::new("/tmp")) {
            return Err(Problem::new("/tmp, where perf maps go, cannot be written").help("use --sinks image,unwind"));
        }
        match std::env::var_os("JITLISTEN_DIR").filter(|directory| !directory.is_empty()) {
            Some(directory) if !is_writable(Path::new(&directory)) => {
                let directory = Path::new(&directory).display();
                Err(Problem::new(format!("JITLISTEN_DIR, {directory}, is not a directory that can be written")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns true if this user may create files in the directory.
pub(crate) fn is_writable(directory: &Path) -> bool {
    directory.is_dir() && access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}
