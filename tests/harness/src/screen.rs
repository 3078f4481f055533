//! What stands on a machine's screen.
//!
//! The font is not known here. Lines whose words are known from elsewhere are found as one reads a
//! cipher of substitution: by the one font in which each glyph is one character, in all lines.

use crate::{Error, Result};
use std::collections::HashMap;

/// Columns and rows of a glyph.
const WIDTH: usize = 8;
const HEIGHT: usize = 16;
/// Least value of a colour that is lit; text is light grey on black.
const LIT: u8 = 0x40;

/// One bit for each dot, a byte for each row.
type Glyph = [u8; HEIGHT];

/// The glyphs of a screen, row by row.
#[derive(Debug)]
pub struct Screen {
    columns: usize,
    glyphs: Vec<Glyph>,
}

/// Which glyph is which character.
#[derive(Debug, Clone)]
struct Font {
    glyphs: HashMap<char, Glyph>,
    characters: HashMap<Glyph, char>,
}

impl Screen {
    /// Takes a picture (PPM, as QEMU writes it) apart.
    pub fn parse(picture: &[u8]) -> Result<Self> {
        let wrong = || Error::Missing("no picture of a screen".to_owned());
        let mut parts = picture.splitn(4, |byte| *byte == b'\n');
        let (kind, size) = (parts.next(), parts.next().ok_or_else(wrong)?);
        let (depth, dots) = (parts.next(), parts.next().ok_or_else(wrong)?);
        let size = String::from_utf8_lossy(size);
        let size = size.split_once(' ').ok_or_else(wrong)?;
        let (Ok(width), Ok(height)) = (size.0.parse::<usize>(), size.1.parse::<usize>()) else {
            return Err(wrong());
        };
        if (kind, depth) != (Some(b"P6"), Some(b"255")) || dots.len() < width * height * 3 {
            return Err(wrong());
        }
        let lit = |row: usize, column: usize| {
            let at = (row * width + column) * 3;
            dots[at..at + 3].iter().any(|colour| *colour >= LIT)
        };
        let (columns, rows) = (width / WIDTH, height / HEIGHT);
        let glyph = |cell: usize| {
            let (left, top) = (cell % columns * WIDTH, cell / columns * HEIGHT);
            std::array::from_fn(|row| {
                (0..WIDTH).fold(0, |bits, column| {
                    (bits << 1) | u8::from(lit(top + row, left + column))
                })
            })
        };
        Ok(Self {
            columns,
            glyphs: (0..columns * rows).map(glyph).collect(),
        })
    }

    /// Whether all these lines stand on the screen in this order, each from the begin of a row on.
    pub fn shows(&self, lines: &[String]) -> bool {
        let nothing = [0; HEIGHT];
        let font = Font {
            glyphs: HashMap::from([(' ', nothing)]),
            characters: HashMap::from([(nothing, ' ')]),
        };
        self.shows_from(0, lines, &font)
    }

    fn shows_from(&self, first: usize, lines: &[String], font: &Font) -> bool {
        let Some((line, rest)) = lines.split_first() else {
            return true;
        };
        let rows = self.glyphs.len() / self.columns.max(1);
        (first..rows).any(|row| {
            let cells = &self.glyphs[row * self.columns..];
            let mut font = font.clone();
            font.reads(cells, line) && {
                let taken = line.chars().count().div_ceil(self.columns).max(1);
                self.shows_from(row + taken, rest, &font)
            }
        })
    }
}

impl Font {
    /// Whether the cells are this line; what they tell about the font is kept.
    fn reads(&mut self, cells: &[Glyph], line: &str) -> bool {
        let mut cells = cells.iter();
        line.chars().all(|character| {
            cells.next().is_some_and(|glyph| {
                let known = self.glyphs.entry(character).or_insert(*glyph);
                let read = self.characters.entry(*glyph).or_insert(character);
                (*known, *read) == (*glyph, character)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of rows of text, in a font of its own.
    fn picture(rows: &[&str]) -> Vec<u8> {
        const COLUMNS: usize = 20;
        let mut picture = format!("P6\n{} {}\n255\n", COLUMNS * 8, rows.len() * 16).into_bytes();
        for row in rows {
            for line in 0..16 {
                let cells = row.bytes().chain(std::iter::repeat(b' ')).take(COLUMNS);
                for character in cells {
                    let bits = if character == b' ' {
                        0
                    } else {
                        character.rotate_left(line % 7)
                    };
                    let dots = (0..8).map(|dot| if (bits >> dot) & 1 == 1 { 0xAA } else { 0 });
                    picture.extend(dots.flat_map(|dot| [dot; 3]));
                }
            }
        }
        picture
    }

    #[test]
    fn lines_are_found_in_their_order_and_others_are_not() {
        let rows = [
            "firmware",
            "pratique: 12 initrd",
            "state: encrypted, 77",
            "7 GiB",
            "agent: up",
        ];
        let screen = Screen::parse(&picture(&rows)).unwrap();
        let shows = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            screen.shows(&lines)
        };
        let long = "state: encrypted, 777 GiB";
        assert!(shows(&["pratique: 12 initrd", long, "agent: up"]));
        assert!(!shows(&[
            "pratique: 12 initrd",
            "state: encrypted, 787 GiB",
            "agent: up"
        ]));
        assert!(!shows(&[long, "pratique: 12 initrd"]));
        assert!(!shows(&["pratique: 12 initrd", long, "agent: pu"]));
        assert!(!shows(&["pratique: 12 initrd", "pratique: 12 initrd"]));
        assert!(!shows(&["init"]), "no row begins so");
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let whole = picture(&["a"]);
        assert!(Screen::parse(&whole).is_ok());
        for end in [0, 5, 14, whole.len() - 1] {
            assert!(Screen::parse(&whole[..end]).is_err(), "{end}");
        }
        assert!(Screen::parse(b"P6\n8 x\n255\n").is_err());
    }
}
