//! Rendering of the screen as lines of text, from scratch at each refresh.

use crossterm::event::KeyCode;
use jitlisten_report::{Compilation, sanitize};
use unicode_width::UnicodeWidthChar as _;

use super::table::{Amount, LineRow, Order, Shares, Table};
use super::target::State;

/// Maximum number of lines shown below a function.
const MAX_LINES_PER_FUNCTION: usize = 3;
/// Number of source lines shown before and after those of a function.
const CONTEXT_LINES: u32 = 4;
/// Maximum number of rows in the table that is printed on exit.
const MAX_FINAL_ROWS: usize = 16;
/// Minimum percentage of all samples for a warm line, and for a hot one.
const WARM_PERCENT: f64 = 3.0;
const HOT_PERCENT: f64 = 10.0;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowStyle {
    Plain,
    Bold,
    Dim,
    Head,
    Selected,
    Warm,
    Hot,
}

/// One line of the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) text: String,
    pub(crate) style: RowStyle,
}

/// Page that the screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Functions,
    Threads,
    /// Source of the function with this name.
    Source(String),
    Help,
}

/// State of the screen: page, sort order, selection.
pub(crate) struct Screen {
    title: String,
    rate: u32,
    pub(crate) state: State,
    view: View,
    order: Order,
    shows_lines: bool,
    shows_libraries: bool,
    is_paused: bool,
    thread: Option<u32>,
    selected: Option<String>,
    selected_thread: Option<u32>,
    /// First source line to show; `None` to start at the hottest line.
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
            shows_lines: true,
            shows_libraries: false,
            is_paused: false,
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

    /// Returns true if the table must not be updated.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// TID of the only thread shown, if the user has chosen one.
    pub(crate) fn thread(&self) -> Option<u32> {
        self.thread
    }

    /// Handles a key; returns true if the user quits.
    pub(crate) fn handle_key(&mut self, key: KeyCode, table: &mut Table, size: (usize, usize)) -> bool {
        let page = size.1.saturating_sub(6).max(1) as isize;
        match key {
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('?' | 'h' | 'H') | KeyCode::F(1) => self.toggle_view(View::Help),
            KeyCode::Char('t') => self.toggle_view(View::Threads),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.view = View::Functions,
            KeyCode::Char('l' | 'L') => self.shows_lines = !self.shows_lines,
            KeyCode::Char('n') => self.shows_libraries = !self.shows_libraries,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            // Resetting the counters is disabled once the program has ended, because no more samples will arrive.
            KeyCode::Char('z' | 'r' | 'R') if self.has_ended() => {}
            KeyCode::Char('z' | 'r' | 'R') => table.reset(),
            KeyCode::Char('1') => self.order = Order::SelfRecent,
            KeyCode::Char('2') => self.order = Order::TotalRecent,
            KeyCode::Char('3') => self.order = Order::SelfOverall,
            KeyCode::Char('4') => self.order = Order::TotalOverall,
            KeyCode::Char('s') => self.order = next_order(self.order),
            KeyCode::Up | KeyCode::Char('k') => self.move_selection(-1, table),
            KeyCode::Down | KeyCode::Char('j') => self.move_selection(1, table),
            KeyCode::PageUp => self.move_selection(-page, table),
            KeyCode::PageDown => self.move_selection(page, table),
            KeyCode::Home => self.move_selection(isize::MIN, table),
            KeyCode::End => self.move_selection(isize::MAX, table),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('a') => self.open_selected(table),
            _ => {}
        }
        false
    }

    /// Switches to a page, or back to the functions if that page is already shown.
    fn toggle_view(&mut self, view: View) {
        self.view = if self.view == view { View::Functions } else { view };
    }

    fn move_selection(&mut self, offset: isize, table: &Table) {
        match &self.view {
            View::Functions => {
                let names: Vec<&String> =
                    table.sorted_functions(self.order, self.shows_libraries).into_iter().map(|row| row.0).collect();
                let index = names.iter().position(|name| Some(*name) == self.selected.as_ref());
                self.selected = moved_index(index, offset, names.len()).map(|index| names[index].clone());
            }
            View::Threads => {
                let tids: Vec<u32> = table.thread_rows().into_iter().map(|row| row.0).collect();
                let index = tids.iter().position(|tid| Some(*tid) == self.selected_thread);
                self.selected_thread = moved_index(index, offset, tids.len()).map(|index| tids[index]);
            }
            View::Source(_) => {
                let offset = i32::try_from(offset.clamp(-1_000_000, 1_000_000)).unwrap_or_default();
                let top = self.source_top.unwrap_or(1);
                self.source_top = Some(top.saturating_add_signed(offset).max(1));
            }
            View::Help => {}
        }
    }

