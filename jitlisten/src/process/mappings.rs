//! What the kernel says of the memory of this process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;

use crate::{Address, AddressRange};

/// One line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it is.
    pub range: AddressRange,
    /// Whether it may be written.
    pub writable: bool,
    /// Whether it may be executed.
    pub executable: bool,
    /// Whether others may write it, too (`MAP_SHARED`).
    pub shared: bool,
    /// Whether its pages come from a file.
    pub of_file: bool,
}

/// `struct procmap_query` of `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`, since Linux 6.11.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const PROCMAP_QUERY_VMA_WRITABLE: u64 = 2;
const PROCMAP_QUERY_VMA_EXECUTABLE: u64 = 4;
const PROCMAP_QUERY_VMA_SHARED: u64 = 8;

/// The mappings of `range`, in order, or `None` where a byte of it is not mapped.
///
/// # Errors
/// Where `/proc` is not mounted, or no file can be opened.
pub fn mappings_of(range: AddressRange) -> io::Result<Option<Vec<Mapping>>> {
    let maps = File::open("/proc/self/maps")?;
    let mut found = Vec::new();
    let mut at = range.start();
    while at < range.end() {
        let Some(mapping) = query(&maps, at).or_else(|| search(at).ok().flatten()) else { return Ok(None) };
        at = mapping.range.end();
        found.push(mapping);
    }
    Ok(Some(found))
}

/// One system call; `None` on older kernels, and where there is no mapping.
fn query(maps: &File, address: Address) -> Option<Mapping> {
    let mut query =
        ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address.0, ..ProcmapQuery::default() };
    // SAFETY: the structure says its size, and asks for no strings.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result != 0 {
        return None;
    }
    let has = |flag| query.vma_flags & flag != 0;
    Some(Mapping {
        range: AddressRange::new(Address(query.vma_start), query.vma_end.checked_sub(query.vma_start)?)?,
        writable: has(PROCMAP_QUERY_VMA_WRITABLE),
        executable: has(PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has(PROCMAP_QUERY_VMA_SHARED),
        of_file: query.inode != 0,
    })
}

fn search(address: Address) -> io::Result<Option<Mapping>> {
    for line in BufReader::with_capacity(1 << 16, File::open("/proc/self/maps")?).lines() {
        if let Some(mapping) = parse(&line?).filter(|mapping| mapping.range.contains(address)) {
            return Ok(Some(mapping));
        }
    }
    Ok(None)
}

/// `7f12a000-7f12b000 r-xp ...` of `proc_pid_maps(5)`.
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    let flags = fields.next()?;
    Some(Mapping {
        range: AddressRange::new(Address(start?), end?.checked_sub(start?)?)?,
        writable: flags.contains('w'),
        executable: flags.contains('x'),
        shared: flags.contains('s'),
        of_file: fields.nth(2)? != "0",
    })
}

/// How many mappings the process has.
pub(crate) fn count() -> io::Result<u64> {
    let mut maps = File::open("/proc/self/maps")?;
    let (mut buffer, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match maps.read(&mut buffer)? {
            0 => return Ok(lines),
            size => lines += buffer[..size].iter().filter(|&&byte| byte == b'\n').count() as u64,
        }
    }
}

/// `vm.max_map_count`.
pub(crate) fn limit() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65530)
}
