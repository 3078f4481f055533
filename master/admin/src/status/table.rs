//! Aligned plain text: lines with a label, and tables.

use crate::plain::clean;

/// Width of labels.
const LABEL: usize = 15;
/// Longest text of others on one line, in characters.
const MAX_TEXT: usize = 400;

/// An untrusted text, cleaned and cut, on one line.
pub(super) fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let short: String = words.join(" ").chars().take(MAX_TEXT).collect();
    clean(&short)
}

/// A part that is missing, with the cause.
pub(super) fn missing(why: &str) -> String {
    format!("missing: {why}")
}

/// A text as it grows.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// A line with a label.
    pub(super) fn say(&mut self, label: &str, text: &str) {
        let text = line(text);
        self.0.extend([format!("{label:LABEL$}{text}\n")]);
    }

    /// A heading, after an empty line.
    pub(super) fn head(&mut self, text: &str) {
        self.0.extend([format!("\n{text}\n")]);
    }

    /// Rows under a first one of column names, each column as wide as its widest cell.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| line(cell)).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            self.0
                .extend([format!("  {}\n", cells.join("   ").trim_end())]);
        }
    }

    /// The whole text.
    pub(super) fn whole(self) -> String {
        self.0
    }
}

/// A row of texts.
pub(super) fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}
