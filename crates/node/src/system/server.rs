//! The server as a whole: who it is, `varz`, the short figures, links to other nodes.

use super::body::{Body, Reply};
use super::gather::Part;
use super::shared::Traffic;
use crate::cluster::LinkView;
use crate::shared::NodeShared;
use crate::worker::Core;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tidelock_api::event::{self, ServerId, ServerInfo, server_flags};
use tidelock_api::monitor::{
    ClusterVarz, LinkCounts, RouteInfo, RouteStat, Routez, Statsz, Varz, rtt_text, uptime,
};
use tidelock_api::{Nanos, Time};
use tidelock_base::{AccountId, COMPATIBLE_VERSION, Mono, Now, TIDELOCK_VERSION, Wall};
use tidelock_conf::Options;

/// What clients of this version look at. All are as nats-server has them by default; none can be changed.
fn feature_flags() -> BTreeMap<String, bool> {
    [
        ("js_ack_fc_v2", false),
        ("js_api_reply_v2", false),
        ("js_raft_delete_range", true),
        ("js_snapshot_sources", false),
    ]
    .map(|(name, on)| (name.to_owned(), on))
    .into()
}

/// Seconds as the endpoints show them.
fn seconds(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64()
}

fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl NodeShared {
    /// This server as events and answers name it; each gets another number.
    pub(crate) fn server_info(&self, now: Wall) -> ServerInfo {
        let jetstream = self.options.jetstream.as_ref();
        let flags = server_flags::JETSTREAM | server_flags::BINARY_SNAPSHOTS | server_flags::ACCOUNT_NRG;
        ServerInfo {
            name: self.identity.name.to_string(),
            host: self.options.listen.host.clone(),
            id: self.identity.server_id.to_string(),
            cluster: self.cluster_name().as_deref().unwrap_or_default().to_owned(),
            domain: jetstream.and_then(|js| js.domain.clone()).unwrap_or_default(),
            ver: COMPATIBLE_VERSION.to_owned(),
            tags: self.options.server_tags.clone(),
            metadata: self.options.server_metadata.clone(),
            feature_flags: feature_flags(),
            jetstream: jetstream.is_some(),
            flags: if jetstream.is_some() {
                flags
            } else {
                flags & !server_flags::JETSTREAM
            },
            seq: self.system.messages.fetch_add(1, Ordering::Relaxed) + 1,
            time: Time(now),
        }
    }

    pub(crate) fn server_id(&self) -> ServerId {
        ServerId {
            name: self.identity.name.to_string(),
            host: self.options.listen.host.clone(),
            id: self.identity.server_id.to_string(),
        }
    }

    /// Traffic of all clients, from that of the open connections.
    fn client_traffic(&self, open: &Part) -> Traffic {
        let mut sum = open.all_traffic();
        self.accounts
            .iter()
            .for_each(|account| sum.add(&account.past.load()));
        sum
    }
}

/// Messages and bytes over links, both ways.
fn link_traffic(core: &Core) -> Traffic {
    let mut sum = Traffic::default();
    let peers = core.shared.peers.load();
    for link in peers.peers.iter().flat_map(|peer| &peer.links) {
        sum.add(&traffic_of(link));
    }
    sum
}

/// What went over a link: this node sends on those it opened and receives on the others.
fn traffic_of(link: &LinkView) -> Traffic {
    let (msgs, bytes) = (load(&link.stats.messages), load(&link.stats.bytes));
    if link.dialled {
        Traffic {
            out_msgs: msgs,
            out_bytes: bytes,
            ..Traffic::default()
        }
    } else {
        Traffic {
            in_msgs: msgs,
            in_bytes: bytes,
            ..Traffic::default()
        }
    }
}

