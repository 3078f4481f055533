//! The static token list: upstream's CSV of `token,user,uid,"group1,group2"`.

use master_client::UserInfo;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::fmt;

/// Lines that a file may have.
const MAX_LINES: usize = 100_000;

/// A fault in a token file. The text never shows a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TokenFileError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Static tokens and their users. Only hashes of the tokens are kept.
#[derive(Clone, Default)]
pub struct TokenList {
    users: HashMap<Vec<u8>, UserInfo>,
}

impl fmt::Debug for TokenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenList")
            .field("tokens", &self.users.len())
            .finish_non_exhaustive()
    }
}

fn hash(token: &str) -> Vec<u8> {
    digest(&SHA256, token.as_bytes()).as_ref().to_vec()
}

impl TokenList {
    /// Parses a token file. If a token is listed twice, the last line counts, as upstream.
    ///
    /// # Errors
    /// A line is malformed, names no user, or the file has too many lines.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let fail = |what| TokenFileError {
                line: number + 1,
                what,
            };
            if number == MAX_LINES {
                return Err(fail("there are more tokens than a list may have"));
            }
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fields = fields(line).map_err(fail)?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                return Err(fail(
                    "expected at least three columns: token, user name, user uid",
                ));
            };
            if token.is_empty() {
                return Err(fail("the token is empty"));
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups
                .split(',')
                .map(str::trim)
                .filter(|group| !group.is_empty());
            let user = UserInfo {
                uid: uid.clone(),
                ..UserInfo::authenticated(name, groups)
            };
            users.insert(hash(token), user);
        }
        Ok(Self { users })
    }

    /// The user of a token. Looked up by hash, so that timing reveals nothing about other tokens.
    pub(super) fn find(&self, token: &str) -> Option<UserInfo> {
        if self.users.is_empty() {
            None
        } else {
            self.users.get(&hash(token)).cloned()
        }
    }
}

/// The fields of one line (RFC 4180).
fn fields(line: &str) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = line.trim_end_matches('\r');
    loop {
        let field;
        if let Some(quoted) = rest.trim_start().strip_prefix('"') {
            (field, rest) = unquote(quoted)?;
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            field = rest[..end].trim().to_owned();
            rest = &rest[end..];
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.is_empty() => return Ok(fields),
            None => return Err("there is text after a closing quote"),
        }
    }
}

/// The text up to the closing quote, and the rest; a doubled quote stands for one.
fn unquote(text: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"').ok_or("a quote is not closed")?;
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                field.push('"');
                rest = more;
            }
            None => return Ok((field, rest.trim_start())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_upstream_reads_it() {
        let list =
            TokenList::parse("t1,alice,u1\r\nt2,bob,u2,\"a,b\"\n\n\"t\"\"3\",\"carol x\",u3,one\n")
                .unwrap();
        assert_eq!(list.find("t1").unwrap().groups, ["system:authenticated"]);
        assert_eq!(
            list.find("t2").unwrap().groups,
            ["a", "b", "system:authenticated"]
        );
        let carol = list.find("t\"3").unwrap();
        assert_eq!((&*carol.name, &*carol.uid), ("carol x", "u3"));
        assert!(list.find("t4").is_none() && list.find("").is_none());
    }

    #[test]
    fn a_bad_line_is_reported_by_number_and_never_shown() {
        for text in [
            "x,y,z\nsecret,b\n",
            "x,y,z\n,b,c\n",
            "x,y,z\n\"secret,b,c\n",
            "x,y,z\n\"secret\"x,b,c\n",
        ] {
            let error = TokenList::parse(text).unwrap_err();
            assert_eq!(error.line, 2, "{text:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(!format!("{:?}", TokenList::parse("secret,b,c").unwrap()).contains("secret"));
    }
}
