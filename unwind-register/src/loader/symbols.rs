//! The symbols one library exports, by its own hash table.
//!
//! ```text
//!   PT_DYNAMIC: { tag, value } ...   DT_SYMTAB  DT_STRTAB  DT_GNU_HASH (or DT_HASH)  DT_RELA/DT_RELACOUNT/DT_RELR
//!
//!   DT_GNU_HASH: u32 buckets | u32 first symbol | u32 bloom words | u32 shift | u64 bloom[] | u32 bucket[] | u32 chain[]
//!   DT_HASH:     u32 buckets | u32 chains | u32 bucket[] | u32 chain[]
//! ```
//! Formats: System V ABI (gABI), chapter 5, "Hash Table"; the GNU table as glibc's `elf/dl-lookup.c` reads it. Versions are not
//! looked at: the names searched here have one version per library. See them with `readelf --dyn-syms --histogram FILE`.

use std::ffi::CStr;

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELR: i64 = 36;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;

/// Addresses of the tables; 0 where there is none.
#[derive(Default)]
pub(crate) struct Exports {
    base: usize,
    symbols: usize,
    strings: usize,
    gnu_hash: usize,
    sysv_hash: usize,
    rela: usize,
    relative_relocations: usize,
    relr: usize,
}

impl Exports {
    /// Reads the dynamic section.
    ///
    /// # Safety
    ///
    /// `base` and `dynamic` describe a library that stays mapped as long as the result is used.
    pub(super) unsafe fn at(base: usize, dynamic: &libc::Elf64_Phdr) -> Option<Exports> {
        let mut exports = Exports { base, ..Exports::default() };
        let mut at = (base.wrapping_add(dynamic.p_vaddr as usize)) as *const [i64; 2];
        loop {
            // SAFETY: the dynamic section is mapped (the caller says so) and ends with DT_NULL.
            let [tag, value] = unsafe { at.read_unaligned() };
            // glibc has relocated these values in place, unless the section is read-only (the vDSO); musl has not.
            let value = value as usize;
            let address = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => exports.symbols = address,
                DT_STRTAB => exports.strings = address,
                DT_GNU_HASH => exports.gnu_hash = address,
                DT_HASH => exports.sysv_hash = address,
                DT_RELA => exports.rela = address,
                DT_RELACOUNT => exports.relative_relocations = value,
                DT_RELR => exports.relr = address,
                _ => {}
            }
            at = at.wrapping_add(1);
        }
        let hashed = exports.gnu_hash != 0 || exports.sysv_hash != 0;
        (exports.symbols != 0 && exports.strings != 0 && hashed).then_some(exports)
    }

    /// The address of a function or variable this library itself defines.
    pub(crate) fn find(&self, name: &CStr) -> Option<usize> {
        if self.gnu_hash != 0 { self.find_gnu(name) } else { self.find_sysv(name) }
    }

    fn word(&self, table: usize, index: usize) -> u32 {
        // SAFETY: the indices used below stay inside the hash table, as far as its own header says.
        unsafe { (table as *const u32).wrapping_add(index).read() }
    }

    fn find_gnu(&self, name: &CStr) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let table = self.gnu_hash;
        let [buckets, first, bloom, shift] = [0, 1, 2, 3].map(|index| self.word(table, index) as usize);
        if buckets == 0 || bloom == 0 {
            return None;
        }
        let filter = (table + 16) as *const u64;
        // SAFETY: the index is below the number of bloom words.
        let word = unsafe { filter.wrapping_add(hash as usize / 64 % bloom).read() };
        let bits = 1u64 << (hash % 64) | 1u64 << (hash.wrapping_shr(shift as u32) % 64);
        if word & bits != bits {
            return None;
        }
        let bucket = table + 16 + bloom * 8;
        let chain = bucket + buckets * 4;
        let mut index = self.word(bucket, hash as usize % buckets) as usize;
        if index < first {
            return None;
        }
        loop {
            let other = self.word(chain, index - first);
            if other | 1 == hash | 1
                && let Some(address) = self.symbol(index, name)
            {
                return Some(address);
            }
            if other & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    fn find_sysv(&self, name: &CStr) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(0u32, |hash, &byte| {
            let hash = (hash << 4).wrapping_add(byte.into());
            (hash ^ (hash >> 24 & 0xf0)) & 0x0fff_ffff
        });
        let buckets = self.word(self.sysv_hash, 0) as usize;
        let bucket = self.sysv_hash + 8;
        let mut index = self.word(bucket, hash as usize % buckets.max(1)) as usize;
        while index != 0 {
            if let Some(address) = self.symbol(index, name) {
                return Some(address);
            }
            index = self.word(bucket + buckets * 4, index) as usize;
        }
        None
    }

    /// Symbol `index`, if it is `name`, defined here, and code or data.
    fn symbol(&self, index: usize, name: &CStr) -> Option<usize> {
        // SAFETY: the index comes from the hash table, which names only symbols of the symbol table.
        let symbol = unsafe { (self.symbols as *const libc::Elf64_Sym).wrapping_add(index).read() };
        // SAFETY: `st_name` is an offset into the string table, whose strings end in NUL.
        let found = unsafe { CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _) };
        let kind = symbol.st_info & 0xf; // STT_NOTYPE, STT_OBJECT, STT_FUNC; not STT_GNU_IFUNC or STT_TLS
        let defined = symbol.st_shndx != 0 && kind <= 2;
        (found == name && defined).then(|| self.base.wrapping_add(symbol.st_value as usize))
    }

    /// Whether the library looks relocated: its code must not be called before that.
    ///
    /// glibc before 2.41 shows a new library to debuggers (`_r_debug.r_brk`) *before* relocating it. The first relative relocations
    /// are those of `.init_array`, which does not change later: the word there is the load address plus the addend, or not yet.
    pub(crate) fn relocated(&self) -> bool {
        if self.base == 0 {
            return true; // a program linked to a fixed address has nothing to relocate
        }
        if self.rela != 0 && self.relative_relocations != 0 {
            let first = |index| {
                // SAFETY: DT_RELACOUNT says that the table starts with so many relative relocations.
                let [offset, _, addend] = unsafe { (self.rela as *const [usize; 3]).wrapping_add(index).read() };
                // SAFETY: relocations name words in mapped segments of the library.
                let word = unsafe { (self.base.wrapping_add(offset) as *const usize).read_unaligned() };
                word == self.base.wrapping_add(addend)
            };
            return (0..self.relative_relocations.min(4)).any(first);
        }
        if self.relr != 0 {
            // SAFETY: the first entry of DT_RELR is the offset of a word that is to be relocated.
            let place = unsafe { (self.relr as *const usize).read() };
            // SAFETY: as above.
            return unsafe { (self.base.wrapping_add(place) as *const usize).read_unaligned() } >= self.base;
        }
        true
    }
}
