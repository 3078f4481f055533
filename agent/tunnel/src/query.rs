//! What a request's query asks of a command, by the kubelet's names of the parameters.

use crate::handshake::TunnelRefusal;
use agent_runtime::{Command, Outputs};
use config_http::percent;
use config_tunnel::channels::MOST_PORTS;
use config_tunnel::command::{ERROR, STDERR, STDIN, STDOUT};

/// The streams that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) outputs: Outputs,
}

/// The parameters of a query that are switched on.
fn switched_on(query: &str) -> Vec<&str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(_, value)| matches!(*value, "1" | "true"))
        .map(|(name, _)| name)
        .collect()
}

/// The channels for which a client of SPDY opens streams: those that it asks for, and the one on
/// which it reads how it ended.
pub(crate) fn channels(query: &str) -> Vec<u8> {
    let switches = switched_on(query);
    let terminal = switches.contains(&"tty");
    let all = [("input", STDIN), ("output", STDOUT), ("error", STDERR)];
    let wanted = all
        .into_iter()
        .filter(|(name, channel)| switches.contains(name) && !(terminal && *channel == STDERR));
    wanted.map(|(_, channel)| channel).chain([ERROR]).collect()
}

/// Reads the streams of a query such as `input=1&output=1&tty=0`.
///
/// # Errors
/// It names no stream at all, or with a terminal the error stream alone (400, in upstream's words).
pub(crate) fn streams(query: &str) -> Result<Streams, TunnelRefusal> {
    let switches = switched_on(query);
    let on = |name: &str| switches.contains(&name);
    let (stdin, stdout, stderr) = (on("input"), on("output"), on("error"));
    let terminal = on("tty");
    // A terminal has one output.
    if !(stdin || stdout || (stderr && !terminal)) {
        return Err(TunnelRefusal::bad(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    let outputs = if terminal {
        Outputs::Terminal
    } else {
        Outputs::Pipes { stdout, stderr }
    };
    Ok(Streams { stdin, outputs })
}

/// Reads a query such as `command=sh&command=-c&input=1&output=1&tty=0`.
///
/// # Errors
/// It can't be decoded, names no command, or no stream.
pub(crate) fn command(query: &str) -> Result<Command, TunnelRefusal> {
    let mut words = Vec::new();
    for pair in query.split('&') {
        if let Some(("command", value)) = pair.split_once('=') {
            let word = percent::decode_query(value).ok_or_else(|| {
                TunnelRefusal::bad(format!("{value:?} is not properly percent-encoded UTF-8"))
            })?;
            words.push(word);
        }
    }
    if words.iter().all(String::is_empty) {
        return Err(TunnelRefusal::bad(
            "you must specify a command for the container to run",
        ));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(TunnelRefusal::bad("a command can't contain a zero byte"));
    }
    let Streams { stdin, outputs } = streams(query)?;
    Ok(Command {
        words,
        stdin,
        outputs,
    })
}

/// The ports of a query such as `port=80&port=443`.
///
/// # Errors
/// There is none, one is no port, or there are more than [`MOST_PORTS`].
pub(crate) fn ports(query: &str) -> Result<Vec<u16>, TunnelRefusal> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let texts = pairs
        .filter(|(name, _)| *name == "port")
        .flat_map(|(_, value)| value.split(','));
    let port = |text: &str| {
        let port = text.parse().ok().filter(|port| *port > 0);
        port.ok_or_else(|| TunnelRefusal::bad(format!("port {text:?} must be 1 to 65535")))
    };
    let ports = texts.map(port).collect::<Result<Vec<u16>, _>>()?;
    if ports.is_empty() {
        return Err(TunnelRefusal::bad(r#"query parameter "port" is required"#));
    }
    if ports.len() > MOST_PORTS {
        let text = format!("{} ports in one request, at most {MOST_PORTS}", ports.len());
        return Err(TunnelRefusal::bad(text));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_with_its_streams() {
        let read = command("command=sh&command=-c&command=echo%20a%2Bb+c&input=1&output=1&error=1");
        let expected = Command {
            words: vec!["sh".into(), "-c".into(), "echo a+b c".into()],
            stdin: true,
            outputs: Outputs::Pipes {
                stdout: true,
                stderr: true,
            },
        };
        assert_eq!(read, Ok(expected));
        let terminal = command("command=sh&output=1&error=1&tty=1").unwrap();
        assert_eq!(terminal.outputs, Outputs::Terminal);
    }

    #[test]
    fn a_stream_is_awaited_for_each_channel_that_is_asked_for() {
        for (query, awaited) in [
            (
                "input=1&output=1&error=1",
                &[STDIN, STDOUT, STDERR, ERROR][..],
            ),
            ("command=sh&output=true&input=0", &[STDOUT, ERROR]),
            ("output=1&error=1&tty=1", &[STDOUT, ERROR]),
        ] {
            assert_eq!(channels(query), awaited, "{query}");
        }
    }

    #[test]
    fn ports_are_read_and_each_fault_is_named() {
        assert_eq!(ports("port=80&port=443,8080"), Ok(vec![80, 443, 8080]));
        let many = vec!["port=1"; MOST_PORTS + 1].join("&");
        for (query, reason) in [
            ("", "is required"),
            ("port=", "must be 1 to 65535"),
            ("port=0", "must be 1 to 65535"),
            ("port=70000", "must be 1 to 65535"),
            (many.as_str(), "at most 64"),
        ] {
            let refusal = ports(query).unwrap_err();
            assert!(refusal.message.contains(reason), "{query}: {refusal}");
        }
    }

    #[test]
    fn what_can_not_be_run_is_refused() {
        for (query, reason) in [
            ("", "a command"),
            ("output=1&command=", "a command"),
            ("command=sh", "at least 1 of"),
            ("command=sh&error=1&tty=1", "at least 1 of"),
            ("command=%f&output=1", "percent-encoded"),
            ("command=%+1&output=1", "percent-encoded"),
            ("command=%ff&output=1", "percent-encoded"),
            ("command=a%00&output=1", "zero byte"),
        ] {
            let refusal = command(query).unwrap_err();
            assert!(refusal.message.contains(reason), "{query}: {refusal}");
        }
    }
}
