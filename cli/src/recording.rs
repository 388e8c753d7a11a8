//! Reading of recordings and writing of reports, shared by all report commands.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal as _, Read as _, Write};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use jitlisten::plumbing::Run;
use jitlisten_files::{Replacement, Visibility, open_in_place, open_regular};
use jitlisten_report::{Lookup, Options, RecordingFile, Report, Selection};
use jitlisten_sampler::Origin;

use rustix::io::Errno;

use crate::bundle;
use crate::problem::Problem;
use crate::progress::Progress;

/// Options that select samples and locate code and source files.
#[derive(Args)]
pub(crate) struct Reading {
    /// Only samples of this process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Only samples of this thread
    #[arg(long, value_name = "TID")]
    tid: Option<u32>,
    /// The event to read, if the recording has several; with CMD, the event to count
    #[arg(short, long, value_name = "NAME")]
    pub(crate) event: Option<String>,
    /// Look here first for the recording's images, libraries, perf maps and sources
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Also show lines and inlined calls of libraries with debug information
    #[arg(long)]
    native: bool,
    /// Exclude compilation; percentages are of the remaining samples
    #[arg(long)]
    no_compile: bool,
    /// Files whose path contains PART are yours, although they are installed
    #[arg(long, value_name = "PART")]
    mine: Vec<String>,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl Reading {
    /// Opens and merges recordings. If `files` is empty, opens the default recording in the working directory.
    pub(crate) fn open(&self, files: &[PathBuf], by_thread: bool, kernel: bool) -> Result<Report, Problem> {
        let paths = if files.is_empty() { vec![default_file()?] } else { files.to_vec() };
        let files = bundle::resolve_all(&paths)?;
        let options = self.options(by_thread, kernel);
        let progress = Progress::start(&files[0].path, files.len());
        let mut report = open_resolved(&files, &options, progress.as_ref())?;
        report.notes.extend(note_other_processes(&files));
        Ok(report)
    }

    /// Opens two recordings, or folders of recordings, each in a thread of its own.
    pub(crate) fn open_both(&self, paths: [PathBuf; 2]) -> Result<[Report; 2], Problem> {
        let [first, second] = paths.map(|path| bundle::resolve_all(&[path]));
        let (first, second, options) = (first?, second?, self.options(false, false));
        let progress = Progress::start(&first[0].path, first.len() + second.len());
        let open = |files: &[RecordingFile]| open_resolved(files, &options, progress.as_ref());
        let [first, second] = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(READER_STACK_BYTES);
            let reader = builder.spawn_scoped(scope, || open(&second));
            let first = open(&first);
            let second = match reader {
                Ok(reader) => reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => open(&second),
            };
            [first, second]
        });
        Ok([first?, second?])
    }

    fn options(&self, by_thread: bool, kernel: bool) -> Options {
        Options {
            selection: Selection { event: self.event.clone(), process: self.pid, thread: self.tid },
            lookup: Lookup { roots: self.root.clone(), native_lines: self.native, kernel },
            by_thread,
            no_compile: self.no_compile,
            mine: self.mine.clone(),
        }
    }
}

/// Returns a note if other processes of the same commands have recordings next to the files: those that a script starts
/// one after the other, or with `record -s` the children.
fn note_other_processes(files: &[RecordingFile]) -> Option<String> {
    let mut runs: BTreeMap<&Path, BTreeMap<&OsStr, Option<Run>>> = BTreeMap::new();
    for RecordingFile { path, .. } in files {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let run = Origin::read(path).and_then(|origin| origin.run);
        runs.entry(directory).or_default().insert(path.file_name()?, run);
    }
    let mut others = Vec::new();
    for (directory, runs) in &runs {
        for entry in fs::read_dir(directory).ok()?.flatten() {
            let name = entry.file_name();
            // `FILE.PID`
            let file = Path::new(&name).file_stem().and_then(|file| Some((file, (*runs.get(file)?)?)));
            let Some((file, run)) = file.filter(|_| !runs.contains_key(name.as_os_str())) else { continue };
            if Origin::read(&entry.path()).is_some_and(|origin| origin.run == Some(run)) {
                others.push(file.to_owned());
            }
        }
    }
    let name = others.first()?.display();
    Some(match others.len() {
        1 => format!("1 other process of the command has its own recording: {name}.PID"),
        count => format!("{count} other processes of the command have their own recordings: {name}.PID"),
    })
}

