//! Blocks of headers (SPDY 3.1, 2.6.10): names and values, compressed with zlib and a dictionary of
//! their own.

use super::Fault;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Longest block once it is expanded. A client of port-forward sends about 60 bytes.
const MAX_BLOCK: usize = 8 << 10;
/// Words of the dictionary; each stands there behind its length (SPDY 3.1, 2.6.10.1).
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];
/// The part of the dictionary after the words.
const REST: &str = "\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request\
    401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented\
    503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=\
    gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut all = Vec::new();
    for word in WORDS {
        put(word, &mut all);
    }
    all.extend_from_slice(REST.as_bytes());
    all
}

/// A text behind its length. Texts that are written here are short.
fn put(text: &str, out: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.extend(length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The headers of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header, by its name in small letters.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Headers {
    fn from(all: [(&str, &str); N]) -> Self {
        Self(
            all.map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        )
    }
}

/// Expands the blocks of one peer, in the order in which they come: each builds on those before it.
#[derive(Debug)]
pub(super) struct Expander(Decompress);

impl Expander {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Reads the next block.
    ///
    /// # Errors
    /// [`Fault::Headers`] where it can't be expanded, is longer than [`MAX_BLOCK`] once expanded,
    /// or is no list of names and values.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Headers, Fault> {
        // Never grown: a block that does not fit is refused, however small it is on the wire.
        let mut plain = Vec::with_capacity(MAX_BLOCK);
        let mut rest = block;
        while !rest.is_empty() {
            let before = self.0.total_in();
            match self
                .0
                .decompress_vec(rest, &mut plain, FlushDecompress::Sync)
            {
                Ok(Status::Ok | Status::BufError) => {}
                Ok(Status::StreamEnd) => return Err(Fault::Headers),
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.0.set_dictionary(&dictionary());
                    set.map_err(|_another| Fault::Headers)?;
                }
                Err(_not_zlib) => return Err(Fault::Headers),
            }
            let used = usize::try_from(self.0.total_in() - before).unwrap_or_default();
            rest = &rest[used.min(rest.len())..];
            if plain.len() == MAX_BLOCK || (used == 0 && !rest.is_empty()) {
                return Err(Fault::Headers);
            }
        }
        parse(&plain).ok_or(Fault::Headers)
    }
}

fn parse(mut plain: &[u8]) -> Option<Headers> {
    let count = number(&mut plain)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let name = text(&mut plain)?.to_ascii_lowercase();
        all.push((name, text(&mut plain)?));
    }
    plain.is_empty().then_some(Headers(all))
}

fn number(plain: &mut &[u8]) -> Option<u32> {
    let (number, rest) = plain.split_first_chunk::<4>()?;
    *plain = rest;
    Some(u32::from_be_bytes(*number))
}

fn text(plain: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(number(plain)?).ok()?;
    let (text, rest) = plain.split_at_checked(length)?;
    *plain = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// Compresses the blocks of one peer.
#[derive(Debug)]
pub(super) struct Packer(Compress);

impl Packer {
    pub(super) fn new() -> Self {
        let mut compress = Compress::new(Compression::best(), true);
        // Only a compressor that has begun refuses a dictionary.
        compress.set_dictionary(&dictionary()).ok();
        Self(compress)
    }

    /// The block of these headers.
    pub(super) fn block(&mut self, headers: &Headers) -> Vec<u8> {
        let mut plain = Vec::new();
        let count = u32::try_from(headers.0.len()).unwrap_or(u32::MAX);
        plain.extend(count.to_be_bytes());
        for (name, value) in &headers.0 {
            put(name, &mut plain);
            put(value, &mut plain);
        }
        // What can't be compressed grows by a few bytes only.
        let mut block = Vec::with_capacity(plain.len() + 128);
        self.0
            .compress_vec(&plain, &mut block, FlushCompress::Sync)
            .ok();
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Adler-32 (RFC 1950, 8.2).
    fn adler(bytes: &[u8]) -> u32 {
        let (mut one, mut two) = (1, 0);
        for byte in bytes {
            one = (one + u32::from(*byte)) % 65521;
            two = (two + one) % 65521;
        }
        (two << 16) | one
    }

    #[test]
    fn the_dictionary_is_the_one_that_all_speak() {
        let all = dictionary();
        assert_eq!((all.len(), adler(&all)), (1423, 0xE3C6_A7C2));
    }

    #[test]
    fn each_block_that_is_none_is_refused() {
        let plain: [&[u8]; 5] = [
            b"",
            b"\0\0\0\x01",
            b"\0\0\0\x01\0\0\0\x01a\xff\xff\xff\xff",
            b"\0\0\0\0more",
            b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\0",
        ];
        for plain in plain {
            assert_eq!(parse(plain), None, "{plain:?}");
        }
        assert_eq!(Expander::new().read(b"no zlib at all"), Err(Fault::Headers));
        assert_eq!(
            Expander::new().read(&[0x78, 0xBB, 1, 2, 3, 4]),
            Err(Fault::Headers),
            "another dictionary"
        );
    }

    #[test]
    fn a_block_that_grows_beyond_the_limit_is_refused() {
        let long = "a".repeat(MAX_BLOCK);
        let block = Packer::new().block(&Headers::from([("a", long.as_str())]));
        assert!(block.len() < 200, "{}", block.len());
        assert_eq!(Expander::new().read(&block), Err(Fault::Headers));
    }

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(all in proptest::collection::vec(("[a-z-]{1,20}", "[ -~]{0,60}"), 0..8), times in 1_usize..4) {
            let headers = Headers(all);
            let (mut packer, mut expander) = (Packer::new(), Expander::new());
            for _ in 0..times {
                prop_assert_eq!(expander.read(&packer.block(&headers)), Ok(headers.clone()));
            }
        }

        #[test]
        fn no_bytes_make_it_fail_otherwise_than_by_a_fault(block in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut expander = Expander::new();
            let mut packed = Packer::new().block(&Headers::from([("port", "80")]));
            packed.extend(block);
            drop(expander.read(&packed));
        }
    }
}
