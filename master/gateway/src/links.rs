//! Links in pages of programs behind this server: absolute paths would lead to this server's own
//! root.
//!
//! A page is read as it comes, however it is cut, and all but the values of attributes that are
//! links stays as it is, byte for byte. No more of it is held than one tag.

use crate::reverse_proxy::ReverseProxy;

/// Longest tag that is looked into; a longer one passes as it is.
const MAX_TAG: usize = 32 << 10;

/// Attributes that hold a link, by the tags that have them (HTML 4.01 and HTML).
const LINKS: [(&str, &[&str]); 23] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("video", &["poster", "src"]),
];
/// The same of tags whose content is text up to their own end, and may look like tags.
const OPAQUE: [(&str, &[&str]); 8] = [
    ("script", &["src"]),
    ("style", &[]),
    ("textarea", &[]),
    ("title", &[]),
    ("xmp", &[]),
    ("noembed", &[]),
    ("noframes", &[]),
    ("plaintext", &[]),
];

/// Where reading stands.
#[derive(Debug)]
enum Mode {
    Text,
    Comment,
    /// Up to the end of the tag with this name.
    Opaque(&'static str),
}

/// Rewrites the links of one page.
#[derive(Debug)]
pub struct Links {
    proxy: ReverseProxy,
    mode: Mode,
    /// What is not decided yet.
    held: Vec<u8>,
    /// How far a tag at the beginning of that has been read.
    tag: Tag,
}

impl Links {
    /// For one page.
    pub fn new(proxy: ReverseProxy) -> Self {
        Self {
            proxy,
            mode: Mode::Text,
            held: Vec::new(),
            tag: Tag::default(),
        }
    }

    /// Takes a piece of the page, and returns what of it is decided.
    pub fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let held = std::mem::take(&mut self.held);
        let (mut rest, mut done) = (&held[..], Vec::with_capacity(held.len()));
        while let Some(used) = self.step(rest, &mut done) {
            rest = rest.get(used..).unwrap_or_default();
        }
        self.held = rest.to_vec();
        done
    }

    /// The end of the page: what was held.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Decides the beginning of `rest`, and returns how much of it; `None` where more must come
    /// first.
    fn step(&mut self, rest: &[u8], done: &mut Vec<u8>) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        let (end, most) = match self.mode {
            Mode::Text => return self.text(rest, done),
            Mode::Comment => (find(rest, b"-->").map(|at| at + 3), 2),
            Mode::Opaque(name) => (end_tag(rest, name), name.len() + 1),
        };
        let found = end.is_some();
        let used = match end {
            Some(end) => {
                self.mode = Mode::Text;
                end
            }
            // What may be the beginning of the end is kept.
            None => rest.len().saturating_sub(most),
        };
        done.extend_from_slice(rest.get(..used)?);
        (found || used > 0).then_some(used)
    }

    fn text(&mut self, rest: &[u8], done: &mut Vec<u8>) -> Option<usize> {
        const COMMENT: &[u8] = b"<!--";
        let plain = rest
            .iter()
            .position(|byte| *byte == b'<')
            .unwrap_or(rest.len());
        if plain > 0 {
            done.extend_from_slice(rest.get(..plain)?);
            return Some(plain);
        }
        if rest.starts_with(COMMENT) {
            // `<!-->` and `<!--->` are comments, too: their end is sought from the dashes on.
            self.mode = Mode::Comment;
            done.extend_from_slice(b"<!");
            return Some(2);
        }
        if COMMENT.starts_with(rest) {
            return None;
        }
        if !rest.get(1)?.is_ascii_alphabetic() {
            done.push(b'<');
            return Some(1);
        }
        let whole = self.tag.read(rest);
        if !whole && rest.len() <= MAX_TAG {
            return None;
        }
        let tag = std::mem::take(&mut self.tag);
        if !whole {
            done.extend_from_slice(rest);
            return Some(rest.len());
        }
        let (tag_bytes, name) = (rest.get(..tag.at)?, rest.get(1..tag.name)?);
        let named = |(one, _): &&(&'static str, &[&str])| name.eq_ignore_ascii_case(one.as_bytes());
        let opaque = OPAQUE.iter().find(named);
        let known = opaque.or_else(|| LINKS.iter().find(named));
        match known {
            Some((_, links)) if !links.is_empty() => self.rewrite(tag_bytes, &tag, links, done),
            Some(_) | None => done.extend_from_slice(tag_bytes),
        }
        if let Some((name, _)) = opaque {
            self.mode = Mode::Opaque(name);
        }
        Some(tag.at)
    }

    fn rewrite(&self, bytes: &[u8], tag: &Tag, links: &[&str], done: &mut Vec<u8>) {
        let mut from = 0;
        for Attribute { name, value } in &tag.attributes {
            let is_link = bytes.get(name.clone()).is_some_and(|name| {
                links
                    .iter()
                    .any(|link| name.eq_ignore_ascii_case(link.as_bytes()))
            });
            let text = bytes.get(value.clone()).filter(|_| is_link);
            let text = text.and_then(|value| std::str::from_utf8(value).ok());
            let Some(rewritten) = text.and_then(|text| self.proxy.link(text)) else {
                continue;
            };
            done.extend_from_slice(bytes.get(from..value.start).unwrap_or_default());
            done.extend_from_slice(rewritten.as_bytes());
            from = value.end;
        }
        done.extend_from_slice(bytes.get(from..).unwrap_or_default());
    }
}

