//! `pratique logs`: the logs of a node's own programs and of its kernel, by way of the API server;
//! the node searches them.

use crate::error::{Error, Result};
use crate::files::tell;
use crate::kubeconfig::Api;
use crate::plain::{clean, escaped, node_name};
use crate::runtime::block_on;
use bytes::Bytes;
use config_http::Body;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// Longest line that is held for its end; a node's are shorter.
const MAX_LINE: usize = 64 << 10;
/// Largest refusal that is read.
const REFUSAL: usize = 16 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pratique logs worker-1 --since 10m            everything that this boot logged in the last ten minutes
  pratique logs worker-1 agent -f               the agent (the kubelet is a part of it), and what comes
  pratique logs worker-1 dmesg --grep nvme      the kernel
  pratique logs master-1 master -b -1 -n 50     the last lines of the boot before
  pratique logs worker-1 --list                 which services there are

The right that it takes is `get` on `nodes/proxy`.")]
pub(crate) struct LogsArgs {
    /// The node.
    #[arg(value_parser = node_name)]
    node: String,
    /// The services whose lines to show, merged by time: kernel (or dmesg), init, containerd, agent
    /// (or kubelet), master; all that the node has by default.
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Lines from then on: a time (2026-11-24T03:00:00Z), or how long ago (90s, 10m, 2h, 1d).
    #[arg(long, short = 'S', value_name = "WHEN", value_parser = moment)]
    since: Option<Timestamp>,
    /// Lines up to then, in the same forms.
    #[arg(long, short = 'U', value_name = "WHEN", value_parser = moment)]
    until: Option<Timestamp>,
    /// Number of last lines to show (at most 100000).
    #[arg(long, short = 'n', value_name = "LINES")]
    tail: Option<u32>,
    /// Lines whose text matches this regular expression (of Rust's crate regex: no look-around, no
    /// back-references).
    #[arg(long, short, value_name = "PATTERN")]
    grep: Option<String>,
    /// Follow new lines until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// Lines of one boot: 0 is this one, -1 the one before; `-b` alone is this one. Without it all
    /// that is kept. The kernel's and init's lines are kept for this boot alone.
    #[arg(long, short, value_name = "N", num_args = 0..=1, default_missing_value = "0", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-1000..=0))]
    boot: Option<i32>,
    /// Name the services that the node has, and end.
    #[arg(long, conflicts_with_all = ["services", "since", "until", "tail", "grep", "follow", "boot"])]
    list: bool,
    /// The admin's kubeconfig.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &LogsArgs) -> Result<()> {
    block_on(read(args))
}

async fn read(args: &LogsArgs) -> Result<()> {
    let mut api = Api::open(&args.kubeconfig).await?;
    let mut out = std::io::stdout().lock();
    if args.list {
        let body = ask(&mut api, args, "").await?;
        return copy(body, &mut out).await;
    }
    let mut services = args.services.clone();
    if services.is_empty() {
        let names = ask(&mut api, args, "").await?.within(REFUSAL).await;
        let names = names.map_err(broken)?;
        let names = String::from_utf8_lossy(&names);
        services = names.lines().map(str::to_owned).collect();
        // The kernel's log knows no other boot.
        if args.boot.is_some_and(|boot| boot < 0) {
            services.retain(|name| !matches!(&**name, "kernel" | "init"));
        }
    }
    let body = ask(&mut api, args, &query(args, &services)).await?;
    copy(body, &mut out).await
}

/// The query of the node's API (KEP-2258), with `follow`, which is Pratique's own.
fn query(args: &LogsArgs, services: &[String]) -> String {
    let mut pairs: Vec<(&str, String)> = services
        .iter()
        .map(|service| ("query", service.clone()))
        .collect();
    pairs.extend(args.since.map(|time| ("sinceTime", time.to_string())));
    pairs.extend(args.until.map(|time| ("untilTime", time.to_string())));
    pairs.extend(args.tail.map(|lines| ("tailLines", lines.to_string())));
    pairs.extend(args.grep.clone().map(|pattern| ("pattern", pattern)));
    pairs.extend(args.boot.map(|boot| ("boot", boot.to_string())));
    pairs.extend(args.follow.then(|| ("follow", "true".to_owned())));
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Sends the query to the node; a refusal by the node or the master is an error.
async fn ask(api: &mut Api, args: &LogsArgs, query: &str) -> Result<Body> {
    let node = &args.node;
    let path = format!("/api/v1/nodes/{node}/proxy/logs/?{query}");
    let (status, body) = api.stream(path.trim_end_matches('?')).await?;
    if status.is_success() {
        return Ok(body);
    }
    let body = body.within(REFUSAL).await.unwrap_or_default();
    Err(refused(node, status, &body))
}

/// A refusal with what to do about it.
fn refused(node: &str, status: StatusCode, body: &[u8]) -> Error {
    let status_object: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status_object
        .get("message")
        .and_then(serde_json::Value::as_str);
    let message = message.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    let message = clean(message.trim());
    let cure = match status {
        StatusCode::BAD_REQUEST => {
            "change what is asked for; `pratique logs NODE --list` names the services"
        }
        StatusCode::UNAUTHORIZED => "renew the kubeconfig: `pratique root trust`",
        StatusCode::FORBIDDEN => "ask an admin for the right to `get` `nodes/proxy`",
        StatusCode::NOT_FOUND if message.starts_with("nodes ") => {
            "`kubectl get nodes` names the nodes"
        }
        StatusCode::NOT_FOUND => {
            "update the machine: its image is from before its logs could be read"
        }
        StatusCode::TOO_MANY_REQUESTS => "end other readers of this node's logs, or try again",
        _ => {
            "`kubectl get node` tells whether it is Ready; a node that does not answer shows its last lines on its console"
        }
    };
    Error::input(format!("node {node} ({})", status.as_u16()), message, cure)
}

/// Prints an answer line by line, as it arrives. A closed output (`| head`) ends it.
async fn copy(mut body: Body, out: &mut impl Write) -> Result<()> {
    let mut lines = Lines::default();
    while let Some(piece) = body.piece().await.map_err(broken)? {
        if !put(out, &lines.more(&piece))? {
            return Ok(());
        }
    }
    put(out, &lines.rest()).map(drop)
}

/// False if the output is closed.
fn put(out: &mut impl Write, text: &str) -> Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::input(
            "standard output",
            error.to_string(),
            "make room for it",
        )),
    }
}

