//! The content of the file.

use std::fs::{self, OpenOptions};

use super::*;
use crate::LoadedObject;
use crate::code_snapshot::CodeSnapshot;
use crate::name;
use crate::name::ReadableName;

/// Three functions and their wrappers, as Numba 0.68 compiled them.
const NUMBA: &[u8] = include_bytes!("../../../testdata/numba-0.68-llvm22-plain.o");

struct Reported {
    id: ObjectId,
    snapshot: CodeSnapshot,
    object: LoadedObject,
    names: Vec<ReadableName>,
    padding: crate::sink::HeaderPadding,
}

impl Reported {
    fn new() -> Reported {
        Reported::moved(0)
    }

    /// Another one, in other pages: its sections' `sh_addr` makes the difference.
    fn moved(pages: u64) -> Reported {
        let mut bytes = NUMBA.to_vec();
        let start = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let count = u16::from_le_bytes(bytes[60..62].try_into().unwrap()) as usize;
        for section in 0..count {
            let field = start + section * 64 + 16;
            let address = u64::from_le_bytes(bytes[field..field + 8].try_into().unwrap());
            if address != 0 {
                bytes[field..field + 8].copy_from_slice(&(address + pages * 0x1000).to_le_bytes());
            }
        }
        let object = LoadedObject::parse(&bytes).unwrap();
        let functions = object.functions().iter();
        let names = functions.map(|function| name::readable(&function.linkage_name, None)).collect();
        let id = ObjectId(pages);
        Reported {
            id,
            snapshot: CodeSnapshot::of(std::process::id(), &object),
            object,
            names,
            padding: Default::default(),
        }
    }

    fn finalized(&self) -> FinalizedObject<'_> {
        FinalizedObject {
            id: self.id,
            object: &self.object,
            names: &self.names,
            made_rules: &[],
            debug_object: None,
            snapshot: &self.snapshot,
            since: 0,
            next_code: &|_| None,
            origin: crate::object::Origin::Caller,
            neighbours: &|_| Default::default(),
            owns_pages: true,
            padding: &self.padding,
        }
    }

    fn lines(&self) -> usize {
        self.object.functions().len()
    }
}

/// A directory of its own for one test, removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("jitlisten-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn map(&self) -> PathBuf {
        self.0.join("perf-1.map")
    }

    fn text(&self) -> String {
        let text = fs::read_to_string(self.map()).unwrap();
        without_first_line(&text).to_owned()
    }

    fn sink(&self, stale: Option<StaleMap>) -> PerfMap {
        PerfMap::at(self.map(), NameStyle::Readable, SinkContext { stale_map: stale, ..SinkContext::default() })
    }
}

