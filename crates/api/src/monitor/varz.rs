//! `/varz` and the periodic statistics of a server.

use super::jsz::JetStreamVarz;
use crate::event::{ServerInfo, Traffic};
use crate::json::is_zero;
use crate::{Nanos, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// A server: what it is configured to and what it did. [`Varz::default`] is empty; the caller fills in everything
/// that is not left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Varz {
    /// Id of the server, a public key.
    pub server_id: String,
    /// Its name.
    pub server_name: String,
    /// Compatible version.
    pub version: String,
    /// Protocol version.
    pub proto: u64,
    /// Commit that it was built from.
    #[serde(skip_serializing_if = "is_zero")]
    pub git_commit: String,
    /// What it was built with.
    pub go: String,
    /// Address of the client port.
    pub host: String,
    /// Client port.
    pub port: u64,
    /// Clients must prove who they are.
    #[serde(skip_serializing_if = "is_zero")]
    pub auth_required: bool,
    /// Clients must use TLS.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_required: bool,
    /// Clients must have a certificate.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_verify: bool,
    /// Certificates of clients are checked by OCSP.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_ocsp_peer_verify: bool,
    /// Address given to clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub ip: String,
    /// Addresses given to clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub connect_urls: Vec<String>,
    /// Addresses given to WebSocket clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub ws_connect_urls: Vec<String>,
    /// Most connections.
    pub max_connections: i64,
    /// Most subscriptions of a connection.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_subscriptions: i64,
    /// Time between pings.
    pub ping_interval: Nanos,
    /// Pings without an answer before a connection is closed.
    pub ping_max: i64,
    /// Address of the monitoring port.
    pub http_host: String,
    /// Monitoring port.
    pub http_port: i64,
    /// Prefix of its paths.
    pub http_base_path: String,
    /// Monitoring port with TLS.
    pub https_port: i64,
    /// Seconds within which a client must prove who it is.
    pub auth_timeout: f64,
    /// Longest protocol line.
    pub max_control_line: i64,
    /// Largest message.
    pub max_payload: i64,
    /// Most bytes waiting for a connection.
    pub max_pending: i64,
    /// Routes.
    pub cluster: ClusterVarz,
    /// Gateways.
    pub gateway: GatewayVarz,
    /// Leafnodes.
    pub leaf: LeafVarz,
    /// MQTT.
    pub mqtt: MqttVarz,
    /// WebSocket.
    pub websocket: WebsocketVarz,
    /// JetStream.
    pub jetstream: JetStreamVarz,
    /// Seconds within which TLS must be set up.
    pub tls_timeout: f64,
    /// Time within which a connection must take what is sent.
    pub write_deadline: Nanos,
    /// What happens when it does not.
    #[serde(skip_serializing_if = "is_zero")]
    pub write_timeout: String,
    /// When the server started.
    pub start: Time,
    /// When this was written.
    pub now: Time,
    /// See [`super::uptime`].
    pub uptime: String,
    /// Resident memory in bytes.
    pub mem: u64,
    /// Cores of the machine.
    pub cores: u64,
    /// Cores in use.
    pub gomaxprocs: u64,
    /// Memory limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub gomemlimit: i64,
    /// CPU in percent of one core.
    pub cpu: f64,
    /// Clients now.
    pub connections: u64,
    /// Clients so far.
    pub total_connections: u64,
    /// Routes now.
    pub routes: u64,
    /// Servers in the cluster, this one aside.
    pub remotes: u64,
    /// Leafnodes now.
    pub leafnodes: u64,
    /// Messages received.
    pub in_msgs: u64,
    /// Bytes received.
    pub in_bytes: u64,
    /// Messages received from clients.
    pub in_client_msgs: u64,
    /// Bytes received from clients.
    pub in_client_bytes: u64,
    /// Messages sent.
    pub out_msgs: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// Messages sent to clients.
    pub out_client_msgs: u64,
    /// Bytes sent to clients.
    pub out_client_bytes: u64,
    /// Connections that were too slow.
    pub slow_consumers: u64,
    /// Connections that did not answer pings.
    pub stale_connections: u64,
    /// Publishers that had to wait.
    pub stalled_clients: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Requests of each path.
    pub http_req_stats: BTreeMap<String, u64>,
    /// When the configuration was read.
    pub config_load_time: Time,
    /// Hash of the configuration.
    pub config_digest: String,
    /// Tags.
    #[serde(skip_serializing_if = "is_zero")]
    pub tags: Vec<String>,
    /// Labels.
    #[serde(skip_serializing_if = "is_zero")]
    pub metadata: BTreeMap<String, String>,
    /// Switches of features.
    #[serde(skip_serializing_if = "is_zero")]
    pub feature_flags: BTreeMap<String, bool>,
    /// JWTs of operators.
    #[serde(skip_serializing_if = "is_zero")]
    pub trusted_operators_jwt: Vec<String>,
    /// Name of the system account.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_account: String,
    /// Connections of accounts that are pinned to routes that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub pinned_account_fails: u64,
    /// Connections that were too slow, by kind.
    pub slow_consumer_stats: LinkCounts,
    /// Connections that did not answer pings, by kind.
    pub stale_connection_stats: LinkCounts,
    /// Waits for the disk.
    pub disk_io_wait_stats: DiskIoWait,
    /// When the certificate of the client port expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert_not_after: Option<Time>,
    /// Tidelock's own version.
    #[serde(skip_serializing_if = "is_zero")]
    pub tidelock: String,
}

