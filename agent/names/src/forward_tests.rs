//! The forwarder against servers of this test, in a network of its own. Needs root.

use super::*;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use hickory_proto::op::{OpCode, Query};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::{A, SOA};
use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// Names that a server was asked for, each with the transport.
type Log = Rc<RefCell<Vec<String>>>;

/// Runs a test with a forwarder that asks the servers of this list; its own address is 127.0.0.1.
fn forwarding<T: Future<Output = ()>>(
    servers: &str,
    test: impl FnOnce(Forwarder) -> T + Send + Sync,
) {
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("resolv.conf");
        std::fs::write(&file, servers).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let stub = |domain: &str, server: &str| StubDomain {
            domain: domain.parse().unwrap(),
            servers: vec![server.parse().unwrap()],
        };
        let stubs = vec![
            stub("corp.example", "127.0.0.8"),
            stub("lab.corp.example", "127.0.0.9"),
        ];
        let forwarder = Forwarder::new(file, vec![Ipv4Addr::LOCALHOST.into()], stubs);
        LocalSet::new().block_on(&runtime, test(forwarder));
        Ok(())
    })
    .unwrap();
}

fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.example.")).unwrap()
}

/// The answer of a server for a name, which is chosen by the name's first label.
fn said(request: &Message, by_tcp: bool) -> Message {
    let query = request.queries[0].clone();
    let owner = query.name().clone();
    let mut answer = Message::response(request.metadata.id, OpCode::Query);
    answer.add_query(query);
    let soa = || {
        let soa = SOA::new(owner.clone(), owner.clone(), 1, 7200, 1800, 86_400, 60);
        Some(Record::from_rdata(owner.clone(), 60, RData::SOA(soa)))
    };
    let label = owner.to_ascii();
    match label.split('.').next().unwrap() {
        "none" => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.add_authorities(soa());
        }
        "empty" => drop(answer.add_authorities(soa())),
        "unsaid" => answer.metadata.response_code = ResponseCode::NXDomain,
        "broken" => answer.metadata.response_code = ResponseCode::ServFail,
        "long" if !by_tcp => answer.metadata.truncation = true,
        _ => {
            let data = RData::A(A(Ipv4Addr::new(192, 0, 2, 1)));
            answer.add_answer(Record::from_rdata(owner, 300, data));
        }
    }
    answer
}