impl Core {
    /// `varz`
    #[expect(clippy::too_many_lines, reason = "one line for each member")]
    pub(super) fn varz(&self, part: &Part) -> Reply {
        let shared = &self.shared;
        let (options, totals, now) = (&shared.options, &shared.totals, self.now.wall);
        let addresses = shared.addresses.load();
        let (clients, links) = (shared.client_traffic(part), link_traffic(self));
        let (mem, cpu) = shared
            .system
            .process
            .figures(self.now.mono, shared.identity.start.mono);
        let peers = shared.peers.load();
        let (slow, slow_routes) = (load(&totals.slow_consumers), load(&totals.slow_routes));
        let stale = load(&totals.stale_connections);
        let monitor = options.monitor.as_ref();
        let mut varz = Varz {
            server_id: shared.identity.server_id.to_string(),
            server_name: shared.identity.name.to_string(),
            version: COMPATIBLE_VERSION.to_owned(),
            proto: 1,
            go: concat!("rust", env!("CARGO_PKG_RUST_VERSION")).to_owned(),
            host: addresses.client_host.clone(),
            port: u64::from(addresses.client_port),
            auth_required: options.users.required(),
            connect_urls: self.connect_urls(),
            http_host: addresses.http_host.clone(),
            http_port: i64::from(addresses.http_port),
            http_base_path: monitor
                .map(|m| m.base_path.trim_end_matches('/').to_owned())
                .unwrap_or_default(),
            cluster: cluster_varz(self, options),
            jetstream: self.jetstream_varz(&part.jetstream, true),
            start: Time(shared.identity.start.wall),
            now: Time(now),
            uptime: uptime(Time(shared.identity.start.wall), Time(now)),
            mem,
            cores: shared.identity.cores as u64,
            gomaxprocs: u64::from(shared.workers),
            cpu,
            connections: load(&totals.connections),
            total_connections: load(&totals.total_connections),
            routes: peers.peers.iter().map(|peer| peer.links.len() as u64).sum(),
            remotes: peers.peers.iter().filter(|peer| peer.up).count() as u64,
            in_msgs: clients.in_msgs + links.in_msgs,
            in_bytes: clients.in_bytes + links.in_bytes,
            in_client_msgs: clients.in_msgs,
            in_client_bytes: clients.in_bytes,
            out_msgs: clients.out_msgs + links.out_msgs,
            out_bytes: clients.out_bytes + links.out_bytes,
            out_client_msgs: clients.out_msgs,
            out_client_bytes: clients.out_bytes,
            slow_consumers: slow + slow_routes,
            stale_connections: stale,
            stalled_clients: load(&totals.stalled_clients),
            subscriptions: load(&totals.subscriptions),
            http_req_stats: self.system.http_requests.clone(),
            config_load_time: Time(shared.identity.start.wall),
            config_digest: options
                .config_file
                .as_ref()
                .map(|file| file.digest.clone())
                .unwrap_or_default(),
            tags: options.server_tags.clone(),
            metadata: options.server_metadata.clone(),
            feature_flags: feature_flags(),
            system_account: options.system_account.clone(),
            slow_consumer_stats: LinkCounts {
                clients: slow,
                routes: slow_routes,
                ..LinkCounts::default()
            },
            stale_connection_stats: LinkCounts {
                clients: stale,
                ..LinkCounts::default()
            },
            tidelock: TIDELOCK_VERSION.to_owned(),
            ..Varz::default()
        };
        limits_varz(&mut varz, options);
        Reply::Body(Body::Varz(Box::new(varz)))
    }

    /// Addresses that clients are told, where there is a cluster.
    fn connect_urls(&self) -> Vec<String> {
        let peers = self.shared.peer_client_urls.load();
        if peers.is_empty() {
            return Vec::new();
        }
        let addresses = self.shared.addresses.load();
        addresses
            .client_urls
            .iter()
            .chain(peers.iter())
            .map(ToString::to_string)
            .collect()
    }

    /// The short figures.
    #[expect(clippy::too_many_lines, reason = "one line for each member")]
    pub(super) fn statsz(&self, part: &Part) -> Statsz {
        let shared = &self.shared;
        let totals = &shared.totals;
        let (clients, links) = (shared.client_traffic(part), link_traffic(self));
        let (mem, cpu) = shared
            .system
            .process
            .figures(self.now.mono, shared.identity.start.mono);
        let (slow, slow_routes) = (load(&totals.slow_consumers), load(&totals.slow_routes));
        let stale = load(&totals.stale_connections);
        let peers = shared.peers.load();
        let traffic = |msgs, bytes| event::Traffic { msgs, bytes };
        // As on nats-server the server's own subscribers count: those of the system account, and those of streams.
        let has_streams = |account: AccountId| {
            part.jetstream
                .streams
                .iter()
                .any(|stream| stream.account == account)
        };
        let active = shared
            .accounts
            .iter()
            .filter(|account| account.system || load(&account.connections) > 0 || has_streams(account.id));
        let links_of = peers
            .peers
            .iter()
            .flat_map(|peer| peer.links.iter().map(move |link| (peer, link)));
        Statsz {
            start: Time(shared.identity.start.wall),
            mem,
            cores: shared.identity.cores as u64,
            cpu,
            connections: load(&totals.connections),
            total_connections: load(&totals.total_connections),
            active_accounts: active.count() as u64,
            subscriptions: load(&totals.subscriptions),
            sent: traffic(
                clients.out_msgs + links.out_msgs,
                clients.out_bytes + links.out_bytes,
            ),
            sent_to_clients: traffic(clients.out_msgs, clients.out_bytes),
            received: traffic(clients.in_msgs + links.in_msgs, clients.in_bytes + links.in_bytes),
            received_from_clients: traffic(clients.in_msgs, clients.in_bytes),
            slow_consumers: slow + slow_routes,
            slow_consumer_stats: LinkCounts {
                clients: slow,
                routes: slow_routes,
                ..LinkCounts::default()
            },
            stale_connections: stale,
            stale_connection_stats: LinkCounts {
                clients: stale,
                ..LinkCounts::default()
            },
            stalled_clients: load(&totals.stalled_clients),
            routes: links_of
                .map(|(peer, link)| {
                    let sum = traffic_of(link);
                    RouteStat {
                        rid: link.rid,
                        name: peer.facts.name.to_string(),
                        sent: traffic(sum.out_msgs, sum.out_bytes),
                        received: traffic(sum.in_msgs, sum.in_bytes),
                        pending: load(&link.stats.pending),
                    }
                })
                .collect(),
            active_servers: 1 + peers.peers.iter().filter(|peer| peer.up).count() as u64,
            jetstream: shared
                .options
                .jetstream
                .is_some()
                .then(|| self.jetstream_varz(&part.jetstream, false)),
            gomaxprocs: u64::from(shared.workers),
            ..Statsz::default()
        }
    }

