//! Reads the output of `perf script -F comm,pid,tid,ip,sym,dso`: one paragraph per sample, leaf first.
//!
//! ```text
//! python  6553/6554
//!         7fc79c7c4034 __main__.gamma(long long, double) (/tmp/perf-6553.map)
//!         7fc79c776ef8 [unknown] ([unknown])
//! ```

/// One place on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The address; in a file, relative to it.
    pub ip: u64,
    /// The name perf found, if any.
    pub symbol: Option<String>,
    /// The file, `/tmp/perf-PID.map` for anonymous memory, `[unknown]` for no memory at all.
    pub object: String,
}

/// One sample, leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The stack. Empty when the kernel could not walk at all.
    pub frames: Vec<Frame>,
}

/// A line that is not what perf prints.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its number, from one.
    pub line: usize,
    /// The line.
    pub text: String,
}

/// Reads the whole output.
///
/// # Errors
/// The first line that has neither of the two shapes. Nothing is skipped: a reader that overlooks lines is lenient.
pub fn parse(text: &str) -> Result<Vec<Sample>, Unreadable> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let unreadable = || Unreadable { line: index + 1, text: line.to_owned() };
        if line.trim().is_empty() {
            inside = false;
        } else if line.starts_with([' ', '\t']) && inside {
            let frame = frame(line.trim()).ok_or_else(unreadable)?;
            samples.last_mut().ok_or_else(unreadable)?.frames.push(frame);
        } else {
            samples.push(header(line).ok_or_else(unreadable)?);
            inside = true;
        }
    }
    Ok(samples)
}

/// `comm pid/tid`, where the comm may hold spaces.
fn header(line: &str) -> Option<Sample> {
    let (_, ids) = line.trim_end().rsplit_once(' ')?;
    let (pid, tid) = ids.split_once('/')?;
    Some(Sample { pid: pid.parse().ok()?, tid: tid.parse().ok()?, frames: Vec::new() })
}

/// `ip symbol (object)`, where both may hold spaces and parentheses.
fn frame(line: &str) -> Option<Frame> {
    let (ip, rest) = line.split_once(' ')?;
    let body = rest.strip_suffix(')')?;
    let deleted = body.strip_suffix(" (deleted)").unwrap_or(body);
    let (symbol, object) = deleted.rsplit_once(" (")?;
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
    fn overlooks_nothing() {
        assert_eq!(parse("python 1/1\n\tzzzz name (object)\n").unwrap_err().line, 2);
        assert_eq!(parse("no ids here\n").unwrap_err().line, 1);
        assert_eq!(parse("\t 12 frame (without sample)\n").unwrap_err().line, 1);
        assert_eq!(parse("python 1/1\n\t 12 cut (off\n").unwrap_err().line, 2);
    }
}
