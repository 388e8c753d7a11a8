//! `report lines|json|... FILE [OPTIONS]`: what the command does, without the command.
#![allow(clippy::print_stdout)]
use jitlisten_report::*;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let options = Options {
        by_thread: has("--threads"),
        lookup: Lookup { native_lines: has("--native"), ..Default::default() },
        ..Default::default()
    };
    let report = Report::open(args[1].as_ref(), &options).unwrap();
    match args[0].as_str() {
        "lines" => print!(
            "{}",
            to_text(
                &report,
                Style {
                    width: has("--wide").then_some(120),
                    colour: has("--colour"),
                    all: has("--all"),
                    threads: has("--threads")
                }
            )
        ),
        "collapsed" => print!("{}", to_collapsed(&report)),
        "speedscope" => println!("{}", to_speedscope(&report)),
        "firefox" => println!("{}", to_firefox(&report)),
        "callgrind" => print!("{}", to_callgrind(&report)),
        "flamegraph" => to_flamegraph(&report, &mut std::io::stdout().lock()).unwrap(),
        "diff" => print!("{}", diff_to_text(&report, &Report::open(args[2].as_ref(), &options).unwrap(), None, false)),
        "html" => print!("{}", to_html(&report)),
        "json" => println!("{:#}", to_json(&report)),
        _ => {}
    }
}
