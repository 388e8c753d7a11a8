//! The process and the command that a recording is of.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use jitlisten::plumbing::Run;
use jitlisten_files::open_regular;
use wire::perf_data::{PERF_RECORD_COMM, RUN_TID};

use crate::writer::perf_data::DATA_OFFSET;

/// The process that a recording by jitlisten is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// PID of the process.
    pub pid: u32,
    /// The command that the process belongs to. `None` if the process was not started by `jitlisten record`.
    pub run: Option<Run>,
}

impl Origin {
    /// Opens a recording, and reads its origin. `None` if it is not by jitlisten.
    pub fn read(path: &Path) -> Option<Origin> {
        Origin::of(&open_regular(path).ok()?)
    }

    /// Reads the first two records of a recording, which are COMM records. `None` if it is not by jitlisten.
    pub(crate) fn of(recording: &File) -> Option<Origin> {
        let mut bytes = [0; 256];
        let length = recording.read_at(&mut bytes, DATA_OFFSET).ok()?;
        let records = bytes.get(..length)?;
        let word = |offset: usize| Some(u32::from_le_bytes(*records.get(offset..)?.first_chunk()?));
        let is_comm = |offset: usize| word(offset) == Some(PERF_RECORD_COMM);
        let second = (word(4)? >> 16) as usize;
        let has_run = is_comm(second) && word(second + 12) == Some(RUN_TID);
        let text = records.get(second + 16..).filter(|_| has_run).and_then(|text| text.split(|&byte| byte == 0).next());
        let run = text.and_then(|text| Run::parse(str::from_utf8(text).ok()?));
        is_comm(0).then_some(Origin { pid: word(8)?, run })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn other_files_have_no_origin() {
        let directory = std::env::temp_dir().join(format!("jitlisten-origin-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (pipe, text) = (directory.join("prof.data.7"), directory.join("prof.data.8"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::write(&text, [b'x'; 500]).unwrap();
        let origins = [&pipe, &text, &directory].map(|path| Origin::read(path));
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(origins, [None; 3], "and a pipe is not waited for");
    }
}
