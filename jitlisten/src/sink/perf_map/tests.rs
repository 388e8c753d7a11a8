//! Tests of the perf map's content.

use std::fs::{self, OpenOptions};

use super::*;
use crate::LoadedObject;
use crate::code_snapshot::CodeSnapshot;
use crate::name;
use crate::name::ReadableName;

/// Three functions and their wrappers, as Numba 0.68 compiled them.
const NUMBA_OBJECT: &[u8] = include_bytes!("../../../testdata/numba-0.68-llvm22-plain.o");

struct TestObject {
    id: ObjectId,
    snapshot: CodeSnapshot,
    object: LoadedObject,
    names: Vec<ReadableName>,
    padding: crate::sink::HeaderPadding,
}

impl TestObject {
    fn new() -> TestObject {
        TestObject::moved(0)
    }

    /// Returns the object moved by `pages`, which are added to the `sh_addr` of each section.
    fn moved(pages: u64) -> TestObject {
        let mut bytes = NUMBA_OBJECT.to_vec();
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
        TestObject {
            id,
            snapshot: CodeSnapshot::for_object(std::process::id(), &object),
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
            derived_rules: &[],
            debug_object: None,
            snapshot: &self.snapshot,
            finalized_at_ns: 0,
            find_next_code: &|_| None,
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

/// Directory for one test; removed with its content on drop.
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
        PerfMap::with_path(self.map(), NameStyle::Readable, SinkContext { stale_map: stale, ..SinkContext::default() })
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
    let (scratch, test_object) = (Scratch::new("line"), TestObject::new());
    let bytes = scratch.sink(None).finalized(&test_object.finalized()).unwrap();
    let text = scratch.text();
    assert_eq!((text.len() as u64, text.lines().count()), (bytes, test_object.lines()));
    for (line, function) in text.lines().zip(test_object.object.functions()) {
        let [start, size, name] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(start, format!("{:x}", function.range.start().0));
        assert_eq!(size, format!("{:x}", function.range.size()));
        assert!(name.len() >= 3, "{line}");
    }
}

#[test]
fn a_short_symbol_is_kept() {
    let printable_names = |style| ["f0", "f", "outer", "a\nb"].map(|name| printable(name, style));
    assert_eq!(printable_names(NameStyle::Linkage)[..3], ["f0", "f", "outer"]);
    assert_eq!(printable_names(NameStyle::Readable)[..3], ["f0()", "f()", "outer"]);
    assert_eq!(printable_names(NameStyle::Linkage)[3], printable_names(NameStyle::Readable)[3]);
}

#[test]
fn lines_of_another_writer_are_kept() {
    let (scratch, test_object) = (Scratch::new("shared"), TestObject::new());
    fs::write(scratch.map(), "1000 10 py::before\n").unwrap();
    let mut sink = scratch.sink(None);
    sink.finalized(&test_object.finalized()).unwrap();
    let mut other_writer = OpenOptions::new().append(true).open(scratch.map()).unwrap();
    io::Write::write_all(&mut other_writer, b"2000 10 py::after\n").unwrap();
    sink.freeing(&test_object.finalized()).unwrap();
    sink.finalized(&test_object.finalized()).unwrap();
    let text = scratch.text();
    assert!(text.starts_with("1000 10 py::before\n") && text.contains("\n2000 10 py::after\n"), "{text}");
    assert_eq!(text.lines().count(), 2 + 2 * test_object.lines());
}

#[test]
fn a_dead_line_is_replaced_by_a_new_one_at_its_address() {
    let (scratch, test_object) = (Scratch::new("reuse"), TestObject::new());
    let mut sink = scratch.sink(None);
    sink.finalized(&test_object.finalized()).unwrap();
    let first_text = scratch.text();
    sink.freeing(&test_object.finalized()).unwrap();
    assert_eq!(scratch.text(), first_text, "freed code keeps its name until its address is used again");
    sink.finalized(&test_object.finalized()).unwrap();
    let text = scratch.text();
    let (dead, alive) = text.split_at(first_text.len());
    assert_eq!(alive, first_text);
    assert!(dead.lines().all(|line| line.starts_with("0 0 freed")), "{dead}");
    assert_eq!(dead.lines().count(), test_object.lines());
}

#[test]
fn a_map_does_not_grow_forever() {
    let scratch = Scratch::new("forever");
    let permanent = TestObject::moved(1_000_000);
    let mut sink = scratch.sink(None);
    sink.finalized(&permanent.finalized()).unwrap();
    let first_text = scratch.text();
    let mut other_writer = OpenOptions::new().append(true).open(scratch.map()).unwrap();
    let foreign_line = "1000 10 py::between\n";
    io::Write::write_all(&mut other_writer, foreign_line.as_bytes()).unwrap();
    sink.space = Space::with_dead_limit(5 * first_text.len() as u64);
    for turn in 1..1000 {
        let temporary = TestObject::moved(16 * turn);
        sink.finalized(&temporary.finalized()).unwrap();
        let text = scratch.text();
        for function in temporary.object.functions() {
            let line = format!("\n{:x} {:x} ", function.range.start().0, function.range.size());
            assert!(text.contains(&line), "turn {turn} is not reported");
        }
        sink.freeing(&temporary.finalized()).unwrap();
    }
    let text = scratch.text();
    assert!(text.starts_with(&first_text) && text.contains(foreign_line), "what lives stays, and what is not ours");
    assert!(text.len() <= 10 * first_text.len(), "{} bytes, {} for one object", text.len(), first_text.len());
    assert!(text.lines().all(|line| line.splitn(3, ' ').count() == 3), "{text}");
    assert_eq!(sink.lines.len(), 7 * permanent.lines(), "nothing is remembered of what is not in the file");
}

#[test]
fn a_tombstone_has_any_length() {
    for length in [10, 11, 70_000] {
        let text = tombstone(length);
        assert!(text.starts_with("0 0 freed") && text.find('\n') == Some(length - 1), "{length}");
    }
}

/// A reader that finds two functions at one address picks an arbitrary one, so each address may have only one line.
#[test]
fn a_dead_line_in_a_hole_is_replaced() {
    let scratch = Scratch::new("hole");
    let mut sink = scratch.sink(None);
    sink.space = Space::with_dead_limit(0);
    let [first, between, second] = [16, 32, 48].map(TestObject::moved);
    for test_object in [&first, &between, &second] {
        sink.finalized(&test_object.finalized()).unwrap();
    }
    sink.freeing(&first.finalized()).unwrap();
    sink.freeing(&second.finalized()).unwrap();
    // The longer lines of the moved object fit into neither hole. The lines of `second` then go into the hole left by
    // `first`.
    sink.finalized(&TestObject::moved(1 << 36).finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    let text = scratch.text();
    for function in second.object.functions() {
        let line = format!("{:x} ", function.range.start().0);
        assert_eq!(text.lines().filter(|text_line| text_line.starts_with(&line)).count(), 1, "{text}");
    }
    assert_eq!(sink.lines.len(), 3 * second.lines(), "nothing is remembered of what is not in the file");
}

#[test]
fn new_lines_are_appended_to_a_changed_file() {
    let scratch = Scratch::new("rewritten");
    let mut sink = scratch.sink(None);
    sink.space = Space::with_dead_limit(0);
    let [first, second] = [16, 32].map(TestObject::moved);
    sink.finalized(&first.finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    sink.freeing(&first.finalized()).unwrap();
    sink.freeing(&second.finalized()).unwrap();
    // Another writer replaces a line of `first`.
    let text = fs::read_to_string(scratch.map()).unwrap();
    let line = text.lines().nth(1).unwrap();
    let foreign_line = format!("{:-<width$}", "1000 10 py::foreign", width = line.len());
    fs::write(scratch.map(), text.replacen(line, &foreign_line, 1)).unwrap();
    sink.finalized(&TestObject::moved(48).finalized()).unwrap();
    sink.finalized(&second.finalized()).unwrap();
    let text = scratch.text();
    assert!(text.starts_with(&foreign_line), "{text}");
    for function in second.object.functions() {
        let line = format!("{:x} ", function.range.start().0);
        assert_eq!(text.lines().filter(|text_line| text_line.starts_with(&line)).count(), 1, "{text}");
    }
}

#[test]
fn after_reenabling_each_function_has_one_line() {
    let (scratch, test_object) = (Scratch::new("again"), TestObject::new());
    let context = SinkContext::default();
    for _ in 0..3 {
        let mut sink = PerfMap::with_path(scratch.map(), NameStyle::Readable, context.clone());
        sink.finalized(&test_object.finalized()).unwrap();
        sink.finish().unwrap();
    }
    let text = scratch.text();
    let (dead, alive): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("0 0 freed"));
    assert_eq!((dead.len(), alive.len()), (2 * test_object.lines(), test_object.lines()), "{text}");
}

/// A new file usually gets the inode number of the removed one.
#[test]
fn a_map_removed_while_the_sink_is_disabled_is_rewritten() {
    let (scratch, test_object) = (Scratch::new("removed"), TestObject::new());
    let context = SinkContext::default();
    for _ in 0..3 {
        let mut sink = PerfMap::with_path(scratch.map(), NameStyle::Readable, context.clone());
        let bytes = sink.finalized(&test_object.finalized()).unwrap();
        sink.finish().unwrap();
        let text = scratch.text();
        assert_eq!((text.len() as u64, text.lines().count()), (bytes, test_object.lines()), "{text:?}");
        let end = fs::metadata(scratch.map()).unwrap().len();
        assert!(context.own_lines.contains(end - 1) && !context.own_lines.contains(end));
        fs::remove_file(scratch.map()).unwrap();
    }
}

#[test]
fn a_stale_map_is_truncated_unless_it_has_grown() {
    let (scratch, test_object) = (Scratch::new("stale"), TestObject::new());
    let existing = || Some(StaleMap::from_metadata(&fs::metadata(scratch.map()).unwrap()));
    fs::write(scratch.map(), "1000 10 dead\n").unwrap();
    scratch.sink(existing()).finalized(&test_object.finalized()).unwrap();
    assert!(!scratch.text().contains("dead"));
    fs::write(scratch.map(), "1000 10 dead\n").unwrap();
    let stale = existing();
    fs::write(scratch.map(), "1000 10 dead\n2000 10 py::alive\n").unwrap();
    scratch.sink(stale).finalized(&test_object.finalized()).unwrap();
    assert!(scratch.text().contains("py::alive"));
}

#[test]
fn bait_is_refused() {
    let (scratch, test_object) = (Scratch::new("bait"), TestObject::new());
    let victim = scratch.0.join("victim");
    fs::write(&victim, "precious").unwrap();
    let plants: [fn(&PathBuf, &PathBuf) -> io::Result<()>; 2] =
        [|target, link| std::os::unix::fs::symlink(target, link), |target, link| fs::hard_link(target, link)];
    for plant in plants {
        plant(&victim, &scratch.map()).unwrap();
        assert!(scratch.sink(None).finalized(&test_object.finalized()).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(scratch.map()).unwrap();
    }
    fs::create_dir(scratch.map()).unwrap();
    assert!(scratch.sink(None).finalized(&test_object.finalized()).is_err());
}

/// While the process runs, its own map is not stale, but the map of a dead process with the same PID is.
#[test]
fn a_map_older_than_the_process_is_stale() {
    let scratch = Scratch::new("older");
    fs::write(scratch.map(), "1000 10 left_by_a_dead_process\n").unwrap();
    let metadata = fs::metadata(scratch.map()).unwrap();
    let (second, written) = (std::time::Duration::from_secs(1), metadata.modified().unwrap());
    assert_eq!(StaleMap::if_older(&metadata, Some(written + second)), Some(StaleMap::from_metadata(&metadata)));
    assert_eq!(StaleMap::if_older(&metadata, Some(written - second)), None, "CPython's -X perf writes one, too");
    assert_eq!(
        StaleMap::if_older(&metadata, None),
        Some(StaleMap::from_metadata(&metadata)),
        "the program has not begun"
    );
}
