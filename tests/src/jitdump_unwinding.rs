//! Parser of `JIT_CODE_UNWINDING_INFO`. It looks tables up as perf's unwinder does: at the addresses that perf assigns,
//! where the tables directly follow the code.

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindContext, UnwindSection};

/// Unwind tables of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// End of the mapping that perf creates for the function.
    pub mapped_end: u64,
    /// Contents of `.eh_frame`, which the second reader compares.
    pub eh_frame: Vec<u8>,
}

/// Parses the unwind record of a function with `size` bytes at `address`, and looks up the unwind rule of every byte.
/// In large functions, only some 16,000 addresses are checked.
pub(crate) fn parse(body: &[u8], address: u64, size: u64) -> Result<Tables, String> {
    let word = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
    let sizes = [word(0), word(8), word(16)];
    let [Some(unwinding_size), Some(header_size), Some(mapped_size)] = sizes else {
        return Err("unwinding information without sizes".to_owned());
    };
    let data = &body[24..];
    if data.len() as u64 != unwinding_size || header_size >= unwinding_size {
        return Err(format!("{} bytes, unwinding_size {unwinding_size}, header {header_size}", data.len()));
    }
    if mapped_size < unwinding_size || mapped_size % 16 != 0 {
        return Err(format!("mapped_size {mapped_size} for {unwinding_size} bytes"));
    }
    let start = address + size.next_multiple_of(8);
    let (eh_frame, header) = data.split_at((unwinding_size - header_size) as usize);
    look_up(eh_frame, header, start, address, size).map_err(|error| format!("unwind tables: {error}"))?;
    Ok(Tables { mapped_end: start + mapped_size, eh_frame: eh_frame.to_vec() })
}

fn look_up(eh_frame: &[u8], header: &[u8], start: u64, address: u64, size: u64) -> Result<(), String> {
    let text = |error: gimli::Error| error.to_string();
    let header_start = start + eh_frame.len() as u64;
    // The writer cannot choose where a function starts, so the alignment is relative to the function's start.
    if header.get(..4) != Some(&[1, 0x1b, 0x03, 0x3b]) || !(header_start - address).is_multiple_of(4) {
        return Err(format!("header {:x?} at {header_start:#x}", header.get(..4)));
    }
    let bases = BaseAddresses::default().set_eh_frame(start).set_eh_frame_hdr(header_start);
    let header = EhFrameHdr::new(header, LittleEndian);
    let parsed = header.parse(&bases, 8).map_err(text)?;
    if parsed.eh_frame_ptr() != gimli::Pointer::Direct(start) {
        return Err(format!("eh_frame_ptr {:x?}, not {start:#x}", parsed.eh_frame_ptr()));
    }
    let table = parsed.table().ok_or("no search table: perf finds nothing")?;
    let section = EhFrame::new(eh_frame, LittleEndian);
    let fde = table.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).map_err(text)?;
    if fde.initial_address() != address || fde.len() < size {
        return Err(format!("an FDE for {:#x}, {} bytes", fde.initial_address(), fde.len()));
    }
    let mut context = UnwindContext::new();
    for byte in (address..address + size).step_by(size.div_ceil(1 << 14).max(1) as usize) {
        fde.unwind_info_for_address(&section, &bases, &mut context, byte).map_err(text)?;
    }
    Ok(())
}