fn without_first_line(text: &str) -> &str {
    text.split_once('\n').filter(|(first, _)| first.starts_with("0 0 jitlisten ")).map_or(text, |(_, rest)| rest)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_line_is_start_size_name() {
    let (scratch, reported) = (Scratch::new("line"), Reported::new());
    let bytes = scratch.sink(None).finalized(&reported.finalized()).unwrap();
    let text = scratch.text();
    assert_eq!((text.len() as u64, text.lines().count()), (bytes, reported.lines()));
    for (line, function) in text.lines().zip(reported.object.functions()) {
        let [start, size, name] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(start, format!("{:x}", function.range.start().0));
        assert_eq!(size, format!("{:x}", function.range.size()));
        assert!(name.len() >= 3, "{line}");
    }
}

#[test]
fn a_short_symbol_stays_what_it_is() {
    let shown = |style| ["f0", "f", "outer", "a\nb"].map(|name| printable(name, style));
    assert_eq!(shown(NameStyle::Linkage)[..3], ["f0", "f", "outer"]);
    assert_eq!(shown(NameStyle::Readable)[..3], ["f0()", "f()", "outer"]);
    assert_eq!(shown(NameStyle::Linkage)[3], shown(NameStyle::Readable)[3]);
}

#[test]
fn what_another_writer_appends_is_kept() {
    let (scratch, reported) = (Scratch::new("shared"), Reported::new());
    fs::write(scratch.map(), "1000 10 py::before\n").unwrap();
    let mut sink = scratch.sink(None);
    sink.finalized(&reported.finalized()).unwrap();
    let mut other = OpenOptions::new().append(true).open(scratch.map()).unwrap();
    io::Write::write_all(&mut other, b"2000 10 py::after\n").unwrap();
    sink.freeing(&reported.finalized()).unwrap();
    sink.finalized(&reported.finalized()).unwrap();
    let text = scratch.text();
    assert!(text.starts_with("1000 10 py::before\n") && text.contains("\n2000 10 py::after\n"), "{text}");
    assert_eq!(text.lines().count(), 2 + 2 * reported.lines());
}

#[test]
fn a_dead_line_makes_way_for_a_new_one_at_its_address() {
    let (scratch, reported) = (Scratch::new("reuse"), Reported::new());
    let mut sink = scratch.sink(None);
    sink.finalized(&reported.finalized()).unwrap();
    let once = scratch.text();
    sink.freeing(&reported.finalized()).unwrap();
    assert_eq!(scratch.text(), once, "freed code keeps its name until its address is used again");
    sink.finalized(&reported.finalized()).unwrap();
    let text = scratch.text();
    let (dead, alive) = text.split_at(once.len());
    assert_eq!(alive, once);
    assert!(dead.lines().all(|line| line.starts_with("0 0 freed")), "{dead}");
    assert_eq!(dead.lines().count(), reported.lines());
}

#[test]
fn a_map_of_code_that_comes_and_goes_does_not_grow_for_ever() {
    let scratch = Scratch::new("forever");
    let stays = Reported::moved(1_000_000);
    let mut sink = scratch.sink(None);
    sink.finalized(&stays.finalized()).unwrap();
    let once = scratch.text();
    let mut other = OpenOptions::new().append(true).open(scratch.map()).unwrap();
    let foreign = "1000 10 py::between\n";
    io::Write::write_all(&mut other, foreign.as_bytes()).unwrap();
    sink.space = Space::keeping(5 * once.len() as u64);
    for turn in 1..1000 {
        let passing = Reported::moved(16 * turn);
        sink.finalized(&passing.finalized()).unwrap();
        let text = scratch.text();
        for function in passing.object.functions() {
            let line = format!("\n{:x} {:x} ", function.range.start().0, function.range.size());
            assert!(text.contains(&line), "turn {turn} is not reported");
        }
        sink.freeing(&passing.finalized()).unwrap();
    }
    let text = scratch.text();
    assert!(text.starts_with(&once) && text.contains(foreign), "what lives stays, and what is not ours");
    assert!(text.len() <= 10 * once.len(), "{} bytes, {} for one object", text.len(), once.len());
    assert!(text.lines().all(|line| line.splitn(3, ' ').count() == 3), "{text}");
    assert_eq!(sink.lines.len(), 7 * stays.lines(), "nothing is remembered of what is not in the file");
}

/// A reader that finds two functions at one address picks either.
#[test]
fn a_dead_line_makes_way_even_where_its_bytes_wait_for_a_new_object() {
    let scratch = Scratch::new("hole");
    let mut sink = scratch.sink(None);
    sink.space = Space::keeping(0);
    let [first, between, second] = [16, 32, 48].map(Reported::moved);
    for reported in [&first, &between, &second] {
        sink.finalized(&reported.finalized()).unwrap();
    }
    sink.freeing(&first.finalized()).unwrap();
    sink.freeing(&second.finalized()).unwrap();
    // Its lines fit into none of the two holes; then those of `second` go into the one that `first` has left.
    sink.finalized(&Reported::moved(1 << 36).finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    let text = scratch.text();
    for function in second.object.functions() {
        let line = format!("{:x} ", function.range.start().0);
        assert_eq!(text.lines().filter(|there| there.starts_with(&line)).count(), 1, "{text}");
    }
    assert_eq!(sink.lines.len(), 3 * second.lines(), "nothing is remembered of what is not in the file");
}

#[test]
fn a_file_that_is_not_as_it_was_left_is_written_at_its_end() {
    let scratch = Scratch::new("rewritten");
    let mut sink = scratch.sink(None);
    sink.space = Space::keeping(0);
    let [first, second] = [16, 32].map(Reported::moved);
    sink.finalized(&first.finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    sink.freeing(&first.finalized()).unwrap();
    sink.freeing(&second.finalized()).unwrap();
    // Another writer has lines of its own where those of `first` stood.
    let text = fs::read_to_string(scratch.map()).unwrap();
    let line = text.lines().nth(1).unwrap();
    let foreign = format!("{:-<width$}", "1000 10 py::foreign", width = line.len());
    fs::write(scratch.map(), text.replacen(line, &foreign, 1)).unwrap();
    sink.finalized(&Reported::moved(48).finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    let text = scratch.text();
    assert!(text.starts_with(&foreign), "{text}");
    for function in second.object.functions() {
        let line = format!("{:x} ", function.range.start().0);
        assert_eq!(text.lines().filter(|there| there.starts_with(&line)).count(), 1, "{text}");
    }
}

#[test]
fn switched_off_and_on_again_each_function_has_one_line() {
    let (scratch, reported) = (Scratch::new("again"), Reported::new());
    let context = SinkContext::default();
    for _ in 0..3 {
        let mut sink = PerfMap::at(scratch.map(), NameStyle::Readable, context.clone());
        sink.finalized(&reported.finalized()).unwrap();
        sink.ending().unwrap();
    }
    let text = scratch.text();
    let (dead, alive): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("0 0 freed"));
    assert_eq!((dead.len(), alive.len()), (2 * reported.lines(), reported.lines()), "{text}");
}

/// A new file mostly has the number of the one that was removed.
#[test]
fn a_map_that_was_removed_while_the_sink_was_off_begins_anew() {
    let (scratch, reported) = (Scratch::new("removed"), Reported::new());
    let context = SinkContext::default();
    for _ in 0..3 {
        let mut sink = PerfMap::at(scratch.map(), NameStyle::Readable, context.clone());
        let bytes = sink.finalized(&reported.finalized()).unwrap();
        sink.ending().unwrap();
        let text = scratch.text();
        assert_eq!((text.len() as u64, text.lines().count()), (bytes, reported.lines()), "{text:?}");
        let end = fs::metadata(scratch.map()).unwrap().len();
        assert!(context.own_lines.contains(end - 1) && !context.own_lines.contains(end));
        fs::remove_file(scratch.map()).unwrap();
    }
}

#[test]
fn a_map_of_a_dead_process_is_emptied_unless_it_was_added_to() {
    let (scratch, reported) = (Scratch::new("stale"), Reported::new());
    let found = || Some(StaleMap::of(&fs::metadata(scratch.map()).unwrap()));
    fs::write(scratch.map(), "1000 10 dead\n").unwrap();
    scratch.sink(found()).finalized(&reported.finalized()).unwrap();
    assert!(!scratch.text().contains("dead"));
    fs::write(scratch.map(), "1000 10 dead\n").unwrap();
    let stale = found();
    fs::write(scratch.map(), "1000 10 dead\n2000 10 py::alive\n").unwrap();
    scratch.sink(stale).finalized(&reported.finalized()).unwrap();
    assert!(scratch.text().contains("py::alive"));
}

#[test]
fn bait_is_refused() {
    let (scratch, reported) = (Scratch::new("bait"), Reported::new());
    let victim = scratch.0.join("victim");
    fs::write(&victim, "precious").unwrap();
    let plants: [fn(&PathBuf, &PathBuf) -> io::Result<()>; 2] =
        [|from, to| std::os::unix::fs::symlink(from, to), |from, to| fs::hard_link(from, to)];
    for plant in plants {
        plant(&victim, &scratch.map()).unwrap();
        assert!(scratch.sink(None).finalized(&reported.finalized()).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(scratch.map()).unwrap();
    }
    fs::create_dir(scratch.map()).unwrap();
    assert!(scratch.sink(None).finalized(&reported.finalized()).is_err());
}

/// A process that runs already: its own map is not stale, what a dead process of its number has left is.
#[test]
fn a_map_is_stale_that_is_older_than_the_process() {
    let scratch = Scratch::new("older");
    fs::write(scratch.map(), "1000 10 left_by_a_dead_process\n").unwrap();
    let metadata = fs::metadata(scratch.map()).unwrap();
    let (second, written) = (std::time::Duration::from_secs(1), metadata.modified().unwrap());
    assert_eq!(StaleMap::of_others(&metadata, Some(written + second)), Some(StaleMap::of(&metadata)));
    assert_eq!(StaleMap::of_others(&metadata, Some(written - second)), None, "CPython's -X perf writes one, too");
    assert_eq!(StaleMap::of_others(&metadata, None), Some(StaleMap::of(&metadata)), "the program has not begun");
}
