//! Events as agent and master write them: their names, and which writes are tried again.

use std::time::Duration;

/// Longest name of an object.
const MAX_NAME: usize = 253;
/// How long an event is tried at most, as upstream's twelve tries, ten seconds apart, take.
pub const LONGEST_TRY: Duration = Duration::from_secs(120);

/// The name of an event, from the name of what it is about, which is shortened where both would be
/// too long, and the time of its first occurrence in nanoseconds since 1970.
pub fn event_name(about: &str, nanoseconds: i128) -> String {
    let time = format!(".{nanoseconds:x}");
    let room = MAX_NAME.saturating_sub(time.len());
    let about: String = about.chars().take(room).collect();
    // What is cut off may leave a name that ends where none may.
    format!("{}{time}", about.trim_end_matches(['.', '-']))
}

/// Whether an event that the API answered with this status code and reason may be written later: it
/// was one too many, the API begins or ends, or other writers were faster. That says nothing of the
/// event. Every other answer would be the same again.
pub fn is_temporary(code: u16, reason: &str) -> bool {
    matches!(code, 429 | 503 | 504) || reason == "ServerTimeout"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_an_object_with_a_long_name_has_a_name_of_its_own() {
        let at = 0x18ab_cdef_0123_4567;
        assert_eq!(event_name("web-0", at), "web-0.18abcdef01234567");
        let long = format!("{}.{}", "a".repeat(235), "b".repeat(17));
        assert_eq!(long.len(), MAX_NAME);
        let expected = format!("{}.18abcdef01234567", "a".repeat(235));
        assert_eq!(event_name(&long, at), expected);
        assert_eq!(event_name(&"a".repeat(MAX_NAME), at).len(), MAX_NAME);
    }

    #[test]
    fn what_says_nothing_of_the_event_is_temporary() {
        let temporary = [
            (429, "TooManyRequests"),
            (500, "ServerTimeout"),
            (503, "ServiceUnavailable"),
            (503, ""),
            (504, "Timeout"),
        ];
        let is = |answers: &[(u16, &str)]| -> Vec<bool> {
            let each = answers.iter();
            each.map(|(code, reason)| is_temporary(*code, reason))
                .collect()
        };
        assert_eq!(is(&temporary), [true; 5]);
        let last = [
            (403, "Forbidden"),
            (409, "AlreadyExists"),
            (422, "Invalid"),
            (500, "InternalError"),
        ];
        assert_eq!(is(&last), [false; 4]);
    }
}
