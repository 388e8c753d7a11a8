//! The dynamic section of a mapped library, and the tables it points to. jitlisten's shim uses this reader, too. The
//! sampler reads the vDSO from a copy instead; `vdso.rs` explains why.
//!
//! ```text
//!   PT_DYNAMIC: { tag, value } ...   DT_SYMTAB  DT_STRTAB  DT_GNU_HASH (or DT_HASH)  DT_RELA/DT_RELACOUNT/DT_RELR
//!
//!   DT_GNU_HASH: u32 buckets | u32 first symbol | u32 bloom words | u32 shift
//!                u64 bloom[] | u32 bucket[] | u32 chain[]
//!   DT_HASH:     u32 buckets | u32 chains | u32 bucket[] | u32 chain[]
//! ```
//! Formats: System V ABI (gABI), chapter 5, "Hash Table"; the GNU hash table as read by glibc's `elf/dl-lookup.c`.
//! Symbol versions are ignored: the names we search for have one version per library. Dump the tables with `readelf
//! --dyn-syms --histogram FILE`.

use std::ops::Range;

use libc::Elf64_Sym;

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_STRSZ: i64 = 10;
const DT_DEBUG: i64 = 21;
const DT_JMPREL: i64 = 23;
const DT_RELRSZ: i64 = 35;
const DT_RELR: i64 = 36;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;

/// Section index of undefined symbols.
const SHN_UNDEF: u16 = 0;

/// Number of relative relocations to inspect. The program may have changed some of the relocated words since.
const MAX_INSPECTED_RELOCATIONS: usize = 8;

/// Addresses and sizes of the tables; 0 if a table is missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct DynamicSection {
    /// Load bias (`l_addr`), added to addresses in the file.
    pub bias: usize,
    /// `DT_DEBUG`, the loader's record for debuggers; only present in the section of the main program.
    pub debug: usize,
    symtab: usize,
    strtab: usize,
    strsz: usize,
    gnu_hash: usize,
    sysv_hash: usize,
    rela: usize,
    relasz: usize,
    /// Number of relative relocations at the start of `DT_RELA`.
    relacount: usize,
    jmprel: usize,
    pltrelsz: usize,
    relr: usize,
    relrsz: usize,
}

