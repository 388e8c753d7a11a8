//! try
#![allow(clippy::print_stdout)]
use jitlisten_report::*;
fn main() {
    let r = Recording::open(std::env::args().nth(1).unwrap().as_ref(), &Selection::default()).unwrap();
    println!("{:?} {:?} {} locs {} stacks {} samples {:?} {:?}", r.facts, r.events, r.locations.len(), r.stacks.len(), r.samples.len(), r.threads, r.notes);
}
