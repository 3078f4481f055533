//! Listens for questions of this node's pods, by UDP and TCP.

use super::answer::{Question, Resolution, answer, written};
use super::forward::Forwarder;
use super::index::Index;
use super::shares::Shares;
use agent_proxy::{NAME_SERVER_PORT, View};
use config_errors::chain;
use config_model::format::Cidr;
use config_model::stub_domain::StubDomain;
use hickory_proto::op::Message;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Questions that are answered at once; others are dropped, and their clients ask again.
const MOST_QUESTIONS: usize = 1024;
/// Those among them for which other servers are asked. These may take long, so that clients have
/// shares of them, and what the node knows itself is answered beside them.
const MOST_FORWARDED: usize = 1024;
/// Connections at once, and how long each may stand still.
const MOST_CONNECTIONS: usize = 256;
const IDLE: Duration = Duration::from_secs(10);
/// Largest question: a name has at most 255 bytes (RFC 1035), and the rest is little.
const LARGEST_QUESTION: usize = 1024;
/// Largest answer by TCP.
const LARGEST_ANSWER: usize = u16::MAX as usize;
const PORT: u16 = 53;
/// Pause after the socket failed, which it does not as a rule.
const RETRY: Duration = Duration::from_secs(1);

/// Where the server listens, and for which callers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The addresses: the node's own in its ranges of pod addresses. They need not be there yet.
    pub addresses: Vec<IpAddr>,
    /// The sources whose questions are answered; others are ignored, so that a node is no server
    /// for its segment.
    pub clients: Vec<Cidr>,
    /// The machine's other addresses, whose programs come from there to the cluster's service for
    /// names.
    pub own: watch::Receiver<Vec<IpAddr>>,
    /// The machine's own resolver file, for names that are not the cluster's.
    pub resolv_conf: PathBuf,
    /// Domains whose names other servers know.
    pub stub_domains: Vec<StubDomain>,
}

#[derive(Debug)]
struct Server {
    view: View,
    /// Of what the view knew when it was last asked.
    index: RwLock<Index>,
    clients: Vec<Cidr>,
    own: watch::Receiver<Vec<IpAddr>>,
    forwarder: Forwarder,
    turns: Semaphore,
    forwarded: Arc<Shares>,
}