impl DynamicSection {
    /// Reads the section at `section_address`. The tables it points to stay valid while the library is mapped.
    ///
    /// # Safety
    ///
    /// `bias` and `section_address` describe a mapped library, which stays mapped while the result is used.
    pub unsafe fn read(bias: usize, section_address: usize) -> DynamicSection {
        let mut section = DynamicSection { bias, ..DynamicSection::default() };
        let mut entry = section_address as *const [i64; 2];
        loop {
            // SAFETY: the caller guarantees that the section is mapped, and its last entry, DT_NULL, has not been
            // reached.
            let [tag, value] = unsafe { entry.read_unaligned() };
            let value = value as usize;
            // glibc has added the bias in place, except in a read-only section (the vDSO); musl has not. A vDSO may be
            // linked at a kernel address, 0xffffffffff700000 (gVisor, WSL 1, older kernels).
            let is_in_file = value < bias || value > isize::MAX as usize;
            let address = if is_in_file { bias.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => return section,
                DT_SYMTAB => section.symtab = address,
                DT_STRTAB => section.strtab = address,
                DT_STRSZ => section.strsz = value,
                DT_GNU_HASH => section.gnu_hash = address,
                DT_HASH => section.sysv_hash = address,
                DT_RELA => section.rela = address,
                DT_RELASZ => section.relasz = value,
                DT_RELACOUNT => section.relacount = value,
                DT_RELR => section.relr = address,
                DT_RELRSZ => section.relrsz = value,
                DT_JMPREL => section.jmprel = address,
                DT_PLTRELSZ => section.pltrelsz = value,
                DT_DEBUG => section.debug = value,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
    }

    /// Returns true if the section has a symbol table and a string table.
    pub fn has_symbols(&self) -> bool {
        self.symtab != 0 && self.strtab != 0
    }

    /// Returns the address of the first table that the loader uses for symbol lookups.
    pub fn first_table(&self) -> usize {
        let tables = [self.symtab, self.strtab, self.gnu_hash, self.sysv_hash];
        tables.into_iter().filter(|table| *table != 0).min().unwrap_or_default()
    }

    /// Finds a symbol called `name` that also satisfies `is_wanted` in the library's hash table; returns its entry's
    /// address.
    pub fn find(&self, name: &[u8], is_wanted: impl Fn(&Elf64_Sym) -> bool) -> Option<usize> {
        let is_match = |index: usize| {
            let symbol = self.symbol_at(self.entry(index));
            is_wanted(&symbol) && self.name_is(&symbol, name)
        };
        let index = if self.gnu_hash != 0 { self.find_gnu(name, is_match) } else { self.find_sysv(name, is_match) };
        index.map(|index| self.entry(index))
    }

    /// Returns the address of the entry of symbol `index`.
    pub fn entry(&self, index: usize) -> usize {
        self.symtab.wrapping_add(index.wrapping_mul(size_of::<Elf64_Sym>()))
    }

    /// Reads the entry at `address`, which must come from [`DynamicSection::find`] or [`DynamicSection::entry`] of this
    /// library.
    pub fn symbol_at(&self, address: usize) -> Elf64_Sym {
        // SAFETY: hash tables and relocations refer only to symbols in the symbol table, which is mapped.
        unsafe { (address as *const Elf64_Sym).read() }
    }

    /// Iterates over the undefined symbols, which precede the first symbol of `DT_GNU_HASH`. `None` if that table is
    /// missing or empty, because their number is then unknown.
    pub fn undefined(&self) -> Option<impl Iterator<Item = Elf64_Sym>> {
        let first = if self.gnu_hash == 0 { 0 } else { self.word(self.gnu_hash, 1) as usize };
        let symbols = (1..first).map(|index| self.symbol_at(self.entry(index)));
        (first > 1).then(|| symbols.filter(|symbol| symbol.st_shndx == SHN_UNDEF))
    }

    /// Returns the string table.
    pub fn strings(&self) -> &[u8] {
        if self.strtab == 0 {
            return &[];
        }
        // SAFETY: DT_STRTAB and DT_STRSZ of a mapped library describe mapped, read-only memory.
        unsafe { std::slice::from_raw_parts(self.strtab as *const u8, self.strsz) }
    }

    /// Returns true if the symbol is called `name`.
    pub fn name_is(&self, symbol: &Elf64_Sym, name: &[u8]) -> bool {
        let rest = self.strings().get(symbol.st_name as usize..).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn word(&self, table: usize, index: usize) -> u32 {
        // SAFETY: the callers' indices stay inside the hash table, according to its own header.
        unsafe { (table as *const u32).wrapping_add(index).read() }
    }

    fn find_gnu(&self, name: &[u8], is_match: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let table = self.gnu_hash;
        let [buckets, first, bloom, shift] = [0, 1, 2, 3].map(|index| self.word(table, index) as usize);
        if buckets == 0 || bloom == 0 {
            return None;
        }
        let bloom_words = (table + 16) as *const u64;
        // SAFETY: the index is below the number of bloom words, which are aligned.
        let word = unsafe { bloom_words.wrapping_add(hash as usize / 64 % bloom).read() };
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
            let chain_hash = self.word(chain, index - first);
            if chain_hash | 1 == hash | 1 && is_match(index) {
                return Some(index);
            }
            if chain_hash & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    fn find_sysv(&self, name: &[u8], is_match: impl Fn(usize) -> bool) -> Option<usize> {
        if self.sysv_hash == 0 {
            return None;
        }
        let hash = name.iter().fold(0u32, |hash, &byte| {
            let hash = (hash << 4).wrapping_add(byte.into());
            (hash ^ (hash >> 24 & 0xf0)) & 0x0fff_ffff
        });
        let buckets = self.word(self.sysv_hash, 0) as usize;
        let bucket = self.sysv_hash + 8;
        let mut index = self.word(bucket, (hash as usize).checked_rem(buckets)?) as usize;
        while index != 0 {
            if is_match(index) {
                return Some(index);
            }
            index = self.word(bucket + buckets * 4, index) as usize;
        }
        None
    }

    /// Returns true if the loader has relocated the library, judging by its relative relocations. Before that, its code
    /// must not be called and its vtables must not be read.
    ///
    /// glibc before 2.41 announces a new library to debuggers (`_r_debug.r_brk`) *before* relocating it. The first
    /// relative relocations are usually those of `.init_array`, which does not change later. A relocated word there
    /// equals the load bias plus the addend. A program at a fixed address and a library without such relocations count
    /// as relocated.
    pub fn is_relocated(&self) -> bool {
        if self.bias == 0 {
            return true;
        }
        let mut relocated = self.relative_relocations().take(MAX_INSPECTED_RELOCATIONS).map(|&[offset, _, addend]| {
            // SAFETY: relocations refer to words in mapped segments of the library.
            let word = unsafe { (self.bias.wrapping_add(offset as usize) as *const usize).read_unaligned() };
            word == self.bias.wrapping_add(addend as usize)
        });
        if let Some(first) = relocated.next() {
            return first || relocated.any(|is_relocated| is_relocated);
        }
        if self.relr != 0 {
            // SAFETY: the first entry of DT_RELR is the offset of a word to be relocated.
            let offset = unsafe { (self.relr as *const usize).read() };
            // SAFETY: that word is in a mapped segment of the library.
            return unsafe { (self.bias.wrapping_add(offset) as *const usize).read_unaligned() } >= self.bias;
        }
        true
    }

    /// Returns the relocations of `DT_RELA`.
    pub fn relocations(&self) -> &[Relocation] {
        self.table(self.rela, self.relasz)
    }

    /// Iterates over the relocations that may refer to a symbol: those of `DT_JMPREL`, then those that follow the
    /// relative ones in `DT_RELA`.
    pub fn symbolic_relocations(&self) -> impl Iterator<Item = &Relocation> {
        let after_relative = self.relocations().get(self.relacount..).unwrap_or_default();
        self.table(self.jmprel, self.pltrelsz).iter().chain(after_relative)
    }

    /// Iterates over `DT_RELR`, yielding the file addresses of the words that the loader adds the bias to. Before
    /// relocation, such a word contains the file address of its target.
    pub fn packed_relocations(&self) -> impl Iterator<Item = usize> {
        decode_packed_relocations(self.table(self.relr, self.relrsz))
    }

    /// Returns the address range from the symbol table to the string table. Other tables may follow the symbols there,
    /// because the number of symbols is recorded nowhere.
    pub fn symbol_table(&self) -> Range<usize> {
        self.symtab..self.strtab
    }

    /// Returns the address ranges of the symbol names and of the relocations.
    pub fn tables(&self) -> impl Iterator<Item = Range<usize>> {
        let tables = [(self.strtab, self.strsz), (self.rela, self.relasz), (self.jmprel, self.pltrelsz)];
        let present = tables.into_iter().filter(|(start, _)| *start != 0);
        present.map(|(start, size)| start..start.saturating_add(size))
    }

    /// Returns a table of relocations as a slice; an empty one if it is missing or misaligned.
    fn table<T>(&self, start: usize, size: usize) -> &[T] {
        if start == 0 || !start.is_multiple_of(align_of::<T>()) {
            return &[];
        }
        // SAFETY: the dynamic section of a mapped library describes mapped tables, of integers; the alignment is
        // checked above.
        unsafe { std::slice::from_raw_parts(start as *const T, size / size_of::<T>()) }
    }

    fn relative_relocations(&self) -> impl Iterator<Item = &Relocation> {
        self.relocations().iter().filter(|relocation| is_relative(relocation[1]))
    }
}

/// Decodes `DT_RELR`: an even entry is an address; an odd entry is a bit mask of the next 63 words.
fn decode_packed_relocations(entries: &[usize]) -> impl Iterator<Item = usize> {
    const WORD: usize = size_of::<usize>();
    const BITS: usize = usize::BITS as usize - 1;
    let mut next = 0_usize;
    entries.iter().flat_map(move |&entry| {
        let (first, bits, step) = if entry & 1 == 0 { (entry, 1, 1) } else { (next, entry >> 1, BITS) };
        next = first.wrapping_add(step * WORD);
        (0..BITS).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| first.wrapping_add(bit * WORD))
    })
}

/// An entry of `DT_RELA`: offset, type and symbol, addend.
pub type Relocation = [u64; 3];

/// Second word of a relocation that only adds the bias to its addend: `R_X86_64_RELATIVE` or `R_AARCH64_RELATIVE`,
/// without a symbol.
pub const RELATIVE: u64 = if cfg!(target_arch = "aarch64") { 1027 } else { 8 };

/// Returns true if `info`, the second word of a relocation, marks a relative relocation.
pub fn is_relative(info: u64) -> bool {
    info == RELATIVE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_elf() {
        use object::elf;
        let our_tags = [DT_NULL, DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRSZ, DT_DEBUG];
        let elf_tags = [
            elf::DT_NULL,
            elf::DT_PLTRELSZ,
            elf::DT_HASH,
            elf::DT_STRTAB,
            elf::DT_SYMTAB,
            elf::DT_RELA,
            elf::DT_RELASZ,
            elf::DT_STRSZ,
            elf::DT_DEBUG,
        ];
        assert_eq!(our_tags, elf_tags.map(|tag| tag.0));
        let our_tags = [DT_JMPREL, DT_RELRSZ, DT_RELR, DT_GNU_HASH, DT_RELACOUNT];
        let elf_tags = [elf::DT_JMPREL, elf::DT_RELRSZ, elf::DT_RELR, elf::DT_GNU_HASH, elf::DT_RELACOUNT];
        assert_eq!(our_tags, elf_tags.map(|tag| tag.0));
    }

    #[test]
    fn packed_relocations_are_places_and_bits_behind_them() {
        let addresses = |entries: &[usize]| decode_packed_relocations(entries).collect::<Vec<_>>();
        assert_eq!(addresses(&[0x1000]), [0x1000]);
        assert_eq!(addresses(&[0x1000, 0b1011]), [0x1000, 0x1008, 0x1018]);
        assert_eq!(addresses(&[0x1000, 1 << 63 | 1, 0b11, 0x8000]), [0x1000, 0x1008 + 62 * 8, 0x1008 + 63 * 8, 0x8000]);
        assert_eq!(addresses(&[0b11, usize::MAX]).len(), 64);
    }

    /// A library with two symbols, as words: the dynamic section, symbols, hash table and names.
    struct Image([u64; 24]);

    impl Image {
        const SYMTAB: usize = 10;
        const HASH: usize = 16;
        const STRTAB: usize = 20;

        /// Builds a library linked at `linked_at`. Its section contains file addresses, like a section that is mapped
        /// read-only.
        fn new(linked_at: usize) -> Image {
            let mut words = [0; 24];
            let address_of = |word: usize| linked_at.wrapping_add(word * 8) as u64;
            let section = [
                (DT_HASH, address_of(Self::HASH)),
                (DT_STRTAB, address_of(Self::STRTAB)),
                (DT_SYMTAB, address_of(Self::SYMTAB)),
                (DT_STRSZ, 16),
            ];
            for (index, (tag, value)) in section.into_iter().enumerate() {
                words[2 * index..][..2].copy_from_slice(&[tag as u64, value]);
            }
            // Symbol 1 has its name at offset 1 of the string table, is in section 1, and points to the first byte of
            // the image.
            words[Self::SYMTAB + 3..][..2].copy_from_slice(&[1 | 1 << 48, linked_at as u64]);
            // Hash table with one bucket, which starts with symbol 1, and two chain entries.
            words[Self::HASH..][..2].copy_from_slice(&[1 | 2 << 32, 1]);
            words[Self::STRTAB] = u64::from_le_bytes(*b"\0symbol\0");
            Image(words)
        }

        fn address(&self) -> usize {
            self.0.as_ptr() as usize
        }
    }

    #[test]
    fn addresses_in_a_section_that_is_not_relocated() {
        // A current kernel links its vDSO at 0; gVisor, WSL 1 and older kernels use a kernel address.
        for linked_at in [0, 0xffff_ffff_ff70_0000] {
            let image = Image::new(linked_at);
            let bias = image.address().wrapping_sub(linked_at);
            // SAFETY: the image is a valid library and outlives the section.
            let section = unsafe { DynamicSection::read(bias, image.address()) };
            assert_eq!(section.symtab, image.address() + Image::SYMTAB * 8, "linked at {linked_at:#x}");
            let entry = section.find(b"symbol", |symbol| symbol.st_shndx == 1).expect("it is there");
            assert_eq!(bias.wrapping_add(section.symbol_at(entry).st_value as usize), image.address());
            assert_eq!(section.find(b"another", |_| true), None);
        }
    }
}
