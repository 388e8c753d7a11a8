//! User options, from environment variables.
//!
//! | variable | value | meaning |
//! | --- | --- | --- |
//! | `JITLISTEN` | comma-separated list of sinks, `all`, `off` | sinks enabled at start; default [`SinkSet::DEFAULT`] |
//! | `JITLISTEN_DIR` | directory | directory for all files but the perf map |
//! | `JITDUMPDIR`, `HOME` | directory | jitdumps without `JITLISTEN_DIR`, as for other JITs: there or in `.debug/jit` |
//! | `JITLISTEN_QUOTA` | bytes, with `K`, `M`, `G` | size limit of a process's jitdump, and of all its images |
//! | `JITLISTEN_LOG` | `[LEVEL:]PATH` or `[LEVEL:]stderr` | see [`LogTarget`] |
//! | `JITLISTEN_FRAME_POINTERS` | `1`, `0`, `untouched` | see [`FramePointerPolicy`] |
//! | `JITLISTEN_NAMES` | `readable`, `linkage` | see [`NameStyle`] |
//! | `JITLISTEN_LLVM` | comma-separated list of [`LlvmSource`]s, `all`, `off` | how LLVM is observed; default all |
//!
//! Invalid values are logged and otherwise ignored.
//!
//! ```
//! use jitlisten::options::{Options, SinkKind};
//!
//! let (options, complaints) = Options::read(|name| (name == "JITLISTEN").then(|| "perfmap,image,nonsense".into()));
//! assert!(options.sinks.contains(SinkKind::Image));
//! assert!(!options.sinks.contains(SinkKind::Jitdump));
//! assert_eq!(complaints, ["JITLISTEN: unknown sink \"nonsense\""]);
//! ```

use std::ffi::OsString;
use std::path::PathBuf;

use crate::liveness::Run;
#[doc(inline)]
pub use crate::log::{Level, LogTarget};
use crate::run_request::{RUN_VARIABLE, RunRequest};

/// A consumer of code events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum SinkKind {
    /// Perf map, `/tmp/perf-PID.map`.
    PerfMap = 0,
    /// Jitdump, `jit-PID.dump`, for `perf inject --jit`.
    Jitdump = 1,
    /// Unwinders in this process: libunwind, libgcc, LLVM's libunwind.
    Unwind = 2,
    /// ELF files mapped over the pages of the code.
    Image = 3,
    /// GDB JIT interface, for code that LLVM has not registered there.
    Gdb = 4,
    /// `dl_iterate_phdr` and `dladdr` in this process, which then list images as modules.
    Modules = 5,
}

impl SinkKind {
    /// All sinks in numerical order.
    pub const ALL: [SinkKind; 6] =
        [SinkKind::PerfMap, SinkKind::Jitdump, SinkKind::Unwind, SinkKind::Image, SinkKind::Gdb, SinkKind::Modules];

    /// Name of the sink in `JITLISTEN` and in the C API.
    pub fn name(self) -> &'static str {
        match self {
            SinkKind::PerfMap => "perfmap",
            SinkKind::Unwind => "unwind",
            SinkKind::Jitdump => "jitdump",
            SinkKind::Image => "image",
            SinkKind::Gdb => "gdb",
            SinkKind::Modules => "modules",
        }
    }

    /// Returns the sink with this name.
    pub fn from_name(name: &str) -> Option<SinkKind> {
        SinkKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A set of sinks.
///
/// ```
/// use jitlisten::options::{SinkKind, SinkSet};
///
/// let sinks = SinkSet::NONE.with(SinkKind::PerfMap).with(SinkKind::Unwind);
/// assert_eq!(sinks, SinkSet::DEFAULT);
/// assert!(!sinks.contains(SinkKind::Gdb));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkSet(u32);

impl SinkSet {
    /// Empty set.
    pub const NONE: SinkSet = SinkSet(0);
    /// Sinks that `LD_PRELOAD` alone enables: the perf map and the unwinders.
    pub const DEFAULT: SinkSet = SinkSet(1 << SinkKind::PerfMap as u32 | 1 << SinkKind::Unwind as u32);

    /// Returns the set with `kind` added.
    #[must_use]
    pub fn with(self, kind: SinkKind) -> SinkSet {
        SinkSet(self.0 | 1 << kind as u32)
    }

    /// Returns true if the set contains `kind`.
    pub fn contains(self, kind: SinkKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

/// Attributes that are added to functions before LLVM generates code for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramePointerPolicy {
    /// `"frame-pointer"="all"` and `uwtable`: every tool can walk the stack (`1`, the default).
    #[default]
    FramePointers,
    /// Only `uwtable`: no cost at run time, and works with every tool that reads unwind tables (`0`).
    UnwindTables,
    /// No changes (`untouched`).
    Untouched,
}

/// Spelling of function names in the sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameStyle {
    /// Demangled and shortened by [`crate::name::readable`] (`readable`, the default).
    #[default]
    Readable,
    /// Linkage name, as written by the compiler (`linkage`).
    Linkage,
}

/// Method of observing an LLVM instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum LlvmSource {
    /// LLVM's GDB JIT list (`list`).
    List = 0,
    /// Hooks in LLVM's `RuntimeDyld` linker, through a vtable (`runtimedyld`).
    RuntimeDyld = 1,
    /// Hooks in LLVM's JITLink linker, through a vtable (`jitlink`).
    JitLink = 2,
}

