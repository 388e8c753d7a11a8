//! try
#![allow(clippy::print_stdout)]
use jitlisten_report::*;
fn main() {
    let r = Recording::open(std::env::args().nth(1).unwrap().as_ref(), &Selection::default()).unwrap();
    println!("{:?} {:?} {} locs {} stacks {} samples {:?} {:?}", r.facts, r.events, r.locations.len(), r.stacks.len(), r.samples.len(), r.threads, r.notes);
    let s = Symbols::resolve(&r, &Lookup::default());
    println!("{:?}", s.notes);
    for sample in r.samples.iter().rev().take(3) {
        for l in r.stacks.get(sample.stack) { for f in s.frames(*l) { println!("  {} {:?} {:?} {} {:?}", s.function(f).name, f.source.map(|x| &s.sources[x as usize]), f.line, f.inlined, s.function(f).kind); } }
        println!();
    }
}