type Span = std::ops::Range<usize>;

/// An attribute with a value, by its places in the tag.
#[derive(Debug)]
struct Attribute {
    name: Span,
    value: Span,
}

/// A start tag as far as it was read (HTML, 13.2.5.8 and the states after it).
#[derive(Debug, Default)]
struct Tag {
    /// How far.
    at: usize,
    /// Where its name ends.
    name: usize,
    state: State,
    attributes: Vec<Attribute>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Name,
    /// Between attributes.
    Between,
    /// In an attribute's name, from here.
    Attribute(usize),
    /// After an attribute's name: `=` may follow.
    Named(Span),
    /// After `=`.
    Equals(Span),
    /// In a value from here; with the quote that ends it, else any white space does.
    Value(Span, usize, Option<u8>),
}

impl Tag {
    /// Reads on; true once the tag is whole. `bytes` begins with the tag, and with all that was
    /// read of it before.
    fn read(&mut self, bytes: &[u8]) -> bool {
        while let Some(byte) = bytes.get(self.at).copied() {
            let here = self.at;
            self.at += 1;
            if here == 0 {
                continue;
            }
            let (space, end) = (byte.is_ascii_whitespace(), byte == b'>');
            let next = match std::mem::take(&mut self.state) {
                State::Name if space || end || byte == b'/' => {
                    self.name = here;
                    State::Between
                }
                State::Name => State::Name,
                State::Between if space || end || byte == b'/' => State::Between,
                State::Attribute(from) if byte == b'=' => State::Equals(from..here),
                State::Attribute(from) if space => State::Named(from..here),
                State::Attribute(_) if end || byte == b'/' => State::Between,
                State::Attribute(from) => State::Attribute(from),
                State::Named(name) if byte == b'=' => State::Equals(name),
                State::Named(name) if space => State::Named(name),
                State::Named(_) if end || byte == b'/' => State::Between,
                State::Between | State::Named(_) => State::Attribute(here),
                State::Equals(name) if space => State::Equals(name),
                State::Equals(_) if end => State::Between,
                State::Equals(name) if matches!(byte, b'"' | b'\'') => {
                    State::Value(name, self.at, Some(byte))
                }
                State::Equals(name) => State::Value(name, here, None),
                State::Value(name, from, quote)
                    if quote.map_or(space || end, |quote| quote == byte) =>
                {
                    let value = from..here;
                    self.attributes.push(Attribute { name, value });
                    State::Between
                }
                State::Value(name, from, quote) => State::Value(name, from, quote),
            };
            self.state = next;
            if end && matches!(self.state, State::Between) {
                return true;
            }
        }
        false
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

/// Where `</name` begins, in whatever case.
fn end_tag(bytes: &[u8], name: &str) -> Option<usize> {
    bytes.windows(name.len() + 2).position(|part| {
        part.strip_prefix(b"</")
            .is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> Links {
        Links::new(ReverseProxy::new("/p".to_owned(), vec!["me:80".to_owned()]))
    }

    fn whole(page: &str) -> String {
        let mut links = links();
        let mut done = links.feed(page.as_bytes());
        done.extend(links.finish());
        String::from_utf8(done).unwrap()
    }

    const PAGES: [(&str, &str); 15] = [
        (
            "<a href=\"/rewriteme\">test</a>",
            "<a href=\"/p/rewriteme\">test</a>",
        ),
        (
            "<A HREF='/x' title='>'>/x</A>",
            "<A HREF='/p/x' title='>'>/x</A>",
        ),
        ("<a href=/x>", "<a href=/p/x>"),
        ("<a href = /x class=b>", "<a href = /p/x class=b>"),
        (
            "<img alt=\"a > b\" src=\"/i\"/>",
            "<img alt=\"a > b\" src=\"/p/i\"/>",
        ),
        (
            "<form action=\"http://me:80/f\" method=post>",
            "<form action=\"/p/f\" method=post>",
        ),
        (
            "<a data-href=\"/x\" name=\"/y\">",
            "<a data-href=\"/x\" name=\"/y\">",
        ),
        ("<div href=\"/x\">", "<div href=\"/x\">"),
        (
            "<a href=\"//else/x\"><a href=\"y\">",
            "<a href=\"//else/x\"><a href=\"y\">",
        ),
        (
            "<!-- <a href=\"/x\"> --><a href=\"/y\">",
            "<!-- <a href=\"/x\"> --><a href=\"/p/y\">",
        ),
        ("<!--><a href=\"/y\">", "<!--><a href=\"/p/y\">"),
        (
            "<script src=\"/s\">'<a href=\"/x\">' </SCRIPT><a href=\"/y\">",
            "<script src=\"/p/s\">'<a href=\"/x\">' </SCRIPT><a href=\"/p/y\">",
        ),
        ("1 < 2 <3 </a href=\"/x\"> <", "1 < 2 <3 </a href=\"/x\"> <"),
        (
            "<video poster='/v' src=\"/w\">\u{e4}",
            "<video poster='/p/v' src=\"/p/w\">\u{e4}",
        ),
        ("<a href=\"/x", "<a href=\"/x"),
    ];

    #[test]
    fn links_to_the_root_are_rewritten_and_all_else_stays() {
        for (page, expected) in PAGES {
            assert_eq!(whole(page), expected, "{page}");
        }
    }

    #[test]
    fn a_page_is_the_same_however_it_is_cut() {
        for (page, expected) in PAGES {
            for size in 1..page.len() {
                let mut links = links();
                let mut done = Vec::new();
                for piece in page.as_bytes().chunks(size) {
                    done.extend(links.feed(piece));
                }
                done.extend(links.finish());
                assert_eq!(done, expected.as_bytes(), "{page} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_tag_without_an_end_is_not_held() {
        let mut links = links();
        let mut came = links.feed(b"<a href=\"").len();
        for _ in 0..100 {
            came += links.feed(&[b'x'; 1024]).len();
            assert!(links.held.len() <= MAX_TAG + 1024);
        }
        assert_eq!(came + links.finish().len(), 9 + 100 * 1024);
    }

    #[test]
    fn bytes_without_a_meaning_stay_as_they_are() {
        let bytes: Vec<u8> = (0..=255).cycle().skip(60).take(5000).collect();
        let mut links = links();
        let mut done = links.feed(&bytes);
        done.extend(links.finish());
        assert_eq!(done, bytes);
    }
}