/// A set of [`LlvmSource`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlvmSources(u32);

impl LlvmSource {
    const NAMES: [(&'static str, LlvmSource); 3] =
        [("list", LlvmSource::List), ("runtimedyld", LlvmSource::RuntimeDyld), ("jitlink", LlvmSource::JitLink)];
}

impl LlvmSources {
    /// All methods.
    pub const ALL: LlvmSources = LlvmSources(u32::MAX);
    /// Empty set, so that no copy of LLVM is observed.
    pub const NONE: LlvmSources = LlvmSources(0);

    /// Returns true if the set contains `source`.
    pub fn contains(self, source: LlvmSource) -> bool {
        self.0 & (1 << source as u32) != 0
    }

    fn with(self, source: LlvmSource) -> LlvmSources {
        LlvmSources(self.0 | 1 << source as u32)
    }

    fn parse(list: &str, complaints: &mut Vec<String>) -> LlvmSources {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut selection = None;
        for word in words {
            let selected = selection.unwrap_or(LlvmSources::NONE);
            match (word, LlvmSource::NAMES.iter().find(|entry| entry.0 == word)) {
                ("all", _) => selection = Some(LlvmSources::ALL),
                ("off", _) => selection = Some(selected),
                (_, Some(&(_, source))) => selection = Some(selected.with(source)),
                (_, None) => complaints.push(format!("JITLISTEN_LLVM: {word:?} is not list, runtimedyld or jitlink")),
            }
        }
        selection.unwrap_or(LlvmSources::ALL)
    }
}

/// Code events that the session receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listening {
    /// Events from every LLVM instance in the process, and API calls.
    #[default]
    Process,
    /// API calls only.
    Calls,
}

/// Default of [`Options::quota`].
const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;

/// User options of a session.
///
/// ```
/// use jitlisten::options::{NameStyle, Options, SinkKind, SinkSet};
///
/// let mut options = Options::default();
/// options.sinks = SinkSet::NONE.with(SinkKind::Image);
/// options.directory = Some("/var/tmp/profiles".into());
/// options.names = NameStyle::Linkage;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// False if jitlisten is off (`JITLISTEN=off`).
    pub active: bool,
    /// Sinks enabled at start.
    pub sinks: SinkSet,
    /// Directory for jitdumps and images.
    pub directory: Option<PathBuf>,
    /// Directory for jitdumps if `directory` is `None`. Created if needed.
    pub jitdump_directory: Option<PathBuf>,
    /// Size limit in bytes, for the jitdump and for all images of the process together.
    pub quota: u64,
    /// Destination of the log.
    pub log: LogTarget,
    /// Policy for frame pointers and unwind tables.
    pub frame_pointer_policy: FramePointerPolicy,
    /// Spelling of function names.
    pub names: NameStyle,
    /// Methods of observing LLVM instances.
    pub llvm: LlvmSources,
    /// Code events to receive. Not set by any environment variable.
    pub listening: Listening,
    /// The `jitlisten run` that started the process; set by the command.
    pub(crate) run: Option<Run>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            active: true,
            sinks: SinkSet::DEFAULT,
            directory: None,
            jitdump_directory: None,
            quota: DEFAULT_QUOTA_BYTES,
            log: LogTarget::Silent,
            frame_pointer_policy: FramePointerPolicy::default(),
            names: NameStyle::default(),
            llvm: LlvmSources::ALL,
            listening: Listening::default(),
            run: None,
        }
    }
}