/// Stack of a thread that reads recordings: as large as that of the main thread.
const READER_STACK_BYTES: usize = 8 << 20;

fn open_resolved(files: &[RecordingFile], options: &Options, progress: Option<&Progress>) -> Result<Report, Problem> {
    let report = Report::open_all_with(files, options, || progress.into_iter().for_each(Progress::count_one));
    report.map_err(|error| match (error, files) {
        (error @ jitlisten_report::Error::Io { .. }, _) => Problem::new(error),
        (error, [file]) => Problem::new(format!("{}: {error}", file.path.display())),
        (error, _) => Problem::new(error),
    })
}

impl Colour {
    pub(crate) fn is_enabled(self) -> bool {
        match self {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                std::io::stdout().is_terminal()
                    && !no_color
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        }
    }
}

/// Finds the default recording of `jitlisten record`, or that of perf.
pub(crate) fn default_file() -> Result<PathBuf, Problem> {
    let names = ["jitlisten.perf.data", "perf.data", bundle::DEFAULT_BUNDLE];
    let existing = names.iter().map(PathBuf::from).find(|path| path.exists());
    existing.ok_or_else(|| {
        Problem::new("no jitlisten.perf.data or perf.data in this directory")
            .help("name a file, or record first: jitlisten record prog.py")
    })
}

/// Width of the terminal in columns; `None` if standard output is not a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let columns =
        std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns != 0);
    match std::io::stdout().is_terminal() {
        true => Some(columns.or_else(terminal_columns).unwrap_or(80).max(40)),
        false => columns.map(|columns: usize| columns.max(40)),
    }
}

fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col != 0).then_some(usize::from(size.ws_col))
}

/// Method to recognize an earlier output of the same kind.
pub(crate) enum Recognition {
    /// By signature: the file has the same first bytes as the new output, up to `jitlisten`. No other program writes
    /// them.
    ByMark,
    /// By format: the file has the same format as the new output. Used for formats without room for a signature.
    ByFormat(fn(&[u8]) -> bool),
}

/// Writes the output to a file, or to standard output if `out` is `-` or `None`. A new file is private, because it
/// contains source text. An existing file is replaced only if it is empty or an earlier output of the same kind, so a
/// typo such as `--html perf.data` cannot destroy a recording.
pub(crate) fn write(out: Option<&Path>, content: &[u8], recognition: Recognition) -> Result<(), Problem> {
    match out.filter(|path| *path != Path::new("-")) {
        Some(path) if !is_replaceable(path, content, recognition) => {
            Err(Problem::new(format!("{} exists and is another kind of file", path.display()))
                .help("choose another name"))
        }
        Some(path) => {
            save(path, content, Visibility::Private)
                .map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))?;
            if path.is_file() {
                let _ = writeln!(std::io::stderr(), "jitlisten: wrote {}", path.display());
            }
            Ok(())
        }
        None => print(content),
    }
}

/// Writes to standard output.
pub(crate) fn print(content: &[u8]) -> Result<(), Problem> {
    match std::io::stdout().lock().write_all(content) {
        // The reader may close the pipe early.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Problem::new(format!("cannot write to standard output: {error}"))),
    }
}

/// Writes a file that the user named. The content goes to a new file that is then renamed, so neither a full disk nor
/// SIGKILL destroys the old content. Anything but a regular file is written in place, as is a file in a read-only
/// directory. `new_visibility` applies to a file that did not exist; an existing file keeps its owner and mode.
pub(crate) fn save(path: &Path, content: &[u8], new_visibility: Visibility) -> io::Result<()> {
    let old_metadata = fs::metadata(path).ok();
    if is_descriptor(path) || old_metadata.as_ref().is_some_and(|old_metadata| !old_metadata.is_file()) {
        return write_in_place(path, content);
    }
    let visibility = if old_metadata.is_some() { Visibility::Umask } else { new_visibility };
    match replace(path, content, visibility, old_metadata.as_ref()) {
        Err(error)
            if old_metadata.is_some()
                && error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(forbids_rename) =>
        {
            write_in_place(path, content)
        }
        result => result,
    }
}

