//! `agent metadata` against servers that speak the protocols of clouds, and against hostile ones.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const DATA: &[u8] = b"version = 1\n# user-data\n";
/// `DATA` in base64.
const BASE64: &str = "dmVyc2lvbiA9IDEKIyB1c2VyLWRhdGEK";
const NOTHING: i32 = 3;
const REFUSED: i32 = 4;

/// What the server does with one connection, by the head of the request.
type Script = fn(&str, &mut TcpStream);

/// A server on loopback, and the heads that it was asked with.
fn server(script: Script) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let at = listener.local_addr().expect("an address");
    (at, serve(listener, script))
}

/// Ends with the test's process.
fn serve(listener: TcpListener, script: Script) -> Receiver<String> {
    let (send, heads) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n")
                && stream.read(&mut byte).is_ok_and(|length| length == 1)
            {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
            // Recorded before the answer, because the test may count the heads right after it.
            if send.send(head.clone()).is_err() {
                return;
            }
            script(&head, &mut stream);
        }
    });
    heads
}

fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n",
        body.len()
    );
    // The client may have closed the connection.
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body))
        .ok();
}

/// Every service as its cloud's documentation describes it, on one server; any other request gets
/// 400.
fn clouds(head: &str, stream: &mut TcpStream) {
    let line = head.lines().next().unwrap_or_default();
    let says = |header: &str| head.lines().any(|line| line == header);
    match line.trim_end_matches(" http/1.1") {
        "put /latest/api/token" if head.contains("x-aws-ec2-metadata-token-ttl-seconds: ") => {
            answer(stream, "200 OK", "", b"QUFBQUFB==");
        }
        "get /latest/user-data"
            if says(
                "x-aws-ec2-metadata-token: QUFBQUFB=="
                    .to_ascii_lowercase()
                    .as_str(),
            ) =>
        {
            answer(stream, "200 OK", "", DATA);
        }
        "get /computemetadata/v1/instance/attributes/user-data"
            if says("metadata-flavor: google") =>
        {
            answer(stream, "200 OK", "Metadata-Flavor: Google\r\n", DATA);
        }
        "get /metadata/instance/compute/userdata?api-version=2021-01-01&format=text"
            if says("metadata: true") =>
        {
            answer(stream, "200 OK", "", BASE64.as_bytes());
        }
        "get /openstack/latest/user_data" | "get /hetzner/v1/userdata" => {
            answer(stream, "200 OK", "", DATA);
        }
        "get /metadata/v1/user-data" => {
            let chunked = format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
                DATA.len()
            );
            let all = [chunked.as_bytes(), DATA, b"\r\n0\r\n\r\n"].concat();
            stream.write_all(&all).expect("sent");
        }
        _ => answer(stream, "400 Bad Request", "", b""),
    }
}

fn fetch(platform: &str, at: SocketAddr) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_agent"));
    agent
        .args([
            "metadata-fetch",
            "--platform",
            platform,
            "--at",
            &at.to_string(),
        ])
        .output()
        .expect("the agent")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_service_gives_the_exact_bytes() {
    let (at, _heads) = server(clouds);
    for platform in [
        "ec2",
        "gce",
        "azure",
        "openstack",
        "hetzner",
        "digitalocean",
    ] {
        let output = fetch(platform, at);
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(0), DATA),
            "{platform}: {}",
            stderr(&output)
        );
    }
}

