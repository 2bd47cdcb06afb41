//! Small helpers for the text that the kernel writes into `/proc`.
//!
//! All parsers of this module take bytes, never panic and never index by a number that came from
//! the text: names in `/proc` are chosen by the programs that we look at.

use std::fmt;
use std::io;

/// A `/proc` file that does not have the form we know: what was looked for, and the text that was
/// found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    what: &'static str,
    text: String,
}

impl Malformed {
    /// Says that `what` could not be read from `text` (shortened to a line's worth).
    #[must_use]
    pub fn new(what: &'static str, text: &[u8]) -> Self {
        let line = &text[..text.len().min(120)];
        Self {
            what,
            text: String::from_utf8_lossy(line).into_owned(),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} in {:?}", self.what, self.text)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// The lines of `text` without their newlines.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&b| b == b'\n').filter(|line| !line.is_empty())
}

/// The blank-separated words of a line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// Splits `Key:<blanks>value`; the value keeps its inner and loses its outer blanks.
#[must_use]
pub fn key_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&b| b == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// Cuts `text` at the first `mark`.
#[must_use]
pub fn cut(text: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&b| b == mark)?;
    Some((&text[..at], &text[at + 1..]))
}

/// An unsigned number in `radix`; anything but digits, and any overflow, is `None`.
#[must_use]
pub fn unsigned(word: &[u8], radix: u32) -> Option<u64> {
    if word.is_empty() || word[0] == b'+' {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(word).ok()?, radix).ok()
}

/// A decimal number with an optional sign.
#[must_use]
pub fn signed(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A decimal number that fits an `i32`: ids and descriptor numbers.
#[must_use]
pub fn id(word: &[u8]) -> Option<i32> {
    signed(word).and_then(|n| i32::try_from(n).ok())
}

/// Undoes the kernel's `\ooo` escapes (`seq_path` writes `\012` for a newline in a name).
#[must_use]
pub fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if byte == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_strict() {
        assert_eq!(unsigned(b"ff", 16), Some(255));
        assert_eq!(unsigned(b"+5", 10), None);
        assert_eq!(unsigned(b"", 10), None);
        assert_eq!(unsigned(b"18446744073709551616", 10), None);
        assert_eq!(signed(b"-7"), Some(-7));
        assert_eq!(id(b"4294967296"), None);
    }

    #[test]
    fn escapes_are_undone_and_stray_backslashes_kept() {
        assert_eq!(unescape(b"/a\\012b"), b"/a\nb");
        assert_eq!(unescape(b"/a\\9b\\"), b"/a\\9b\\");
        assert_eq!(unescape(b"\\777"), b"\\777");
    }
}
