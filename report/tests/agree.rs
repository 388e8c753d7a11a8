//! Tests that compare our results with those of other readers of the same files: linux-perf-data for the recording,
//! addr2line and llvm-symbolizer for the images.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{find_program, read, skip, testdata};
use jitlisten_report::FileSymbols;
use linux_perf_data::linux_perf_event_reader::EventRecord;
use linux_perf_data::{PerfFileReader, PerfFileRecord};

#[test]
fn linux_perf_data_sees_the_same_samples() {
    let bytes = fs::read(testdata().join("perf.data")).unwrap();
    let ours = read(&bytes).unwrap();
    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(std::io::Cursor::new(&bytes)).unwrap();
    let mut theirs = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        if let EventRecord::Sample(sample) = record.parse().unwrap() {
            let chain = sample.callchain.map_or(0, |chain| {
                (0..chain.len()).filter(|index| chain.get(*index).unwrap() < u64::MAX - 4095).count()
            });
            theirs.push((
                sample.timestamp.unwrap(),
                sample.tid.unwrap() as u32,
                sample.period.unwrap(),
                sample.ip.unwrap(),
                chain,
            ));
        }
    }
    let mut samples: Vec<_> = ours
        .samples
        .iter()
        .map(|sample| {
            let stack = ours.stacks.get(sample.stack);
            let leaf = ours.locations[stack[0] as usize].address;
            (sample.time, ours.threads[sample.thread as usize].tid, sample.weight, leaf, stack.len())
        })
        .collect();
    samples.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(samples, theirs);
    assert_eq!(perf_file.hostname().unwrap(), Some(ours.facts.host.as_str()));
    assert_eq!(ours.events[0].0.name, perf_file.event_attributes()[0].name().unwrap());
}

/// Name and source position of each frame, innermost first.
type Frames = Vec<(String, String)>;

/// Symbolizes all addresses in one run of the tool.
fn symbolize(program: &Path, arguments: &[&str], addresses: &[u64]) -> Vec<String> {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn our_frames(symbols: &mut FileSymbols, address: u64) -> Frames {
    let frames = symbols.frames(address);
    let name = |name: Option<String>| name.unwrap_or_else(|| "??".to_owned());
    let line = |line: Option<u32>| line.filter(|line| *line != 0).map_or("?".to_owned(), |line| line.to_string());
    let frames: Frames = frames
        .into_iter()
        .map(|frame| {
            (
                name(frame.linkage_name),
                format!("{}:{}", frame.file.unwrap_or_else(|| "??".to_owned()), line(frame.line)),
            )
        })
        .collect();
    frames
}

/// Parses the output of both tools. With `-a`, each address is printed on a line, followed by two lines per frame.
fn parse_frames(lines: &[String]) -> Vec<Frames> {
    let mut frames_by_address: Vec<Frames> = Vec::new();
    let mut rest = lines.iter().filter(|line| !line.is_empty());
    let mut name: Option<&String> = None;
    for line in rest.by_ref() {
        if line.starts_with("0x") && line[2..].bytes().all(|byte| byte.is_ascii_hexdigit()) {
            frames_by_address.push(Vec::new());
        } else if let Some(function) = name.take() {
            let position = line.split(" (discriminator").next().unwrap();
            let (file, number) = position.rsplit_once(':').unwrap();
            // llvm-symbolizer also prints the column.
            let (file, number) =
                match file.rsplit_once(':').filter(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit())) {
                    Some((file, line)) => (file, line),
                    None => (file, number),
                };
            let number = if number == "0" { "?" } else { number };
            let file = resolve(file);
            frames_by_address.last_mut().unwrap().push((function.clone(), format!("{file}:{number}")));
        } else {
            name = Some(line);
        }
    }
    frames_by_address
}