impl Options {
    /// Reads the options from the environment of this process. Also returns complaints about invalid values, one line
    /// each, for [`producer::open`](crate::producer::open).
    pub fn from_env() -> (Options, Vec<String>) {
        Options::read(|name| std::env::var_os(name))
    }

    /// Reads the options through `variable`, usually `std::env::var_os`. Also returns complaints about invalid values,
    /// one line each, for the log.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Options, Vec<String>) {
        let mut options = Options::default();
        let mut complaints = Vec::new();
        if let Some(value) = variable("JITLISTEN") {
            options.read_sinks(&value.to_string_lossy(), &mut complaints);
        }
        if let Some(value) = variable("JITLISTEN_LOG").filter(|value| !value.is_empty()) {
            options.log = LogTarget::parse(&value);
        }
        if let Some(value) = variable("JITLISTEN_DIR").filter(|value| !value.is_empty()) {
            options.read_directory(PathBuf::from(value), &mut complaints);
        }
        let path_from = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        options.jitdump_directory = path_from("JITDUMPDIR").or_else(|| Some(path_from("HOME")?.join(".debug/jit")));
        if let Some(value) = variable("JITLISTEN_QUOTA").filter(|value| !value.is_empty()) {
            match parse_bytes(&value.to_string_lossy()) {
                Some(quota) => options.quota = quota,
                None => complaints.push(format!("JITLISTEN_QUOTA: {value:?} is not a number of bytes")),
            }
        }
        if let Some(value) = variable("JITLISTEN_FRAME_POINTERS") {
            match value.to_string_lossy().as_ref() {
                "" | "1" => {}
                "0" => options.frame_pointer_policy = FramePointerPolicy::UnwindTables,
                "untouched" => options.frame_pointer_policy = FramePointerPolicy::Untouched,
                other => complaints.push(format!("JITLISTEN_FRAME_POINTERS: {other:?} is not 1, 0 or untouched")),
            }
        }
        if let Some(value) = variable("JITLISTEN_NAMES") {
            match value.to_string_lossy().as_ref() {
                "" | "readable" => {}
                "linkage" => options.names = NameStyle::Linkage,
                other => complaints.push(format!("JITLISTEN_NAMES: {other:?} is not readable or linkage")),
            }
        }
        if let Some(value) = variable("JITLISTEN_LLVM") {
            options.llvm = LlvmSources::parse(&value.to_string_lossy(), &mut complaints);
        }
        options.run = variable(RUN_VARIABLE).and_then(|value| RunRequest::parse(&value).run());
        (options, complaints)
    }

    fn read_sinks(&mut self, list: &str, complaints: &mut Vec<String>) {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut selection = None;
        for word in words {
            let selected = selection.unwrap_or(SinkSet::NONE);
            match (word, SinkKind::from_name(word)) {
                ("off", _) => self.active = false,
                ("all", _) => selection = Some(SinkKind::ALL.into_iter().fold(selected, SinkSet::with)),
                (_, Some(kind)) => selection = Some(selected.with(kind)),
                (_, None) => complaints.push(format!("JITLISTEN: unknown sink {word:?}")),
            }
        }
        self.sinks = selection.unwrap_or(self.sinks);
        if self.sinks.contains(SinkKind::Modules) && !self.sinks.contains(SinkKind::Image) {
            complaints.push("JITLISTEN: modules shows images, and image is not in the list".to_owned());
        }
    }

    fn read_directory(&mut self, directory: PathBuf, complaints: &mut Vec<String>) {
        match std::fs::metadata(&directory) {
            // Resolve the path now, because the host may change its working directory before the first file is created.
            Ok(metadata) if metadata.is_dir() => self.directory = std::path::absolute(&directory).ok(),
            Ok(_) => complaints.push(format!("JITLISTEN_DIR: {} is not a directory", directory.display())),
            Err(error) => complaints.push(format!("JITLISTEN_DIR: {}: {error}", directory.display())),
        }
    }
}

