//! Decodes line tables of code objects: `co_lnotab` (3.8, 3.9), `co_linetable` of PEP 626 (3.10) and of PEP 657 (since
//! 3.11).
//!
//! Formats: <https://github.com/python/cpython/blob/main/InternalDocs/code_objects.md>, `Objects/lnotab_notes.txt`.

#![forbid(unsafe_code)]

/// Pairs of first instruction, in units of two bytes, and line; sorted. An instruction without a line belongs to the
/// preceding line.
pub(super) type Runs = Vec<(u64, u32)>;

/// Decodes the line table of a code object of CPython 3.`minor`, up to the first malformed byte.
pub(super) fn runs(minor: u8, first_line: u32, table: &[u8]) -> Runs {
    let mut runs = Decoder { runs: vec![(0, first_line)], line: i64::from(first_line) };
    match minor {
        ..=9 => runs.decode_lnotab(table),
        10 => runs.decode_pep626(table),
        _ => drop(runs.decode_pep657(table)),
    };
    runs.runs
}

/// State of decoding a line table.
struct Decoder {
    runs: Runs,
    line: i64,
}

impl Decoder {
    /// Adds a run of instructions that starts at `unit`, with the current line.
    fn add_run(&mut self, unit: u64) {
        let Ok(line) = u32::try_from(self.line) else { return };
        match self.runs.last_mut() {
            Some((start, last)) if *start == unit => *last = line,
            Some((_, last)) if *last == line => {}
            _ => self.runs.push((unit, line)),
        }
    }

    fn decode_lnotab(&mut self, table: &[u8]) {
        let mut offset = 0;
        for pair in table.chunks_exact(2) {
            offset += u64::from(pair[0]);
            self.line += i64::from(pair[1] as i8);
            self.add_run(offset / 2);
        }
    }

    fn decode_pep626(&mut self, table: &[u8]) {
        let mut offset = 0;
        for pair in table.chunks_exact(2) {
            // A delta of -128 means no line.
            if pair[1] != 0x80 {
                self.line += i64::from(pair[1] as i8);
                if pair[0] != 0 {
                    self.add_run(offset / 2);
                }
            }
            offset += u64::from(pair[0]);
        }
    }

    fn decode_pep657(&mut self, table: &[u8]) -> Option<()> {
        let (mut position, mut unit) = (0, 0);
        while let Some(&head) = table.get(position) {
            position += 1;
            let kind = head >> 3 & 15;
            let delta = match kind {
                0..=9 => 0,
                10..=12 => i64::from(kind) - 10,
                13 | 14 => {
                    let number = read_varint(table, &mut position)?;
                    let size = (number >> 1) as i64;
                    if number & 1 != 0 { -size } else { size }
                }
                _ => 0,
            };
            match kind {
                0..=9 => position += 1,
                10..=12 => position += 2,
                14 => (0..3).try_for_each(|_| read_varint(table, &mut position).map(drop))?,
                _ => {}
            }
            if kind != 15 {
                self.line += delta;
                self.add_run(unit);
            }
            unit += u64::from(head & 7) + 1;
        }
        Some(())
    }
}

/// Reads a number stored in groups of six bits, lowest group first. Bit 6 is set in all groups but the last.
fn read_varint(table: &[u8], position: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..60).step_by(6) {
        let byte = *table.get(*position)?;
        *position += 1;
        number |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line tables in the three formats for `def f(a):` on line 3, `b = a + 1` on 4, `return b` on 5.
    #[test]
    fn one_function_in_three_formats() {
        let expected = vec![(0, 4), (4, 5)];
        assert_eq!(runs(8, 3, &[0, 1, 8, 1]), expected);
        assert_eq!(runs(10, 3, &[8, 1, 4, 1]), expected);
        // RESUME is on line 3.
        assert_eq!(runs(11, 3, &[0x80, 0, 0xd8, 8, 9, 0x88, 2, 0x80, 0, 0xd8, 1, 2]), [(0, 3), (1, 4), (4, 5)]);
    }

    #[test]
    fn instructions_without_a_line_have_the_preceding_line() {
        assert_eq!(runs(10, 7, &[2, 1, 4, 0x80, 2, 3]), [(0, 8), (3, 11)]);
        assert_eq!(runs(12, 7, &[0xf0, 1 << 1, 0, 0, 0, 0xf8, 0xe8, 3]), [(0, 8), (2, 7)]);
    }

    #[test]
    fn truncated_and_malformed_tables_end() {
        for minor in [8, 10, 11] {
            for seed in 0..2000_u64 {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let bytes: Vec<u8> = (0..seed % 40)
                    .map(|_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state as u8
                    })
                    .collect();
                let runs = runs(minor, 1, &bytes);
                assert!(runs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1));
            }
        }
    }
}
