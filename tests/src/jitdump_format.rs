//! A strict jitdump reader. It interprets records as perf does (`tools/perf/util/jitdump.c`) and tolerates no error.
//!
//! ```text
//! header | DEBUG_INFO  UNWINDING_INFO  CODE_LOAD | ... | CODE_CLOSE
//!          \_ pending until the next CODE_LOAD, regardless of the addresses in them
//! ```
//!
//! perf accepts much of what this reader rejects, and then shows wrong lines, truncated stacks, or only part of the
//! file.

use std::collections::HashSet;
use std::fmt;
use std::str;

use crate::jitdump_unwinding::{self, Tables};

const HEADER_BYTES: usize = 40;
const RECORD_PREFIX_BYTES: usize = 16;
const CODE_LOAD: u32 = 0;
const CODE_DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
const CODE_UNWINDING_INFO: u32 = 4;

/// One row of a line table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Address of the first instruction of this row.
    pub address: u64,
    /// Line number; line 0 marks code that the compiler assigned no line.
    pub line: u32,
    /// Full path of the source file.
    pub file: String,
}

/// A `JIT_CODE_LOAD` with the debug and unwind records that precede it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Time of the record, `CLOCK_MONOTONIC` in nanoseconds.
    pub timestamp: u64,
    /// Thread that wrote the record.
    pub tid: u32,
    /// Start address of the code.
    pub address: u64,
    /// Machine code.
    pub code: Vec<u8>,
    /// Code index, unique in the file.
    pub index: u64,
    /// Symbol name.
    pub name: String,
    /// Line table, in ascending order of address.
    pub lines: Vec<Line>,
    /// Unwind tables, if the function has any.
    pub unwinding: Option<Tables>,
}

impl Function {
    /// End address, exclusive.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address + self.code.len() as u64
    }

    /// Distinct line numbers of the code, without line 0.
    #[must_use]
    pub fn line_numbers(&self) -> HashSet<u32> {
        self.lines.iter().map(|line| line.line).filter(|&line| line != 0).collect()
    }
}

/// Contents of a jitdump file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jitdump {
    /// Process that wrote the file.
    pub pid: u32,
    /// ELF `e_machine`.
    pub machine: u32,
    /// Creation time of the file.
    pub timestamp: u64,
    /// Functions in file order.
    pub functions: Vec<Function>,
    /// True if the file ends with `JIT_CODE_CLOSE`.
    pub is_closed: bool,
}

/// A violated rule of the format and its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// File offset of the record.
    pub offset: usize,
    /// Description of the violation.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.message)
    }
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// Consumes a record from its start; an error describes the malformed field.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (field, rest) = self.0.split_at_checked(count).ok_or("ends too early")?;
        self.0 = rest;
        Ok(field)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn name(&mut self) -> Result<String, String> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or("a name without end")?;
        let text = str::from_utf8(self.take(end)?).map_err(|_| "a name that is not UTF-8")?;
        self.take(1)?;
        require(!text.is_empty(), || "an empty name".to_owned())?;
        require(!text.chars().any(char::is_control), || format!("a name with control characters: {text:?}"))?;
        Ok(text.to_owned())
    }
}

/// Pending `JIT_CODE_DEBUG_INFO` and `JIT_CODE_UNWINDING_INFO` of the next function.
#[derive(Default)]
struct PendingRecords {
    lines: Option<(u64, Vec<Line>)>,
    unwinding: Option<Vec<u8>>,
    timestamp: Option<u64>,
}