/// Each hostile answer is refused at once with the reason, and no byte of it is used.
#[test]
fn hostile_answers_are_refused_at_once() {
    let redirect: Script =
        |_, stream| answer(stream, "302 Found", "location: http://192.0.2.1/\r\n", DATA);
    let long: Script = |_, stream| answer(stream, "200 OK", "", &vec![b'#'; 65537]);
    let endless: Script = |_, stream| {
        let begin = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = [&b"1000\r\n"[..], &[b'#'; 4096], b"\r\n"].concat();
        let mut open = begin.is_ok();
        while open {
            open = stream.write_all(&chunk).is_ok();
        }
    };
    let unbounded: Script =
        |_, stream| drop(stream.write_all(&[b"HTTP/1.1 200 OK\r\n\r\n", DATA].concat()));
    let flavour: Script = |_, stream| answer(stream, "200 OK", "Metadata-Flavor: google\r\n", DATA);
    let switched_off: Script = |_, stream| answer(stream, "403 Forbidden", "", b"");
    for (platform, script, word) in [
        ("hetzner", redirect, "redirects are never followed"),
        ("hetzner", long, "longer than the 64 KiB"),
        ("hetzner", endless, "longer than the 64 KiB"),
        ("hetzner", unbounded, "does not say how long it is"),
        ("gce", flavour, "Metadata-Flavor: Google"),
        ("ec2", switched_off, "switched off for this instance"),
    ] {
        let (at, heads) = server(script);
        let output = fetch(platform, at);
        assert_eq!(
            output.status.code(),
            Some(REFUSED),
            "{word}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(word) && stderr(&output).contains(&format!("http://{at}/")),
            "{}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty());
        assert!(
            heads.try_iter().count() <= 1,
            "a redirect is not followed, a refusal not repeated"
        );
    }
}

#[test]
fn missing_user_data_differs_from_a_failure() {
    let (at, _heads) = server(|_, stream| answer(stream, "404 Not Found", "", b"no such thing"));
    let output = fetch("openstack", at);
    assert_eq!(output.status.code(), Some(NOTHING), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("this machine has no user-data"),
        "{}",
        stderr(&output)
    );
}

/// A restarted service, a truncated answer, and one that never comes: each is tried again from the
/// start.
#[test]
fn temporary_failures_are_tried_again() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TURN: AtomicU32 = AtomicU32::new(0);
    let (at, heads) = server(|head, stream| match TURN.fetch_add(1, Ordering::SeqCst) {
        0 => answer(stream, "503 Service Unavailable", "", b""),
        1 => stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nversion")
            .expect("sent"),
        2 => {
            // Until the client closes the connection.
            stream.read_exact(&mut [0]).ok();
        }
        _ => clouds(head, stream),
    });
    let output = fetch("hetzner", at);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(0), DATA),
        "{}",
        stderr(&output)
    );
    assert_eq!(heads.try_iter().count(), 4);
    for word in [
        "status 503",
        "no whole answer in 10 s",
        "(next attempt in 1 s)",
    ] {
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

/// The whole command, as init runs it: a network, an unprivileged process, a file that only root
/// may read.
#[test]
fn the_command_brings_the_network_up_fetches_and_takes_it_down() {
    const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
    let serving = || async {
        let listener = TcpListener::bind((HOST, 80)).expect("the service's address");
        let _heads = serve(listener, |head, stream| {
            let peer = stream.peer_addr().expect("a peer").ip();
            assert!(
                head.contains("host: 169.254.169.254\r\n")
                    && peer.to_string().starts_with("169.254."),
                "{head}"
            );
            clouds(head, stream);
        });
        std::future::pending::<()>().await;
    };
    tests_support::network::with_peer(&[(HOST, 16)], serving, || {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("metadata");
        // Where no other user may look, as in the home of root.
        let home = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a folder");
        let program = home.path().join("agent");
        std::fs::hard_link(env!("CARGO_BIN_EXE_agent"), &program).expect("a second name");
        let mut agent = Command::new(program);
        agent
            .args([
                "metadata",
                "--platform",
                "digitalocean",
                "--interface",
                "inside",
                "--out",
            ])
            .arg(&file);
        let output = agent.output().expect("the agent");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(std::fs::read(&file).expect("the file"), DATA);
        let mode =
            std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).expect("the file"));
        assert_eq!(mode & 0o777, 0o600);
        let there =
            TcpStream::connect_timeout(&SocketAddr::from((HOST, 80)), Duration::from_secs(2));
        assert!(there.is_err(), "the network is down again");
        // An existing file was written by another boot or another program.
        assert_eq!(agent.status().expect("the agent").code(), Some(74));
    });
}
