//! The dynamic section of a library that is mapped, and what it leads to: the one reader of it, here and in
//! jitlisten's shim. The sampler reads the vDSO's from a copy, and says why (`vdso.rs`).
//!
//! ```text
//!   PT_DYNAMIC: { tag, value } ...   DT_SYMTAB  DT_STRTAB  DT_GNU_HASH (or DT_HASH)  DT_RELA/DT_RELACOUNT/DT_RELR
//!
//!   DT_GNU_HASH: u32 buckets | u32 first symbol | u32 bloom words | u32 shift
//!                u64 bloom[] | u32 bucket[] | u32 chain[]
//!   DT_HASH:     u32 buckets | u32 chains | u32 bucket[] | u32 chain[]
//! ```
//! Formats: System V ABI (gABI), chapter 5, "Hash Table"; the GNU table as glibc's `elf/dl-lookup.c` reads it. Versions
//! are not looked at: the names searched here have one version per library. See them with `readelf --dyn-syms
//! --histogram FILE`.

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

/// Not defined in the library that the symbol table is of.
const SHN_UNDEF: u16 = 0;

/// How many relative relocations are looked at: some may have been changed since by the program.
const RELOCATIONS_LOOKED_AT: usize = 8;

/// Addresses and sizes of the tables; 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DynamicSection {
    /// What is added to addresses in the file (`l_addr`).
    pub bias: usize,
    /// `DT_SYMTAB`, an array of `Elf64_Sym`.
    pub symtab: usize,
    /// `DT_STRTAB`
    pub strtab: usize,
    /// `DT_STRSZ`
    pub strsz: usize,
    /// `DT_RELA`, an array of three words: offset, type and symbol, addend.
    pub rela: usize,
    /// `DT_RELASZ`
    pub relasz: usize,
    /// `DT_RELACOUNT`: so many at the start of `DT_RELA` are relative.
    pub relacount: usize,
    /// `DT_JMPREL`
    pub jmprel: usize,
    /// `DT_PLTRELSZ`
    pub pltrelsz: usize,
    /// `DT_DEBUG`: the loader's record for debuggers, in the program's section only.
    pub debug: usize,
    gnu_hash: usize,
    sysv_hash: usize,
    relr: usize,
    relrsz: usize,
}

impl DynamicSection {
    /// Reads the section at `at`. What the result leads to is there as long as the library is mapped.
    ///
    /// # Safety
    ///
    /// `bias` and `at` describe a library that is mapped, and stays mapped as long as the result is used.
    pub unsafe fn read(bias: usize, at: usize) -> DynamicSection {
        let mut found = DynamicSection { bias, ..DynamicSection::default() };
        let mut at = at as *const [i64; 2];
        loop {
            // SAFETY: the section is mapped (the caller says so), and DT_NULL, its last entry, has not been met.
            let [tag, value] = unsafe { at.read_unaligned() };
            let value = value as usize;
            // glibc has added the bias in place, unless the section is read-only (the vDSO); musl has not. A vDSO may
            // be linked for an address of the kernel, 0xffffffffff700000 (gVisor's is, WSL 1's, and those of older
            // kernels).
            let is_in_file = value < bias || value > isize::MAX as usize;
            let address = if is_in_file { bias.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => return found,
                DT_SYMTAB => found.symtab = address,
                DT_STRTAB => found.strtab = address,
                DT_STRSZ => found.strsz = value,
                DT_GNU_HASH => found.gnu_hash = address,
                DT_HASH => found.sysv_hash = address,
                DT_RELA => found.rela = address,
                DT_RELASZ => found.relasz = value,
                DT_RELACOUNT => found.relacount = value,
                DT_RELR => found.relr = address,
                DT_RELRSZ => found.relrsz = value,
                DT_JMPREL => found.jmprel = address,
                DT_PLTRELSZ => found.pltrelsz = value,
                DT_DEBUG => found.debug = value,
                _ => {}
            }
            at = at.wrapping_add(1);
        }
    }

    /// Whether it leads to symbols and their names.
    pub fn has_symbols(&self) -> bool {
        self.symtab != 0 && self.strtab != 0
    }

    /// Where the first of the tables begins that the loader looks symbols up in.
    pub fn first_table(&self) -> usize {
        let tables = [self.symtab, self.strtab, self.gnu_hash, self.sysv_hash];
        tables.into_iter().filter(|table| *table != 0).min().unwrap_or_default()
    }