impl Jitdump {
    /// Parses a file and checks every rule.
    ///
    /// # Errors
    /// The first violated rule. A truncated record at the end of the file is an error, too.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let mut dump = parse_header(bytes).map_err(|message| Fault { offset: 0, message })?;
        let mut pending = PendingRecords::default();
        let mut offset = HEADER_BYTES;
        while offset < bytes.len() {
            let size =
                dump.parse_record(&bytes[offset..], &mut pending).map_err(|message| Fault { offset, message })?;
            offset += size;
        }
        let fault = |message: &str| Fault { offset, message: message.to_owned() };
        if pending.timestamp.is_some() {
            return Err(fault("the last group has no CODE_LOAD"));
        }
        dump.check_neighbours().map_err(|message| Fault { offset, message })?;
        Ok(dump)
    }

    /// Functions with this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Function> {
        self.functions.iter().filter(move |function| crate::scenario::names_function(&function.name, name))
    }

    fn parse_record(&mut self, bytes: &[u8], pending: &mut PendingRecords) -> Result<usize, String> {
        require(!self.is_closed, || "a record behind CODE_CLOSE".to_owned())?;
        let mut prefix = Cursor(bytes);
        let (id, size, timestamp) = (prefix.u32()?, prefix.u32()? as usize, prefix.u64()?);
        let body = bytes.get(RECORD_PREFIX_BYTES..size).ok_or("a torn record")?;
        require(pending.timestamp.is_none_or(|first| first == timestamp), || "a group of two times".to_owned())?;
        pending.timestamp = Some(timestamp);
        match id {
            CODE_LOAD => {
                let function = self.parse_code_load(Cursor(body), timestamp, std::mem::take(pending))?;
                self.functions.push(function);
            }
            CODE_DEBUG_INFO => {
                require(pending.lines.is_none(), || "two DEBUG_INFO for one function".to_owned())?;
                require(pending.unwinding.is_none(), || "DEBUG_INFO behind UNWINDING_INFO".to_owned())?;
                pending.lines = Some(parse_lines(Cursor(body))?);
            }
            CODE_UNWINDING_INFO => {
                require(pending.unwinding.is_none(), || "two UNWINDING_INFO for one function".to_owned())?;
                pending.unwinding = Some(body.to_vec());
            }
            CODE_CLOSE => {
                require(body.is_empty(), || "CODE_CLOSE with a body".to_owned())?;
                require(pending.lines.is_none() && pending.unwinding.is_none(), || "CODE_CLOSE in a group".to_owned())?;
                (*pending, self.is_closed) = (PendingRecords::default(), true);
            }
            other => return Err(format!("a record of unknown kind {other}")),
        }
        Ok(size)
    }

    fn parse_code_load(
        &self,
        mut body: Cursor<'_>,
        timestamp: u64,
        pending: PendingRecords,
    ) -> Result<Function, String> {
        let (pid, tid, vma, address) = (body.u32()?, body.u32()?, body.u64()?, body.u64()?);
        let (size, index, name) = (body.u64()?, body.u64()?, body.name()?);
        require(pid == self.pid, || format!("{name}: process {pid} in the file of {}", self.pid))?;
        require(tid != 0 && timestamp != 0, || format!("{name}: thread {tid}, time {timestamp}"))?;
        require(vma == address && address != 0, || format!("{name}: vma {vma:#x}, code_addr {address:#x}"))?;
        require(size != 0 && body.0.len() as u64 == size, || {
            format!("{name}: code_size {size} and {} bytes of code", body.0.len())
        })?;
        require(self.functions.iter().all(|other| other.index != index), || format!("{name}: index {index} again"))?;
        let mut function = Function {
            timestamp,
            tid,
            address,
            code: body.0.to_vec(),
            index,
            name,
            lines: Vec::new(),
            unwinding: None,
        };
        if let Some((reported_address, lines)) = pending.lines {
            let name = &function.name;
            require(reported_address == address, || {
                format!("{name} at {address:#x} gets lines of {reported_address:#x}")
            })?;
            function.lines = lines;
            check_lines(&function)?;
        }
        if let Some(unwinding) = pending.unwinding {
            let tables = jitdump_unwinding::parse(&unwinding, address, size);
            function.unwinding = Some(tables.map_err(|message| format!("{}: {message}", function.name))?);
        }
        Ok(function)
    }

    /// Checks that functions at the same address follow each other in time, and that no unwind tables, which perf maps
    /// behind their function, overlap another function.
    fn check_neighbours(&self) -> Result<(), String> {
        for (index, function) in self.functions.iter().enumerate() {
            let tail_end = function.unwinding.as_ref().map_or(function.end(), |tables| tables.mapped_end);
            for (other_index, other) in self.functions.iter().enumerate().filter(|(other, _)| *other != index) {
                let shares_code = function.address < other.end() && other.address < function.end();
                let shares_tail = function.end() < other.end() && other.address < tail_end;
                require(shares_code || !shares_tail, || format!("{}: tables over {}", function.name, other.name))?;
                let is_in_order = (index < other_index) == (function.timestamp < other.timestamp);
                require(!shares_code || is_in_order, || format!("{} and {} at once", function.name, other.name))?;
            }
        }
        Ok(())
    }
}

fn parse_header(bytes: &[u8]) -> Result<Jitdump, String> {
    let mut cursor = Cursor(bytes);
    let [magic, version, size] = [cursor.u32()?, cursor.u32()?, cursor.u32()?];
    let [machine, pad, pid] = [cursor.u32()?, cursor.u32()?, cursor.u32()?];
    let (timestamp, flags) = (cursor.u64()?, cursor.u64()?);
    require(magic == 0x4a69_5444, || format!("magic {magic:#x}"))?;
    require((version, size as usize, pad) == (1, HEADER_BYTES, 0), || {
        format!("version {version}, size {size}, pad {pad}")
    })?;
    require(flags == 0, || format!("flags {flags:#x}: perf refuses the file or wants another clock"))?;
    require(matches!(machine, 62 | 183), || format!("e_machine {machine}"))?;
    require(pid != 0 && timestamp != 0, || format!("process {pid}, time {timestamp}"))?;
    Ok(Jitdump { pid, machine, timestamp, functions: Vec::new(), is_closed: false })
}

fn parse_lines(mut body: Cursor<'_>) -> Result<(u64, Vec<Line>), String> {
    let (address, count) = (body.u64()?, body.u64()?);
    require(count != 0, || "DEBUG_INFO without rows".to_owned())?;
    let mut lines = Vec::new();
    for _ in 0..count {
        let (address, line, discriminator) = (body.u64()?, body.u32()?, body.u32()?);
        require(discriminator == 0, || format!("discriminator {discriminator}"))?;
        require(body.0.first() != Some(&0xff), || "a mark for \"as before\", which perf learnt in 6.4".to_owned())?;
        lines.push(Line { address, line, file: body.name()? });
    }
    require(body.0.is_empty(), || format!("{} bytes behind the rows", body.0.len()))?;
    Ok((address, lines))
}

/// Checks the rows against perf's limits: address differences are unsigned, and the last row ends the table.
fn check_lines(function: &Function) -> Result<(), String> {
    let name = &function.name;
    for row in &function.lines {
        let is_inside_function = function.address <= row.address && row.address < function.end();
        require(is_inside_function, || format!("{name}: a row at {:#x} outside of the function", row.address))?;
        require(row.line < 1 << 24, || format!("{name}: line {}", row.line))?;
    }
    require(function.lines.is_sorted_by_key(|line| line.address), || format!("{name}: rows are not ascending"))?;
    let last = function.lines.last().map(|line| line.address);
    require(last == Some(function.end() - 1), || format!("{name}: the table ends before the function does"))
}