/// Counts by kind of connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkCounts {
    /// Clients.
    pub clients: u64,
    /// Routes.
    pub routes: u64,
    /// Gateways.
    pub gateways: u64,
    /// Leafnodes.
    pub leafs: u64,
}

/// Waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskIoWait {
    /// Waiting now.
    pub waiters: u64,
    /// Waits so far.
    pub waits: u64,
    /// Time waited.
    pub wait_time: Nanos,
    /// Longest wait.
    pub max_wait_time: Nanos,
}

/// Routes, in `/varz`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterVarz {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Address.
    #[serde(skip_serializing_if = "is_zero")]
    pub addr: String,
    /// Port.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster_port: u64,
    /// Seconds to prove who it is.
    #[serde(skip_serializing_if = "is_zero")]
    pub auth_timeout: f64,
    /// Routes that are configured.
    #[serde(skip_serializing_if = "is_zero")]
    pub urls: Vec<String>,
    /// Seconds to set up TLS.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_timeout: f64,
    /// TLS is used.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_required: bool,
    /// Certificates are checked.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_verify: bool,
    /// Connections of one route.
    #[serde(skip_serializing_if = "is_zero")]
    pub pool_size: u64,
    /// Time to take what is sent.
    #[serde(skip_serializing_if = "is_zero")]
    pub write_deadline: Nanos,
    /// What happens after that.
    #[serde(skip_serializing_if = "is_zero")]
    pub write_timeout: String,
    /// When the certificate expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert_not_after: Option<Time>,
}

/// Gateways, in `/varz`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GatewayVarz {
    /// Name of the gateway.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Address.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: String,
    /// Port.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u64,
    /// Seconds to prove who it is.
    #[serde(skip_serializing_if = "is_zero")]
    pub auth_timeout: f64,
    /// Seconds to set up TLS.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_timeout: f64,
}

/// Leafnodes, in `/varz`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LeafVarz {
    /// Address.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: String,
    /// Port.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u64,
    /// Seconds to prove who it is.
    #[serde(skip_serializing_if = "is_zero")]
    pub auth_timeout: f64,
    /// Seconds to set up TLS.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_timeout: f64,
    /// TLS is used.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_required: bool,
    /// Certificates are checked.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_verify: bool,
}

/// MQTT, in `/varz`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MqttVarz {
    /// Address.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: String,
    /// Port.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u64,
}

/// WebSocket, in `/varz`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WebsocketVarz {
    /// Address.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: String,
    /// Port.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u64,
    /// Address given to clients.
    #[serde(skip_serializing_if = "is_zero")]
    pub advertise: String,
    /// Time to shake hands.
    #[serde(skip_serializing_if = "is_zero")]
    pub handshake_timeout: Nanos,
    /// Seconds to prove who it is.
    #[serde(skip_serializing_if = "is_zero")]
    pub auth_timeout: f64,
    /// Without TLS.
    #[serde(skip_serializing_if = "is_zero")]
    pub no_tls: bool,
    /// Origins must match.
    #[serde(skip_serializing_if = "is_zero")]
    pub same_origin: bool,
    /// Origins that are allowed.
    #[serde(skip_serializing_if = "is_zero")]
    pub allowed_origins: Vec<String>,
    /// Messages may be compressed.
    #[serde(skip_serializing_if = "is_zero")]
    pub compression: bool,
}

/// What `STATSZ` answers, and what is published as `$SYS.SERVER.<id>.STATSZ`.
#[derive(Clone, Debug, Serialize)]
pub struct StatsReply<'a> {
    /// The server.
    pub server: &'a ServerInfo,
    /// Its statistics.
    pub statsz: &'a Statsz,
}

/// Statistics of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Statsz {
    /// When it started.
    pub start: Time,
    /// Resident memory in bytes.
    pub mem: u64,
    /// Cores of the machine.
    pub cores: u64,
    /// CPU in percent of one core.
    pub cpu: f64,
    /// Clients now.
    pub connections: u64,
    /// Clients so far.
    pub total_connections: u64,
    /// Accounts with connections.
    pub active_accounts: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Sent.
    pub sent: Traffic,
    /// Sent to clients.
    pub sent_to_clients: Traffic,
    /// Received.
    pub received: Traffic,
    /// Received from clients.
    pub received_from_clients: Traffic,
    /// Connections that were too slow.
    pub slow_consumers: u64,
    /// The same by kind.
    #[serde(skip_serializing_if = "is_zero")]
    pub slow_consumer_stats: LinkCounts,
    /// Connections that did not answer pings.
    #[serde(skip_serializing_if = "is_zero")]
    pub stale_connections: u64,
    /// The same by kind.
    #[serde(skip_serializing_if = "is_zero")]
    pub stale_connection_stats: LinkCounts,
    /// Publishers that had to wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub stalled_clients: u64,
    /// Routes.
    #[serde(skip_serializing_if = "is_zero")]
    pub routes: Vec<RouteStat>,
    /// Servers known, this one included.
    #[serde(skip_serializing_if = "is_zero")]
    pub active_servers: u64,
    /// JetStream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jetstream: Option<JetStreamVarz>,
    /// Memory limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub gomemlimit: i64,
    /// Cores in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub gomaxprocs: u64,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteStat {
    /// Its connection number.
    pub rid: u64,
    /// Name of the other server.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Sent.
    pub sent: Traffic,
    /// Received.
    pub received: Traffic,
    /// Bytes waiting.
    pub pending: u64,
}
