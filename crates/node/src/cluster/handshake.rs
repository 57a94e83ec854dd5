//! The first frames of a link: who dials says hello, who accepts welcomes or refuses, each by one JSON object.
//!
//! ```text
//!   dialler                         acceptor
//!     Hello{facts, lane, password} ──►  judges it
//!     judges the facts  ◄──────────── Welcome{facts}   or Refused{why}, and the end
//!     Ping ─────────────────────────►  the link counts from here on
//! ```
//!
//! The acceptor counts a link only from its first ping on: a dialler that finds that it has reached itself, or a node
//! that it has links to already, hangs up instead, and nothing has changed at the other side.

use crate::cell::{LaneKind, NodeFacts};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidelock_base::{BootId, ClusterId, NodeId};

/// Version of the protocol between nodes; others are refused.
pub(crate) const PROTOCOL: u32 = 1;
/// Longest hello or welcome, in bytes: names of accounts are the only thing that can be many.
pub(crate) const GREETING_BYTES_MAX: usize = 1 << 20;

/// Whose cluster it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterName {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Whether the name was made up, and gives way to a configured one.
    pub(crate) dynamic: bool,
}

/// What the two sides say of themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Version of the protocol.
    pub(crate) protocol: u32,
    /// Their cluster.
    pub(crate) cluster: ClusterName,
    /// Its id, once it has formed.
    pub(crate) cluster_id: Option<ClusterId>,
    /// The node.
    pub(crate) facts: NodeFacts,
    /// Where other nodes take routes.
    pub(crate) routes: Vec<Arc<str>>,
}

/// What the dialling side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Who it is.
    pub(crate) greeting: Greeting,
    /// What the link is for.
    pub(crate) lane: LaneKind,
    /// User, if one was configured.
    pub(crate) user: String,
    /// Its password.
    pub(crate) password: String,
    /// Time between the pings that it will send, in nanoseconds.
    pub(crate) ping_ns: u64,
}

/// Why a hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RefusalKind {
    /// The dialler has reached itself.
    Itself,
    /// Another protocol version.
    Protocol,
    /// Another cluster name.
    ClusterName,
    /// Another cluster of that name.
    ClusterId,
    /// Wrong or missing credentials.
    Authorization,
    /// A server of that name is there.
    ServerName,
    /// A server with that store is there.
    Store,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// Which kind.
    pub(crate) kind: RefusalKind,
    /// For people.
    pub(crate) text: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    protocol: u32,
    cluster: String,
    cluster_dynamic: bool,
    #[serde(default)]
    cluster_id: Option<String>,
    node: String,
    boot: String,
    name: String,
    server_id: String,
    workers: u16,
    client_urls: Vec<String>,
    route_url: String,
    jetstream: bool,
    file_free: u64,
    memory_free: u64,
    tags: Vec<String>,
    leaving: bool,
    accounts: Vec<String>,
    routes: Vec<String>,
    #[serde(default)]
    lane: Option<u8>,
    #[serde(default)]
    user: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    ping_ns: u64,
}

/// What cannot be read as what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed greeting: {0}")]
pub(crate) struct BadGreeting(String);

fn hex(text: &str, what: &str) -> Result<u128, BadGreeting> {
    u128::from_str_radix(text, 16).map_err(|_| BadGreeting(what.to_owned()))
}

