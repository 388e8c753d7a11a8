//! Log lines that `jitlisten doctor` and the tests read back. Only this file has their texts.

use std::fmt::{self, Display, Formatter};

use super::Level;

/// Defines [`LogEvent`]: each event with its message, which contains the fields in the same order, separated by text.
/// If several messages match a line, the first one counts.
macro_rules! log_events {
    ($($(#[$doc:meta])* $event:ident { $($field:ident),* } = $message:literal,)*) => {
        /// An event in the log, in a form that can be read back.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the messages explain the fields")]
        pub enum LogEvent<'a> {
            $($(#[$doc])* $event { $($field: &'a str),* },)*
        }

        impl Display for LogEvent<'_> {
            fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
                match self {
                    $(LogEvent::$event { $($field),* } => write!(formatter, $message),)*
                }
            }
        }

        impl<'a> LogEvent<'a> {
            /// Parses a message; `None` if it belongs to no event.
            fn parse(message: &'a str) -> Option<LogEvent<'a>> {
                $(if let Some(fields) = fields($message, message) {
                    let mut fields = fields.into_iter();
                    return Some(LogEvent::$event { $($field: fields.next()?),* });
                })*
                None
            }
        }
    };
}

log_events! {
    /// An LLVM is observed.
    Observed { library, slot } = "LLVM in {library}, slot {slot}",
    /// An LLVM is not observed at all.
    Unobserved { library, reason } = "{library}: this LLVM is not observed: {reason}",
    /// Neither linker of an LLVM is observed.
    OnlyListed { library, reason } = "{library}: only the GDB JIT list of this LLVM can be read: {reason}",
    /// An LLVM with an unobserved linker seems to compile.
    Silent { library, reason } =
        "{library}: this LLVM reported no object, but code became executable: {reason}; code not registered with \
         debuggers stays unnamed",
    /// A library does not contain this linker.
    LinkerAbsent { library, linker, class } = "{library}: {linker} is not observed: no vtable of {class}",
    /// A linker is not observed.
    LinkerUnobserved { library, linker, reason } = "{library}: {linker} is not observed: {reason}",
    /// The GDB JIT list does not announce its changes, and is the only source of objects.
    ListPolled { library, reason } =
        "{library}: could not hook __jit_debug_register_code: {reason}; the GDB JIT list is read when memory becomes \
         executable, which misses some objects",
    /// The GDB JIT list does not announce its changes.
    ListUnhooked { library, reason } = "{library}: could not hook __jit_debug_register_code: {reason}",
    /// The first object whose functions keep no frame pointer. `library` ends with a colon, or is empty.
    LoadedWithoutFramePointers { library, function } =
        "{library}code without frame pointers was loaded, first {function}: compiled without jitlisten, or by an LLVM \
         that it cannot change",
    /// The code of an LLVM gets attributes.
    CodeChanged { version, attributes } = "LLVM {version}: {attributes} enabled",
    /// The code of an LLVM gets no attributes.
    ReleaseUnknown { version } = "LLVM {version}: unknown release, code gets no frame pointers and unwind tables",
    /// Some of an LLVM's code gets no attributes.
    CompilerUnhooked { function, error } = "could not hook {function}: {error}; code gets no frame pointers",
    /// An object is loaded.
    Loaded { id, functions, text } = "loaded object {id}: {functions} functions, text {text}",
    /// The code of an object is final.
    Finalized { id } = "finalized object {id}",
    /// The code of an object is freed.
    Freed { id } = "freeing object {id}",
    /// An object is reported by a second source.
    ReportedAgain { id } = "object {id} was reported again",
    /// An object cannot be read.
    Refused { size, error } = "ignoring an object of {size} bytes: {error}",
    /// Something that an LLVM reports is ignored.
    Ignored { library, subject } = "{library}: ignoring {subject}",
    /// An object does not become final. `library` ends with a colon, or is empty.
    NeverFinal { library, address, reason } =
        "{library}an object at {address} is not final after a second: {reason}; it stays unnamed (reported once)",
    /// An object of JITLink is not found in memory.
    Unlocated { library, time } =
        "{library}: could not locate a JITLink object in memory {time}; its functions stay unnamed (reported once)",
    /// Code compiled to memory is indistinguishable from equal code.
    EqualCompiled { count } =
        "{count} objects compiled to memory have equal code, or are in two places; they stay unnamed (reported once)",
    /// Equal objects that move are indistinguishable.
    EqualMoved { count } = "{count} equal objects linked for another address stay unnamed",
    /// An LLVM is unloaded.
    Closed { bias } = "an LLVM was closed: {bias}",
    /// An object gets no image.
    NoImage { id, reason } = "no image for object {id}: {reason}",
    /// A sink has failed.
    SinkStopped { sink, error } = "the {sink} sink stops: {error}",
    /// The recording ends, because its file cannot be written.
    RecordingStopped { path, error } = "the recording stops: cannot write {path}: {error}",
    /// The perf map has the code of two processes.
    PerfMapShared { path } =
        "{path} also belongs to another process, in a PID namespace that shares /tmp: it has the code of both",
    /// The loader does not announce changes of its list.
    LoaderUnhooked { reason } = "could not hook _r_debug.r_brk: {reason}; hooking dlsym instead",
    /// A function of a library is not hooked.
    FunctionUnhooked { library, function, error } = "{library}: could not hook {function}: {error}",
}

impl<'a> LogEvent<'a> {
    /// Reads an event back from a line of the log; `None` for any other line.
    pub fn from_line(line: &'a str) -> Option<LogEvent<'a>> {
        let (pid, rest) = line.strip_prefix("jitlisten[")?.split_once("] ")?;
        let (level, message) = rest.split_once(": ")?;
        let is_prefix = pid.parse::<u32>().is_ok() && Level::NAMES.iter().any(|(name, _)| *name == level);
        if is_prefix { LogEvent::parse(message) } else { None }
    }
}

/// Returns the text in place of each `{field}` of a pattern; `None` if the message does not match it.
fn fields<'a>(pattern: &str, message: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = pattern.split(['{', '}']);
    let mut rest = message.strip_prefix(parts.next()?)?;
    let mut fields = Vec::new();
    while let (Some(_), Some(text)) = (parts.next(), parts.next()) {
        let (field, remainder) = if text.is_empty() { (rest, "") } else { rest.split_once(text)? };
        fields.push(field);
        rest = remainder;
    }
    rest.is_empty().then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format_line;

    #[test]
    fn an_event_is_read_as_it_was_logged() {
        let (library, reason) = ("/lib/a b: c.so", "too many: 16; its code stays unnamed");
        let events = [
            LogEvent::Observed { library, slot: "3" },
            LogEvent::Unobserved { library, reason },
            LogEvent::OnlyListed { library, reason },
            LogEvent::Silent { library, reason },
            LogEvent::LinkerUnobserved { library: "/l.so", linker: "JITLink", reason },
            LogEvent::LinkerAbsent { library: "/l.so", linker: "JITLink", class: "Layer" },
            LogEvent::ListUnhooked { library, reason },
            LogEvent::ListPolled { library, reason },
            LogEvent::LoadedWithoutFramePointers { library: "/lib/a.so: ", function: "f(int)" },
            LogEvent::LoadedWithoutFramePointers { library: "", function: "f::g" },
            LogEvent::CodeChanged { version: "22", attributes: "frame pointers and unwind tables" },
            LogEvent::ReleaseUnknown { version: "99" },
            LogEvent::CompilerUnhooked { function: "LLVMPY_X", error: reason },
            LogEvent::Loaded { id: "1", functions: "2", text: "0x10..0x20 0x30..0x40" },
            LogEvent::Finalized { id: "1" },
            LogEvent::Freed { id: "1" },
            LogEvent::ReportedAgain { id: "1" },
            LogEvent::Refused { size: "7", error: "no ELF file" },
            LogEvent::Ignored { library: "/l.so", subject: "an object: no object file" },
            LogEvent::NeverFinal { library: "/l.so: ", address: "0x10", reason: "its memory is gone" },
            LogEvent::NeverFinal { library: "", address: "0x10", reason: "its memory is gone" },
            LogEvent::Unlocated { library: "/l.so", time: "within a second" },
            LogEvent::EqualCompiled { count: "2" },
            LogEvent::EqualMoved { count: "2" },
            LogEvent::Closed { bias: "7f00" },
            LogEvent::NoImage { id: "1", reason: "its memory cannot be read; further ones are only counted" },
            LogEvent::SinkStopped { sink: "image", error: "No space left on device (os error 28)" },
            LogEvent::RecordingStopped { path: "/a b/perf.data", error: "No space left on device (os error 28)" },
            LogEvent::PerfMapShared { path: "/tmp/perf-1.map" },
            LogEvent::LoaderUnhooked { reason },
            LogEvent::FunctionUnhooked { library, function: "RuntimeDyld", error: reason },
        ];
        for event in events {
            let line = format_line(Level::Warn, &event.to_string());
            assert_eq!(LogEvent::from_line(line.trim_end()), Some(event));
        }
    }

    #[test]
    fn other_lines_are_no_events() {
        for line in [
            "",
            "LLVM in /lib/a.so, slot 0",
            "jitlisten[7] loud: LLVM in /lib/a.so, slot 0",
            "jitlisten[x] info: LLVM in /lib/a.so, slot 0",
            "jitlisten[7] info: LLVM in /lib/a.so",
            "jitlisten[7] info: recording with signal 40",
            "jitlisten[7] info: LLVM 22: frame pointers enabled, or not",
        ] {
            assert_eq!(LogEvent::from_line(line), None, "{line}");
        }
    }
}
