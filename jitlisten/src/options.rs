//! The user's options, from environment variables.
//!
//! | variable | value | meaning |
//! | --- | --- | --- |
//! | `JITLISTEN` | comma list of sinks, `all`, `off` | which sinks are on; unset: [`SinkSet::DEFAULT`] |
//! | `JITLISTEN_DIR` | directory | where files other than the perf map go |
//! | `JITDUMPDIR`, `HOME` | directory | default for jitdumps, as with other JITs: there, or below `.debug/jit` |
//! | `JITLISTEN_QUOTA` | bytes, or with `K`, `M`, `G` | size limit of a process's jitdump, and of its images |
//! | `JITLISTEN_LOG` | `[LEVEL:]PATH` or `[LEVEL:]stderr` | see [`LogTarget`] |
//! | `JITLISTEN_FRAME_POINTERS` | `1`, `0`, `untouched` | see [`FramePointerPolicy`] |
//! | `JITLISTEN_NAMES` | `readable`, `linkage` | see [`NameStyle`] |
//! | `JITLISTEN_LLVM` | comma list of [`LlvmSource`]s, `all`, `off` | how LLVMs are observed; unset: all |
//!
//! An invalid value is reported in the log and otherwise ignored.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

use crate::liveness::Run;
pub use crate::log::{Level, LogTarget};

/// The sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum SinkKind {
    /// `/tmp/perf-PID.map`
    PerfMap = 0,
    /// `jit-PID.dump`, for `perf inject --jit`
    Jitdump = 1,
    /// The unwinders of this process: libunwind, libgcc, LLVM's.
    Unwind = 2,
    /// ELF files mapped over the pages of the code.
    Image = 3,
    /// GDB's JIT interface, for code that LLVM has not registered with debuggers itself.
    Gdb = 4,
    /// What `dl_iterate_phdr` and `dladdr` say in this process: images, too.
    Modules = 5,
}

impl SinkKind {
    /// Every sink, in the order of their numbers.
    pub const ALL: [SinkKind; 6] =
        [SinkKind::PerfMap, SinkKind::Jitdump, SinkKind::Unwind, SinkKind::Image, SinkKind::Gdb, SinkKind::Modules];

    /// Its name in `JITLISTEN` and in the C API.
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

    /// The sink of that name.
    pub fn from_name(name: &str) -> Option<SinkKind> {
        SinkKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A set of sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkSet(u32);

impl SinkSet {
    /// No sink.
    pub const NONE: SinkSet = SinkSet(0);
    /// What `LD_PRELOAD` alone switches on.
    pub const DEFAULT: SinkSet = SinkSet(1 << SinkKind::PerfMap as u32 | 1 << SinkKind::Unwind as u32);

    /// Adds one.
    #[must_use]
    pub fn with(self, kind: SinkKind) -> SinkSet {
        SinkSet(self.0 | 1 << kind as u32)
    }

    /// Whether `kind` is in it.
    pub fn contains(self, kind: SinkKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

/// What is done to functions before LLVM generates code for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramePointerPolicy {
    /// `"frame-pointer"="all"` and `uwtable`: every tool can walk the stack (`1`, the default).
    #[default]
    FramePointers,
    /// `uwtable` only: costs nothing at run time and serves every tool that reads unwind tables (`0`).
    UnwindTables,
    /// The code is left as the host wants it (`untouched`).
    Untouched,
}

/// How sinks spell functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameStyle {
    /// [`crate::name::readable`] (`readable`, the default).
    #[default]
    Readable,
    /// The symbol as the compiler wrote it (`linkage`).
    Linkage,
}

/// A way to observe an LLVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum LlvmSource {
    /// Its GDB JIT list (`list`).
    List = 0,
    /// Its linker `RuntimeDyld`, through a vtable (`runtimedyld`).
    RuntimeDyld = 1,
    /// Its linker JITLink, through a vtable (`jitlink`).
    JitLink = 2,
}

/// A set of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlvmSources(u32);

impl LlvmSource {
    const NAMES: [(&'static str, LlvmSource); 3] =
        [("list", LlvmSource::List), ("runtimedyld", LlvmSource::RuntimeDyld), ("jitlink", LlvmSource::JitLink)];
}

impl LlvmSources {
    /// All ways.
    pub const ALL: LlvmSources = LlvmSources(u32::MAX);
    /// No LLVM is observed.
    pub const NONE: LlvmSources = LlvmSources(0);

    /// Whether `source` is in it.
    pub fn contains(self, source: LlvmSource) -> bool {
        self.0 & (1 << source as u32) != 0
    }

    fn with(self, source: LlvmSource) -> LlvmSources {
        LlvmSources(self.0 | 1 << source as u32)
    }

    fn read(list: &str, complaints: &mut Vec<String>) -> LlvmSources {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut asked = None;
        for word in words {
            let so_far = asked.unwrap_or(LlvmSources::NONE);
            match (word, LlvmSource::NAMES.iter().find(|known| known.0 == word)) {
                ("all", _) => asked = Some(LlvmSources::ALL),
                ("off", _) => asked = Some(so_far),
                (_, Some(&(_, source))) => asked = Some(so_far.with(source)),
                (_, None) => complaints.push(format!("JITLISTEN_LLVM: {word:?} is not list, runtimedyld or jitlink")),
            }
        }
        asked.unwrap_or(LlvmSources::ALL)
    }
}

/// What the session observes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listening {
    /// Every LLVM in the process, and calls of the API.
    #[default]
    Process,
    /// Only calls of the API.
    Calls,
}

/// [`Options::quota`] where nothing else is asked for.
const QUOTA: u64 = 2 << 30;

/// Everything that can be set from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether to do anything at all (`JITLISTEN=off`).
    pub active: bool,
    /// Sinks that are on from the start.
    pub sinks: SinkSet,
    /// Where jitdumps and images go.
    pub directory: Option<PathBuf>,
    /// Where jitdumps go if `directory` does not say. Need not exist yet.
    pub jitdump_directory: Option<PathBuf>,
    /// How many bytes a jitdump may have, and all images of the process together.
    pub quota: u64,
    /// Where to log.
    pub log: LogTarget,
    /// Frame pointers and unwind tables.
    pub frame_pointer_policy: FramePointerPolicy,
    /// Readable or linkage names.
    pub names: NameStyle,
    /// How to observe each LLVM.
    pub llvm: LlvmSources,
    /// What to observe. No variable sets it.
    pub listening: Listening,
    /// The `jitlisten run` that the process belongs to: the command's business.
    pub(crate) run: Option<Run>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            active: true,
            sinks: SinkSet::DEFAULT,
            directory: None,
            jitdump_directory: None,
            quota: QUOTA,
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
    /// What the environment of this process asks for, and complaints about what is not understood in it, one line each,
    /// for [`producer::open`](crate::producer::open).
    pub fn from_env() -> (Options, Vec<String>) {
        Options::read(|name| std::env::var_os(name))
    }