fn strings(list: &[Arc<str>]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn shared(list: Vec<String>) -> Vec<Arc<str>> {
    list.into_iter().map(Arc::from).collect()
}

fn to_wire(greeting: &Greeting) -> Wire {
    let facts = &greeting.facts;
    Wire {
        protocol: greeting.protocol,
        cluster: greeting.cluster.name.to_string(),
        cluster_dynamic: greeting.cluster.dynamic,
        cluster_id: greeting.cluster_id.map(|id| format!("{:032x}", id.0)),
        node: format!("{:016x}", facts.node.0),
        boot: format!("{:032x}", facts.boot.0),
        name: facts.name.to_string(),
        server_id: facts.server_id.to_string(),
        workers: facts.workers,
        client_urls: strings(&facts.client_urls),
        route_url: facts.route_url.to_string(),
        jetstream: facts.jetstream,
        file_free: facts.file_free,
        memory_free: facts.memory_free,
        tags: strings(&facts.tags),
        leaving: facts.leaving,
        accounts: strings(&facts.accounts),
        routes: strings(&greeting.routes),
        lane: None,
        user: String::new(),
        password: String::new(),
        ping_ns: 0,
    }
}

fn from_wire(wire: Wire) -> Result<Greeting, BadGreeting> {
    let node = u64::from_str_radix(&wire.node, 16).map_err(|_| BadGreeting("node".to_owned()))?;
    let facts = NodeFacts {
        node: NodeId(node),
        boot: BootId(hex(&wire.boot, "boot")?),
        name: wire.name.into(),
        server_id: wire.server_id.into(),
        workers: wire.workers,
        client_urls: shared(wire.client_urls),
        route_url: wire.route_url.into(),
        jetstream: wire.jetstream,
        file_free: wire.file_free,
        memory_free: wire.memory_free,
        tags: shared(wire.tags),
        leaving: wire.leaving,
        accounts: shared(wire.accounts),
    };
    Ok(Greeting {
        protocol: wire.protocol,
        cluster: ClusterName {
            name: wire.cluster.into(),
            dynamic: wire.cluster_dynamic,
        },
        cluster_id: wire
            .cluster_id
            .map(|id| hex(&id, "cluster_id"))
            .transpose()?
            .map(ClusterId),
        facts,
        routes: shared(wire.routes),
    })
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BadGreeting> {
    serde_json::from_slice(body).map_err(|e| BadGreeting(e.to_string()))
}

/// These values hold nothing that JSON could not say, so an empty text never leaves.
fn text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

impl Hello {
    /// As JSON.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut wire = to_wire(&self.greeting);
        wire.lane = Some(self.lane.index());
        wire.user.clone_from(&self.user);
        wire.password.clone_from(&self.password);
        wire.ping_ns = self.ping_ns;
        text(&wire)
    }

    /// From JSON.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, BadGreeting> {
        let mut wire: Wire = parse(body)?;
        let lane = wire
            .lane
            .and_then(LaneKind::from_index)
            .ok_or_else(|| BadGreeting("lane".to_owned()))?;
        let (user, password) = (std::mem::take(&mut wire.user), std::mem::take(&mut wire.password));
        let ping_ns = wire.ping_ns;
        Ok(Self {
            greeting: from_wire(wire)?,
            lane,
            user,
            password,
            ping_ns,
        })
    }
}

impl Greeting {
    /// As JSON.
    pub(crate) fn encode(&self) -> Vec<u8> {
        text(&to_wire(self))
    }

    /// From JSON.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, BadGreeting> {
        from_wire(parse(body)?)
    }
}

impl Refused {
    /// As JSON.
    pub(crate) fn encode(&self) -> Vec<u8> {
        text(self)
    }

    /// From JSON.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, BadGreeting> {
        parse(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_as_they_went_out() {
        let facts = NodeFacts {
            node: NodeId(u64::MAX - 1),
            boot: BootId(u128::MAX - 2),
            name: "n\"1".into(),
            accounts: vec!["$G".into(), "$SYS".into()],
            route_url: "[::1]:6222".into(),
            leaving: true,
            file_free: u64::MAX,
            ..NodeFacts::default()
        };
        let greeting = Greeting {
            protocol: PROTOCOL,
            cluster: ClusterName {
                name: "c".into(),
                dynamic: true,
            },
            cluster_id: Some(ClusterId(7)),
            facts,
            routes: vec!["a:1".into()],
        };
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting.clone()));
        let hello = Hello {
            greeting,
            lane: LaneKind::Bulk,
            user: "u".into(),
            password: "p".into(),
            ping_ns: 5,
        };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
        let refused = Refused {
            kind: RefusalKind::ClusterName,
            text: "no".into(),
        };
        assert_eq!(Refused::decode(&refused.encode()), Ok(refused));
        assert!(
            Hello::decode(&hello.greeting.encode()).is_err(),
            "a hello without lane"
        );
        assert!(Hello::decode(b"INFO {}").is_err());
    }
}
