//! The cluster's names as an agent saves them, so that the next agent of the same boot answers them
//! before its master does.
//!
//! Lines of JSON: a head, one line for each object, and an end with their number. It holds only
//! what names are made of, and only names are answered by it: the packet filter, peers and the
//! settings of pods wait for the master. The file lies in memory, in a folder that only root can
//! write. A file that another user wrote, of another boot or node, or incomplete, is refused: then
//! names wait for the master, too.

use agent_proxy::{Endpoint, Key, Known, Port, Protocol, Service, Slice, SlicePort};
use config_model::format::Cidr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// Most bytes: some 50,000 services of two pods each. A cluster with more has no snapshot.
const MOST: u64 = 16 << 20;
/// The version of the format; no other one is read.
const VERSION: u32 = 1;
/// Most addresses at which a node answers: one of each family.
const MOST_OWN: usize = 2;

/// The boot and the node of a snapshot: an agent loads only those of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's `boot_id`.
    pub boot: String,
    /// The node's name.
    pub node: String,
}

/// An address of the node at which it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// One of the node's own.
    pub address: IpAddr,
    /// Pod addresses of the node: those of its clients there.
    pub range: Cidr,
}

/// The cluster's names, and where a node answers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The node's own address in each of its ranges of pod addresses.
    pub own: Vec<OwnAddress>,
    /// Services, slices and namespaces, as far as names need them.
    pub known: Arc<Known>,
}

/// Why a snapshot is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It can't be read.
    #[error("it cannot be read")]
    Unread(#[from] io::Error),
    /// Somebody else could have written it.
    #[error("it is not a file that this user alone can write")]
    NotOwn,
    /// It has too many bytes.
    #[error("it has more than {MOST} bytes")]
    TooLarge,
    /// It is of another version, boot or node.
    #[error("it is of another version, boot or node")]
    Foreign,
    /// A line is not what it should be.
    #[error("line {0} is malformed")]
    Malformed(usize, #[source] Option<serde_json::Error>),
    /// Its end is missing.
    #[error("its end is missing")]
    Torn,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    version: u32,
    boot: String,
    node: String,
    /// Addresses, each with the range of its clients.
    own: Vec<(IpAddr, String)>,
}

impl Head {
    fn is_of(&self, origin: &Origin) -> bool {
        self.version == VERSION && self.boot == origin.boot && self.node == origin.node
    }

    /// Where the node answers. `None` if there is no address, if there are more than [`MOST_OWN`],
    /// or if one is not in its range.
    fn own(self) -> Option<Vec<OwnAddress>> {
        if self.own.is_empty() || self.own.len() > MOST_OWN {
            return None;
        }
        let own = self.own.into_iter().map(|(address, range)| {
            let range: Cidr = range.parse().ok()?;
            let contains = range.contains(address);
            contains.then_some(OwnAddress { address, range })
        });
        own.collect()
    }
}

/// A port's name, protocol and number.
type Named = (String, String, u16);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Namespace(String),
    Service(ServiceLine),
    Slice(SliceLine),
    End(usize),
}

/// A service, as far as names need it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceLine {
    namespace: String,
    name: String,
    addresses: Vec<IpAddr>,
    headless: bool,
    alias: Option<String>,
    ports: Vec<Named>,
}

impl ServiceLine {
    fn of(key: &Key, service: &Service) -> Self {
        let ports = service.ports.iter();
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            addresses: service.addresses.clone(),
            headless: service.headless,
            alias: service.external_name.clone(),
            ports: ports
                .map(|one| named(&one.name, one.protocol, one.port))
                .collect(),
        }
    }

    /// What the line says. `None` if a port's protocol is unknown.
    fn known(self) -> Option<(Key, Service)> {
        let port = |name, protocol, port| Port {
            name,
            protocol,
            port,
            node_port: None,
        };
        let service = Service {
            addresses: self.addresses,
            headless: self.headless,
            external_name: self.alias,
            ports: ports(self.ports, port)?,
            ..Service::default()
        };
        let key = Key {
            namespace: self.namespace,
            name: self.name,
        };
        Some((key, service))
    }
}

