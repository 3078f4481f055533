//! Calls from a pod's network, and from the host outside.

use crate::api::{HTTP, Pod};
use crate::cluster::{LIMIT, eventually};
use agent_sys::namespace::{Kind, inside};
use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;
use tests_harness::wait;

/// How long an answer may take that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The same, in calls that are made again where they fail.
const SHORT: Duration = Duration::from_secs(5);
/// How long an answer is awaited that must not come.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);
/// Calls after which each of three endpoints was met, but for one time in 5,000.
const CALLS: usize = 24;
/// The port of a [`repeat`]ing program.
pub(crate) const REPEATS: u16 = 7000;

/// Does something in the network namespace at a path.
pub(crate) fn from<T: Send>(place: &Path, work: impl FnOnce() -> T + Send) -> T {
    inside(&[(Kind::Network, place)], || Ok(work())).unwrap()
}

/// A pod's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The pod's name.
    pub(crate) by: String,
    /// Whom it took the caller for.
    pub(crate) caller: IpAddr,
}

/// What a program of a pod says at a path.
fn get(to: SocketAddr, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_read_timeout(Some(patience))?;
    write!(stream, "GET /{path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let whole = text.split_once("\r\n\r\n");
    let whole = whole.ok_or_else(|| io::Error::other(format!("{to} says {text:?}")));
    whole.map(|(_, said)| said.trim().to_owned())
}

fn read(said: &str) -> io::Result<Answer> {
    let other = || io::Error::other(format!("no answer: {said:?}"));
    let (by, caller) = said.split_once(' ').ok_or_else(other)?;
    let caller = caller.trim_matches(['[', ']']).parse::<IpAddr>();
    Ok(Answer {
        by: by.to_owned(),
        caller: caller.map_err(|_error| other())?.to_canonical(),
    })
}

/// Asks who is there, and as whom the caller is seen.
fn who(to: SocketAddr, patience: Duration) -> io::Result<Answer> {
    read(&get(to, "cgi-bin/who", patience)?)
}

/// Asks for the name of who is there, at little cost.
pub(crate) fn name(to: SocketAddr, patience: Duration) -> io::Result<String> {
    get(to, "name", patience)
}

/// Waits for an answer.
pub(crate) fn answer(place: &Path, to: SocketAddr) -> Answer {
    let what = format!("an answer of {to}");
    eventually(&what, || from(place, || who(to, SHORT)).ok())
}

/// Waits until a program in a pod, which finds another one by a name, hears an answer.
pub(crate) fn answer_by_name(pod: &Pod, name: &str) -> Answer {
    let own = SocketAddr::from(([127, 0, 0, 1], HTTP));
    let path = format!("cgi-bin/ask?{name}");
    eventually(&format!("an answer of {name}"), || {
        from(&pod.network, || read(&get(own, &path, SHORT)?)).ok()
    })
}

/// Waits until these pods, and no others, answer all of many calls.
pub(crate) fn reaches(place: &Path, to: SocketAddr, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let mut last = None;
    let look = || {
        let calls = || (0..CALLS).map(|_| name(to, SHORT)).collect();
        let seen: io::Result<BTreeSet<String>> = from(place, calls);
        let is_so = seen.as_ref().is_ok_and(|seen| *seen == wanted);
        last = Some(seen);
        Ok(is_so.then_some(()))
    };
    let what = format!("{to} to lead to {wanted:?}");
    if let Err(error) = wait::eventually(&what, LIMIT, "", look) {
        panic!("{error}the last calls: {last:?}");
    }
}

/// Whether nobody answers a call.
pub(crate) fn is_refused(place: &Path, to: SocketAddr) -> bool {
    from(place, || who(to, MOMENT)).is_err()
}

/// Waits until callers hear at once that there is nobody.
pub(crate) fn refuses(place: &Path, to: SocketAddr) {
    eventually(&format!("{to} to be refused"), || {
        let called = from(place, || TcpStream::connect_timeout(&to, SHORT));
        let refused = called.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        refused.then_some(())
    });
}

/// Begins a program in a pod's network that repeats by TCP what it gets, and answers datagrams with
/// the pod's name. It ends with the test's process.
pub(crate) fn repeat(pod: &Pod) {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, REPEATS));
    let bind = || {
        (
            TcpListener::bind(any).unwrap(),
            UdpSocket::bind(any).unwrap(),
        )
    };
    let (listener, socket) = from(&pod.network, bind);
    let name = pod.name.clone();
    thread::spawn(move || {
        while let Ok((_, caller)) = socket.recv_from(&mut [0; 64]) {
            // A caller that has gone needs no answer.
            socket.send_to(name.as_bytes(), caller).ok();
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut back, mut stream) = (
                stream.as_ref().unwrap().try_clone().unwrap(),
                stream.unwrap(),
            );
            thread::spawn(move || io::copy(&mut stream, &mut back).ok());
        }
    });
}

/// A connection to a repeating program that stays open.
pub(crate) struct Open(TcpStream);

impl Open {
    /// Waits until it is opened.
    pub(crate) fn new(place: &Path, to: SocketAddr) -> Self {
        let connect = || TcpStream::connect_timeout(&to, SHORT);
        Self(eventually(&format!("a connection to {to}"), || {
            from(place, connect).ok()
        }))
    }

    /// Whether a byte comes back in time. One that was sent earlier and is late counts, too: the
    /// connection goes on.
    pub(crate) fn goes_on(&mut self, patience: Duration) -> bool {
        self.0.set_read_timeout(Some(patience)).unwrap();
        let sent = self.0.write_all(b".");
        sent.is_ok() && matches!(self.0.read(&mut [0; 64]), Ok(1..))
    }
}
