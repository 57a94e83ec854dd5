//! The handshake of links, from both sides: see [`super::handshake`].

use super::handshake::{ClusterName, Greeting, Hello, PROTOCOL, RefusalKind, Refused};
use super::link::{Link, Side, Stage, Why, kind};
use super::links::Links;
use super::peers::Peer;
use super::telling::accounts_of;
use crate::cell::{LaneKind, NodeFacts};
use crate::clock::HeardTime;
use crate::interest::ConnKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{Mono, NodeId, Wall};

/// Bounds of the ping interval that a dialling side may announce.
const PING_MIN: Duration = Duration::from_millis(10);
const PING_MAX: Duration = Duration::from_secs(60);

impl Links {
    /// A connection that was being opened is open: says hello.
    pub(crate) fn connected(&mut self, key: ConnKey, remote: SocketAddr) {
        let Some(mut link) = self.take(key) else { return };
        self.recheck = true;
        if let (Stage::Connecting, Side::Dialled(target)) = (link.stage, link.side) {
            link.connected(remote, &self.timing, self.now);
            let own = self.options.credentials.as_ref();
            let credentials = self.dials.credentials(target).or(own);
            let hello = Hello {
                greeting: self.greeting(),
                lane: link.lane,
                user: credentials.map(|c| c.user.clone()).unwrap_or_default(),
                password: credentials
                    .map(|c| c.password.expose().to_owned())
                    .unwrap_or_default(),
                ping_ns: u64::try_from(self.timing.ping.as_nanos()).unwrap_or(u64::MAX),
            };
            self.write_taken(&mut link, kind::HELLO, &hello.encode());
        }
        self.put(link);
    }

    /// A frame that belongs to the link itself.
    ///
    /// # Errors
    /// Why the link ends.
    pub(crate) fn control(&mut self, link: &mut Link, frame: u8, body: &[u8]) -> Result<(), Why> {
        self.recheck = true;
        match (link.side, link.stage, frame) {
            (Side::Accepted, Stage::Greeting, kind::HELLO) => self.hello(link, body),
            (Side::Dialled(_), Stage::Greeting, kind::WELCOME) => self.welcome(link, body),
            (Side::Dialled(_), Stage::Greeting, kind::REFUSED) => self.refused(link, body),
            (Side::Accepted, Stage::Greeted | Stage::Open, kind::PING) => {
                if link.stage == Stage::Greeted {
                    self.come_in(link);
                }
                self.write_taken(link, kind::PONG, body);
                Ok(())
            }
            (Side::Dialled(_), Stage::Open, kind::PONG) => {
                let sent: [u8; 8] = body
                    .try_into()
                    .map_err(|_| Why::Protocol("malformed pong".to_owned()))?;
                link.pong(Mono(u64::from_le_bytes(sent)), self.now.mono);
                Ok(())
            }
            (Side::Accepted, Stage::Open, kind::CLOCK) => {
                let time = [body, self.now.wall.0.to_le_bytes().as_slice()].concat();
                self.write_taken(link, kind::TIME, &time);
                Ok(())
            }
            (Side::Dialled(_), Stage::Open, kind::TIME) => {
                let malformed = || Why::Protocol("malformed time".to_owned());
                let (sent, wall) = body.split_first_chunk::<8>().ok_or_else(malformed)?;
                let wall: [u8; 8] = wall.try_into().map_err(|_| malformed())?;
                if let Some(node) = link.node {
                    self.times.push(HeardTime {
                        node,
                        sent: Mono(u64::from_le_bytes(*sent)),
                        heard: self.now.mono,
                        wall: Wall(i64::from_le_bytes(wall)),
                    });
                }
                Ok(())
            }
            _ => Err(Why::Protocol(format!("unexpected frame of kind {frame}"))),
        }
    }

    /// Another node introduces itself.
    fn hello(&mut self, link: &mut Link, body: &[u8]) -> Result<(), Why> {
        let hello = Hello::decode(body).map_err(|e| Why::Protocol(e.to_string()))?;
        link.lane = hello.lane;
        if let Err(refused) = self.judge(&hello, link) {
            self.write_taken(link, kind::REFUSED, &refused.encode());
            return Err(if refused.kind == RefusalKind::Itself {
                Why::Useless
            } else {
                Why::Rejected
            });
        }
        self.adopt_name(&hello.greeting.cluster);
        let ping = Duration::from_nanos(hello.ping_ns).clamp(PING_MIN, PING_MAX);
        link.node = Some(hello.greeting.facts.node);
        link.greeting = Some(Box::new(hello.greeting));
        link.ping = ping;
        link.stage = Stage::Greeted;
        let welcome = self.greeting().encode();
        self.write_taken(link, kind::WELCOME, &welcome);
        Ok(())
    }

