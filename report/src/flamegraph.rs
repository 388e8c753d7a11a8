//! Stacks as a flame graph: Python, compiled and other code in three colours, inlined calls marked, the kernel in a
//! fourth. Frames are as wide as the periods of their samples.

use std::io;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};
use rustc_hash::FxHasher;
use std::hash::Hasher;

use crate::export::{Unit, collapsed, shown::shown_frames};
use crate::report::Report;
use crate::symbols::{Frame, Kind};

/// In percent of the width, which is 1,200 pixels: a pixel.
const NARROWEST: f64 = 0.1;
const GREY: Color = Color { r: 215, g: 215, b: 215 };

/// Writes an SVG.
///
/// # Errors
/// When it cannot be written, or when there is no sample.
pub fn to_flamegraph(report: &Report, out: &mut impl io::Write) -> io::Result<()> {
    let mut picture = Vec::new();
    draw(report, &mut picture)?;
    // The beginning of a file says who made it.
    let at = picture.windows(2).position(|window| window == b"?>").map_or(0, |end| end + 2);
    out.write_all(&picture[..at])?;
    out.write_all(b"<!-- jitlisten -->")?;
    out.write_all(&picture[at..])
}

fn draw(report: &Report, out: &mut impl io::Write) -> io::Result<()> {
    let lines = collapsed::shown(report);
    let mut colours = PaletteMap::default();
    for stack in 0..report.recording.stacks.len() as u32 {
        for frame in shown_frames(report, stack) {
            colours.insert(collapsed::name(report, &frame), colour(report, &frame));
        }
    }
    // What is no code has no colour.
    // The lowest frame has no name until it is drawn.
    colours.insert("", GREY);
    colours.insert("all", GREY);
    for thread in &report.recording.threads {
        colours.insert(collapsed::plain(&thread.name), GREY);
    }
    let mut options = Options::default();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 250, g: 250, b: 250 }));
    options.title = report.title();
    options.subtitle =
        Some("green: compiled at run time (bluish: inlined), yellow: Python, red: C, orange: kernel".to_owned());
    // Read from its top: that is where the stacks start, whatever their depth.
    options.direction = Direction::Inverted;
    options.min_width = NARROWEST;
    // The end of a name is its argument types.
    options.text_truncate_direction = TextTruncateDirection::Right;
    (options.count_name, options.factor) = match Unit::of(report) {
        // Of the nanoseconds behind the stacks.
        Unit::Time => ("microseconds".to_owned(), 1e-3),
        Unit::Events => (crate::printable::printable(report.event()), 1.0),
        Unit::Samples => ("samples".to_owned(), 1.0),
    };
    options.palette_map = Some(&mut colours);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// A hue for whose code it is, a shade for the name.
fn colour(report: &Report, frame: &Frame) -> Color {
    let function = report.symbols.function(frame);
    let mut hasher = FxHasher::default();
    hasher.write(function.name.as_bytes());
    let shade = (hasher.finish() >> 32) as u8 % 40;
    let (r, g, b) = match function.kind {
        Kind::Compiled if frame.inlined => (90, 190 + shade, 190 + shade),
        Kind::Compiled => (90 + shade, 200 + shade, 90),
        Kind::Python => (225 + shade / 2, 205 + shade, 70),
        Kind::Native => (225 + shade / 2, 95 + shade, 80 + shade),
        Kind::Kernel => (240, 150 + shade, 60),
        Kind::Unknown => (180 + shade, 180 + shade, 180 + shade),
    };
    Color { r, g, b }
}
