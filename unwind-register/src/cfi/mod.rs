//! Call frame information as bytes: parser for the JIT's `.eh_frame`, encoder for our own copy.
//!
//! ```text
//!   the JIT's section (foreign memory)            our copy (never unmapped)
//!  +---------------------------------+           +------------------------------------+
//!  | CIE  zPLR, pcrel sdata4, ...    |  parse    | CIE  zPLR, absptr                  |
//!  | FDE  alpha  (pcrel)             | --------> | FDE  alpha  absolute start, length |
//!  | FDE  beta                       |  encode   | FDE  beta                          |
//!  | FDE  dead-stripped (start 0)    |           | 0 0 0 0   terminator               |
//!  +---------------------------------+           +------------------------------------+
//! ```
//!
//! Unwinders get a copy for two reasons. First, an unwinder on another thread or in a signal handler may hold a pointer
//! to an FDE at any moment, but a JIT frees its `.eh_frame` together with the code. Second, the copy has absolute
//! pointers, because it may be more than 2 GiB away from the code; the range check of an FDE then works at any address.
//!
//! Formats: Linux Standard Base Core 5.0, section 10.5 (pointer encodings) and 10.6 ("Exception Frames"); DWARF 5,
//! sections 6.4 and 7.24. Dump the entries of a file with `readelf --debug-dump=frames FILE`.

#![forbid(unsafe_code)]

mod check;
mod encode;
mod parse;
#[cfg(test)]
mod tests;

pub use check::RuleChecker;
pub(crate) use encode::{Encoded, Group, encode, entries};
pub(crate) use parse::{Fde, parse};