    /// `routez`
    pub(super) fn routez(&self) -> Reply {
        let shared = &self.shared;
        let peers = shared.peers.load();
        let mut routes = Vec::new();
        for peer in &peers.peers {
            for link in &peer.links {
                let (name, id) = (peer.facts.name.to_string(), peer.facts.server_id.to_string());
                routes.push(route_info(link, name, id, self.now));
            }
        }
        routes.sort_by_key(|route| route.rid);
        Reply::Body(Body::Routez(Routez {
            server_id: shared.identity.server_id.to_string(),
            server_name: shared.identity.name.to_string(),
            now: Time(self.now.wall),
            num_routes: routes.len() as u64,
            routes,
            ..Routez::default()
        }))
    }
}

fn route_info(link: &LinkView, remote_name: String, remote_id: String, now: Now) -> RouteInfo {
    let traffic = traffic_of(link);
    let rtt = i64::try_from(load(&link.stats.rtt_ns)).unwrap_or(i64::MAX);
    let last = wall_of(Mono(load(&link.stats.last_activity_ns)), now).max(link.start.wall);
    RouteInfo {
        rid: link.rid,
        remote_id,
        remote_name,
        did_solicit: link.dialled,
        is_configured: link.configured,
        ip: link
            .remote
            .map(|remote| remote.ip().to_string())
            .unwrap_or_default(),
        port: link.remote.map_or(0, |remote| u64::from(remote.port())),
        start: Time(link.start.wall),
        last_activity: Time(last),
        rtt: rtt_text((rtt > 0).then_some(Nanos(rtt))),
        uptime: uptime(Time(link.start.wall), Time(now.wall)),
        idle: uptime(Time(last), Time(now.wall)),
        pending_size: load(&link.stats.pending),
        in_msgs: traffic.in_msgs,
        out_msgs: traffic.out_msgs,
        in_bytes: traffic.in_bytes,
        out_bytes: traffic.out_bytes,
        subscriptions: load(&link.stats.subscriptions),
        ..RouteInfo::default()
    }
}

/// The wall clock at a moment of the monotonic clock, as far as the two ran alike since.
pub(super) fn wall_of(at: Mono, now: Now) -> Wall {
    let ago = i64::try_from(now.mono.since(at).as_nanos()).unwrap_or(i64::MAX);
    now.wall.plus_nanos(-ago)
}

fn limits_varz(varz: &mut Varz, options: &Options) {
    let count = |n: Option<u64>| n.map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let limits = &options.limits;
    varz.max_connections = count(limits.max_connections);
    varz.max_subscriptions = count(limits.max_subscriptions);
    varz.ping_interval = options.ping_interval.into();
    varz.ping_max = i64::from(options.ping_max);
    varz.auth_timeout = seconds(options.auth_timeout);
    varz.max_control_line = i64::from(limits.max_control_line);
    varz.max_payload = i64::from(limits.max_payload);
    varz.max_pending = count(Some(limits.max_pending));
    // TLS is not there; the figure is what nats-server shows without it.
    varz.tls_timeout = 2.0;
    varz.write_deadline = options.write_deadline.into();
}

fn cluster_varz(core: &Core, options: &Options) -> ClusterVarz {
    let Some(cluster) = &options.cluster else {
        return ClusterVarz::default();
    };
    let addresses = core.shared.addresses.load();
    ClusterVarz {
        name: core
            .shared
            .cluster_name()
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        addr: addresses.cluster_host.clone(),
        cluster_port: u64::from(addresses.cluster_port),
        auth_timeout: seconds(cluster.auth_timeout),
        urls: cluster
            .routes
            .iter()
            .map(|route| route.address.to_string())
            .collect(),
        tls_timeout: 2.0,
        pool_size: u64::from(cluster.pool_size),
        // Only shown where it is not the global one.
        write_deadline: Some(cluster.write_deadline)
            .filter(|own| *own != options.write_deadline)
            .unwrap_or_default()
            .into(),
        ..ClusterVarz::default()
    }
}