/// A server at an address, until the handle is aborted.
async fn serve(address: &str, log: &Log) -> JoinHandle<()> {
    let datagrams = UdpSocket::bind((address, DNS_PORT)).await.unwrap();
    let connections = TcpListener::bind((address, DNS_PORT)).await.unwrap();
    let log = Rc::clone(log);
    let note = move |request: &Message, by: &str| {
        let asked = request.queries[0].name().to_ascii();
        let asked = asked.trim_end_matches(".example.").to_owned();
        log.borrow_mut().push(format!("{asked} by {by}"));
    };
    spawn_local(async move {
        let mut buffer = [0; 1500];
        loop {
            tokio::select! {
                received = datagrams.recv_from(&mut buffer) => {
                    let (length, from) = received.unwrap();
                    let request = Message::from_vec(&buffer[..length]).unwrap();
                    note(&request, "UDP");
                    let answer = said(&request, false).to_vec().unwrap();
                    datagrams.send_to(&answer, from).await.unwrap();
                }
                accepted = connections.accept() => {
                    let (mut stream, _) = accepted.unwrap();
                    let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
                    stream.read_exact(&mut bytes).await.unwrap();
                    let request = Message::from_vec(&bytes).unwrap();
                    note(&request, "TCP");
                    let answer = said(&request, true).to_vec().unwrap();
                    stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        }
    })
}

/// Asks for addresses of a name; the answer's code, and how many there are.
async fn ask(forwarder: &Forwarder, label: &str) -> (ResponseCode, usize) {
    let mut message = Message::query();
    message.add_query(Query::query(name(label), RecordType::A));
    let question = Question::read(&message.to_vec().unwrap()).unwrap();
    let answer = forwarder.ask(&question, &name(label)).await;
    (answer.metadata.response_code, answer.answers.len())
}

const FOUND: (ResponseCode, usize) = (ResponseCode::NoError, 1);
const FAILED: (ResponseCode, usize) = (ResponseCode::ServFail, 0);

#[test]
fn what_a_server_says_is_remembered_also_that_there_is_nothing() {
    forwarding("nameserver 127.0.0.2\n", |forwarder| async move {
        let log = Log::default();
        let server = serve("127.0.0.2", &log).await;
        let expected = [
            ("there", FOUND, 1),
            ("none", (ResponseCode::NXDomain, 0), 1),
            ("empty", (ResponseCode::NoError, 0), 1),
            // Without a word about how long, and after a failure, the server is asked again.
            ("unsaid", (ResponseCode::NXDomain, 0), 2),
            ("broken", FAILED, 2),
        ];
        for (label, answer, times) in expected {
            assert_eq!(ask(&forwarder, label).await, answer, "{label}");
            assert_eq!(ask(&forwarder, label).await, answer, "{label} again");
            assert_eq!(log.take().len(), times, "{label}");
        }
        // Other letters are the same name.
        assert_eq!(ask(&forwarder, "THERE").await, FOUND);
        assert_eq!(log.take().len(), 0);
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        assert_eq!(ask(&forwarder, "there").await, FOUND, "it is remembered");
        assert_eq!(ask(&forwarder, "new").await, FAILED);
        serve("127.0.0.2", &log).await;
        assert_eq!(ask(&forwarder, "new").await, FOUND, "no failure is kept");
    });
}

#[test]
fn what_many_ask_at_once_is_asked_of_a_server_once() {
    forwarding("nameserver 127.0.0.2\n", |forwarder| async move {
        let log = Log::default();
        serve("127.0.0.2", &log).await;
        // Also where the answer is not kept.
        for (label, answer) in [
            ("there", FOUND),
            ("unsaid", (ResponseCode::NXDomain, 0)),
            ("broken", FAILED),
        ] {
            let other = label.to_uppercase();
            let all = tokio::join!(
                ask(&forwarder, label),
                ask(&forwarder, &other),
                ask(&forwarder, label)
            );
            assert_eq!(all, (answer, answer, answer), "{label}");
            assert_eq!(log.take().len(), 1, "{label}");
        }
        assert!(forwarder.under_way().is_empty());
    });
}

#[test]
fn an_answer_that_was_cut_is_asked_for_by_tcp() {
    forwarding("nameserver 127.0.0.2\n", |forwarder| async move {
        let log = Log::default();
        serve("127.0.0.2", &log).await;
        assert_eq!(ask(&forwarder, "long").await, FOUND);
        assert_eq!(log.take(), ["long by UDP", "long by TCP"]);
    });
}

#[test]
fn the_next_server_is_asked_where_one_is_dead_and_never_this_one_itself() {
    let servers = "nameserver 127.0.0.1\nnameserver 127.0.0.2\nnameserver 127.0.0.3\n";
    forwarding(servers, |forwarder| async move {
        let (own, log) = (Log::default(), Log::default());
        serve("127.0.0.1", &own).await;
        serve("127.0.0.3", &log).await;
        assert_eq!(ask(&forwarder, "there").await, FOUND);
        assert_eq!((own.take().len(), log.take().len()), (0, 1));
    });
}

#[test]
fn a_server_that_did_not_answer_is_asked_last_until_it_answers_or_has_rested() {
    let servers = "nameserver 127.0.0.2\nnameserver 127.0.0.3\n";
    forwarding(servers, |forwarder| async move {
        let (first, second) = (Log::default(), Log::default());
        let both = || [&first, &second].map(|log| log.take().len());
        let running = serve("127.0.0.3", &second).await;
        assert_eq!(ask(&forwarder, "a").await, FOUND);
        assert_eq!(both(), [0, 1]);
        serve("127.0.0.2", &first).await;
        assert_eq!(ask(&forwarder, "b").await, FOUND);
        assert_eq!(both(), [0, 1], "it is not waited for again");
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        assert_eq!(ask(&forwarder, "c").await, FOUND);
        assert_eq!(both(), [1, 0], "both rest, and are asked in order");
        serve("127.0.0.3", &second).await;
        assert_eq!(ask(&forwarder, "d").await, FOUND);
        assert_eq!(both(), [1, 0], "it has answered");
        let [two, three] = [2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], DNS_PORT)));
        let order = |now| forwarder.in_order(vec![two, three], now);
        let start = Instant::now();
        forwarder.resting().clear();
        forwarder.rest(two, start);
        assert_eq!(order(start), [three, two]);
        assert_eq!(order(start + REST), [two, three], "one question tries it");
        assert_eq!(order(start + REST), [three, two], "others do not");
        for number in 0..200 {
            forwarder.rest(([192, 0, 2, number], DNS_PORT).into(), start + REST);
        }
        assert_eq!(forwarder.resting().len(), MOST_RESTING);
    });
}

#[test]
fn names_of_a_stub_domain_are_asked_of_its_servers_alone() {
    forwarding("nameserver 127.0.0.2\n", |forwarder| async move {
        let servers = ["127.0.0.2", "127.0.0.8", "127.0.0.9"];
        let logs = [(); 3].map(|()| Log::default());
        let mut running = Vec::new();
        for (address, log) in servers.iter().zip(&logs) {
            running.push(serve(address, log).await);
        }
        for (label, server) in [
            ("corp", 1),
            ("a.Corp", 1),
            ("a.lab.corp", 2),
            ("notcorp", 0),
            ("corp.other", 0),
        ] {
            assert_eq!(ask(&forwarder, label).await, FOUND, "{label}");
            let asked = logs.each_ref().map(|log| log.take().len());
            let mut expected = [0; 3];
            expected[server] = 1;
            assert_eq!(asked, expected, "{label}");
        }
        let dead = running.swap_remove(1);
        dead.abort();
        assert!(dead.await.unwrap_err().is_cancelled());
        assert_eq!(ask(&forwarder, "b.corp").await, FAILED);
    });
}
