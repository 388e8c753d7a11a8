//! One frame of an address: a function and a line in it.

/// A function, or a call of one that was inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// The function's name as the compiler writes it.
    pub linkage_name: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line, 0 where the compiler says that there is none.
    pub line: Option<u32>,
}