/// Answers questions until it is dropped.
///
/// # Errors
/// Port 53 of the first address can't be bound: pods ask that one. Other addresses are logged and
/// left out.
pub async fn serve(settings: Settings, view: View) -> io::Result<()> {
    let mut sockets = Vec::new();
    for address in &settings.addresses {
        for port in [PORT, NAME_SERVER_PORT] {
            let address = SocketAddr::new(*address, port);
            let own = match agent_sys::socket::bind_ahead(address) {
                Ok(own) => own,
                // Pods ask the first; the service for names alone leads to the others.
                Err(error) if !sockets.is_empty() => {
                    tracing::error!(%address, error = chain(&error), "cannot serve cluster DNS here");
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            };
            let datagrams = Arc::new(UdpSocket::from_std(own.datagrams)?);
            sockets.push((datagrams, TcpListener::from_std(own.connections)?));
            tracing::info!(%address, "serving cluster DNS");
        }
    }
    let Settings {
        addresses,
        resolv_conf,
        stub_domains,
        ..
    } = settings;
    let server = Arc::new(Server {
        view,
        index: RwLock::default(),
        clients: settings.clients,
        own: settings.own,
        forwarder: Forwarder::new(resolv_conf, addresses, stub_domains),
        turns: Semaphore::new(MOST_QUESTIONS),
        forwarded: Shares::new(MOST_FORWARDED),
    });
    // None of them ends.
    let mut tasks = JoinSet::new();
    for (datagrams, connections) in sockets {
        tasks.spawn(Arc::clone(&server).receive(datagrams));
        tasks.spawn(Arc::clone(&server).accept(connections));
    }
    tasks.join_all().await;
    Ok(())
}

impl Server {
    fn is_client(&self, from: SocketAddr) -> bool {
        let from = from.ip().to_canonical();
        let is_of = |range: &Cidr| range.contains(from);
        self.clients.iter().any(is_of) || self.own.borrow().contains(&from)
    }

    async fn receive(self: Arc<Self>, socket: Arc<UdpSocket>) {
        let mut buffer = vec![0_u8; LARGEST_QUESTION];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "cannot receive or send a DNS datagram"
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            if !self.is_client(from) {
                continue;
            }
            let bytes = buffer.get(..length).unwrap_or_default().to_vec();
            // A question that waits for another server holds no socket: the next one at this
            // address could not be bound.
            let (server, socket) = (Arc::clone(&self), Arc::downgrade(&socket));
            tokio::spawn(async move {
                if let Some(answer) = server.answered(&bytes, from.ip(), None).await
                    && let Some(socket) = socket.upgrade()
                {
                    socket.send_to(&answer, from).await.ok();
                }
            });
        }
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let places = Shares::new(MOST_CONNECTIONS);
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            if !self.is_client(from) {
                continue;
            }
            if let Some(place) = places.enter(from.ip()) {
                let server = Arc::clone(&self);
                tokio::spawn(async move {
                    let _place = place;
                    server.converse(stream, from.ip()).await.ok();
                });
            }
        }
    }

    /// Answers the questions of one connection, until it ends or stands still.
    async fn converse(&self, mut stream: TcpStream, client: IpAddr) -> io::Result<()> {
        while let Ok(length) = timeout(IDLE, stream.read_u16()).await? {
            let length = usize::from(length);
            if length > LARGEST_QUESTION {
                return Ok(());
            }
            let mut bytes = vec![0_u8; length];
            timeout(IDLE, stream.read_exact(&mut bytes)).await??;
            let answer = self.answered(&bytes, client, Some(LARGEST_ANSWER)).await;
            let Some(answer) = answer else {
                return Ok(());
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let whole = [&length.to_be_bytes(), answer.as_slice()].concat();
            timeout(IDLE, stream.write_all(&whole)).await??;
        }
        Ok(())
    }

    /// What the node knows itself of a question.
    fn resolved(&self, question: &Question) -> Resolution {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        if index.is_of(&self.view.now()) {
            return answer(&index, question);
        }
        drop(index);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        // Another question may have brought it up to date meanwhile.
        let known = self.view.now();
        if !index.is_of(&known) {
            index.take(known);
        }
        answer(&index, question)
    }

    /// The answer's bytes; none where nothing is sent. `limit` is the most bytes by TCP; without it
    /// the size that the client's EDNS allows for a datagram counts.
    async fn answered(
        &self,
        bytes: &[u8],
        client: IpAddr,
        limit: Option<usize>,
    ) -> Option<Vec<u8>> {
        let turn = self.turns.try_acquire().ok()?;
        let mut question = match Question::read(bytes) {
            Ok(question) => question,
            Err(refusal) => return refusal,
        };
        question.limit = limit.unwrap_or(question.limit);
        let said = self.resolved(&question);
        drop(turn);
        let message = match said {
            Resolution::Whole(message) => message,
            Resolution::Then(mut message, name) => {
                let _place = self.forwarded.enter(client)?;
                let rest = self.forwarder.ask(&question, &name).await;
                message.metadata.response_code = rest.metadata.response_code;
                message.add_answers(rest.answers);
                message
            }
            Resolution::Foreign => {
                let _place = self.forwarded.enter(client)?;
                let said = self.forwarder.ask(&question, question.query.name()).await;
                relayed(&question, said)
            }
        };
        written(&message, question.limit)
    }
}

/// What another server said, as an answer to the client.
fn relayed(question: &Question, said: Message) -> Message {
    let mut answer = question.answer(said.metadata.response_code);
    answer.add_answers(said.answers);
    answer.add_authorities(said.authorities);
    answer.add_additionals(said.additionals);
    answer
}
