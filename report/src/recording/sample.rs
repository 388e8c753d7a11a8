//! Parser for `PERF_RECORD_SAMPLE`, which contains the fields that the event requested.

use wire::perf_data::*;

use super::bytes::Bytes;
use super::event::Event;
use super::unwind::StackCopy;

/// Fields of a sample that the report needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSample<'a> {
    pub(super) ip: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) time: u64,
    pub(super) period: u64,
    /// Call chain as raw bytes, eight per entry.
    pub(super) chain: &'a [u8],
    /// Copy of registers and stack, from `--call-graph dwarf`.
    pub(super) stack_copy: Option<StackCopy<'a>>,
}

/// Returns the id of the event that a sample belongs to.
pub(super) fn event_id(event: &Event, body: &[u8]) -> Option<u64> {
    let mut cursor = Bytes(body);
    if event.has_field(PERF_SAMPLE_IDENTIFIER) {
        return cursor.u64();
    }
    if !event.has_field(PERF_SAMPLE_ID) {
        return None;
    }
    let preceding_fields = [PERF_SAMPLE_IP, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_SAMPLE_ADDR];
    cursor.take(preceding_fields.iter().filter(|bit| event.has_field(**bit)).count() * 8)?;
    cursor.u64()
}

pub(super) fn parse<'a>(event: &Event, body: &'a [u8]) -> Option<RawSample<'a>> {
    let mut cursor = Bytes(body);
    let mut field = |bit: u64| if event.has_field(bit) { cursor.u64().map(Some) } else { Some(None) };
    field(PERF_SAMPLE_IDENTIFIER)?;
    let ip = field(PERF_SAMPLE_IP)?;
    let thread = field(PERF_SAMPLE_TID)?;
    let time = field(PERF_SAMPLE_TIME)?;
    field(PERF_SAMPLE_ADDR)?;
    field(PERF_SAMPLE_ID)?;
    field(PERF_SAMPLE_STREAM_ID)?;
    field(PERF_SAMPLE_CPU)?;
    let period = field(PERF_SAMPLE_PERIOD)?;
    if event.has_field(PERF_SAMPLE_READ) {
        skip_counts(event, &mut cursor)?;
    }
    let mut chain: &[u8] = &[];
    if event.has_field(PERF_SAMPLE_CALLCHAIN) {
        let count = cursor.u64()?;
        chain = cursor.u64s(count)?;
    }
    let thread = thread.unwrap_or_default();
    Some(RawSample {
        ip: ip.unwrap_or_default(),
        pid: thread as u32,
        tid: (thread >> 32) as u32,
        time: time.unwrap_or_default(),
        period: period.unwrap_or_else(|| event.fixed_period()),
        chain,
        stack_copy: stack_copy(event, cursor),
    })
}

/// Parses the fields after the call chain. A sample whose fields are damaged is used without them.
fn stack_copy<'a>(event: &Event, mut cursor: Bytes<'a>) -> Option<StackCopy<'a>> {
    if !event.has_stack_copies() {
        return None;
    }
    if event.has_field(PERF_SAMPLE_RAW) {
        let size = cursor.u32()?;
        cursor.take(size as usize)?;
    }
    if event.has_field(PERF_SAMPLE_BRANCH_STACK) {
        let count = cursor.u64()?;
        if event.has_hardware_index {
            cursor.u64()?;
        }
        cursor.u64s(count.checked_mul(3)?)?;
    }
    // The value 2 is PERF_SAMPLE_REGS_ABI_64. Kernel threads have no registers.
    if cursor.u64()? != 2 {
        return None;
    }
    let registers = cursor.u64s(u64::from(event.user_registers.count_ones()))?;
    let size = usize::try_from(cursor.u64()?).ok()?;
    let stack = cursor.take(size)?;
    let used_bytes = if size == 0 { 0 } else { usize::try_from(cursor.u64()?).ok()? };
    Some(StackCopy { mask: event.user_registers, registers, stack: stack.get(..used_bytes).unwrap_or(stack) })
}

/// Skips `PERF_SAMPLE_READ`, which holds the values of the counter or of its group.
fn skip_counts(event: &Event, cursor: &mut Bytes<'_>) -> Option<()> {
    let format = event.read_format;
    let time_fields = [PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING];
    let time_fields = time_fields.iter().filter(|bit| format & **bit != 0).count() as u64;
    let fields_per_counter = 1 + u64::from(format & PERF_FORMAT_ID != 0) + u64::from(format & PERF_FORMAT_LOST != 0);
    let count = if format & PERF_FORMAT_GROUP != 0 { cursor.u64()? } else { 1 };
    cursor.u64s(time_fields.checked_add(count.checked_mul(fields_per_counter)?)?)?;
    Some(())
}
