//! Facts about a loop's instructions that decide its speed.

use std::collections::BTreeMap;

/// Facts of the machine code of a loop, without the loops inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Instructions.
    pub instructions: u32,
    /// Of these, those that the decoder does not know, such as those of SVE.
    pub unknown: u32,
    /// Operations on several values at a time.
    pub packed: u32,
    /// Floating-point operations on one value.
    pub scalar: u32,
    /// Bits of the widest packed operation; 0 without one.
    pub width: u32,
    /// Bits of the values in most of the packed operations; 0 where the instructions do not say.
    pub element: u32,
    /// Loads of values that are not next to each other.
    pub gathers: u32,
    /// Stores of them.
    pub scatters: u32,
    /// Floating-point divisions.
    pub divisions: u32,
    /// Floating-point divisions whose divisor is compared first, in a loop that can be left early.
    pub checked_divisions: u32,
    /// Floating-point divisions by a value that the loop does not change.
    pub invariant_divisions: u32,
    /// Square roots.
    pub square_roots: u32,
    /// Integer divisions.
    pub integer_divisions: u32,
    /// Integer divisions by a value that the loop does not change.
    pub invariant_integer_divisions: u32,
    /// Conversions between float32 and float64.
    pub conversions: u32,
    /// Of these, to float32.
    pub narrowings: u32,
    /// Calls.
    pub calls: u32,
    /// Atomic operations, as reference counting has them.
    pub atomics: u32,
    /// Loads and stores of the stack.
    pub spills: u32,
    /// Loads and stores elsewhere.
    pub memory: u32,
    /// Of these, at an address that was loaded in the loop: an index from an array.
    pub indirect: u32,
    /// Loads and stores of floating-point values at an address that moves by a distance known only when the loop runs.
    pub strided: u32,
    /// Sums and products that are carried from one round to the next, and used for nothing else.
    pub accumulators: u32,
    /// Sums that only some rounds add to.
    pub conditional_sums: u32,
    /// Values of which each round keeps the larger or smaller, or another choice.
    pub choices: u32,
    /// Other floating-point values that are carried from one round to the next.
    pub recurrences: u32,
    /// Choices of integers, such as a position.
    pub integer_choices: u32,
    /// Branches that leave the loop.
    pub exits: u32,
    /// Of these, those that compare counters only: no value from memory.
    pub counted_exits: u32,
    /// Of these, those that are seen to raise an exception.
    pub exceptions: u32,
}

impl Facts {
    /// Whether most operations are on several values at a time.
    pub fn is_vectorised(&self) -> bool {
        self.unknown == 0 && self.width != 0 && self.packed >= self.scalar
    }

    /// How many values an operation has; 0 where that is not known.
    pub fn lanes(&self) -> u32 {
        self.width.checked_div(self.element).unwrap_or(0)
    }

    /// `8 values at a time (512 bits)`, if it is so.
    pub fn vector(&self) -> Option<String> {
        let (lanes, bits) = (self.lanes(), self.width);
        self.is_vectorised().then(|| match lanes {
            0 | 1 => format!("several values at a time ({bits} bits)"),
            lanes => format!("{lanes} values at a time ({bits} bits)"),
        })
    }

    /// The same, or `one value at a time`.
    pub(super) fn runs(&self) -> String {
        let other = if self.unknown == 0 { "one value at a time" } else { "not known (SVE or other new instructions)" };
        self.vector().unwrap_or_else(|| other.to_owned())
    }

    /// `2 besides its end: 1 exception, 1 other`, where there is more than the end.
    pub fn ways_out(&self) -> Option<String> {
        let early = self.exits.checked_sub(1).filter(|early| *early != 0)?;
        let exceptions = self.exceptions.min(early);
        let counted = |count: u32, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let parts =
            [counted(exceptions, "exception"), (early != exceptions).then(|| format!("{} other", early - exceptions))];
        Some(format!("{early} besides its end: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
    }

    /// `8 scalar operations, 4 divisions, 2 calls, 31 instructions`: what is worth a word.
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
        let words = counted.iter().filter(|(count, _)| *count != 0).map(|(count, what)| match (count, *what) {
            (1, what) => format!("1 {what}"),
            (count, "memory access") => format!("{count} memory accesses"),
            (count, "stack access") => format!("{count} stack accesses"),
            (count, what) => format!("{count} {what}s"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Counts the sizes of elements, and knows the commonest.
#[derive(Default)]
pub(super) struct Elements(BTreeMap<u32, u32>);

impl Elements {
    pub(super) fn add(&mut self, bits: u32) {
        *self.0.entry(bits).or_default() += 1;
    }

    pub(super) fn commonest(&self) -> u32 {
        self.0.iter().max_by_key(|(bits, count)| (**count, **bits)).map_or(0, |(bits, _)| *bits)
    }
}