    /// Where the entry of the first symbol is that is called `name` and that `is_wanted`, by the library's hash table.
    pub fn find(&self, name: &[u8], is_wanted: impl Fn(&Elf64_Sym) -> bool) -> Option<usize> {
        let is_it = |index: usize| {
            let symbol = self.symbol_at(self.entry(index));
            is_wanted(&symbol) && self.name_is(&symbol, name)
        };
        let index = if self.gnu_hash != 0 { self.find_gnu(name, is_it) } else { self.find_sysv(name, is_it) };
        index.map(|index| self.entry(index))
    }

    /// The address of the entry of symbol `index`.
    pub fn entry(&self, index: usize) -> usize {
        self.symtab.wrapping_add(index.wrapping_mul(size_of::<Elf64_Sym>()))
    }

    /// The entry at `address`, which is one of this library's: from [`DynamicSection::find`] or
    /// [`DynamicSection::entry`].
    pub fn symbol_at(&self, address: usize) -> Elf64_Sym {
        // SAFETY: hash tables and relocations name only symbols of the symbol table, which is mapped.
        unsafe { (address as *const Elf64_Sym).read() }
    }

    /// The symbols that other libraries define: those in front of the first one in `DT_GNU_HASH`. `None` where that
    /// table is missing, or has no symbol and does not show how many there are.
    pub fn undefined(&self) -> Option<impl Iterator<Item = Elf64_Sym>> {
        let first = if self.gnu_hash == 0 { 0 } else { self.word(self.gnu_hash, 1) as usize };
        let symbols = (1..first).map(|index| self.symbol_at(self.entry(index)));
        (first > 1).then(|| symbols.filter(|symbol| symbol.st_shndx == SHN_UNDEF))
    }

    /// The string table.
    pub fn strings(&self) -> &[u8] {
        if self.strtab == 0 {
            return &[];
        }
        // SAFETY: DT_STRTAB and DT_STRSZ of a mapped library describe read-only mapped memory.
        unsafe { std::slice::from_raw_parts(self.strtab as *const u8, self.strsz) }
    }