    fn open_selected(&mut self, table: &mut Table) {
        match &self.view {
            View::Functions => {
                let rows = table.sorted_functions(self.order, self.shows_libraries);
                let name = self.selected.clone().or_else(|| rows.first().map(|row| row.0.clone()));
                if let Some(name) = name.filter(|name| rows.iter().any(|row| row.0 == name)) {
                    (self.selected, self.source_top) = (Some(name.clone()), None);
                    self.view = View::Source(name);
                }
            }
            View::Threads if self.has_ended() => {}
            View::Threads => {
                let rows = table.thread_rows();
                let tid = self.selected_thread.or_else(|| rows.first().map(|row| row.0));
                self.thread = if self.thread == tid { None } else { tid };
                self.view = View::Functions;
                table.reset();
            }
            View::Source(_) | View::Help => self.view = View::Functions,
        }
    }

    /// Renders the whole screen, with one row per terminal line.
    pub(crate) fn lines(&mut self, table: &Table, size: (usize, usize)) -> Vec<Row> {
        let (columns, rows) = size;
        let mut screen_rows = self.header_rows(table);
        let space = rows.saturating_sub(screen_rows.len() + 1);
        let view = self.view.clone();
        let body = match &view {
            View::Functions => self.function_rows(table, space),
            View::Threads => self.thread_rows(table, space),
            View::Source(name) => self.source_rows(name, table, space),
            View::Help => HELP.iter().map(|line| row(*line, RowStyle::Plain)).collect(),
        };
        screen_rows.extend(body.into_iter().take(space));
        screen_rows.resize_with(rows - 1, || row("", RowStyle::Plain));
        screen_rows.push(self.footer_row());
        for row in &mut screen_rows {
            row.text = fit_to_width(&row.text, columns, matches!(row.style, RowStyle::Head | RowStyle::Selected));
        }
        screen_rows
    }

    /// Renders the table of the whole run, to be printed on the terminal's primary screen.
    pub(crate) fn render_final_table(&mut self, table: &mut Table, columns: usize) -> String {
        table.end();
        (self.order, self.selected, self.is_paused) = (Order::SelfOverall, None, false);
        let mut rows = self.header_rows(table);
        rows.extend(self.function_rows(table, MAX_FINAL_ROWS));
        rows.truncate(MAX_FINAL_ROWS);
        rows.iter()
            .flat_map(|row| [fit_to_width(&row.text, columns, false).trim_end().to_owned(), "\n".to_owned()])
            .collect()
    }

