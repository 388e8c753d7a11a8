//! The memory mappings of a process: the one parser of `/proc/PID/maps`, also for the shim, the sampler and the
//! command.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;

use crate::{Address, AddressRange};

/// One line of `/proc/PID/maps`, as `proc_pid_maps(5)` has it.
///
/// ```text
///   7f12a000-7f12b000 r-xp 00001000 08:01 1234      /usr/lib/x.so
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// Where it is.
    pub range: AddressRange,
    /// `rwxp`
    pub permissions: [u8; 4],
    /// Of its first byte in the file.
    pub offset: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    /// 0: of no file.
    pub inode: u64,
    /// The rest of the line, as it stands there: a path, which may end in ` (deleted)`, `[heap]`, or nothing.
    pub path: &'a [u8],
}

impl<'a> MapsLine<'a> {
    /// Every line of the text that can be read.
    pub fn all(text: &'a [u8]) -> impl Iterator<Item = MapsLine<'a>> {
        text.split(|&byte| byte == b'\n').filter_map(MapsLine::parse)
    }

    /// Reads a line.
    pub fn parse(line: &'a [u8]) -> Option<MapsLine<'a>> {
        // The path comes last and may have spaces in it.
        let mut parts = line.splitn(6, |&byte| byte == b' ');
        let mut field = || std::str::from_utf8(parts.next()?).ok();
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let permissions = field()?.as_bytes().try_into().ok()?;
        let offset = hexadecimal(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let device = (hexadecimal(major)? as u32, hexadecimal(minor)? as u32);
        let inode = field()?.parse().ok()?;
        let path = parts.next().unwrap_or_default().trim_ascii_start();
        let range = AddressRange::new(Address(start), end.checked_sub(start)?)?;
        Some(MapsLine { range, permissions, offset, device, inode, path })
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.permissions[1] == b'w'
    }

    /// Whether it may be executed.
    pub fn is_executable(&self) -> bool {
        self.permissions[2] == b'x'
    }

    /// Whether others may write it, too (`MAP_SHARED`).
    pub fn is_shared(&self) -> bool {
        self.permissions[3] == b's'
    }
}

/// A mapping of this process.
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
        let Some(mapping) = query(&maps, at).unwrap_or_else(|_| search(at).ok().flatten()) else { return Ok(None) };
        at = mapping.range.end();
        found.push(mapping);
    }
    Ok(Some(found))
}

/// One system call; an error on older kernels.
fn query(maps: &File, address: Address) -> io::Result<Option<Mapping>> {
    let mut query =
        ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address.0, ..ProcmapQuery::default() };
    // SAFETY: the structure says its size, and asks for no strings.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let has = |flag| query.vma_flags & flag != 0;
    let range = AddressRange::new(Address(query.vma_start), query.vma_end.saturating_sub(query.vma_start));
    Ok(range.map(|range| Mapping {
        range,
        writable: has(PROCMAP_QUERY_VMA_WRITABLE),
        executable: has(PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has(PROCMAP_QUERY_VMA_SHARED),
        of_file: query.inode != 0,
    }))
}

/// Reads the text, which is in the order of addresses, as far as it may say something of `address`.
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
        if let Some(found) = MapsLine::parse(&line).filter(|line| line.range.contains(address)) {
            return Ok(Some(Mapping {
                range: found.range,
                writable: found.is_writable(),
                executable: found.is_executable(),
                shared: found.is_shared(),
                of_file: found.inode != 0,
            }));
        }
    }
    Ok(None)
}

/// The number that the line begins with; most lines are passed over by theirs.
fn leading_hexadecimal(line: &[u8]) -> u64 {
    let digits = line.iter().map_while(|&byte| char::from(byte).to_digit(16));
    digits.fold(0, |number, digit| number << 4 | u64::from(digit))
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
            let found = search(address).expect("readable").expect("mapped");
            let maps = File::open("/proc/self/maps").expect("readable");
            assert_eq!(query(&maps, address).unwrap_or(Some(found)), Some(found));
            assert_eq!((found.executable, found.writable), (address.0 == code, address.0 != code));
        }
        assert_eq!(search(Address(8)).expect("readable"), None);
        let maps = File::open("/proc/self/maps").expect("readable");
        assert_eq!(query(&maps, Address(8)).unwrap_or(None), None);
    }
}
