//! The terminal's alternate screen, without echo. The terminal is restored on drop, after a panic, and on a termination
//! signal.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::screen::{Row, RowStyle};
use crate::problem::Problem;
use crate::system::BlockedSignals;

const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// User action.
pub(crate) enum Input {
    None,
    Quit,
    Resized,
    Key(KeyCode),
}

/// The terminal in raw mode, on its alternate screen.
pub(crate) struct Terminal {
    signals: BlockedSignals,
    drawn_rows: Vec<Row>,
    colour: bool,
}

impl Terminal {
    pub(crate) fn enter() -> Result<Terminal, Problem> {
        let signals = BlockedSignals::termination();
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore_terminal();
            previous_hook(panic);
        }));
        let terminal = Terminal {
            signals,
            drawn_rows: Vec::new(),
            colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        terminal::enable_raw_mode().map_err(problem)?;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide, Clear(ClearType::All)).map_err(problem)?;
        Ok(terminal)
    }

    /// Size of the terminal, as columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or((80, 24));
        (usize::from(columns.max(20)), usize::from(rows.max(5)))
    }

    /// Draws the rows that have changed since the last call.
    pub(crate) fn draw(&mut self, rows: &[Row]) -> Result<(), Problem> {
        let mut out = io::stdout().lock();
        for (number, row) in rows.iter().enumerate() {
            if self.drawn_rows.get(number) != Some(row) {
                queue!(out, cursor::MoveTo(0, u16::try_from(number).unwrap_or(u16::MAX))).map_err(problem)?;
                self.draw_row(&mut out, row).map_err(problem)?;
            }
        }
        self.drawn_rows = rows.to_vec();
        out.flush().map_err(problem)
    }

    fn draw_row(&self, out: &mut impl io::Write, row: &Row) -> io::Result<()> {
        match row.style {
            RowStyle::Plain => {}
            RowStyle::Bold => queue!(out, SetAttribute(Attribute::Bold))?,
            RowStyle::Dim => queue!(out, SetAttribute(Attribute::Dim))?,
            RowStyle::Head | RowStyle::Selected => queue!(out, SetAttribute(Attribute::Reverse))?,
            RowStyle::Warm if self.colour => queue!(out, SetForegroundColor(Color::Yellow))?,
            RowStyle::Hot if self.colour => queue!(out, SetForegroundColor(Color::Red))?,
            RowStyle::Warm | RowStyle::Hot => {}
        }
        queue!(out, Print(&row.text), SetAttribute(Attribute::Reset), ResetColor, Clear(ClearType::UntilNewLine))
    }

    /// Waits for a key, a signal, or the timeout.
    pub(crate) fn input(&mut self, timeout: Duration) -> Result<Input, Problem> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.signals.wait_signal(Duration::ZERO).is_some() {
                return Ok(Input::Quit);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if is_gone_within(remaining.min(SIGNAL_CHECK_INTERVAL)) {
                return Ok(Input::Quit);
            }
            if event::poll(Duration::ZERO).map_err(problem)? {
                return Ok(self.event(&event::read().map_err(problem)?));
            }
            if remaining.is_zero() {
                return Ok(Input::None);
            }
        }
    }

    fn event(&mut self, event: &Event) -> Input {
        match event {
            Event::Resize(..) => {
                self.drawn_rows.clear();
                let _ = execute!(io::stdout(), Clear(ClearType::All));
                Input::Resized
            }
            Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('c' | 'd' | '\\') if key.modifiers.contains(KeyModifiers::CONTROL) => Input::Quit,
                KeyCode::Char('l') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    self.drawn_rows.clear();
                    let _ = execute!(io::stdout(), Clear(ClearType::All));
                    Input::Resized
                }
                code => Input::Key(code),
            },
            _ => Input::None,
        }
    }
}

/// Waits for input, and returns true if the terminal has gone away: crossterm would read it for ever.
fn is_gone_within(timeout: Duration) -> bool {
    let stdin = io::stdin();
    let mut descriptors = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    // A signal may interrupt the call.
    rustix::event::poll(&mut descriptors, timeout.as_ref()).is_ok()
        && descriptors[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore_terminal();
    }
}

fn restore_terminal() {
    let _ = execute!(io::stdout(), ResetColor, SetAttribute(Attribute::Reset), cursor::Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

fn problem(error: io::Error) -> Problem {
    Problem::new(format!("the terminal cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters the screen and panics. The next test starts this one in a separate terminal.
    #[test]
    #[ignore = "needs a terminal: run by the test below"]
    fn enter_and_panic() {
        let _terminal = Terminal::enter().expect("a terminal");
        panic!("on purpose");
    }

    /// Compares the terminal's settings before and after the panic. `script` (util-linux) creates the terminal, and the
    /// panic message must be on its primary screen.
    #[test]
    fn a_panic_gives_the_terminal_back() {
        let test_program = std::env::current_exe().expect("this program");
        let name = "top::terminal::tests::enter_and_panic";
        let panicking_command =
            format!("'{}' --ignored --exact {name} --nocapture --test-threads 1", test_program.display());
        let command = format!("stty -a; echo BEGIN; {panicking_command}; echo END; stty -a");
        let output = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(std::process::Stdio::null())
            .output()
            .expect("script, of util-linux");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (before, rest) = text.split_once("BEGIN").expect("BEGIN");
        let (shown, after) = rest.rsplit_once("END").expect("END");
        assert_eq!(before.trim(), after.trim(), "{text:?}");
        assert!(before.contains(" echo ") && before.contains(" icanon "), "{before:?}");
        let position = |text: &str| shown.find(text).unwrap_or_else(|| panic!("no {text:?} in {shown:?}"));
        assert!(position("\x1b[?1049h") < position("\x1b[?1049l"), "the other screen, and back");
        assert!(position("\x1b[?1049l") < position("on purpose"), "the message stays: {shown:?}");
        assert!(shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is shown: {shown:?}");
    }
}
