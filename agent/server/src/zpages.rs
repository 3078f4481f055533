//! `/statusz` and `/flagz` in upstream's text form (KEP-4827, KEP-4828), for people (pure).
//! Settings stand in the place of flags: what a kubelet works by comes from the measured
//! configuration here.

use jiff::Timestamp;
use serde_json::Value;

/// The paths that the page lists.
const PATHS: &str = "/configz /flagz /healthz /metrics /metrics/slis /statusz";

/// Upstream's words above each page.
fn head(page: &str) -> String {
    format!(
        "\nkubelet {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
         guarantees and is for debugging purposes only.\n\n"
    )
}

/// `/statusz`: since when the kubelet of this version answers.
pub(crate) fn status(started: Timestamp, now: Timestamp, version: &str) -> String {
    let up = now.duration_since(started).as_secs().max(0);
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let began = started.strftime("%a %b %e %H:%M:%S UTC %Y");
    let version = version.trim_start_matches('v');
    head("statusz")
        + &format!(
            "Started: {began}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nBinary version: {version}\nPaths: {PATHS}\n"
        )
}

/// `/flagz`: the settings of a document such as `/configz` shows, one a line.
pub(crate) fn flags(settings: &str) -> String {
    let document: Value = serde_json::from_str(settings).unwrap_or_default();
    let mut text = head("flags");
    let settings = document["kubeletconfig"].as_object();
    for (name, value) in settings.into_iter().flatten() {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text.extend([name.as_str(), "=", &value, "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pages_have_upstreams_heads_and_their_lines() {
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let page = status(at(0), at(2 * 3600 + 3 * 60 + 4), "v1.36.0");
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[1], "kubelet statusz");
        assert!(lines[2].starts_with("Warning: This endpoint"), "{page}");
        assert_eq!(lines[4], "Started: Tue Nov 14 22:13:20 UTC 2023");
        assert_eq!(lines[5], "Up: 2 hr 03 min 04 sec");
        assert_eq!(lines[6], "Binary version: 1.36.0");
        let page = flags(r#"{"kubeletconfig": {"port": 10250, "cgroupDriver": "cgroupfs"}}"#);
        assert!(page.starts_with("\nkubelet flags\nWarning"), "{page}");
        assert!(
            page.ends_with("\n\ncgroupDriver=cgroupfs\nport=10250\n"),
            "{page}"
        );
        assert_eq!(flags("no document"), head("flags"));
    }
}