/// A slice of a service that is there and no alias: the others' endpoints have no names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceLine {
    namespace: String,
    name: String,
    service: String,
    ports: Vec<Named>,
    /// Address, whether it is ready, and host name.
    endpoints: Vec<(IpAddr, bool, Option<String>)>,
}

impl SliceLine {
    fn of(key: &Key, slice: &Slice) -> Self {
        let (ports, endpoints) = (slice.ports.iter(), slice.endpoints.iter());
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            service: slice.service.clone(),
            ports: ports
                .map(|one| named(&one.name, one.protocol, one.port))
                .collect(),
            endpoints: endpoints
                .map(|one| (one.address, one.ready, one.hostname.clone()))
                .collect(),
        }
    }

    /// What the line says. `None` if a port's protocol is unknown.
    fn known(self) -> Option<(Key, Slice)> {
        let port = |name, protocol, port| SlicePort {
            name,
            protocol,
            port,
        };
        let endpoints = self.endpoints.into_iter();
        let endpoints = endpoints.map(|(address, ready, hostname)| Endpoint {
            address,
            ready,
            serving: ready,
            terminating: false,
            hostname,
            node: None,
            hints: None,
        });
        let slice = Slice {
            service: self.service,
            ports: ports(self.ports, port)?,
            endpoints: endpoints.collect(),
            // Snapshots answer names alone; the proxy does not route by them.
            foreign: false,
        };
        let key = Key {
            namespace: self.namespace,
            name: self.name,
        };
        Some((key, slice))
    }
}

fn named(name: &str, protocol: Protocol, port: u16) -> Named {
    (name.to_owned(), protocol.name().to_owned(), port)
}

/// What a line says of ports. `None` if a protocol is unknown.
fn ports<T>(all: Vec<Named>, port: impl Fn(String, Protocol, u16) -> T) -> Option<Vec<T>> {
    let all = all.into_iter();
    all.map(|(name, protocol, number)| Some(port(name, Protocol::named(Some(&protocol))?, number)))
        .collect()
}

