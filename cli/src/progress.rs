//! Progress of reading recordings, on a terminal.

#![forbid(unsafe_code)]

use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use jitlisten_report::sanitize;

const PROGRESS_DELAY: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Width of the progress bar in columns.
const PROGRESS_COLUMNS: usize = 30;

/// Progress message on standard error, shown if reading takes longer than a second: for several recordings a bar.
pub(crate) struct Progress {
    /// One message for each recording that was read.
    count: mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Progress {
    /// Shows the progress of reading this number of recordings, if standard error is a terminal.
    pub(crate) fn start(first: &Path, all: usize) -> Option<Progress> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let only = (all == 1).then(|| format!("reading {} …", sanitize(&first.to_string_lossy())));
        let describe = move |count| only.clone().unwrap_or_else(|| progress_bar(count, all));
        Progress::show_after_delay(describe, PROGRESS_DELAY, std::io::stderr())
    }

    /// Counts a recording that has been read.
    pub(crate) fn count_one(&self) {
        let _ = self.count.send(());
    }

    fn show_after_delay(
        describe: impl Fn(usize) -> String + Send + 'static,
        delay: Duration,
        mut out: impl Write + Send + 'static,
    ) -> Option<Progress> {
        let (sender, counts) = mpsc::channel::<()>();
        let show = move || {
            let (mut shown, mut count, mut next) = (String::new(), 0, Instant::now() + delay);
            loop {
                match counts.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(()) => count += 1,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        let text = describe(count);
                        if text != shown {
                            let _ = out.write_all(format!("\r{text}").as_bytes()).and_then(|()| out.flush());
                            shown = text;
                        }
                        next = Instant::now() + PROGRESS_INTERVAL;
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            if !shown.is_empty() {
                let _ = out.write_all(b"\r\x1b[K");
            }
        };
        let thread = std::thread::Builder::new().spawn(show).ok()?;
        Some(Progress { count: sender, thread: Some(thread) })
    }
}

/// Returns a bar for `count` of `all` recordings, which overwrites the previous content of its line.
fn progress_bar(count: usize, all: usize) -> String {
    if count >= all {
        return "preparing the report …\x1b[K".to_owned();
    }
    let filled = count * PROGRESS_COLUMNS / all;
    let bar = "█".repeat(filled) + &"░".repeat(PROGRESS_COLUMNS - filled);
    format!("reading {bar} {count} of {all} recordings\x1b[K")
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The thread ends when no more counts can come.
        (self.count, _) = mpsc::channel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writer that sends each text to a channel.
    struct Pipe(mpsc::Sender<String>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn progress_is_shown_when_it_takes_long_and_is_gone_afterwards() {
        let (sender, written) = mpsc::channel();
        let describe = |count| progress_bar(count, 3);
        let progress = Progress::show_after_delay(describe, Duration::ZERO, Pipe(sender)).expect("a thread");
        let bar = |filled| format!("\rreading {}{}", "█".repeat(filled), "░".repeat(30 - filled));
        for (read_count, text) in [
            (0, format!("{} 0 of 3 recordings\x1b[K", bar(0))),
            (2, format!("{} 2 of 3 recordings\x1b[K", bar(20))),
            (1, "\rpreparing the report …\x1b[K".to_owned()),
        ] {
            (0..read_count).for_each(|_| progress.count_one());
            // An earlier count may be shown first.
            assert!(written.iter().any(|shown: String| shown == text));
        }
        drop(progress);
        assert_eq!(written.iter().last().expect("the end"), "\r\x1b[K");
    }

    #[test]
    fn no_progress_is_shown_when_it_is_quick() {
        let (sender, written) = mpsc::channel();
        drop(Progress::show_after_delay(|_| "reading x …".to_owned(), Duration::from_secs(3600), Pipe(sender)));
        assert_eq!(written.iter().collect::<String>(), "");
    }
}