/// Returns true if the file cannot be replaced by renaming, because its directory is read-only or it is a mount point.
fn forbids_rename(error: Errno) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::BUSY].contains(&error)
}

fn replace(path: &Path, content: &[u8], visibility: Visibility, old_metadata: Option<&fs::Metadata>) -> io::Result<()> {
    let mut replacement = Replacement::for_user_path(path, visibility)?;
    let file = replacement.file();
    if let Some(old_metadata) = old_metadata
        && (old_metadata.uid(), old_metadata.gid())
            != file.metadata().map(|new_metadata| (new_metadata.uid(), new_metadata.gid()))?
        && fchown(&*file, Some(old_metadata.uid()), Some(old_metadata.gid())).is_err()
    {
        return Err(Errno::PERM.into());
    }
    file.write_all(content)?;
    // Some file systems report a full disk only when data is synchronized.
    file.sync_data()?;
    replacement.commit()
}

fn write_in_place(path: &Path, content: &[u8]) -> io::Result<()> {
    open_in_place(path)?.write_all(content)
}

/// Returns true if the path resolves to a descriptor in `/proc`, like `/dev/stdout`.
fn is_descriptor(path: &Path) -> bool {
    const MAX_LINKS: usize = 8;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if fs::canonicalize(parent).is_ok_and(|parent| parent.starts_with("/proc")) {
            return true;
        }
        let Ok(target) = fs::read_link(&path) else { return false };
        path = parent.join(target);
    }
    false
}

/// Returns true if `content` may replace the file. Missing and empty files, pipes and devices can always be written.
fn is_replaceable(path: &Path, content: &[u8], recognition: Recognition) -> bool {
    if !fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
        return true;
    }
    match recognition {
        Recognition::ByMark => {
            let mark = marked_start(content);
            !mark.is_empty() && read_start(path, mark.len() as u64).is_ok_and(|start| start == mark)
        }
        // A file that exceeds the limit is not replaced, because its end was not checked.
        Recognition::ByFormat(is_ours) => read_start(path, MAX_COMPARED_BYTES)
            .is_ok_and(|text| (text.len() as u64) < MAX_COMPARED_BYTES && is_ours(&text)),
    }
}

fn read_start(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    open_regular(path)?.take(bytes).read_to_end(&mut start).map(|_| start)
}

/// Returns true for an HTML page that jitlisten wrote.
pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "html")
        && read_start(path, MAX_MARKED_BYTES as u64).is_ok_and(|start| !marked_start(&start).is_empty())
}

const MARK: &[u8] = b"jitlisten";
/// Upper bound for the offset at which the signature of an output ends.
const MAX_MARKED_BYTES: usize = 4 << 10;
const MAX_COMPARED_BYTES: u64 = 1 << 30;

/// Returns the start of an output, up to and including its signature (`MARK`); empty if the signature is missing.
fn marked_start(content: &[u8]) -> &[u8] {
    let start = &content[..content.len().min(MAX_MARKED_BYTES)];
    let offset = start.windows(MARK.len()).position(|window| window == MARK);
    offset.map_or(&[], |offset| &start[..offset + MARK.len()])
}

#[cfg(test)]
mod tests {
    use jitlisten_report::to_json;

    use super::*;
    use crate::scratch::{Kind, Scratch};

