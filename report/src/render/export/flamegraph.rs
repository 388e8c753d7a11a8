//! Stacks as a flame graph: Python, compiled, native and kernel code each have a colour, and inlined calls a shade. The
//! width of a frame is the sum of its samples' periods.

use std::io;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};
use rustc_hash::FxHasher;
use std::hash::Hasher;

use crate::report::{Report, Unit};
use crate::sanitize::sanitize;
use crate::symbols::{Frame, Kind};

use super::collapsed;

/// Minimum width of a frame in percent of 1,200 pixels: about one pixel.
const MIN_FRAME_WIDTH_PERCENT: f64 = 0.1;
const GREY: Color = Color { r: 215, g: 215, b: 215 };

/// Writes the flame graph as an SVG.
///
/// # Errors
/// Returns an error if the output cannot be written or there are no samples.
pub fn to_flamegraph(report: &Report, out: &mut impl io::Write) -> io::Result<()> {
    let mut svg = Vec::new();
    draw(report, &mut svg)?;
    // A comment at the start of the file names the program that created it.
    let header_end = svg.windows(2).position(|window| window == b"?>").map_or(0, |end| end + 2);
    out.write_all(&svg[..header_end])?;
    out.write_all(b"<!-- jitlisten -->")?;
    out.write_all(&svg[header_end..])
}

fn draw(report: &Report, out: &mut impl io::Write) -> io::Result<()> {
    let lines = collapsed::shown_stacks(report);
    let mut colours = PaletteMap::default();
    for stack in 0..report.recording.stacks.len() as u32 {
        for frame in report.shown_frames(stack) {
            colours.insert(collapsed::frame_name(report, &frame), frame_colour(report, &frame));
        }
    }
    // Frames that are not code, such as threads and the root, are grey. The root has an empty name at this point.
    colours.insert("", GREY);
    colours.insert("all", GREY);
    for thread in &report.recording.threads {
        colours.insert(collapsed::escape(&thread.name), GREY);
    }
    let mut options = Options::default();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 250, g: 250, b: 250 }));
    options.title = report.title();
    options.subtitle =
        Some("green: compiled at run time (bluish: inlined), yellow: Python, red: C, orange: kernel".to_owned());
    // Stacks start at the top, so the root is visible at any depth.
    options.direction = Direction::Inverted;
    options.min_width = MIN_FRAME_WIDTH_PERCENT;
    // Names end with argument types, which may be truncated.
    options.text_truncate_direction = TextTruncateDirection::Right;
    (options.count_name, options.factor) = match report.unit() {
        // Stacks are weighted in ns.
        Unit::Time => ("microseconds".to_owned(), 1e-3),
        Unit::Events => (sanitize(report.event()), 1.0),
        Unit::Samples => ("samples".to_owned(), 1.0),
    };
    options.palette_map = Some(&mut colours);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// Returns the colour of a frame: a hue for the kind of code, and a shade for the name.
fn frame_colour(report: &Report, frame: &Frame) -> Color {
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
