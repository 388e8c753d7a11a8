//! `jitlisten export`: converts a recording to the format of another tool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jitlisten_report::{gzip, to_callgrind, to_collapsed, to_firefox, to_pprof, to_speedscope};

use crate::input::Input;
use crate::problem::Problem;
use crate::recording::{self, Reading, Recognition};

/// Write a recording in the format of another tool
#[derive(Args)]
#[command(after_help = "Examples:\n  jitlisten export perf.data -o profile.speedscope.json\n  jitlisten export -o \
        profile.json prog.py      for profiler.firefox.com")]
pub(crate) struct Export {
    /// For profiler.firefox.com, speedscope.app, flame graph scripts, KCachegrind and callgrind_annotate, or pprof,
    /// Pyroscope, Parca and Grafana [default: by the name of OUT]
    #[arg(short, long)]
    format: Option<Format>,
    /// Output file, compressed if its name ends in .gz [default: standard output]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Firefox,
    Speedscope,
    Collapsed,
    Callgrind,
    Pprof,
}

impl Format {
    /// Chooses a format by file name: each tool's usual extensions, and those used in our documentation.
    fn from_file_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let ends_with_any = |ends_with_any: &[&str]| ends_with_any.iter().any(|end| name.ends_with(end));
        match () {
            () if name.contains("callgrind") => Some(Format::Callgrind),
            () if name.contains("speedscope") => Some(Format::Speedscope),
            () if ends_with_any(&[".pb", ".pprof"]) => Some(Format::Pprof),
            () if ends_with_any(&[".json"]) => Some(Format::Firefox),
            () if ends_with_any(&[".collapsed", ".folded", ".txt"]) => Some(Format::Collapsed),
            () => None,
        }
    }
}

impl Export {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let format = self.format.or_else(|| Format::from_file_name(self.output.as_deref()?)).ok_or_else(|| {
            Problem::new("no format is given")
                .help("-f firefox, speedscope, collapsed, callgrind or pprof, or -o with the usual name of one")
        })?;
        let recordings = self.input.recordings(None, &mut self.reading.event)?;
        recordings.show(|recordings| {
            let report = self.reading.open(&recordings.files, false, true)?;
            let (content, recognition) = match format {
                Format::Firefox => (to_firefox(&report).to_string().into_bytes(), Recognition::ByMark),
                Format::Speedscope => (to_speedscope(&report).to_string().into_bytes(), Recognition::ByMark),
                Format::Collapsed => (to_collapsed(&report).into_bytes(), Recognition::ByFormat(is_collapsed)),
                Format::Callgrind => (to_callgrind(&report).into_bytes(), Recognition::ByMark),
                Format::Pprof => (to_pprof(&report), Recognition::ByMark),
            };
            // Files of pprof are compressed whatever their name.
            let is_gzip_name = |path: &Path| path.extension().is_some_and(|extension| extension == "gz");
            let (content, recognition) =
                if matches!(format, Format::Pprof) || self.output.as_deref().is_some_and(is_gzip_name) {
                    (gzip(&content), Recognition::ByMark)
                } else {
                    (content, recognition)
                };
            recording::write(self.output.as_deref(), &content, recognition)?;
            recordings.announce_kept();
            Ok(())
        })
    }
}

/// Recognizes collapsed stacks, a format without room for a signature. Each line must have a stack and a count; the
/// lines are sorted, and no stack occurs twice.
fn is_collapsed(text: &[u8]) -> bool {
    let Some(lines) = std::str::from_utf8(text).ok().and_then(|text| text.strip_suffix('\n')) else { return false };
    let parse_line = |line| {
        let (parse_line, count) = str::rsplit_once(line, ' ')?;
        (!count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit())).then_some(parse_line)
    };
    let stacks: Option<Vec<&str>> = lines.split('\n').map(parse_line).collect();
    stacks.is_some_and(|stacks| {
        stacks.iter().any(|stack| stack.contains(';')) && stacks.is_sorted_by(|previous, next| previous < next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collapsed_stacks_are_known_by_every_line() {
        assert!(is_collapsed(b"python;f (a.py) 12\npython;g 3\n") && is_collapsed(b";f 1\nmain 2\n"));
        for text in [
            "see also chapter 12\nprecious\n",
            "main 3\n",
            "a;b 1\nprecious\n",
            "a;b 2\na;b 1\n",
            "a;c 2\na;b 1\n",
            "a;b 1\n\n",
            "a;b 1",
            "a;b x\n",
            "",
        ] {
            assert!(!is_collapsed(text.as_bytes()), "{text:?}");
        }
    }
}