    /// Whether another node is let in.
    fn judge(&mut self, hello: &Hello, link: &Link) -> Result<(), Refused> {
        let label = &link.label;
        let theirs = &hello.greeting;
        let refuse = |kind, text: String| Err(Refused { kind, text });
        if theirs.facts.boot == self.me.boot {
            return refuse(RefusalKind::Itself, "this is the server itself".to_owned());
        }
        if theirs.protocol != PROTOCOL {
            let text = format!("protocol version {} is not {PROTOCOL}", theirs.protocol);
            tracing::error!("{label} - Rejecting connection, {text}");
            return refuse(RefusalKind::Protocol, text);
        }
        if let Err(text) = self.same_cluster(theirs) {
            tracing::error!("{label} - Rejecting connection, {text}");
            return refuse(RefusalKind::ClusterName, text);
        }
        if !self.credentials_fit(hello) {
            tracing::error!("{label} - authentication error");
            return refuse(RefusalKind::Authorization, "Authorization Violation".to_owned());
        }
        if let (Some(ours), Some(theirs)) = (self.cluster_id, theirs.cluster_id)
            && ours != theirs
        {
            let text = format!("cluster id {:032x} does not match {:032x}", theirs.0, ours.0);
            tracing::error!("{label} - Rejecting connection, {text}");
            return refuse(RefusalKind::ClusterId, text);
        }
        if theirs.facts.node == self.me.node {
            tracing::error!(
                "{label} - Rejecting connection, server {:?} has a copy of this server's store",
                theirs.facts.name
            );
            return refuse(RefusalKind::Store, "this server has the same store".to_owned());
        }
        if self.is_name_taken(&theirs.facts) {
            tracing::error!(
                "{label} - Rejecting connection, duplicate server name {:?}",
                theirs.facts.name
            );
            return refuse(RefusalKind::ServerName, "Duplicate Server Name".to_owned());
        }
        Ok(())
    }

    /// Whether the names of the two clusters are, or are about to be, the same.
    fn same_cluster(&self, theirs: &Greeting) -> Result<(), String> {
        let (ours, theirs) = (&self.cluster, &theirs.cluster);
        if ours.dynamic || theirs.dynamic || ours.name == theirs.name {
            return Ok(());
        }
        Err(format!(
            "cluster name {:?} does not match {:?}",
            theirs.name, ours.name
        ))
    }

    /// A name that was made up gives way to a configured one, and to a larger one that was made up too.
    fn adopt_name(&mut self, theirs: &ClusterName) {
        if self.cluster.dynamic && (!theirs.dynamic || theirs.name > self.cluster.name) {
            if theirs.name != self.cluster.name {
                tracing::info!("Cluster name updated to {}", theirs.name);
                self.shared.set_cluster_name(Arc::clone(&theirs.name));
            }
            self.cluster = theirs.clone();
        }
    }

    fn credentials_fit(&mut self, hello: &Hello) -> bool {
        let Some(ours) = &self.options.credentials else {
            return true;
        };
        if hello.user != ours.user {
            return false;
        }
        if !ours.password.is_slow() {
            return ours.password.verify(hello.password.as_bytes());
        }
        // All lanes of all peers bring the same password: what was verified once need not cost its time again.
        let known = self.verified.as_ref().map(String::as_bytes);
        let fits = known
            .is_some_and(|known| tidelock_auth::constant_time_eq(known, hello.password.as_bytes()))
            || ours.password.verify(hello.password.as_bytes());
        if fits {
            self.verified = Some(hello.password.clone());
        }
        fits
    }

    fn is_name_taken(&self, facts: &NodeFacts) -> bool {
        let other = |known: &NodeFacts| known.name == facts.name && known.node != facts.node;
        other(&self.me) || self.peers.values().any(|peer| other(&peer.facts))
    }

    /// A node that was let in has said that it stays: the link counts from now on, in place of an older one.
    fn come_in(&mut self, link: &mut Link) {
        let Some(greeting) = link.greeting.take() else {
            return;
        };
        let node = greeting.facts.node;
        link.open(link.ping, &self.timing, self.now.mono);
        self.meet(link, &greeting);
        let place = usize::from(link.lane.index());
        let before = self
            .peers
            .get(&node)
            .and_then(|peer| peer.from.get(place).copied().flatten());
        if let Some(before) = before {
            self.end(before, &Why::Replaced);
            self.meet(link, &greeting);
        }
        if let Some(slot) = self
            .peers
            .get_mut(&node)
            .and_then(|peer| peer.from.get_mut(place))
        {
            *slot = Some(link.key);
        }
        tracing::info!("{} - Route connection created", link.label);
        self.review(node);
        let route_url = self
            .peers
            .get(&node)
            .map(|peer| Arc::clone(&peer.route_url))
            .unwrap_or_default();
        if !self.dials.has(node) {
            self.learn(&route_url);
        }
        greeting.routes.iter().for_each(|url| self.learn(url));
        if link.lane == LaneKind::Client {
            self.dials.is_there(node, self.now.mono);
            self.recheck = true;
            self.gossip();
        }
    }

