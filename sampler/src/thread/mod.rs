//! The sampled threads, and the resources of each.

pub(crate) mod adoption;
pub(crate) mod arming;
pub(crate) mod clock_choice;
pub(crate) mod counter;
pub(crate) mod creation;
pub(crate) mod pace;
pub(crate) mod ring;
pub(crate) mod run_queue;
pub(crate) mod scan;
pub(crate) mod slot;
pub(crate) mod slot_state;
pub(crate) mod slots;
pub(crate) mod source;
pub(crate) mod stack_bounds;
pub(crate) mod ticks;
pub(crate) mod timer;
pub(crate) mod wait;
