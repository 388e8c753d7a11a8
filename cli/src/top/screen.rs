//! The screen as lines of text, rendered anew for each refresh.

use crossterm::event::KeyCode;
use jitlisten_report::{Compilation, printable};
use unicode_width::UnicodeWidthChar as _;

use super::table::{Amount, LineRow, Order, Shares, Table};
use super::target::State;

/// Lines shown below a function.
const MOST_LINES: usize = 3;
/// Lines around those of a function.
const AROUND: u32 = 4;
/// Lines of the table that is printed at the end.
const LAST: usize = 16;
/// From these shares of all samples on a line is warm, or hot.
const WARM: f64 = 3.0;
const HOT: f64 = 10.0;

const HELP: &[&str] = &[
    "",
    "  up down, k j      choose a function; PageUp, PageDown, Home, End",
    "  Enter, a          its source, line by line; Esc goes back",
    "  l                 hottest lines below each function, or functions alone",
    "  n                 functions of libraries, too",
    "  t                 threads; Enter on one: only this thread, and again: all",
    "  1 2 3 4, s        order by self %, total %, self s or total s; s: the next",
    "  z, r, R           reset the counters",
    "  space             pause, resume",
    "  ? h               this page",
    "  q, Ctrl-C         end; a command that top has started is ended, too",
    "",
    "  self: the program counter was there. total: with everything that was called.",
    "  Percents are of the samples of the last second, seconds since the beginning,",
    "  of all threads together; when the program has ended, both are of all of it.",
    "  `outside` is what is not compiled at run time.",
];

/// How a row looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Bold,
    Dim,
    Head,
    Selected,
    Warm,
    Hot,
}

/// A line of the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) text: String,
    pub(crate) ink: Ink,
}

/// Which page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Functions,
    Threads,
    /// Of this function.
    Source(String),
    Help,
}

/// What a person has chosen to see.
pub(crate) struct Screen {
    title: String,
    rate: u32,
    pub(crate) state: State,
    view: View,
    order: Order,
    with_lines: bool,
    libraries: bool,
    paused: bool,
    thread: Option<u32>,
    selected: Option<String>,
    selected_thread: Option<u32>,
    /// The first line of the source that is shown; none: where it is hottest.
    source_top: Option<u32>,
}