/// Parses a number of bytes: `4096`, `64K`, `512M`, `2G`.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits_end = text.len() - usize::from(text.ends_with(['K', 'M', 'G', 'k', 'm', 'g']));
    let shift = match text.as_bytes().get(digits_end) {
        None => 0,
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(_) => 30,
    };
    text[..digits_end].parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Options, Vec<String>) {
        Options::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into()))
    }

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(read(&[]), (Options::default(), vec![]));
        assert_eq!(read(&[("JITLISTEN", ""), ("JITLISTEN_LOG", "")]), (Options::default(), vec![]));
    }

    #[test]
    fn what_of_an_llvm_is_listened_to_is_a_list() {
        let llvm = |text| read(&[("JITLISTEN_LLVM", text)]).0.llvm;
        assert_eq!([llvm(""), llvm("all"), llvm("list,all")], [LlvmSources::ALL; 3]);
        assert_eq!(llvm("off"), LlvmSources::NONE);
        let listed = llvm("list, jitlink");
        assert!(listed.contains(LlvmSource::List) && listed.contains(LlvmSource::JitLink));
        assert!(!listed.contains(LlvmSource::RuntimeDyld));
        let (options, complaints) = read(&[("JITLISTEN_LLVM", "mcjit")]);
        assert_eq!((options.llvm, complaints.len()), (LlvmSources::ALL, 1));
    }

    #[test]
    fn an_unknown_sink_is_a_complaint_and_nothing_else() {
        let (options, complaints) = read(&[("JITLISTEN", "perfmap,unwind,nonsense")]);
        assert_eq!(options, Options::default());
        assert_eq!(complaints, ["JITLISTEN: unknown sink \"nonsense\""]);
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_complaint_and_nothing_else() {
        let (options, complaints) = read(&[("JITLISTEN_DIR", "/nonexistent/anywhere")]);
        assert_eq!(options, Options::default());
        assert_eq!(complaints.len(), 1);
    }

    #[test]
    fn a_quota_is_a_number_of_bytes() {
        let quota = |text| read(&[("JITLISTEN_QUOTA", text)]).0.quota;
        assert_eq!([quota("4096"), quota("64K"), quota("512m"), quota("3G")], [4096, 64 << 10, 512 << 20, 3 << 30]);
        for nonsense in ["-1", "G", "1.5G", "99999999999999999999", "18446744073709551615G", "zwölf"] {
            let (options, complaints) = read(&[("JITLISTEN_QUOTA", nonsense)]);
            assert_eq!((options.quota, complaints.len()), (DEFAULT_QUOTA_BYTES, 1), "{nonsense}");
        }
    }

    #[test]
    fn jitdumps_go_where_other_jits_put_them() {
        let directory = |pairs| read(pairs).0.jitdump_directory;
        assert_eq!(directory(&[]), None);
        assert_eq!(directory(&[("HOME", "/home/me")]), Some("/home/me/.debug/jit".into()));
        assert_eq!(directory(&[("HOME", "/home/me"), ("JITDUMPDIR", "/var/dumps")]), Some("/var/dumps".into()));
    }

    #[test]
    fn off_and_frame_pointer_policies() {
        assert!(!read(&[("JITLISTEN", "off")]).0.active);
        assert_eq!(read(&[("JITLISTEN_FRAME_POINTERS", "0")]).0.frame_pointer_policy, FramePointerPolicy::UnwindTables);
        assert_eq!(
            read(&[("JITLISTEN_FRAME_POINTERS", "untouched")]).0.frame_pointer_policy,
            FramePointerPolicy::Untouched
        );
        let (options, complaints) = read(&[("JITLISTEN_FRAME_POINTERS", "yes")]);
        assert_eq!((options.frame_pointer_policy, complaints.len()), (FramePointerPolicy::FramePointers, 1));
    }
}
