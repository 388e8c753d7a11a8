//! Handwritten recordings whose numbers are all known.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod tools;

use std::io::Cursor;
use std::path::PathBuf;

use jitlisten_report::{Lookup, Options, Recording, Report, Selection};

pub const IP: u64 = 1;
pub const TID: u64 = 2;
pub const TIME: u64 = 4;
pub const CALLCHAIN: u64 = 32;
pub const ID: u64 = 64;
pub const PERIOD: u64 = 256;
pub const REGS_USER: u64 = 1 << 12;
pub const STACK_USER: u64 = 1 << 13;
/// Mask of the `PERF_REG_X86_*` registers AX to IP and R8 to R15.
pub const REGISTERS: u64 = 0xff_01ff;
pub const USER: u64 = -512_i64 as u64;

pub fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/sides")
}

/// Returns options that find the fixture's images and source.
pub fn fixture_options() -> Options {
    Options { lookup: Lookup { roots: vec![testdata().join("root")], ..Lookup::default() }, ..Options::default() }
}

/// Builder of recordings. Samples have IP, TID, TIME, PERIOD and CALLCHAIN, and an ID if there are events. Other
/// records end with the time.
#[derive(Clone, Default)]
pub struct Writer {
    pub records: Vec<u8>,
    /// Type, config and id of each event. If empty, the recording has one cpu-clock event without an id.
    pub events: Vec<(u32, u64, u64)>,
    pub architecture: Option<&'static str>,
    pub host: Option<String>,
    /// Adds copies of the stack and of all x86-64 registers except segment registers to samples.
    pub copies: bool,
    /// Omits the period of samples.
    pub without_period: bool,
}

impl Writer {
    fn sample_type(&self) -> u64 {
        let id = if self.events.is_empty() { 0 } else { ID };
        let period = if self.without_period { 0 } else { PERIOD };
        IP | TID | TIME | CALLCHAIN | period | id | if self.copies { REGS_USER | STACK_USER } else { 0 }
    }

    pub fn record(&mut self, kind: u32, misc: u16, body: &[u8]) -> &mut Writer {
        let size = u16::try_from(body.len() + 8).expect("a short record");
        self.records.extend(kind.to_le_bytes());
        self.records.extend(misc.to_le_bytes());
        self.records.extend(size.to_le_bytes());
        self.records.extend(body);
        self
    }

    /// Returns the fields that `sample_id_all` appends to a record.
    fn trailer(&self, pid: u32, tid: u32, time: u64) -> Vec<u8> {
        let mut bytes = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        bytes.extend(time.to_le_bytes());
        if !self.events.is_empty() {
            bytes.extend(self.events[0].2.to_le_bytes());
        }
        bytes
    }

    pub fn mmap(&mut self, pid: u32, range: (u64, u64), offset: u64, path: &str, time: u64) -> &mut Writer {
        let mut body = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
        for number in [range.0, range.1 - range.0, offset, 0, 0, 0] {
            body.extend(number.to_le_bytes());
        }
        body.extend(5_u32.to_le_bytes());
        body.extend(2_u32.to_le_bytes());
        body.extend(path.as_bytes());
        body.resize(body.len().next_multiple_of(8) + 8, 0);
        body.extend(self.trailer(pid, pid, time));
        self.record(10, 2, &body)
    }

    pub fn comm(&mut self, pid: u32, tid: u32, name: &str, exec: bool, time: u64) -> &mut Writer {
        let mut body = [pid.to_le_bytes(), tid.to_le_bytes()].concat();
        body.extend(name.as_bytes());
        body.resize(body.len().next_multiple_of(8) + 8, 0);
        body.extend(self.trailer(pid, tid, time));
        self.record(3, if exec { 1 << 13 } else { 0 }, &body)
    }

    pub fn fork(&mut self, pid: u32, parent: u32, time: u64) -> &mut Writer {
        let mut body: Vec<u8> = [pid, parent, pid, parent].iter().flat_map(|number| number.to_le_bytes()).collect();
        body.extend(time.to_le_bytes());
        body.extend(self.trailer(pid, pid, time));
        self.record(7, 0, &body)
    }