/// Removes repeated slashes and `..` from a path, as a report does.
fn resolve(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." if !parts.is_empty() => {}
            ".." if parts.last().is_some_and(|last| !["", ".."].contains(last)) => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the fixture's images, and the test program itself, which is Rust code with tens of thousands of inlined
/// calls.
fn subjects() -> Vec<(PathBuf, Vec<u64>)> {
    let images = fs::read_dir(testdata().join("root/tmp/fixture/images")).unwrap().next().unwrap().unwrap().path();
    let mut binaries: Vec<(PathBuf, Vec<u64>)> = fs::read_dir(images)
        .unwrap()
        .map(|entry| (entry.unwrap().path(), (0x1000..0x1800).step_by(3).collect()))
        .collect();
    let executable = std::env::current_exe().unwrap();
    let start = subjects as *const () as u64;
    let mapping_start = fs::read_to_string("/proc/self/maps").unwrap();
    let mapping_start = mapping_start.lines().find(|line| line.ends_with(executable.to_str().unwrap())).unwrap();
    let mapping_start = u64::from_str_radix(mapping_start.split('-').next().unwrap(), 16).unwrap();
    let start = (start - mapping_start) & !0xf;
    binaries.push((executable, (0..8000).map(|step| start + step * 15).collect()));
    binaries
}

fn compare(
    tool: &str,
    arguments: impl Fn(&Path) -> Vec<String>,
    frames_match: impl Fn(&Frames, &Frames, &[String]) -> bool,
) {
    // Debian's LLVM packages have the version in the program name.
    let Some(program) = find_program(&format!("{tool}-14")).or_else(|| find_program(tool)) else { return skip(tool) };
    let (mut count, mut inlined, mut different) = (0, 0, Vec::new());
    for (path, addresses) in subjects() {
        let mut symbols = FileSymbols::open(&path).unwrap();
        let arguments = arguments(&path);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let theirs = parse_frames(&symbolize(&program, &arguments, &addresses));
        assert_eq!(theirs.len(), addresses.len(), "{tool} on {}", path.display());
        for (address, theirs) in addresses.iter().zip(&theirs) {
            let ours = our_frames(&mut symbols, *address);
            count += 1;
            inlined += usize::from(ours.len() > 1);
            if !frames_match(&ours, theirs, &symbols.symbols(*address)) {
                different.push(format!("{} {address:#x}:\n  ours {ours:?}\n  {tool} {theirs:?}", path.display()));
            }
        }
    }
    assert!(count >= 10_000 && inlined > 1000, "{count} addresses, {inlined} with inlined calls");
    assert!(
        different.is_empty(),
        "{} of {count} differ:\n{}",
        different.len(),
        different[..different.len().min(5)].join("\n")
    );
}

#[test]
fn addr2line_agrees_on_ten_thousand_addresses() {
    let arguments = |path: &Path| vec!["-a".into(), "-i".into(), "-f".into(), "-e".into(), path.display().to_string()];
    compare("addr2line", arguments, frames_match);
}

#[test]
fn llvm_symbolizer_agrees_on_ten_thousand_addresses() {
    let arguments = |path: &Path| {
        vec!["-a".into(), "--no-demangle".into(), "--inlines".into(), "-e".into(), path.display().to_string()]
    };
    compare("llvm-symbolizer", arguments, frames_match);
}

/// Returns true if both tools report the same calls at the same lines. Tools print unknown code differently, and choose
/// different symbols of a function. addr2line does so even for an inlined function without a linkage name.
fn frames_match(ours: &Frames, theirs: &Frames, symbols: &[String]) -> bool {
    // For code without lines, addr2line may print the compile unit.
    let is_unknown = |position: &str| position.starts_with("??") || position.ends_with(":?") && !position.contains('/');
    let known_frames =
        |frames: &Frames| frames.iter().filter(|(_, position)| !is_unknown(position)).cloned().collect::<Frames>();
    let (ours, theirs) = (known_frames(ours), known_frames(theirs));
    ours.len() == theirs.len()
        && ours
            .iter()
            .zip(&theirs)
            .all(|(ours, theirs)| ours.1 == theirs.1 && (ours.0 == theirs.0 || symbols.contains(&theirs.0)))
}