    /// The node that was dialled lets this one in.
    fn welcome(&mut self, link: &mut Link, body: &[u8]) -> Result<(), Why> {
        let greeting = Greeting::decode(body).map_err(|e| Why::Protocol(e.to_string()))?;
        let Side::Dialled(target) = link.side else {
            return Ok(());
        };
        let node = greeting.facts.node;
        if greeting.protocol != PROTOCOL {
            return Err(Why::Protocol(format!(
                "protocol version {} is not {PROTOCOL}",
                greeting.protocol
            )));
        }
        if let (Some(ours), Some(theirs)) = (self.cluster_id, greeting.cluster_id)
            && ours != theirs
        {
            return Err(Why::Refused(format!(
                "cluster id {:032x} does not match {:032x}",
                theirs.0, ours.0
            )));
        }
        self.same_cluster(&greeting).map_err(Why::Refused)?;
        if self.is_name_taken(&greeting.facts) {
            return Err(Why::Refused(format!(
                "duplicate server name {:?}",
                greeting.facts.name
            )));
        }
        // Another address of a node that is known counts for the configured routes, too.
        self.view_changed = true;
        if !self
            .dials
            .welcomed(target, link.lane, link.key, node, self.now.mono)
        {
            return Err(Why::Useless);
        }
        self.adopt_name(&greeting.cluster);
        link.node = Some(node);
        link.open(self.timing.ping, &self.timing, self.now.mono);
        self.write_taken(link, kind::PING, &self.now.mono.0.to_le_bytes());
        self.meet(link, &greeting);
        let place = usize::from(link.lane.index());
        if let Some(slot) = self
            .peers
            .get_mut(&node)
            .and_then(|peer| peer.into.get_mut(place))
        {
            *slot = Some(link.key);
        }
        tracing::info!("{} - Route connection created", link.label);
        self.review(node);
        greeting.routes.iter().for_each(|url| self.learn(url));
        Ok(())
    }

    /// The node that was dialled does not let this one in.
    fn refused(&mut self, link: &Link, body: &[u8]) -> Result<(), Why> {
        let refused = Refused::decode(body).map_err(|e| Why::Protocol(e.to_string()))?;
        match (refused.kind, link.side) {
            (RefusalKind::Itself, Side::Dialled(target)) => {
                self.dials.is_itself(target, self.me.node);
                // One more of the configured routes is known.
                self.view_changed = true;
                self.view_changed = true;
                Err(Why::Useless)
            }
            _ => Err(Why::Refused(format!("Route rejected: {}", refused.text))),
        }
    }

    /// Notes who is at the other side of a link. A node that has restarted loses the links of its earlier life.
    fn meet(&mut self, link: &Link, greeting: &Greeting) {
        let node = greeting.facts.node;
        if let Some(peer) = self.peers.get(&node)
            && peer.facts.boot != greeting.facts.boot
        {
            let old: Vec<ConnKey> = peer
                .into
                .iter()
                .chain(&peer.from)
                .flatten()
                .copied()
                .filter(|key| *key != link.key)
                .collect();
            for key in old {
                self.end(key, &Why::Replaced);
            }
        }
        let route_url = reachable(&greeting.facts.route_url, link.remote);
        let accounts = accounts_of(&self.shared, &greeting.facts);
        let facts = Arc::new(greeting.facts.clone());
        self.peers
            .entry(node)
            .or_insert_with(|| Peer::new(facts, route_url, accounts));
    }

    /// Another node knows this address; dials it unless it leads to a node that is reached already.
    pub(crate) fn learn(&mut self, url: &Arc<str>) {
        let reached = |(node, peer): (&NodeId, &Peer)| peer.route_url == *url && self.dials.has(*node);
        if *url == self.me.route_url || self.peers.iter().any(reached) {
            return;
        }
        if self.dials.learn(url, self.now.mono) {
            self.recheck = true;
            tracing::debug!("Learnt of a route to {url}");
        }
    }
}

/// An address without a host that others could reach gets the host that the connection shows.
fn reachable(route_url: &Arc<str>, remote: Option<SocketAddr>) -> Arc<str> {
    let Some((host, port)) = route_url.rsplit_once(':') else {
        return Arc::clone(route_url);
    };
    let everywhere = matches!(host, "" | "0.0.0.0" | "[::]" | "::");
    match (remote, port.parse()) {
        (Some(remote), Ok(port)) if everywhere => SocketAddr::new(remote.ip(), port).to_string().into(),
        _ => Arc::clone(route_url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_address_gets_the_host_of_the_connection() {
        let remote: SocketAddr = "10.1.2.3:5000".parse().expect("an address");
        assert_eq!(&*reachable(&"0.0.0.0:6222".into(), Some(remote)), "10.1.2.3:6222");
        assert_eq!(&*reachable(&"host:6222".into(), Some(remote)), "host:6222");
    }
}