    pub fn lost(&mut self, count: u64) -> &mut Writer {
        let mut body = [0_u64.to_le_bytes(), count.to_le_bytes()].concat();
        body.extend(self.trailer(1, 1, 1));
        self.record(2, 0, &body)
    }

    /// Adds a sample. `chain` is the leaf address, followed by return addresses.
    pub fn sample(&mut self, tid: (u32, u32), time: u64, period: u64, chain: &[u64]) -> &mut Writer {
        self.sample_of(self.events.first().map_or(0, |event| event.2), tid, time, period, chain)
    }

    pub fn sample_of(&mut self, id: u64, tid: (u32, u32), time: u64, period: u64, chain: &[u64]) -> &mut Writer {
        let mut body = chain[0].to_le_bytes().to_vec();
        body.extend([tid.0.to_le_bytes(), tid.1.to_le_bytes()].concat());
        body.extend(time.to_le_bytes());
        if !self.events.is_empty() {
            body.extend(id.to_le_bytes());
        }
        if !self.without_period {
            body.extend(period.to_le_bytes());
        }
        body.extend((chain.len() as u64 + 1).to_le_bytes());
        body.extend(USER.to_le_bytes());
        body.extend(chain.iter().flat_map(|number| number.to_le_bytes()));
        self.record(9, 2, &body)
    }

    /// Adds a sample with a stack copy. `registers` are in the kernel's order, and the copy starts at address
    /// `registers[7]`.
    pub fn copy(&mut self, tid: (u32, u32), time: u64, registers: &[u64; 17], stack: &[u8]) -> &mut Writer {
        let mut body = registers[8].to_le_bytes().to_vec();
        body.extend([tid.0.to_le_bytes(), tid.1.to_le_bytes()].concat());
        // Fields: time, period, an empty chain, PERF_SAMPLE_REGS_ABI_64.
        body.extend([time, 1, 0, 2].iter().flat_map(|number: &u64| number.to_le_bytes()));
        body.extend(registers.iter().flat_map(|number| number.to_le_bytes()));
        body.extend((stack.len() as u64).to_le_bytes());
        body.extend(stack);
        body.extend((stack.len() as u64).to_le_bytes());
        self.record(9, 2, &body)
    }

    fn attr(&self, kind: u32, config: u64) -> Vec<u8> {
        let mut attr = vec![0; 128];
        attr[0..4].copy_from_slice(&kind.to_le_bytes());
        attr[4..8].copy_from_slice(&128_u32.to_le_bytes());
        attr[8..16].copy_from_slice(&config.to_le_bytes());
        attr[16..24].copy_from_slice(&199_u64.to_le_bytes());
        attr[24..32].copy_from_slice(&self.sample_type().to_le_bytes());
        attr[40..48].copy_from_slice(&((1_u64 << 10) | (1 << 18)).to_le_bytes());
        attr[80..88].copy_from_slice(&REGISTERS.to_le_bytes());
        attr
    }

    fn attrs(&self) -> Vec<(Vec<u8>, Option<u64>)> {
        match self.events.as_slice() {
            [] => vec![(self.attr(1, 0), None)],
            events => events.iter().map(|(kind, config, id)| (self.attr(*kind, *config), Some(*id))).collect(),
        }
    }

    /// Returns the recording in the file format.
    pub fn file(&self) -> Vec<u8> {
        let attrs = self.attrs();
        let ids = 104 + attrs.len() * 144;
        let data = ids + attrs.len() * 8;
        let mut file = b"PERFILE2".to_vec();
        // Features HEADER_HOSTNAME and HEADER_ARCH, in the order of their bits.
        let texts = [(3, self.host.as_deref()), (6, self.architecture)];
        let texts: Vec<(u32, &str)> = texts.into_iter().filter_map(|(bit, text)| Some((bit, text?))).collect();
        let features = texts.iter().fold(0_u64, |bits, (bit, _)| bits | 1 << bit);
        let numbers =
            [104, 144, 104, attrs.len() as u64 * 144, data as u64, self.records.len() as u64, 0, 0, features, 0, 0, 0];
        file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        for (index, (attr, id)) in attrs.iter().enumerate() {
            file.extend(attr);
            file.extend(((ids + index * 8) as u64).to_le_bytes());
            file.extend(if id.is_some() { 8_u64 } else { 0 }.to_le_bytes());
        }
        for (_, id) in &attrs {
            file.extend(id.unwrap_or_default().to_le_bytes());
        }
        file.extend(&self.records);
        let mut offset = file.len() as u64 + 16 * texts.len() as u64;
        for (_, text) in &texts {
            let size = 4 + text.len() as u64;
            file.extend([offset, size].iter().flat_map(|number| number.to_le_bytes()));
            offset += size;
        }
        for (_, text) in &texts {
            file.extend((text.len() as u32).to_le_bytes());
            file.extend(text.as_bytes());
        }
        file
    }