/// A writer that takes no more than [`MOST`] bytes.
struct Bounded<W> {
    output: W,
    left: u64,
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.left = self
            .left
            .checked_sub(length)
            .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.output.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Snapshot {
    /// Writes it.
    ///
    /// # Errors
    /// If the output fails, or would be larger than is read.
    pub fn write(&self, origin: &Origin, output: impl Write) -> io::Result<()> {
        let output = Bounded { output, left: MOST };
        let mut output = BufWriter::new(output);
        let own = self.own.iter();
        let head = Head {
            version: VERSION,
            boot: origin.boot.clone(),
            node: origin.node.clone(),
            own: own
                .map(|own| (own.address, own.range.to_string()))
                .collect(),
        };
        line(&mut output, &head)?;
        let services = self.known.services.iter().flatten();
        let slices = self.known.slices.iter().flatten();
        let slices = slices.filter(|(key, slice)| self.has_names(key, slice));
        let namespaces = self.known.namespaces.iter().flatten().cloned();
        let lines = namespaces
            .map(Line::Namespace)
            .chain(services.map(|(key, service)| Line::Service(ServiceLine::of(key, service))))
            .chain(slices.map(|(key, slice)| Line::Slice(SliceLine::of(key, slice))));
        let mut count = 0;
        for one in lines {
            line(&mut output, &one)?;
            count += 1;
        }
        line(&mut output, &Line::End(count))?;
        output.flush()
    }

    /// Whether a slice's endpoints have names.
    fn has_names(&self, key: &Key, slice: &Slice) -> bool {
        let service = Key {
            namespace: key.namespace.clone(),
            name: slice.service.clone(),
        };
        let services = self.known.services.as_ref();
        let service = services.and_then(|all| all.get(&service));
        service.is_some_and(|service| service.external_name.is_none())
    }

    /// Reads one that [`Self::write`] wrote.
    ///
    /// # Errors
    /// If it is none, or not of this origin.
    pub fn read(input: impl Read, origin: &Origin) -> Result<Self, Refused> {
        let mut lines = Lines {
            input: BufReader::new(input),
            bytes: 0,
            number: 0,
        };
        let head: Head = lines.next()?.ok_or(Refused::Torn)?;
        if !head.is_of(origin) {
            return Err(Refused::Foreign);
        }
        let own = head.own().ok_or_else(|| lines.malformed())?;
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        let mut namespaces = BTreeSet::new();
        let count = loop {
            match lines.next()?.ok_or(Refused::Torn)? {
                Line::Namespace(name) => drop(namespaces.insert(name)),
                Line::Service(line) => {
                    let (key, service) = line.known().ok_or_else(|| lines.malformed())?;
                    services.insert(Arc::new(key), Arc::new(service));
                }
                Line::Slice(line) => {
                    let (key, slice) = line.known().ok_or_else(|| lines.malformed())?;
                    slices.insert(Arc::new(key), Arc::new(slice));
                }
                Line::End(count) => break count,
            }
        };
        // Beside them are the head and the end, and nothing follows.
        if count.checked_add(2) != Some(lines.number) || lines.next::<Line>()?.is_some() {
            return Err(lines.malformed());
        }
        let known = Known {
            services: Some(services),
            slices: Some(slices),
            namespaces: Some(namespaces),
            ..Known::default()
        };
        Ok(Self {
            own,
            known: Arc::new(known),
        })
    }

    /// Replaces an earlier one, whole or not at all. After a failure there is none.
    ///
    /// # Errors
    /// If it has too many bytes, or can't be written.
    pub fn save(&self, path: &Path, origin: &Origin) -> io::Result<()> {
        let new = path.with_extension("new");
        let save = || {
            absent(&new)?;
            let mut options = File::options();
            let file = options.write(true).create_new(true).mode(0o600);
            self.write(origin, file.open(&new)?)?;
            fs::rename(&new, path)
        };
        save().inspect_err(|_| {
            for path in [&*new, path] {
                absent(path).ok();
            }
        })
    }

    /// Loads the one that an earlier agent saved, if there is one.
    ///
    /// # Errors
    /// The file can't be read; it belongs to another user, or others may write it; it is too large,
    /// torn or malformed, or of another version, boot or node.
    pub fn load(path: &Path, origin: &Origin) -> Result<Option<Self>, Refused> {
        let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
        let file = File::options()
            .read(true)
            .custom_flags(flags.bits())
            .open(path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        let is_own = meta.is_file()
            && meta.uid() == nix::unistd::geteuid().as_raw()
            && meta.mode() & 0o022 == 0;
        if !is_own {
            return Err(Refused::NotOwn);
        }
        Self::read(file, origin).map(Some)
    }
}

fn line(output: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *output, line)?;
    output.write_all(b"\n")
}

/// Removes a file, if there is one.
fn absent(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The lines of an input, as many bytes as are read.
struct Lines<R> {
    input: BufReader<R>,
    bytes: u64,
    /// Lines so far.
    number: usize,
}

impl<R: Read> Lines<R> {
    /// The next line; none at the end.
    fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Refused> {
        let mut line = Vec::new();
        let left = (MOST - self.bytes).saturating_add(1);
        let input = &mut self.input;
        let length = input.take(left).read_until(b'\n', &mut line)?;
        self.bytes += u64::try_from(length).unwrap_or(u64::MAX);
        if self.bytes > MOST {
            return Err(Refused::TooLarge);
        }
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        if line.pop() != Some(b'\n') {
            return Err(Refused::Torn);
        }
        let read = serde_json::from_slice(&line);
        read.map(Some)
            .map_err(|error| Refused::Malformed(self.number, Some(error)))
    }

    /// That the line before means nothing.
    fn malformed(&self) -> Refused {
        Refused::Malformed(self.number, None)
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
pub(super) mod tests;