    /// Whether a symbol is called `name`.
    pub fn name_is(&self, symbol: &Elf64_Sym, name: &[u8]) -> bool {
        let rest = self.strings().get(symbol.st_name as usize..).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn word(&self, table: usize, index: usize) -> u32 {
        // SAFETY: the indices used below stay inside the hash table, as far as its own header says.
        unsafe { (table as *const u32).wrapping_add(index).read() }
    }

    fn find_gnu(&self, name: &[u8], is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let table = self.gnu_hash;
        let [buckets, first, bloom, shift] = [0, 1, 2, 3].map(|index| self.word(table, index) as usize);
        if buckets == 0 || bloom == 0 {
            return None;
        }
        let filter = (table + 16) as *const u64;
        // SAFETY: the index is below the number of bloom words, which are aligned.
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
            if other | 1 == hash | 1 && is_it(index) {
                return Some(index);
            }
            if other & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    fn find_sysv(&self, name: &[u8], is_it: impl Fn(usize) -> bool) -> Option<usize> {
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
            if is_it(index) {
                return Some(index);
            }
            index = self.word(bucket + buckets * 4, index) as usize;
        }
        None
    }

    /// Whether the loader is done with the library, as far as its relative relocations show: code of it must not be
    /// called before that, nor its vtables be read.
    ///
    /// glibc before 2.41 shows a new library to debuggers (`_r_debug.r_brk`) *before* relocating it. The first relative
    /// relocations are mostly those of `.init_array`, which does not change later: the word there is the load address
    /// plus the addend, or not yet. A program at its own addresses, and a library without such relocations, has nothing
    /// to wait for.
    pub fn is_relocated(&self) -> bool {
        if self.bias == 0 {
            return true;
        }
        let mut looked_at = self.relative_relocations().take(RELOCATIONS_LOOKED_AT).map(|&[offset, _, addend]| {
            // SAFETY: relocations name words in mapped segments of the library.
            let word = unsafe { (self.bias.wrapping_add(offset as usize) as *const usize).read_unaligned() };
            word == self.bias.wrapping_add(addend as usize)
        });
        if let Some(first) = looked_at.next() {
            return first || looked_at.any(|is_done| is_done);
        }
        if self.relr != 0 {
            // SAFETY: the first entry of DT_RELR is the offset of a word that is to be relocated.
            let place = unsafe { (self.relr as *const usize).read() };
            // SAFETY: that word is in a mapped segment of the library.
            return unsafe { (self.bias.wrapping_add(place) as *const usize).read_unaligned() } >= self.bias;
        }
        true
    }

    /// `DT_RELA`.
    pub fn relocations(&self) -> &[Relocation] {
        if self.rela == 0 || !self.rela.is_multiple_of(align_of::<Relocation>()) {
            return &[];
        }
        // SAFETY: DT_RELA and DT_RELASZ of a mapped library describe a mapped table, which is aligned.
        unsafe { std::slice::from_raw_parts(self.rela as *const Relocation, self.relasz / size_of::<Relocation>()) }
    }

    /// `DT_RELR`: where the words are, in the file, to which the loader adds the bias. Before that, they hold the
    /// address in the file.
    pub fn packed_relocations(&self) -> impl Iterator<Item = usize> {
        const WORD: usize = size_of::<usize>();
        let entries: &[usize] = if self.relr == 0 || !self.relr.is_multiple_of(WORD) {
            &[]
        } else {
            // SAFETY: DT_RELR and DT_RELRSZ of a mapped library describe a mapped table, which is aligned.
            unsafe { std::slice::from_raw_parts(self.relr as *const usize, self.relrsz / WORD) }
        };
        unpacked(entries)
    }

    fn relative_relocations(&self) -> impl Iterator<Item = &Relocation> {
        self.relocations().iter().filter(|relocation| is_relative(relocation[1]))
    }
}

/// An even entry is a place; each odd one has a bit for each of the next 63 words.
fn unpacked(entries: &[usize]) -> impl Iterator<Item = usize> {
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

/// The second word of a relocation that adds the bias to its addend and does nothing else: `R_X86_64_RELATIVE`,
/// `R_AARCH64_RELATIVE`, without a symbol.
pub const RELATIVE: u64 = if cfg!(target_arch = "aarch64") { 1027 } else { 8 };

/// Whether a relocation, of which this is the second word, is such a one.
pub fn is_relative(info: u64) -> bool {
    info == RELATIVE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_elf() {
        use object::elf;
        let ours = [DT_NULL, DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRSZ, DT_DEBUG];
        let theirs = [
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
        assert_eq!(ours, theirs.map(|tag| tag.0));
        let ours = [DT_JMPREL, DT_RELRSZ, DT_RELR, DT_GNU_HASH, DT_RELACOUNT];
        let theirs = [elf::DT_JMPREL, elf::DT_RELRSZ, elf::DT_RELR, elf::DT_GNU_HASH, elf::DT_RELACOUNT];
        assert_eq!(ours, theirs.map(|tag| tag.0));
    }

    #[test]
    fn packed_relocations_are_places_and_bits_behind_them() {
        let places = |entries: &[usize]| unpacked(entries).collect::<Vec<_>>();
        assert_eq!(places(&[0x1000]), [0x1000]);
        assert_eq!(places(&[0x1000, 0b1011]), [0x1000, 0x1008, 0x1018]);
        assert_eq!(places(&[0x1000, 1 << 63 | 1, 0b11, 0x8000]), [0x1000, 0x1008 + 62 * 8, 0x1008 + 63 * 8, 0x8000]);
        assert_eq!(places(&[0b11, usize::MAX]).len(), 64);
    }

    /// A library of two symbols, as words: the section, the symbols, the hash table, the names.
    struct Image([u64; 24]);

    impl Image {
        const SYMTAB: usize = 10;
        const HASH: usize = 16;
        const STRTAB: usize = 20;

        /// Linked for `linked_at`; the addresses in its section are those in the file, as for a section that cannot be
        /// written.
        fn new(linked_at: usize) -> Image {
            let mut words = [0; 24];
            let at = |word: usize| linked_at.wrapping_add(word * 8) as u64;
            let section = [
                (DT_HASH, at(Self::HASH)),
                (DT_STRTAB, at(Self::STRTAB)),
                (DT_SYMTAB, at(Self::SYMTAB)),
                (DT_STRSZ, 16),
            ];
            for (index, (tag, value)) in section.into_iter().enumerate() {
                words[2 * index..][..2].copy_from_slice(&[tag as u64, value]);
            }
            // Symbol 1: its name at offset 1, in section 1, at the image's first byte.
            words[Self::SYMTAB + 3..][..2].copy_from_slice(&[1 | 1 << 48, linked_at as u64]);
            // One bucket, which begins with symbol 1; two chains.
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
        // As kernels link their vDSO; as gVisor, WSL 1 and older kernels do.
        for linked_at in [0, 0xffff_ffff_ff70_0000] {
            let image = Image::new(linked_at);
            let bias = image.address().wrapping_sub(linked_at);
            // SAFETY: the image is one, and lives on.
            let section = unsafe { DynamicSection::read(bias, image.address()) };
            assert_eq!(section.symtab, image.address() + Image::SYMTAB * 8, "linked at {linked_at:#x}");
            let entry = section.find(b"symbol", |symbol| symbol.st_shndx == 1).expect("it is there");
            assert_eq!(bias.wrapping_add(section.symbol_at(entry).st_value as usize), image.address());
            assert_eq!(section.find(b"another", |_| true), None);
        }
    }
}
