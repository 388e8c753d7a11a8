//! Facts about a loop's instructions that determine its speed.

use std::collections::BTreeMap;

/// Facts from the machine code of a loop, excluding the loops nested in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Number of instructions.
    pub instructions: u32,
    /// Instructions that the decoder does not know, such as those of SVE.
    pub unknown: u32,
    /// Operations on several values at a time.
    pub packed: u32,
    /// Floating-point operations on one value.
    pub scalar: u32,
    /// Width of the widest packed operation in bits; 0 if none.
    pub width: u32,
    /// Most common element size of packed operations in bits; 0 if the instructions do not specify one.
    pub element: u32,
    /// Loads of values that are not adjacent in memory.
    pub gathers: u32,
    /// Those of them whose addresses the loop does not change.
    pub fixed_gathers: u32,
    /// Stores of values that are not adjacent in memory.
    pub scatters: u32,
    /// Floating-point divisions.
    pub divisions: u32,
    /// Floating-point divisions whose divisor is compared first, in a loop with several exits.
    pub checked_divisions: u32,
    /// Cycles that integers need from one iteration to the next, in a loop with a single path.
    pub integer_latency: u32,
    /// Floating-point divisions by a loop-invariant value.
    pub invariant_divisions: u32,
    /// Floating-point divisions by a value that the same iteration has divided by before.
    pub shared_divisions: u32,
    /// Number of square roots.
    pub square_roots: u32,
    /// Number of integer divisions.
    pub integer_divisions: u32,
    /// Integer divisions by a loop-invariant value.
    pub invariant_integer_divisions: u32,
    /// Floating-point selections, such as the larger of two values.
    pub selections: u32,
    /// Accesses of vector registers that are narrower than the widest packed operation, as of bytes that become integers
    /// of 64 bits.
    pub narrow: u32,
    /// True if all accesses to floating-point arrays are of single values of float32.
    pub is_single: bool,
    /// Conversions between float32 and float64.
    pub conversions: u32,
    /// Conversions from float64 to float32.
    pub narrowings: u32,
    /// Number of calls.
    pub calls: u32,
    /// Calls whose second floating-point argument is a constant, such as `pow` with a constant exponent.
    pub constant_arguments: u32,
    /// Atomic operations, such as those of reference counting.
    pub atomics: u32,
    /// Loads and stores on the stack.
    pub spills: u32,
    /// Loads and stores outside of the stack.
    pub memory: u32,
    /// Memory accesses whose address was loaded in the loop, for example through an index array.
    pub indirect: u32,
    /// Memory accesses whose address is itself in memory, as of the arrays in a list.
    pub pointers: u32,
    /// Memory accesses whose address each iteration loads from the same place, as of an array that is an attribute.
    pub reloads: u32,
    /// Loads of values that stay the same, in each iteration from an address that stays the same, because a store may
    /// change them.
    pub repeated_loads: u32,
    /// Memory accesses whose address each iteration computes again from such values alone, with a product, as of the
    /// same row of a matrix.
    pub repeated_rows: u32,
    /// Other memory accesses whose address depends on such values, as in `a[i - lag[0]]`.
    pub repeated_offsets: u32,
    /// Stores by a mask, as of AVX2.
    pub masked_stores: u32,
    /// Loads and stores of floating-point values whose address advances by a stride unknown at compile time.
    pub strided: u32,
    /// The same of integers.
    pub strided_integers: u32,
    /// Stores among both.
    pub strided_stores: u32,
    /// Distance between the values of a floating-point array in consecutive source iterations, in multiples of their
    /// size, where instructions tell it; the largest of all arrays.
    pub spread: u32,
    /// Number of source iterations per iteration of the machine code, where instructions tell it.
    pub unrolled: u32,
    /// Indices that count from the end if they are negative. Divisions of integers by a constant count, too.
    pub wraparounds: u32,
    /// True if an index decreases from one iteration to the next.
    pub descends: bool,
    /// Products with twice as many bits as their factors, as in a division by a constant.
    pub wide_products: u32,
    /// Products of several integers at a time, as of an index and the length of a row.
    pub packed_products: u32,
    /// Jumps through a table, as of an index into a tuple.
    pub table_jumps: u32,
    /// True if the loop has instructions of AVX or later, which can add conditionally and gather.
    pub has_avx: bool,
    /// Sums and products that are carried between iterations and used for nothing else in the loop.
    pub accumulators: u32,
    /// Accumulators that are products.
    pub products: u32,
    /// Accumulators that each iteration also stores, always at the same address.
    pub stored_sums: u32,
    /// Additions to an accumulator per iteration; the largest number of all accumulators.
    pub(super) additions: u32,
    /// Floating-point values that are carried between iterations; `None` unless each iteration takes the same path.
    pub(super) carried: Option<Carried>,
    /// Sums that each iteration loads from the same address and stores there again.
    pub sums_in_memory: u32,
    /// Additions to an integer that stays in memory, at the same address in each iteration.
    pub counts_in_memory: u32,
    /// Sums that only some iterations add to.
    pub conditional_sums: u32,
    /// Integers in a loop with several paths that only grow by one, and are used for nothing else; 0 if the loop
    /// carries floating-point values.
    pub branched_counts: u32,
    /// Floating-point sums in a loop with several paths, not all of which add to them; 0 if the loop carries others.
    pub branched_sums: u32,
    /// True if iterations of a loop with several paths share floating-point values.
    pub carries_floats: bool,
    /// True if the loop only reads memory, and the loaded values decide neither addresses nor later iterations.
    pub only_reads_in_order: bool,
    /// Stores outside of the stack.
    pub stores: u32,
    /// Running maxima and minima, and other values that each iteration selects.
    pub choices: u32,
    /// Other floating-point values that are carried between iterations.
    pub recurrences: u32,
    /// Integer selects (conditional moves), for example those that track the index of a maximum.
    pub integer_choices: u32,
    /// Number of branches that leave the loop.
    pub exits: u32,
    /// Exits that compare only counters, not values from memory.
    pub counted_exits: u32,
    /// Exits known to raise an exception.
    pub exceptions: u32,
}

