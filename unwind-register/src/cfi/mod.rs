//! Call frame information on bytes: parse the JIT's `.eh_frame`, write our own copy of it.
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
//! Why a copy: an unwinder on another thread, or in a signal handler, may hold a pointer to an FDE at any moment, and a
//! JIT frees its `.eh_frame` when it frees the code. And why absolute pointers: the copy may be further than 2 GiB from
//! the code, and the search for "does this FDE cover the address?" is then right wherever the FDE lies.
//!
//! Formats: Linux Standard Base Core 5.0, chapter 10.6 ("Exception Frames"); DWARF 5, section 6.4 and 7.24; the pointer
//! encodings are LSB Core 5.0, chapter 10.5. See the bytes with `readelf --debug-dump=frames FILE`.

#![forbid(unsafe_code)]

mod check;
mod encode;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use encode::{Encoded, Group, encode, entries};
pub(crate) use parse::{Cie, Fde, parse};