impl Screen {
    pub(crate) fn new(title: String, rate: u32) -> Screen {
        Screen {
            title,
            rate,
            state: State::Starting,
            view: View::Functions,
            order: Order::default(),
            with_lines: true,
            libraries: false,
            paused: false,
            thread: None,
            selected: None,
            selected_thread: None,
            source_top: None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Whether nothing is to be added.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The only thread to be shown.
    pub(crate) fn thread(&self) -> Option<u32> {
        self.thread
    }

    /// Does what a key is for. Says whether it is the end.
    pub(crate) fn key(&mut self, key: KeyCode, table: &mut Table, size: (usize, usize)) -> bool {
        let page = size.1.saturating_sub(6).max(1) as isize;
        match key {
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('?' | 'h' | 'H') | KeyCode::F(1) => self.turn(View::Help),
            KeyCode::Char('t') => self.turn(View::Threads),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.view = View::Functions,
            KeyCode::Char('l' | 'L') => self.with_lines = !self.with_lines,
            KeyCode::Char('n') => self.libraries = !self.libraries,
            KeyCode::Char(' ' | 'p') => self.paused = !self.paused,
            // Nothing comes after its end.
            KeyCode::Char('z' | 'r' | 'R') if self.has_ended() => {}
            KeyCode::Char('z' | 'r' | 'R') => table.reset(),
            KeyCode::Char('1') => self.order = Order::OwnNow,
            KeyCode::Char('2') => self.order = Order::TotalNow,
            KeyCode::Char('3') => self.order = Order::OwnEver,
            KeyCode::Char('4') => self.order = Order::TotalEver,
            KeyCode::Char('s') => self.order = next(self.order),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1, table),
            KeyCode::Down | KeyCode::Char('j') => self.step(1, table),
            KeyCode::PageUp => self.step(-page, table),
            KeyCode::PageDown => self.step(page, table),
            KeyCode::Home => self.step(isize::MIN, table),
            KeyCode::End => self.step(isize::MAX, table),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('a') => self.choose(table),
            _ => {}
        }
        false
    }

    /// To a page, or back from it.
    fn turn(&mut self, view: View) {
        self.view = if self.view == view { View::Functions } else { view };
    }

    fn step(&mut self, by: isize, table: &Table) {
        match &self.view {
            View::Functions => {
                let names: Vec<&String> =
                    table.functions(self.order, self.libraries).into_iter().map(|row| row.0).collect();
                let at = names.iter().position(|name| Some(*name) == self.selected.as_ref());
                self.selected = moved(at, by, names.len()).map(|at| names[at].clone());
            }
            View::Threads => {
                let tids: Vec<u32> = table.thread_rows().into_iter().map(|row| row.0).collect();
                let at = tids.iter().position(|tid| Some(*tid) == self.selected_thread);
                self.selected_thread = moved(at, by, tids.len()).map(|at| tids[at]);
            }
            View::Source(_) => {
                let by = i32::try_from(by.clamp(-1_000_000, 1_000_000)).unwrap_or_default();
                let top = self.source_top.unwrap_or(1);
                self.source_top = Some(top.saturating_add_signed(by).max(1));
            }
            View::Help => {}
        }
    }

    fn choose(&mut self, table: &mut Table) {
        match &self.view {
            View::Functions => {
                let rows = table.functions(self.order, self.libraries);
                let chosen = self.selected.clone().or_else(|| rows.first().map(|row| row.0.clone()));
                if let Some(name) = chosen.filter(|name| rows.iter().any(|row| row.0 == name)) {
                    (self.selected, self.source_top) = (Some(name.clone()), None);
                    self.view = View::Source(name);
                }
            }
            View::Threads if self.has_ended() => {}
            View::Threads => {
                let rows = table.thread_rows();
                let chosen = self.selected_thread.or_else(|| rows.first().map(|row| row.0));
                self.thread = if self.thread == chosen { None } else { chosen };
                self.view = View::Functions;
                table.reset();
            }
            View::Source(_) | View::Help => self.view = View::Functions,
        }
    }

    /// The whole screen: as many rows as it has.
    pub(crate) fn lines(&mut self, table: &Table, size: (usize, usize)) -> Vec<Row> {
        let (columns, rows) = size;
        let mut all = self.head(table);
        let space = rows.saturating_sub(all.len() + 1);
        let view = self.view.clone();
        let body = match &view {
            View::Functions => self.functions(table, space),
            View::Threads => self.threads(table, space),
            View::Source(name) => self.source(name, table, space),
            View::Help => HELP.iter().map(|line| row(*line, Ink::Plain)).collect(),
        };
        all.extend(body.into_iter().take(space));
        all.resize_with(rows - 1, || row("", Ink::Plain));
        all.push(self.foot());
        for row in &mut all {
            row.text = fitted(&row.text, columns, matches!(row.ink, Ink::Head | Ink::Selected));
        }
        all
    }

    /// The table of everything, for the terminal's own screen.
    pub(crate) fn last_lines(&mut self, table: &mut Table, columns: usize) -> String {
        table.end();
        (self.order, self.selected, self.paused) = (Order::OwnEver, None, false);
        let mut rows = self.head(table);
        rows.extend(self.functions(table, LAST));
        rows.truncate(LAST);
        rows.iter().flat_map(|row| [fitted(&row.text, columns, false).trim_end().to_owned(), "\n".to_owned()]).collect()
    }

    fn head(&self, table: &Table) -> Vec<Row> {
        let state = match &self.state {
            State::Starting => "starting …".to_owned(),
            _ if self.paused => "paused: space resumes".to_owned(),
            State::Running => format!("{} s", table.looks),
            State::Ended(words) => format!("{words}, {:.1} s", seconds(table.all.ever)),
            State::Failed => "failed".to_owned(),
        };
        let threads = table.thread_rows().iter().filter(|(_, row)| row.amount.now != 0).count();
        let which = self.thread.map(|tid| format!(" · thread {tid} only")).unwrap_or_default();
        let threads = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        let title =
            format!(" jitlisten top · {state} · {threads}{which} · {} Hz · {}", self.rate, printable(&self.title));
        let share = |amount: Amount| percent(amount.now, table.all.now);
        let by_line = Amount {
            now: table.compiled.now.saturating_sub(table.without_line.now).saturating_sub(table.line_zero.now),
            ever: 0,
        };
        let compiled = format!(
            "{} % by line{} % without a line{} % line 0{:>9} lost",
            share(by_line),
            share(table.without_line),
            share(table.line_zero),
            table.lost
        );
        let outside: u64 = table.outside.iter().map(|(_, weight)| *weight).sum();
        let names = table.outside.iter().take(6);
        let names: Vec<String> = names
            .map(|(name, weight)| format!("{} {} %", printable(name), percent(*weight, table.all.now).trim()))
            .collect();
        let colon = if names.is_empty() { "" } else { ": " };
        let outside = format!("{} % outside{colon}{}", percent(outside, table.all.now), names.join(", "));
        let mut rows = vec![row(title, Ink::Head), row(compiled, Ink::Plain), row(outside, Ink::Plain)];
        rows.extend(compilations(table.compilations.rows()).map(|text| row(text, Ink::Plain)));
        rows.push(row(self.columns_head(), Ink::Head));
        rows
    }

    fn columns_head(&self) -> String {
        let what = match &self.view {
            View::Functions if self.with_lines => "function, hottest lines",
            View::Functions => "function",
            View::Threads => return "  share %   seconds │ thread".to_owned(),
            View::Source(_) => "source",
            View::Help => "keys",
        };
        let mark = |order: Order| if self.order == order { '▾' } else { ' ' };
        format!(
            "{}self %{}total %{}  self s{} total s │ {what}",
            mark(Order::OwnNow),
            mark(Order::TotalNow),
            mark(Order::OwnEver),
            mark(Order::TotalEver)
        )
    }

    fn foot(&self) -> Row {
        let text = match &self.view {
            View::Functions => " q quit  ? help  t threads  l lines  n libraries  s order  z zero  Enter source",
            View::Threads => " q quit  Esc back  Enter only this thread",
            View::Source(_) => " q quit  Esc back  up, down",
            View::Help => " q quit  Esc back",
        };
        row(text, Ink::Dim)
    }

    fn functions(&mut self, table: &Table, space: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut selected_at = 0;
        for (name, function) in table.functions(self.order, self.libraries) {
            if rows.len() > space + 2000 {
                break;
            }
            let is_selected = self.selected.as_ref() == Some(name);
            if is_selected {
                selected_at = rows.len();
            }
            let ink = if is_selected { Ink::Selected } else { Ink::Bold };
            rows.push(row(format!("{} │ {}", columns(&function.shares, table), printable(name)), ink));
            if self.with_lines {
                let lines = function.hottest_with_some(self.order).into_iter().take(MOST_LINES);
                rows.extend(lines.map(|((path, number), line)| line_row(path, *number, line, table)));
            }
        }
        if rows.is_empty() {
            let text = match self.state {
                State::Starting => "  waiting for the first sample",
                _ if table.samples == 0 => "  no samples yet",
                _ => "  no compiled function yet; n shows those of libraries",
            };
            rows.push(row(text, Ink::Plain));
        }
        let first = (selected_at + 1 + MOST_LINES).saturating_sub(space);
        rows.split_off(first.min(rows.len()))
    }

    fn threads(&self, table: &Table, space: usize) -> Vec<Row> {
        let rows = table.thread_rows();
        let selected = rows.iter().position(|(tid, _)| Some(*tid) == self.selected_thread);
        let first = (selected.unwrap_or_default() + 1).saturating_sub(space);
        let whole: u64 = rows.iter().map(|(_, row)| row.amount.now).sum();
        let shown = rows.iter().enumerate().skip(first).map(|(at, (tid, thread))| {
            let ink = match selected == Some(at) {
                true => Ink::Selected,
                false if self.thread == Some(*tid) => Ink::Bold,
                false => Ink::Plain,
            };
            let (share, name) = (percent(thread.amount.now, whole), printable(&thread.name));
            row(format!("{share:>9} {:>9.2} │ {name} ({tid})", seconds(thread.amount.ever)), ink)
        });
        shown.collect()
    }

    fn source(&mut self, name: &str, table: &Table, space: usize) -> Vec<Row> {
        let Some(function) = table.function_of(name) else { return vec![row("  no samples of it now", Ink::Plain)] };
        let Some(((path, hottest), _)) = function.hottest(Order::TotalEver).into_iter().next() else {
            return vec![row(format!("  {}: no line table", printable(name)), Ink::Plain)];
        };
        let lines = function.lines.range((path.clone(), 0)..=(path.clone(), u32::MAX));
        let numbers = lines.clone().map(|((_, number), _)| *number).filter(|number| *number != 0);
        let (first, last) = (numbers.clone().min().unwrap_or(1), numbers.max().unwrap_or(1));
        let text = table.source(path).unwrap_or_default();
        let last = last.saturating_add(AROUND).min(last.max(text.len() as u32));
        let first = first.saturating_sub(AROUND).max(1);
        let space = space.saturating_sub(1).max(1) as u32;
        let highest = last.saturating_sub(space - 1).max(first);
        let top = self.source_top.unwrap_or(hottest.saturating_sub(space / 2)).clamp(first, highest);
        self.source_top = Some(top);
        let mut rows = vec![row(format!("  {}: {}", printable(name), printable(path)), Ink::Bold)];
        for number in top..=last.min(top.saturating_add(space)) {
            let code = text.get((number as usize).wrapping_sub(1)).map_or("", String::as_str);
            let line = function.lines.get(&(path.clone(), number));
            let (shares, ink) = match line {
                Some(line) => (columns(&line.shares, table), ink_of(&line.shares, table)),
                None => (" ".repeat(32), Ink::Plain),
            };
            rows.push(row(format!("{shares} │{number:>5} {code}"), ink));
        }
        rows
    }
}

/// How many there were, and the last.
fn compilations(all: &[Compilation]) -> Option<String> {
    let outermost = || all.iter().filter(|row| row.is_outermost());
    let last = outermost().next_back()?;
    let took: u64 = outermost().map(|row| row.took).sum();
    let (count, took) = (outermost().count(), seconds(took));
    let last = format!("{}{} in {:.2} s", last.name(), last.signature, seconds(last.took));
    Some(format!("{count:>7} compiled in {took:.2} s, the last: {}", printable(&last)))
}

fn line_row(path: &str, number: u32, line: &LineRow, table: &Table) -> Row {
    let place = match (number, line.text.is_empty()) {
        (0, _) => "      (code of no line)".to_owned(),
        (_, true) => format!(" {number:>5} {}", printable(path.rsplit('/').next().unwrap_or_default())),
        (_, false) => format!(" {number:>5} {}", line.text),
    };
    row(format!("{} │{place}", columns(&line.shares, table)), ink_of(&line.shares, table))
}

fn ink_of(shares: &Shares, table: &Table) -> Ink {
    match shares.own.now as f64 * 100.0 / table.all.now.max(1) as f64 {
        HOT.. => Ink::Hot,
        WARM.. => Ink::Warm,
        _ => Ink::Plain,
    }
}

fn columns(shares: &Shares, table: &Table) -> String {
    format!(
        "{} {} {:>8.2} {:>8.2}",
        percent(shares.own.now, table.all.now),
        percent(shares.total.now, table.all.now),
        seconds(shares.own.ever),
        seconds(shares.total.ever)
    )
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:>7.1}", part as f64 * 100.0 / whole.max(1) as f64)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn next(order: Order) -> Order {
    match order {
        Order::OwnNow => Order::TotalNow,
        Order::TotalNow => Order::OwnEver,
        Order::OwnEver => Order::TotalEver,
        Order::TotalEver => Order::OwnNow,
    }
}

/// An index after a step; the first step goes to the first.
fn moved(at: Option<usize>, by: isize, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(match at {
        Some(at) => at.saturating_add_signed(by).min(last),
        None if by == isize::MAX => last,
        None => 0,
    })
}

fn row(text: impl Into<String>, ink: Ink) -> Row {
    Row { text: text.into(), ink }
}

/// Cut to the columns; filled up where the colour is to reach the edge.
fn fitted(text: &str, columns: usize, fill: bool) -> String {
    let width = |character: char| character.width().unwrap_or_default();
    let whole: usize = text.chars().map(width).sum();
    let (mut shown, mut used) = (String::new(), 0);
    let space = if whole > columns { columns.saturating_sub(1) } else { columns };
    for character in text.chars() {
        if used + width(character) > space {
            break;
        }
        used += width(character);
        shown.push(character);
    }
    if whole > columns {
        shown.push('…');
        used += 1;
    }
    if fill {
        shown.extend(std::iter::repeat_n(' ', columns.saturating_sub(used)));
    }
    shown
}
