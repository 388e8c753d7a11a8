//! Names of the files and directories that jitlisten creates.
//!
//! Code that creates a file prints its name. Code that removes files parses their names, and accepts only names in
//! exactly the printed form. For example, `object-detector.so` and `jit-007.dump` were not created by us, and belong to
//! the user.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};

/// Parsed name of a file or directory that jitlisten creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileName {
    /// `image-PID-START[-ATTEMPT]`: directory for the images of one process.
    Images {
        /// PID of the process that created the directory.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start: u64,
        /// Number of earlier directories of the process; omitted from the name if it is 0.
        attempt: u64,
    },
    /// `object-N.so`: an image.
    Image {
        /// Index of the image in its directory.
        number: u64,
    },
    /// `image-PID-START[-ATTEMPT]-object-N.so`: an image that is kept with the recording that refers to it.
    KeptImage {
        /// PID of the process that created the image.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start: u64,
        /// Number of earlier directories of the process; omitted from the name if it is 0.
        attempt: u64,
        /// Index of the image in its original directory.
        number: u64,
    },
    /// `jitdump-PID-START[-ATTEMPT]`: directory for the jitdump of one process.
    Jitdump {
        /// PID of the process that created the directory.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start: u64,
        /// Number of earlier directories of the process; omitted from the name if it is 0.
        attempt: u64,
    },
    /// `jit-PID.dump`: a jitdump.
    Dump {
        /// PID of the process that created the jitdump.
        pid: u32,
    },
    /// `jitted-PID-N.so`: written by `perf inject` into the directory of the jitdump.
    Injected {
        /// PID of the process that created the jitdump.
        pid: u32,
        /// perf's index of the function.
        number: u64,
    },
    /// `perf-PID.map`: a perf map.
    PerfMap {
        /// PID of the process that the map describes.
        pid: u32,
    },
    /// `alive`: marker of a process's directory.
    Alive,
    /// `dead`: file added to the directory when its process is found dead.
    Dead,
}

impl FileName {
    /// Parses a name, which must have exactly the form that is printed on creation.
    pub fn parse(name: impl AsRef<OsStr>) -> Option<FileName> {
        let name = name.as_ref().to_str()?;
        parse_leniently(name).filter(|parsed| parsed.to_string() == name)
    }
}

/// Parses a name, but also accepts leading zeros.
fn parse_leniently(name: &str) -> Option<FileName> {
    // The pattern is the name with `#` in place of each number.
    let (mut pattern, mut numbers) = (String::new(), Vec::new());
    let mut rest = name;
    while let Some((text, digits)) =
        rest.find(|character: char| character.is_ascii_digit()).map(|index| rest.split_at(index))
    {
        let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
        let (number, remainder) = digits.split_at(end);
        numbers.push(number.parse().ok()?);
        pattern.extend([text, "#"]);
        rest = remainder;
    }
    pattern += rest;
    let to_pid = |number: u64| u32::try_from(number).ok();
    Some(match (pattern.as_str(), numbers.as_slice()) {
        ("image-#-#", &[pid, start]) => FileName::Images { pid: to_pid(pid)?, start, attempt: 0 },
        ("image-#-#-#", &[pid, start, attempt]) => FileName::Images { pid: to_pid(pid)?, start, attempt },
        ("object-#.so", &[number]) => FileName::Image { number },
        ("image-#-#-object-#.so", &[pid, start, number]) => {
            FileName::KeptImage { pid: to_pid(pid)?, start, attempt: 0, number }
        }
        ("image-#-#-#-object-#.so", &[pid, start, attempt, number]) => {
            FileName::KeptImage { pid: to_pid(pid)?, start, attempt, number }
        }
        ("jitdump-#-#", &[pid, start]) => FileName::Jitdump { pid: to_pid(pid)?, start, attempt: 0 },
        ("jitdump-#-#-#", &[pid, start, attempt]) => FileName::Jitdump { pid: to_pid(pid)?, start, attempt },
        ("jit-#.dump", &[pid]) => FileName::Dump { pid: to_pid(pid)? },
        ("jitted-#-#.so", &[pid, number]) => FileName::Injected { pid: to_pid(pid)?, number },
        ("perf-#.map", &[pid]) => FileName::PerfMap { pid: to_pid(pid)? },
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
    fn user_file_names_are_rejected() {
        let names = "object-detector.so object-store.so object-1.so.bak object-01.so object-+1.so object-.so \
                     object-#.so image-12 image-12-345-0 image-12-0345 image-of-my-cat image-#-# \
                     image-12-345-object-.so jit-notes.txt jit-analysis.ipynb jit-007.dump jit-5.dump~ \
                     jit-99999999999.dump jitted-5.so jitted-5-x.so jitlisten-report jitdump-of-java jitdump-5 \
                     perf-007.map perf-+7.map perf-5.map.old ALIVE alive2 object-1844674407370955161600.so \
                     object-\u{661}.so";
        for name in names.split(' ').chain([""]) {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
