//! Tables that fit where they are shown: what is least wanted of their columns is left out, then names are shortened.
//!
//! Knows nothing of what is in them.

use std::fmt::Write as _;

use super::style::{Style, StyledLine};

/// Between two columns.
const GAP: usize = 2;

/// One column.
#[derive(Clone, Copy)]
pub(super) struct Column<'t> {
    pub title: &'t str,
    /// Where there is too little room, the column with the highest rank is left out first; one of rank 0 never is.
    pub rank: u8,
    /// To how many characters it may be shortened; 0: not at all.
    pub least: usize,
    pub is_number: bool,
}

/// One cell; its last piece may be shortened.
pub(super) type Cell = Vec<(Style, String)>;

pub(super) fn cell(style: Style, text: impl Into<String>) -> Cell {
    vec![(style, text.into())]
}

/// One row.
pub(super) enum Row {
    Cells(Vec<Cell>),
    /// A line about the row above.
    Note(String),
}

pub(super) struct Table<'c> {
    pub columns: &'c [Column<'c>],
    pub rows: Vec<Row>,
}

impl Table<'_> {
    /// Its head and its rows, no wider than `width` if its columns allow that.
    pub(super) fn lines(&self, width: Option<usize>) -> Vec<StyledLine> {
        let columns = self.fitted(width.unwrap_or(usize::MAX));
        let mut head = StyledLine::default();
        for (number, (at, width)) in columns.iter().enumerate() {
            let column = &self.columns[*at];
            let title = cell(Style::Dim, column.title);
            push(&mut head, &title, *width, column.is_number, number + 1 == columns.len());
        }
        let mut lines = vec![head];
        for row in &self.rows {
            let mut line = StyledLine::default();
            match row {
                Row::Note(text) => line.push(Style::Dim, format!("  {text}")),
                Row::Cells(cells) => {
                    for (number, (at, width)) in columns.iter().enumerate() {
                        let is_number = self.columns[*at].is_number;
                        push(
                            &mut line,
                            &cells[*at],
                            *width,
                            is_number,
                            number + 1 == columns.len(),
                        );
                    }
                }
            }
            lines.push(line);
        }
        lines
    }

    /// The columns that are shown, and how wide.
    fn fitted(&self, width: usize) -> Vec<(usize, usize)> {
        let mut shown: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|at| (at, self.natural(at))).collect();
        loop {
            let gaps = GAP * shown.len().saturating_sub(1);
            let total = shown.iter().map(|(_, width)| width).sum::<usize>() + gaps;
            let mut over = total.saturating_sub(width);
            let slack: usize = shown.iter().map(|column| self.slack(*column)).sum();
            let least_wanted = shown
                .iter()
                .map(|(at, _)| *at)
                .filter(|at| self.columns[*at].rank > 0)
                .max_by_key(|at| self.columns[*at].rank);
            if let Some(least_wanted) = least_wanted
                && over > slack
            {
                shown.retain(|(at, _)| *at != least_wanted);
                continue;
            }
            for column in &mut shown {
                let less = over.min(self.slack(*column));
                column.1 -= less;
                over -= less;
            }
            return shown;
        }
    }

    /// How much a column of this width can be shortened.
    fn slack(&self, (at, width): (usize, usize)) -> usize {
        match self.columns[at].least {
            0 => 0,
            least => width.saturating_sub(least),
        }
    }

    fn natural(&self, at: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => Some(characters(&cells[at])),
            Row::Note(_) => None,
        });
        cells.chain([self.columns[at].title.chars().count()]).max().unwrap_or(0)
    }
}

fn characters(cell: &Cell) -> usize {
    cell.iter().map(|(_, text)| text.chars().count()).sum()
}

fn push(line: &mut StyledLine, cell: &Cell, width: usize, is_number: bool, is_last: bool) {
    let padding = " ".repeat(width.saturating_sub(characters(cell)));
    if is_number {
        line.push(Style::Plain, padding.as_str());
    }
    let mut width_left = width;
    for (style, text) in cell {
        let text = shortened(text, width_left);
        width_left -= text.chars().count();
        line.push(*style, text);
    }
    match (is_last, is_number) {
        (true, _) => {}
        (false, true) => line.push(Style::Plain, " ".repeat(GAP)),
        (false, false) => line.push(Style::Plain, padding + &" ".repeat(GAP)),
    }
}

/// The text, or its beginning and `…`.
pub(super) fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters.saturating_sub(1)).chain(['…']).take(characters).collect()
}

/// Left-aligned columns, however wide.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(table, "{}", line.trim_end());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { title: "NAME", rank: 0, least: 6, is_number: false },
        Column { title: "MODEL", rank: 1, least: 0, is_number: false },
        Column { title: "COST", rank: 0, least: 0, is_number: true },
    ];

    fn shown(width: Option<usize>) -> String {
        let cells = ["a long name", "gpt-5.1", "$1.34"].map(|text| cell(Style::Plain, text));
        let rows = vec![Row::Cells(cells.into()), Row::Note("its id".into())];
        let table = Table { columns: &COLUMNS, rows };
        let lines =
            table.lines(width).iter().map(|line| line.rendered(80, false)).collect::<Vec<_>>();
        lines.join("\n")
    }

    #[test]
    fn table_fits_its_place() {
        assert_eq!(
            shown(None),
            "NAME         MODEL     COST\na long name  gpt-5.1  $1.34\n  its id"
        );
        assert_eq!(shown(Some(24)), "NAME      MODEL     COST\na long …  gpt-5.1  $1.34\n  its id");
        assert_eq!(shown(Some(18)), "NAME          COST\na long name  $1.34\n  its id");
        assert_eq!(shown(Some(13)), "NAME     COST\na lon…  $1.34\n  its id");
        assert_eq!(shown(Some(3)), shown(Some(13)), "no column of rank 0 is left out");
    }
}