    /// Reads the variables through `variable` (in a process: `std::env::var_os`). The complaints, one line each, are
    /// for the log.
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
        let place = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        options.jitdump_directory = place("JITDUMPDIR").or_else(|| Some(place("HOME")?.join(".debug/jit")));
        if let Some(value) = variable("JITLISTEN_QUOTA").filter(|value| !value.is_empty()) {
            match bytes(&value.to_string_lossy()) {
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
            options.llvm = LlvmSources::read(&value.to_string_lossy(), &mut complaints);
        }
        options.run = variable("JITLISTEN_RUN").and_then(|value| Run::named_in(value.to_str()?));
        (options, complaints)
    }

    fn read_sinks(&mut self, list: &str, complaints: &mut Vec<String>) {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut asked = None;
        for word in words {
            let so_far = asked.unwrap_or(SinkSet::NONE);
            match (word, SinkKind::from_name(word)) {
                ("off", _) => self.active = false,
                ("all", _) => asked = Some(SinkKind::ALL.into_iter().fold(so_far, SinkSet::with)),
                (_, Some(kind)) => asked = Some(so_far.with(kind)),
                (_, None) => complaints.push(format!("JITLISTEN: unknown sink {word:?}")),
            }
        }
        self.sinks = asked.unwrap_or(self.sinks);
        if self.sinks.contains(SinkKind::Modules) && !self.sinks.contains(SinkKind::Image) {
            complaints.push("JITLISTEN: modules shows images, and image is not in the list".to_owned());
        }
    }

    fn read_directory(&mut self, directory: PathBuf, complaints: &mut Vec<String>) {
        match std::fs::metadata(&directory) {
            // The host may change its directory before the first file is made.
            Ok(metadata) if metadata.is_dir() => self.directory = std::path::absolute(&directory).ok(),
            Ok(_) => complaints.push(format!("JITLISTEN_DIR: {} is not a directory", directory.display())),
            Err(error) => complaints.push(format!("JITLISTEN_DIR: {}: {error}", directory.display())),
        }
    }
}

/// `4096`, `64K`, `512M`, `2G`
fn bytes(text: &str) -> Option<u64> {
    let split = text.len() - usize::from(text.ends_with(['K', 'M', 'G', 'k', 'm', 'g']));
    let shift = match text.as_bytes().get(split) {
        None => 0,
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(_) => 30,
    };
    text[..split].parse::<u64>().ok()?.checked_mul(1 << shift)
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
            assert_eq!((options.quota, complaints.len()), (QUOTA, 1), "{nonsense}");
        }
    }

    #[test]
    fn jitdumps_go_where_other_jits_put_them() {
        let place = |pairs| read(pairs).0.jitdump_directory;
        assert_eq!(place(&[]), None);
        assert_eq!(place(&[("HOME", "/home/me")]), Some("/home/me/.debug/jit".into()));
        assert_eq!(place(&[("HOME", "/home/me"), ("JITDUMPDIR", "/var/dumps")]), Some("/var/dumps".into()));
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
