//! Parser of the output of `perf script -F comm,pid,tid,ip,sym,dso`: one paragraph per sample, leaf first.
//!
//! ```text
//! python  6553/6554
//!         7fc79c7c4034 __main__.gamma(long long, double) (/tmp/perf-6553.map)
//!         7fc79c776ef8 [unknown] ([unknown])
//! ```

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Instruction address, relative to the mapped file if there is one.
    pub ip: u64,
    /// Symbol that perf found, if any.
    pub symbol: Option<String>,
    /// Mapped file; `/tmp/perf-PID.map` for anonymous memory, `[unknown]` for an unmapped address.
    pub object: String,
}

/// A sample and its stack, leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Frames of the stack; empty if the kernel could not walk it.
    pub frames: Vec<Frame>,
}

/// A line that does not have perf's format.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Line number, from one.
    pub line: usize,
    /// Text of the line.
    pub text: String,
}

/// Parses the complete output.
///
/// # Errors
/// The first line that is neither a header nor a frame. The parser skips nothing: otherwise missing frames would go
/// unnoticed.
pub fn parse(text: &str) -> Result<Vec<Sample>, Unreadable> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut is_in_sample = false;
    for (index, line) in text.lines().enumerate() {
        let unreadable = || Unreadable { line: index + 1, text: line.to_owned() };
        if line.trim().is_empty() {
            is_in_sample = false;
        } else if line.starts_with([' ', '\t']) && is_in_sample {
            let frame = parse_frame(line.trim()).ok_or_else(unreadable)?;
            samples.last_mut().ok_or_else(unreadable)?.frames.push(frame);
        } else {
            samples.push(parse_header(line).ok_or_else(unreadable)?);
            is_in_sample = true;
        }
    }
    Ok(samples)
}

/// Parses `comm pid/tid`; the comm may contain spaces.
fn parse_header(line: &str) -> Option<Sample> {
    let (_, ids) = line.trim_end().rsplit_once(' ')?;
    let (pid, tid) = ids.split_once('/')?;
    Some(Sample { pid: pid.parse().ok()?, tid: tid.parse().ok()?, frames: Vec::new() })
}

/// Parses `ip symbol (object)`; symbol and object may contain spaces and parentheses.
fn parse_frame(line: &str) -> Option<Frame> {
    let (ip, rest) = line.split_once(' ')?;
    let body = rest.strip_suffix(')')?;
    let body_without_deleted = body.strip_suffix(" (deleted)").unwrap_or(body);
    let (symbol, object) = body_without_deleted.rsplit_once(" (")?;
    Some(Frame {
        ip: u64::from_str_radix(ip, 16).ok()?,
        symbol: (symbol != "[unknown]").then(|| symbol.to_owned()),
        object: object.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_with_spaces_and_parentheses() {
        let text = "python with spaces  6553/6554  \n\
            \t    7fc79c7c4034 __main__.gamma(long long, double) (/tmp/perf-6553.map)\n\
            \t    7fc79c7c4035 f (file.py:12) (/tmp/a (deleted))\n\
            \t    7fc79c776ef8 [unknown] ([unknown])\n\n\
            python  1/1 \n\n";
        let samples = parse(text).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].pid, samples[0].tid), (6553, 6554));
        let frames = &samples[0].frames;
        assert_eq!(frames[0].symbol.as_deref(), Some("__main__.gamma(long long, double)"));
        assert_eq!(frames[0].object, "/tmp/perf-6553.map");
        assert_eq!((frames[1].symbol.as_deref(), frames[1].object.as_str()), (Some("f (file.py:12)"), "/tmp/a"));
        assert_eq!(frames[2], Frame { ip: 0x7fc7_9c77_6ef8, symbol: None, object: "[unknown]".into() });
        assert!(samples[1].frames.is_empty());
    }

    #[test]
    fn detects_every_object() {
        assert_eq!(parse("python 1/1\n\tzzzz name (object)\n").unwrap_err().line, 2);
        assert_eq!(parse("no ids here\n").unwrap_err().line, 1);
        assert_eq!(parse("\t 12 frame (without sample)\n").unwrap_err().line, 1);
        assert_eq!(parse("python 1/1\n\t 12 cut (off\n").unwrap_err().line, 2);
    }
}
