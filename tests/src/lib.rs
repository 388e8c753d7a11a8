//! Real hosts x real tools.
