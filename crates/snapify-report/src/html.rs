//! A page's text. All of it is well-formed XML as well, so that any parser can read the numbers back.

use std::fmt::{Display, Write};

/// HTML as it grows.
#[derive(Default)]
pub struct Html(String);

/// Attributes of an element.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

impl Html {
    /// Adds an element with whatever `inside` adds.
    pub fn element(
        &mut self,
        name: &str,
        attributes: Attributes<'_>,
        inside: impl FnOnce(&mut Self),
    ) {
        self.0.push('<');
        self.0.push_str(name);
        for (key, value) in attributes {
            self.0.push(' ');
            self.0.push_str(key);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
        inside(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    /// Adds an element that holds text.
    pub fn line(&mut self, name: &str, attributes: Attributes<'_>, text: impl Display) {
        self.element(name, attributes, |html| html.text(&text));
        self.0.push('\n');
    }

    /// Adds text. What markup would be made of is escaped; what XML cannot hold is replaced.
    pub fn text(&mut self, text: &dyn Display) {
        // Writing to a string cannot fail.
        let _ = write!(Escaped(&mut self.0), "{text}");
    }

    /// The page: `body` within a document of the title `title` and the style sheet `style`.
    pub fn document(title: &str, style: &str, body: impl FnOnce(&mut Self)) -> String {
        let mut html = Self("<!DOCTYPE html>\n".into());
        html.element("html", &[("lang", &"en")], |html| {
            html.element("head", &[], |html| {
                html.0.push_str(concat!(
                    "\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" ",
                    "content=\"width=device-width, initial-scale=1\"/>\n"
                ));
                html.line("title", &[], title);
                // The style sheet is ours and holds nothing that would have to be escaped.
                html.element("style", &[], |html| html.0.push_str(style));
            });
            html.element("body", &[], body);
        });
        html.0.push('\n');
        html.0
    }
}

/// Escapes what is written to it.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\t' | '\n' | ' '..
                    if !matches!(c, '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}') =>
                {
                    self.0.push(c);
                }
                _ => self.0.push('\u{fffd}'),
            }
        }
        Ok(())
    }
}
