//! Styles of printed text: shown where the terminal has colour, unless `--color` or `NO_COLOR` says otherwise.
//!
//! Text may quote strangers. It is made visible before a style is put around it, so that a terminal obeys only ours.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use crate::telemetry::terminal;

/// When text has colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ColorChoice {
    /// On a terminal that has colour, if `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

static CHOICE: OnceLock<ColorChoice> = OnceLock::new();

/// What the command line says; the first call counts.
pub(super) fn choose(choice: ColorChoice) {
    let _ = CHOICE.set(choice);
}

/// Whether standard output has colour.
pub(super) fn has_colour() -> bool {
    match CHOICE.get().copied().unwrap_or_default() {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
                && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
        }
    }
}

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
}

impl Style {
    fn sequence(self) -> Option<&'static str> {
        match self {
            Style::Plain => None,
            Style::Bold => Some("\x1b[1m"),
            Style::Dim => Some("\x1b[2m"),
            Style::Good => Some("\x1b[32m"),
            Style::Warn => Some("\x1b[33m"),
            Style::Bad => Some("\x1b[31m"),
        }
    }

    /// Of a context that is so full, percent.
    pub(super) fn of_fill(percent: f64) -> Self {
        match percent {
            100.0.. => Style::Bad,
            80.0.. => Style::Warn,
            _ => Style::Good,
        }
    }
}

/// A line of text in several styles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledLine {
    pieces: Vec<(Style, String)>,
    /// Whether it is shown in reverse, as the one that is chosen.
    pub is_chosen: bool,
}

impl StyledLine {
    pub(super) fn new(style: Style, text: impl Into<String>) -> Self {
        Self { pieces: vec![(style, text.into())], is_chosen: false }
    }

    pub(super) fn push(&mut self, style: Style, text: impl Into<String>) {
        self.pieces.push((style, text.into()));
    }

    /// The line as a terminal gets it: cut after `columns`, in styles if it has colour.
    pub(super) fn rendered(&self, columns: usize, has_colour: bool) -> String {
        let mut line = String::new();
        let mut columns_left = columns;
        if self.is_chosen {
            line.push_str("\x1b[7m");
        }
        for (style, text) in &self.pieces {
            let text: String = terminal::visible(text).chars().take(columns_left).collect();
            columns_left -= text.chars().count();
            match style.sequence() {
                Some(sequence) if has_colour && !self.is_chosen => {
                    line.extend([sequence, &text, "\x1b[0m"]);
                }
                _ => line.push_str(&text),
            }
        }
        if self.is_chosen {
            // The whole row is marked.
            line.extend(std::iter::repeat_n(' ', columns_left));
            line.push_str("\x1b[0m");
        }
        line
    }
}

/// A bar of so many characters, filled to a share in percent.
pub(super) fn gauge(percent: f64, characters: usize) -> [(Style, String); 2] {
    let filled =
        (percent / 100.0 * characters as f64).round().clamp(0.0, characters as f64) as usize;
    [(Style::of_fill(percent), "━".repeat(filled)), (Style::Dim, "─".repeat(characters - filled))]
}

/// The lines of a text in which the line below a head that ends with `(26%)` is such a bar.
pub(super) fn with_gauge(text: &str) -> Vec<StyledLine> {
    let mut lines: Vec<StyledLine> = Vec::new();
    let mut percent = None;
    for line in text.lines() {
        let is_bar = !line.is_empty() && line.chars().all(|c| c == '━');
        match percent {
            Some(percent) if is_bar => lines.push(StyledLine {
                pieces: gauge(percent, line.chars().count()).into(),
                is_chosen: false,
            }),
            _ => lines.push(StyledLine::new(Style::Plain, line)),
        }
        percent = percent_of(line);
    }
    lines
}

/// The lines of a text in which each bar, `━━──┃`, has the colour of its fill.
#[cfg(feature = "demo")]
pub(super) fn with_gauges(text: &str) -> Vec<StyledLine> {
    text.lines().map(with_bar).collect()
}

#[cfg(feature = "demo")]
fn with_bar(line: &str) -> StyledLine {
    let Some((head, tail)) = line.split_once('┃') else {
        return StyledLine::new(Style::Plain, line);
    };
    let start = head.find(['━', '─']).unwrap_or(head.len());
    let bar = &head[start..];
    let filled = bar.chars().filter(|character| *character == '━').count();
    let percent = filled as f64 * 100.0 / bar.chars().count().max(1) as f64;
    let mut styled = StyledLine::new(Style::Plain, &head[..start]);
    for (style, text) in gauge(percent, bar.chars().count()) {
        styled.push(style, text);
    }
    styled.push(Style::Bold, "┃");
    styled.push(Style::Plain, tail);
    styled
}

fn percent_of(head: &str) -> Option<f64> {
    let (before, _) = head.split_once("%)")?;
    before.rsplit_once('(')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_cut_and_coloured() {
        let mut line = StyledLine::new(Style::Bold, "name");
        line.push(Style::Plain, " a\x1b[2J");
        assert_eq!(line.rendered(99, false), "name a\\u{1b}[2J");
        assert_eq!(line.rendered(6, true), "\x1b[1mname\x1b[0m a");
        assert_eq!(line.rendered(2, false), "na");
        line.is_chosen = true;
        assert_eq!(line.rendered(7, true), "\x1b[7mname a\\\x1b[0m");
    }

    #[test]
    fn line_below_usage_is_gauge() {
        let shown = with_gauge("Context Usage: 1 / 4 tokens (25%)\n━━━━\n\n━━");
        let texts: Vec<String> = shown.iter().map(|line| line.rendered(80, false)).collect();
        assert_eq!(texts[1..], ["━───", "", "━━"]);
    }

    #[cfg(feature = "demo")]
    #[test]
    fn bars_have_colour() {
        let shown = with_gauges("call 1 ━━──┃ 9\nwords");
        assert_eq!(shown[0].rendered(80, false), "call 1 ━━──┃ 9");
        let coloured = "call 1 \x1b[32m━━\x1b[0m\x1b[2m──\x1b[0m\x1b[1m┃\x1b[0m 9";
        assert_eq!(shown[0].rendered(80, true), coloured);
        assert_eq!(shown[1].rendered(80, true), "words");
    }

    #[test]
    fn gauge_is_filled() {
        let bar = |percent| gauge(percent, 4).map(|(_, text)| text).concat();
        for (percent, shown) in [(0.0, "────"), (50.0, "━━──"), (250.0, "━━━━")]
        {
            assert_eq!(bar(percent), shown);
        }
        assert_eq!(gauge(85.0, 4)[0].0, Style::Warn);
    }
}