    /// Returns the recording in the pipe format.
    pub fn pipe(&self) -> Vec<u8> {
        let mut stream = Writer::default();
        for (mut attr, id) in self.attrs() {
            attr.extend(id.iter().flat_map(|id| id.to_le_bytes()));
            stream.record(64, 0, &attr);
        }
        let mut file = b"PERFILE2".to_vec();
        file.extend(16_u64.to_le_bytes());
        file.extend(stream.records);
        file.extend(&self.records);
        file
    }
}

pub fn read(bytes: &[u8]) -> Result<Recording, jitlisten_report::Error> {
    Recording::read(&mut Cursor::new(bytes), &Selection::default())
}

pub fn report(bytes: &[u8]) -> Report {
    let options = Options { by_thread: true, ..fixture_options() };
    Report::new(read(bytes).expect("a recording"), None, &options)
}

/// Asserts that every sample is self time of exactly one line or function, so that all tables have the same sum.
pub fn assert_sums(report: &Report) {
    let profile = &report.profile;
    let line_samples: u64 =
        profile.files.iter().flat_map(|file| file.lines.values()).map(|line| line.shares.self_count.samples).sum();
    assert_eq!(
        line_samples + profile.without_line.samples,
        profile.compiled.samples,
        "lines and what has none are the compiled code"
    );
    assert_eq!(
        profile.compiled.samples + profile.outside_all().samples,
        profile.all.samples,
        "compiled and outside are all"
    );
    assert_eq!(
        profile.summary.rows().map(|(_, count)| count.samples).iter().sum::<u64>(),
        profile.all.samples,
        "the summary is all"
    );
    assert_eq!(profile.all.samples, report.recording.samples.len() as u64);
    let function_samples: u64 = profile.functions.iter().map(|row| row.shares.self_count.samples).sum();
    assert_eq!(function_samples, profile.all.samples, "selfs of functions are all");
    let thread_samples: u64 = profile.threads.iter().map(|row| row.all.samples).sum();
    assert_eq!(thread_samples, profile.all.samples, "threads are all");
    let lines = profile.files.iter().flat_map(|file| file.lines.values()).map(|line| (&line.shares, &line.by_thread));
    let functions = profile.functions.iter().map(|row| (&row.shares, &row.by_thread));
    for (shares, by_thread) in lines.chain(functions) {
        assert!(shares.self_count <= shares.total && shares.total.samples <= profile.all.samples);
        if !by_thread.is_empty() {
            let self_count: u64 = by_thread.values().map(|shares| shares.self_count.samples).sum();
            let total: u64 = by_thread.values().map(|shares| shares.total.samples).sum();
            assert_eq!(
                (self_count, total),
                (shares.self_count.samples, shares.total.samples),
                "threads are a line or function"
            );
        }
    }
}

/// Prints that a test is skipped. In CI, all tools must be available.
pub fn skip(what: &str) {
    use std::io::Write as _;
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "cannot run: {what} (CI must have everything `ci/setup.sh` installs)"
    );
    let line = format!("SKIPPED {}: {what}\n", std::thread::current().name().unwrap_or("?"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("JITLISTEN_SKIPS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Returns the absolute path of a program in `PATH`.
pub fn find_program(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Creates an empty directory for a test.
pub fn scratch_directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory for the test");
    path
}
