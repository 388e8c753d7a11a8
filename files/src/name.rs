//! Names of the files and directories that jitlisten makes.
//!
//! The code that makes a file prints its name; the code that removes one parses it, in exactly the printed form:
//! `object-detector.so` and `jit-007.dump` are the user's.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};

/// See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileName {
    /// `image-PID-START[-ATTEMPT]`: the directory of a process's images.
    Images {
        /// The process.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start: u64,
        /// 0 for the first directory of the process, whose name omits it.
        attempt: u64,
    },
    /// `object-N.so`: an image.
    Image {
        /// Counted from 0 in each directory.
        number: u64,
    },
    /// `image-PID-START[-ATTEMPT]-object-N.so`: an image beside the recording that refers to it.
    KeptImage {
        /// See [`FileName::Images`].
        pid: u32,
        /// See [`FileName::Images`].
        start: u64,
        /// See [`FileName::Images`].
        attempt: u64,
        /// See [`FileName::Image`].
        number: u64,
    },
    /// `jitdump-PID-START[-ATTEMPT]`: the directory of a jitdump.
    Jitdump {
        /// See [`FileName::Images`].
        pid: u32,
        /// See [`FileName::Images`].
        start: u64,
        /// See [`FileName::Images`].
        attempt: u64,
    },
    /// `jit-PID.dump`: a jitdump.
    Dump {
        /// The process.
        pid: u32,
    },
    /// `jitted-PID-N.so`: written by `perf inject` beside the jitdump.
    Injected {
        /// The process.
        pid: u32,
        /// perf's number of the function.
        number: u64,
    },
    /// `perf-PID.map`: a perf map.
    PerfMap {
        /// The process.
        pid: u32,
    },
    /// `alive`: the marker of a process's directory.
    Alive,
    /// `dead`: beside the marker once the process was found dead.
    Dead,
}

impl FileName {
    /// Parses a name in its exact form.
    pub fn parse(name: impl AsRef<OsStr>) -> Option<FileName> {
        let name = name.as_ref().to_str()?;
        read(name).filter(|parsed| parsed.to_string() == name)
    }
}

/// Parses a name; also accepts leading zeros.
fn read(name: &str) -> Option<FileName> {
    // The form has `#` for each number.
    let (mut form, mut numbers) = (String::new(), Vec::new());
    let mut rest = name;
    while let Some((text, digits)) = rest.find(|character: char| character.is_ascii_digit()).map(|at| rest.split_at(at))
    {
        let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
        let (number, after) = digits.split_at(end);
        numbers.push(number.parse().ok()?);
        form.extend([text, "#"]);
        rest = after;
    }
    form += rest;
    let pid = |number: u64| u32::try_from(number).ok();
    Some(match (form.as_str(), numbers.as_slice()) {
        ("image-#-#", &[process, start]) => FileName::Images { pid: pid(process)?, start, attempt: 0 },
        ("image-#-#-#", &[process, start, attempt]) => FileName::Images { pid: pid(process)?, start, attempt },
        ("object-#.so", &[number]) => FileName::Image { number },
        ("image-#-#-object-#.so", &[process, start, number]) => {
            FileName::KeptImage { pid: pid(process)?, start, attempt: 0, number }
        }
        ("image-#-#-#-object-#.so", &[process, start, attempt, number]) => {
            FileName::KeptImage { pid: pid(process)?, start, attempt, number }
        }
        ("jitdump-#-#", &[process, start]) => FileName::Jitdump { pid: pid(process)?, start, attempt: 0 },
        ("jitdump-#-#-#", &[process, start, attempt]) => FileName::Jitdump { pid: pid(process)?, start, attempt },
        ("jit-#.dump", &[process]) => FileName::Dump { pid: pid(process)? },
        ("jitted-#-#.so", &[process, number]) => FileName::Injected { pid: pid(process)?, number },
        ("perf-#.map", &[process]) => FileName::PerfMap { pid: pid(process)? },
        ("alive", []) => FileName::Alive,
        ("dead", []) => FileName::Dead,
        _ => return None,
    })
}

impl Display for FileName {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            FileName::Images { pid, start, attempt: 0 } => write!(formatter, "image-{pid}-{start}"),
            FileName::Images { pid, start, attempt } => write!(formatter, "image-{pid}-{start}-{attempt}"),
            FileName::Image { number } => write!(formatter, "object-{number}.so"),
            FileName::KeptImage { pid, start, attempt, number } => {
                let (directory, image) = (FileName::Images { pid, start, attempt }, FileName::Image { number });
                write!(formatter, "{directory}-{image}")
            }
            FileName::Jitdump { pid, start, attempt: 0 } => write!(formatter, "jitdump-{pid}-{start}"),
            FileName::Jitdump { pid, start, attempt } => write!(formatter, "jitdump-{pid}-{start}-{attempt}"),
            FileName::Dump { pid } => write!(formatter, "jit-{pid}.dump"),
            FileName::Injected { pid, number } => write!(formatter, "jitted-{pid}-{number}.so"),
            FileName::PerfMap { pid } => write!(formatter, "perf-{pid}.map"),
            FileName::Alive => formatter.write_str("alive"),
            FileName::Dead => formatter.write_str("dead"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FileName;

    #[test]
    fn a_name_is_parsed_as_it_is_printed() {
        for name in [
            "image-12-345",
            "image-12-345-2",
            "object-0.so",
            "image-12-345-object-7.so",
            "image-12-345-1-object-7.so",
            "jitdump-4711-9034",
            "jitdump-4711-9034-1",
            "jit-4711.dump",
            "jitted-4711-0.so",
            "perf-4294967295.map",
            "alive",
            "dead",
        ] {
            assert_eq!(FileName::parse(name).map(|parsed| parsed.to_string()).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_of_users_are_not_ours() {
        let names = "object-detector.so object-store.so object-1.so.bak object-01.so object-+1.so object-.so object-#.so \
                     image-12 image-12-345-0 image-12-0345 image-of-my-cat image-#-# image-12-345-object-.so \
                     jit-notes.txt jit-analysis.ipynb jit-007.dump jit-5.dump~ jit-99999999999.dump jitted-5.so \
                     jitted-5-x.so jitlisten-report jitdump-of-java jitdump-5 perf-007.map perf-+7.map \
                     perf-5.map.old ALIVE alive2 object-1844674407370955161600.so object-\u{661}.so";
        for name in names.split(' ').chain([""]) {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
