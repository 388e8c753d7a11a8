//! Memory mappings of a process. Contains the only parser of `/proc/PID/maps`, shared with the shim, the sampler and
//! the command.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;

use crate::{Address, AddressRange};

/// Line of `/proc/PID/maps`, in the format of `proc_pid_maps(5)`.
///
/// ```text
///   7f12a000-7f12b000 r-xp 00001000 08:01 1234      /usr/lib/x.so
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// Address range of the mapping.
    pub range: AddressRange,
    /// Permissions, such as `r-xp`.
    pub permissions: [u8; 4],
    /// File offset of the first byte.
    pub offset: u64,
    /// Major and minor device number.
    pub device: (u32, u32),
    /// Inode of the file; 0 if no file is mapped.
    pub inode: u64,
    /// Rest of the line, verbatim: a path, possibly with the suffix ` (deleted)`; a name such as `[heap]`; or empty.
    pub path: &'a [u8],
}

impl<'a> MapsLine<'a> {
    /// Parses all lines of `text`, skipping malformed ones.
    pub fn parse_all(text: &'a [u8]) -> impl Iterator<Item = MapsLine<'a>> {
        text.split(|&byte| byte == b'\n').filter_map(MapsLine::parse)
    }

    /// Parses one line.
    pub fn parse(line: &'a [u8]) -> Option<MapsLine<'a>> {
        // The path comes last because it may contain spaces.
        let mut columns = line.splitn(6, |&byte| byte == b' ');
        let mut field = || std::str::from_utf8(columns.next()?).ok();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let permissions = field()?.as_bytes().try_into().ok()?;
        let offset = hexadecimal(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let device = (hexadecimal(major)? as u32, hexadecimal(minor)? as u32);
        let inode = field()?.parse().ok()?;
        let path = columns.next().unwrap_or_default().trim_ascii_start();
        let range = AddressRange::new(Address(start), end.checked_sub(start)?)?;
        Some(MapsLine { range, permissions, offset, device, inode, path })
    }

    /// Returns true if the mapping is writable.
    pub fn is_writable(&self) -> bool {
        self.permissions[1] == b'w'
    }

    /// Returns true if the mapping is executable.
    pub fn is_executable(&self) -> bool {
        self.permissions[2] == b'x'
    }

    /// Returns true if the mapping is shared (`MAP_SHARED`), so that other processes may write to it.
    pub fn is_shared(&self) -> bool {
        self.permissions[3] == b's'
    }
}

/// A mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address range of the mapping.
    pub range: AddressRange,
    /// True if the mapping is writable.
    pub writable: bool,
    /// True if the mapping is executable.
    pub executable: bool,
    /// True if the mapping is shared (`MAP_SHARED`), so that other processes may write to it.
    pub shared: bool,
    /// True if the mapping's pages come from a file.
    pub is_file_backed: bool,
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

/// Returns the mappings that cover `range`, in ascending order, or `None` if a byte of it is unmapped.
///
/// # Errors
/// If `/proc/self/maps` cannot be opened.
pub fn mappings_in(range: AddressRange) -> io::Result<Option<Vec<Mapping>>> {
    let maps = File::open("/proc/self/maps")?;
    let mut mappings = Vec::new();
    let mut address = range.start();
    while address < range.end() {
        let Some(mapping) = query(&maps, address).unwrap_or_else(|_| search(address).ok().flatten()) else {
            return Ok(None);
        };
        address = mapping.range.end();
        mappings.push(mapping);
    }
    Ok(Some(mappings))
}

/// Finds the mapping that contains `address` with a single system call. Fails on older kernels.
fn query(maps: &File, address: Address) -> io::Result<Option<Mapping>> {
    let mut query =
        ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address.0, ..ProcmapQuery::default() };
    // SAFETY: `query` contains the size of the structure, and requests no strings.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let has_flag = |flag| query.vma_flags & flag != 0;
    let range = AddressRange::new(Address(query.vma_start), query.vma_end.saturating_sub(query.vma_start));
    Ok(range.map(|range| Mapping {
        range,
        writable: has_flag(PROCMAP_QUERY_VMA_WRITABLE),
        executable: has_flag(PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has_flag(PROCMAP_QUERY_VMA_SHARED),
        is_file_backed: query.inode != 0,
    }))
}

/// Finds the mapping that contains `address` by reading `/proc/self/maps`, up to the first mapping after it.
fn search(address: Address) -> io::Result<Option<Mapping>> {
    for line in BufReader::with_capacity(1 << 16, File::open("/proc/self/maps")?).split(b'\n') {
        let line = line?;
        if leading_hexadecimal(&line) > address.0 {
            break;
        }
        let end =
            line.iter().position(|&byte| byte == b'-').map_or(u64::MAX, |at| leading_hexadecimal(&line[at + 1..]));
        if end <= address.0 {
            continue;
        }
        if let Some(entry) = MapsLine::parse(&line).filter(|entry| entry.range.contains(address)) {
            return Ok(Some(Mapping {
                range: entry.range,
                writable: entry.is_writable(),
                executable: entry.is_executable(),
                shared: entry.is_shared(),
                is_file_backed: entry.inode != 0,
            }));
        }
    }
    Ok(None)
}

/// Hexadecimal number at the start of a line. Lets `search` skip most lines without parsing them.
fn leading_hexadecimal(line: &[u8]) -> u64 {
    let digits = line.iter().map_while(|&byte| char::from(byte).to_digit(16));
    digits.fold(0, |number, digit| number << 4 | u64::from(digit))
}

/// Number of mappings of this process.
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

/// Maximum number of mappings (`vm.max_map_count`).
pub(crate) fn limit() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65530)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps() {
        let line =
            MapsLine::parse(b"7f0000001000-7f0000005000 r-xs 00002000 fe:1f 1234         /usr/lib/a b.so (deleted)");
        let line = line.expect("a line");
        assert_eq!((line.range.start().0, line.range.size(), line.offset), (0x7f00_0000_1000, 0x4000, 0x2000));
        assert_eq!((line.device, line.inode, line.path), ((0xfe, 0x1f), 1234, &b"/usr/lib/a b.so (deleted)"[..]));
        assert_eq!((line.is_writable(), line.is_executable(), line.is_shared()), (false, true, true));
        assert_eq!(MapsLine::parse(b"7f00-7fff rw-p 00000000 00:00 0 ").expect("a line").path, b"");
        assert_eq!(MapsLine::parse(b"7f00-7fff rw-p 00000000 00:00 0").expect("a line").inode, 0);
        for other in [&b""[..], b"7f00-7eff r--p 0 0:0 0", b"7f00-7fff r--p", b"x-y r--p 0 0:0 0 /a"] {
            assert_eq!(MapsLine::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn both_ways_find_the_same_mapping() {
        let (code, variable) = (libc::malloc as *const () as u64, 0_u8);
        for address in [Address(code), Address(&raw const variable as u64)] {
            let mapping = search(address).expect("readable").expect("mapped");
            let maps = File::open("/proc/self/maps").expect("readable");
            assert_eq!(query(&maps, address).unwrap_or(Some(mapping)), Some(mapping));
            assert_eq!((mapping.executable, mapping.writable), (address.0 == code, address.0 != code));
        }
        assert_eq!(search(Address(8)).expect("readable"), None);
        let maps = File::open("/proc/self/maps").expect("readable");
        assert_eq!(query(&maps, Address(8)).unwrap_or(None), None);
    }
}