    fn header_rows(&self, table: &Table) -> Vec<Row> {
        let state = match &self.state {
            State::Starting => "starting …".to_owned(),
            _ if self.is_paused => "paused: space resumes".to_owned(),
            State::Running => format!("{} s", table.refreshes),
            State::Ended(words) => format!("{words}, {:.1} s", seconds(table.all.overall)),
            State::Failed => "failed".to_owned(),
        };
        let threads = table.thread_rows().iter().filter(|(_, row)| row.amount.recent != 0).count();
        let restriction = self.thread.map(|tid| format!(" · thread {tid} only")).unwrap_or_default();
        let threads = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        let title =
            format!(" jitlisten top · {state} · {threads}{restriction} · {} Hz · {}", self.rate, sanitize(&self.title));
        let share = |amount: Amount| percent(amount.recent, table.all.recent);
        let by_line = Amount {
            recent: table
                .compiled
                .recent
                .saturating_sub(table.without_line.recent)
                .saturating_sub(table.line_zero.recent),
            overall: 0,
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
            .map(|(name, weight)| format!("{} {} %", sanitize(name), percent(*weight, table.all.recent).trim()))
            .collect();
        let colon = if names.is_empty() { "" } else { ": " };
        let outside = format!("{} % outside{colon}{}", percent(outside, table.all.recent), names.join(", "));
        let mut rows = vec![row(title, RowStyle::Head), row(compiled, RowStyle::Plain), row(outside, RowStyle::Plain)];
        rows.extend(compilation_summary(table.compilations.rows()).map(|text| row(text, RowStyle::Plain)));
        rows.push(row(self.column_titles(), RowStyle::Head));
        rows
    }

    fn column_titles(&self) -> String {
        let subject = match &self.view {
            View::Functions if self.shows_lines => "function, hottest lines",
            View::Functions => "function",
            View::Threads => return "  share %   seconds │ thread".to_owned(),
            View::Source(_) => "source",
            View::Help => "keys",
        };
        let mark = |order: Order| if self.order == order { '▾' } else { ' ' };
        format!(
            "{}self %{}total %{}  self s{} total s │ {subject}",
            mark(Order::SelfRecent),
            mark(Order::TotalRecent),
            mark(Order::SelfOverall),
            mark(Order::TotalOverall)
        )
    }

    fn footer_row(&self) -> Row {
        let text = match &self.view {
            View::Functions => " q quit  ? help  t threads  l lines  n libraries  s order  z zero  Enter source",
            View::Threads => " q quit  Esc back  Enter only this thread",
            View::Source(_) => " q quit  Esc back  up, down",
            View::Help => " q quit  Esc back",
        };
        row(text, RowStyle::Dim)
    }

    fn function_rows(&mut self, table: &Table, space: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut selected_at = 0;
        for (name, function) in table.sorted_functions(self.order, self.shows_libraries) {
            if rows.len() > space + 2000 {
                break;
            }
            let is_selected = self.selected.as_ref() == Some(name);
            if is_selected {
                selected_at = rows.len();
            }
            let style = if is_selected { RowStyle::Selected } else { RowStyle::Bold };
            rows.push(row(format!("{} │ {}", columns(&function.shares, table), sanitize(name)), style));
            if self.shows_lines {
                let lines = function.nonzero_lines(self.order).into_iter().take(MAX_LINES_PER_FUNCTION);
                rows.extend(lines.map(|((path, number), line)| line_row(path, *number, line, table)));
            }
        }
        if rows.is_empty() {
            let text = match self.state {
                State::Starting => "  waiting for the first sample",
                _ if table.samples == 0 => "  no samples yet",
                _ => "  no compiled function yet; n shows those of libraries",
            };
            rows.push(row(text, RowStyle::Plain));
        }
        let first = (selected_at + 1 + MAX_LINES_PER_FUNCTION).saturating_sub(space);
        rows.split_off(first.min(rows.len()))
    }

    fn thread_rows(&self, table: &Table, space: usize) -> Vec<Row> {
        let rows = table.thread_rows();
        let selected = rows.iter().position(|(tid, _)| Some(*tid) == self.selected_thread);
        let first = (selected.unwrap_or_default() + 1).saturating_sub(space);
        let total_weight: u64 = rows.iter().map(|(_, row)| row.amount.recent).sum();
        let visible_rows = rows.iter().enumerate().skip(first).map(|(index, (tid, thread))| {
            let style = match selected == Some(index) {
                true => RowStyle::Selected,
                false if self.thread == Some(*tid) => RowStyle::Bold,
                false => RowStyle::Plain,
            };
            let (share, name) = (percent(thread.amount.recent, total_weight), sanitize(&thread.name));
            row(format!("{share:>9} {:>9.2} │ {name} ({tid})", seconds(thread.amount.overall)), style)
        });
        visible_rows.collect()
    }

    fn source_rows(&mut self, name: &str, table: &Table, space: usize) -> Vec<Row> {
        let Some(function) = table.find_function(name) else {
            return vec![row("  no samples of it now", RowStyle::Plain)];
        };
        let Some(((path, hottest), _)) = function.sorted_lines(Order::TotalOverall).into_iter().next() else {
            return vec![row(format!("  {}: no line table", sanitize(name)), RowStyle::Plain)];
        };
        let lines = function.lines.range((path.clone(), 0)..=(path.clone(), u32::MAX));
        let numbers = lines.clone().map(|((_, number), _)| *number).filter(|number| *number != 0);
        let (first, last) = (numbers.clone().min().unwrap_or(1), numbers.max().unwrap_or(1));
        let text = table.source(path).unwrap_or_default();
        let last = last.saturating_add(CONTEXT_LINES).min(last.max(text.len() as u32));
        let first = first.saturating_sub(CONTEXT_LINES).max(1);
        let space = space.saturating_sub(1).max(1) as u32;
        let last_top = last.saturating_sub(space - 1).max(first);
        let top = self.source_top.unwrap_or(hottest.saturating_sub(space / 2)).clamp(first, last_top);
        self.source_top = Some(top);
        let mut rows = vec![row(format!("  {}: {}", sanitize(name), sanitize(path)), RowStyle::Bold)];
        for number in top..=last.min(top.saturating_add(space)) {
            let code = text.get((number as usize).wrapping_sub(1)).map_or("", String::as_str);
            let line = function.lines.get(&(path.clone(), number));
            let (shares, style) = match line {
                Some(line) => (columns(&line.shares, table), line_style(&line.shares, table)),
                None => (" ".repeat(32), RowStyle::Plain),
            };
            rows.push(row(format!("{shares} │{number:>5} {code}"), style));
        }
        rows
    }
}

/// Summarizes the compilations: their number, their total time, and the most recent one.
fn compilation_summary(compilations: &[Compilation]) -> Option<String> {
    let outermost = || compilations.iter().filter(|row| row.is_outermost());
    let finished = || outermost().filter(|row| row.is_finished && !row.is_loop);
    let last = outermost().next_back()?;
    let total_ns: u64 = outermost().map(Compilation::compiling_ns).sum();
    let (count, total_seconds) = (finished().count(), seconds(total_ns));
    let last = match last.is_finished {
        true => format!("the last: {}{} in {:.2} s", last.name(), last.signature, seconds(last.compiling_ns())),
        false => format!("now: {}{}", last.name(), last.signature),
    };
    Some(format!("{count:>7} compiled in {total_seconds:.2} s, {}", sanitize(&last)))
}

fn line_row(path: &str, number: u32, line: &LineRow, table: &Table) -> Row {
    let location = match (number, line.text.is_empty()) {
        (0, _) => "      (code of no line)".to_owned(),
        (_, true) => format!(" {number:>5} {}", sanitize(path.rsplit('/').next().unwrap_or_default())),
        (_, false) => format!(" {number:>5} {}", line.text),
    };
    row(format!("{} │{location}", columns(&line.shares, table)), line_style(&line.shares, table))
}

fn line_style(shares: &Shares, table: &Table) -> RowStyle {
    match shares.self_time.recent as f64 * 100.0 / table.all.recent.max(1) as f64 {
        HOT_PERCENT.. => RowStyle::Hot,
        WARM_PERCENT.. => RowStyle::Warm,
        _ => RowStyle::Plain,
    }
}

fn columns(shares: &Shares, table: &Table) -> String {
    format!(
        "{} {} {:>8.2} {:>8.2}",
        percent(shares.self_time.recent, table.all.recent),
        percent(shares.total.recent, table.all.recent),
        seconds(shares.self_time.overall),
        seconds(shares.total.overall)
    )
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:>7.1}", part as f64 * 100.0 / whole.max(1) as f64)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn next_order(order: Order) -> Order {
    match order {
        Order::SelfRecent => Order::TotalRecent,
        Order::TotalRecent => Order::SelfOverall,
        Order::SelfOverall => Order::TotalOverall,
        Order::TotalOverall => Order::SelfRecent,
    }
}

/// Index of the selected row after a move. Without a selection, a move selects the first row, or the last if it goes to
/// the end.
fn moved_index(index: Option<usize>, offset: isize, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(match index {
        Some(index) => index.saturating_add_signed(offset).min(last),
        None if offset == isize::MAX => last,
        None => 0,
    })
}

fn row(text: impl Into<String>, style: RowStyle) -> Row {
    Row { text: text.into(), style }
}

/// Truncates `text` to a width in columns. With `fill`, also pads it, so that the colour extends to the edge.
fn fit_to_width(text: &str, columns: usize, fill: bool) -> String {
    let char_width = |character: char| character.width().unwrap_or_default();
    let text_width: usize = text.chars().map(char_width).sum();
    let (mut fitted, mut used_width) = (String::new(), 0);
    let space = if text_width > columns { columns.saturating_sub(1) } else { columns };
    for character in text.chars() {
        if used_width + char_width(character) > space {
            break;
        }
        used_width += char_width(character);
        fitted.push(character);
    }
    if text_width > columns {
        fitted.push('…');
        used_width += 1;
    }
    if fill {
        fitted.extend(std::iter::repeat_n(' ', columns.saturating_sub(used_width)));
    }
    fitted
}