fn broken(source: config_http::HttpError) -> Error {
    tell("the log ends here, before its end");
    Error::Http {
        what: "reading the log",
        source,
    }
}

/// Bytes as lines without control characters: a compromised node could send anything.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that are complete with these bytes.
    fn more(&mut self, bytes: &Bytes) -> String {
        self.0.extend_from_slice(bytes);
        let end = self.0.iter().rposition(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                let rest = self.0.split_off(end + 1);
                clean(&String::from_utf8_lossy(&std::mem::replace(
                    &mut self.0,
                    rest,
                )))
            }
            None if self.0.len() > MAX_LINE => self.rest(),
            None => String::new(),
        }
    }

    /// What is left.
    fn rest(&mut self) -> String {
        clean(&String::from_utf8_lossy(&std::mem::take(&mut self.0)))
    }
}

/// A time, or how long ago.
fn moment(text: &str) -> std::result::Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let wrong =
        || "write a time as 2026-11-24T03:00:00Z, or how long ago as 90s, 10m, 2h or 1d".to_owned();
    let (number, unit) = text
        .char_indices()
        .next_back()
        .map(|(at, unit)| (text.get(..at).unwrap_or_default(), unit))
        .ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_no_number| wrong())?;
    let ago = SignedDuration::from_secs(i64::from(number) * seconds);
    Timestamp::now()
        .checked_sub(ago)
        .map_err(|_too_long| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: LogsArgs,
    }

    fn parsed(words: &str) -> std::result::Result<LogsArgs, clap::Error> {
        let words = format!("logs --kubeconfig k {words}");
        Line::try_parse_from(words.split(' ')).map(|line| line.args)
    }

    #[test]
    fn a_command_line_becomes_the_nodes_query() {
        for (words, wanted) in [
            ("n1 agent", "query=agent"),
            (
                "n1 agent kernel --since 2026-11-24T03:00:00Z --until 2026-11-24T04:00:00Z",
                "query=agent&query=kernel&sinceTime=2026-11-24T03%3A00%3A00Z&untilTime=2026-11-24T04%3A00%3A00Z",
            ),
            (
                "n1 agent -n 5 -g a&b=\u{e9}+ -f",
                "query=agent&tailLines=5&pattern=a%26b%3D%C3%A9%2B&follow=true",
            ),
            ("n1 agent -b", "query=agent&boot=0"),
            ("n1 agent -b -1", "query=agent&boot=-1"),
        ] {
            let args = parsed(words).unwrap();
            assert_eq!(query(&args, &args.services), wanted, "{words}");
        }
        let long = parsed("n1 --since 10m").unwrap().since.unwrap();
        let age = Timestamp::now().duration_since(long).as_secs();
        assert!((600..660).contains(&age), "{age}");
        for wrong in [
            "",
            "n1/../x",
            "N1",
            "n1 --since soon",
            "n1 --since 1w",
            "n1 --since d",
            "n1 -b 1",
            "n1 --tail -1",
            "n1 a --list",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        let said = |message: &str| serde_json::json!({"message": message}).to_string();
        for (code, message, cure) in [
            (400, "no service \"x\"; there are: agent", "--list"),
            (401, "Unauthorized", "root trust"),
            (403, "nodes \"n1\" is forbidden", "nodes/proxy"),
            (404, "nodes \"n1\" not found", "kubectl get nodes"),
            (404, "404 page not found", "update the machine"),
            (429, "try again", "other readers"),
            (503, "node n1 does not answer", "Ready"),
        ] {
            let shown = refused("n1", status(code), said(message).as_bytes()).to_string();
            assert!(shown.contains(message) && shown.contains(cure), "{shown}");
        }
        let plain = refused("n1", status(502), b"plain\x1b[2J\n").to_string();
        assert!(plain.contains("plain\u{fffd}[2J"), "{plain}");
    }

    #[test]
    fn a_hostile_node_steers_no_terminal_however_its_bytes_are_cut() {
        let sent = "a \u{e9}\u{1b}[31m\u{9b}2J\nb\r\tc".as_bytes();
        for cut in 1..sent.len() {
            let mut lines = Lines::default();
            let mut shown = String::new();
            for piece in sent.chunks(cut) {
                shown += &lines.more(&Bytes::copy_from_slice(piece));
            }
            shown += &lines.rest();
            assert_eq!(
                shown, "a \u{e9}\u{fffd}[31m\u{fffd}2J\nb\u{fffd}\tc",
                "{cut}"
            );
        }
        let mut lines = Lines::default();
        for _ in 0..100 {
            lines.more(&Bytes::from(vec![b'x'; 4096]));
            assert!(lines.0.len() <= MAX_LINE + 4096);
        }
    }
}