/// Floating-point values that a loop carries between iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Nothing,
    /// Only sums and products that the loop uses for nothing else.
    Accumulators,
    /// Also values whose order is needed, such as recurrences, maxima and conditional sums.
    Others,
}

impl Facts {
    /// Returns the kind of values that the loop carries, from their numbers.
    pub(super) fn classify_carried(&self) -> Carried {
        match (self.accumulators, self.recurrences + self.choices + self.conditional_sums) {
            (0, 0) => Carried::Nothing,
            (_, 0) => Carried::Accumulators,
            _ => Carried::Others,
        }
    }

    /// Returns true if most operations work on several values at a time.
    pub fn is_vectorised(&self) -> bool {
        self.unknown == 0 && self.width != 0 && self.packed >= self.scalar
    }

    /// Returns the number of values per operation; 0 if unknown.
    pub fn lanes(&self) -> u32 {
        self.width.checked_div(self.element).unwrap_or(0)
    }

    /// Describes the vector width of a vectorised loop: `8 values at a time (512 bits)`.
    pub fn describe_vector(&self) -> Option<String> {
        let (lanes, bits) = (self.lanes(), self.width);
        self.is_vectorised().then(|| match lanes {
            0 | 1 => format!("several values at a time ({bits} bits)"),
            lanes => format!("{lanes} values at a time ({bits} bits)"),
        })
    }

    /// Describes the vector width; `one value at a time` if the loop is not vectorised.
    pub(super) fn describe_lanes(&self) -> String {
        let fallback =
            if self.unknown == 0 { "one value at a time" } else { "not known (SVE or other new instructions)" };
        self.describe_vector().unwrap_or_else(|| fallback.to_owned())
    }

    /// Describes the exits other than the loop's normal end: `2 besides its end: 1 exception, 1 other`.
    pub fn describe_early_exits(&self) -> Option<String> {
        let early = self.exits.checked_sub(1).filter(|early| *early != 0)?;
        let exceptions = self.exceptions.min(early);
        let plural = |count: u32, noun: &str| match count {
            0 => None,
            1 => Some(format!("1 {noun}")),
            _ => Some(format!("{count} {noun}s")),
        };
        let parts =
            [plural(exceptions, "exception"), (early != exceptions).then(|| format!("{} other", early - exceptions))];
        Some(format!("{early} besides its end: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
    }

    /// Lists all counts other than zero: `8 scalar operations, 4 divisions, 2 calls, 31 instructions`.
    pub fn summary(&self) -> String {
        let counted = [
            (self.packed, "packed operation"),
            (self.scalar, "scalar operation"),
            (self.gathers, "gather"),
            (self.scatters, "scatter"),
            (self.divisions, "division"),
            (self.square_roots, "square root"),
            (self.integer_divisions, "integer division"),
            (self.conversions, "float32/float64 conversion"),
            (self.calls, "call"),
            (self.atomics, "atomic operation"),
            (self.spills, "stack access"),
            (self.memory, "memory access"),
            (self.instructions, "instruction"),
            (self.unknown, "unknown instruction"),
        ];
        let words = counted.iter().filter(|(count, _)| *count != 0).map(|(count, noun)| match (count, *noun) {
            (1, noun) => format!("1 {noun}"),
            (count, "memory access") => format!("{count} memory accesses"),
            (count, "stack access") => format!("{count} stack accesses"),
            (count, noun) => format!("{count} {noun}s"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Histogram of element sizes.
#[derive(Default)]
pub(super) struct Elements(BTreeMap<u32, u32>);

impl Elements {
    pub(super) fn add(&mut self, bits: u32) {
        *self.0.entry(bits).or_default() += 1;
    }

    pub(super) fn most_common(&self) -> u32 {
        self.0.iter().max_by_key(|(bits, count)| (**count, **bits)).map_or(0, |(bits, _)| *bits)
    }
}