    #[test]
    fn recordings_are_read_at_once_as_one_by_one() {
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/testdata/sides");
        let scratch = Scratch::new(Kind::Lines).unwrap();
        for name in ["a.data", "b.data"] {
            fs::copy(testdata.join("perf.data"), scratch.path.join(name)).unwrap();
        }
        let reading = Reading {
            pid: None,
            tid: None,
            event: None,
            root: vec![testdata.join("root")],
            native: false,
            no_compile: false,
            mine: Vec::new(),
        };
        let paths = [testdata.join("perf.data"), scratch.path.clone()];
        let both = reading.open_both(paths.clone()).unwrap();
        for (path, report, samples) in [(&paths[0], &both[0], 394), (&paths[1], &both[1], 2 * 394)] {
            let alone = reading.open(std::slice::from_ref(path), false, false).unwrap();
            assert_eq!(to_json(report), to_json(&alone));
            assert_eq!(report.profile.all.samples, samples);
        }
    }

    #[test]
    fn a_file_of_another_kind_is_not_overwritten() {
        let path = std::env::temp_dir().join(format!("jitlisten-write-{}", std::process::id()));
        let page = "<!doctype html>\n<title>jitlisten</title>";
        let json = "{\n  \"$generator\": \"jitlisten 1\"}";
        let ends_with_x = |text: &[u8]| text.ends_with(b"x");
        for old_content in
            ["PERFILE2\x68\0\0\0\0\0\0\0", "import numba\n", "<!doctype html>\n<title>mine</title>", "{\n  \"$"]
        {
            fs::write(&path, old_content).unwrap();
            for (content, recognition) in [
                (page, Recognition::ByMark),
                (json, Recognition::ByMark),
                ("unmarked", Recognition::ByMark),
                ("x", Recognition::ByFormat(ends_with_x)),
            ] {
                let error = write(Some(&path), content.as_bytes(), recognition).expect_err("refused").to_string();
                assert!(error.contains("another kind of file"), "{error}");
                assert_eq!(fs::read(&path).unwrap(), old_content.as_bytes());
            }
        }
        let older_page = page.replace("</", " 0.1</");
        for (old_content, content, recognition) in [
            ("", page, Recognition::ByMark),
            (&older_page, page, Recognition::ByMark),
            (json, json, Recognition::ByMark),
            ("yx", "x", Recognition::ByFormat(ends_with_x)),
        ] {
            fs::write(&path, old_content).unwrap();
            write(Some(&path), content.as_bytes(), recognition).expect("written");
            assert_eq!(fs::read(&path).unwrap(), content.as_bytes());
        }
        fs::remove_file(&path).unwrap();
        write(Some(Path::new("/dev/null")), b"anything", Recognition::ByMark).expect("a device");
    }

    #[test]
    fn a_file_is_replaced_and_what_is_no_file_is_written_to() {
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        let directory = std::env::temp_dir().join(format!("jitlisten-save-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (page, link, pipe) = (directory.join("page"), directory.join("link"), directory.join("pipe"));
        save(&page, b"one", Visibility::Private).expect("new");
        assert_eq!(mode(&page), 0o600);
        std::os::unix::fs::symlink("page", &link).unwrap();
        fs::set_permissions(&page, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let opened = fs::File::open(&page).unwrap();
        save(&link, b"two", Visibility::Private).expect("by way of a link");
        assert_eq!(io::read_to_string(&opened).unwrap(), "one", "the old file is whole");
        assert_eq!((fs::read(&page).unwrap(), mode(&page)), (b"two".to_vec(), 0o640));
        assert!(link.is_symlink());
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        save(&pipe, b"three", Visibility::Private).expect("a pipe");
        assert_eq!(reader.join().unwrap(), b"three");
        save(Path::new("/dev/null"), b"four", Visibility::Private).expect("a device");
        save(Path::new("/dev/full"), b"five", Visibility::Private).expect_err("a full one");
        for descriptor in ["/dev/stdout", "/dev/fd/0", "/proc/self/fd/1"].map(Path::new) {
            assert!(is_descriptor(descriptor), "{}", descriptor.display());
        }
        assert!(!is_descriptor(&link) && !is_descriptor(Path::new("/dev/null")) && !is_descriptor(Path::new("page")));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "nothing else is left");
        fs::remove_dir_all(directory).unwrap();
    }
}
