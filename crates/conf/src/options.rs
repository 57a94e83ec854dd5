//! What the configuration and the flags come to: typed, checked once, immutable.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidelock_auth::{AccountLimits, Password, Users};

/// Everything that an operator can decide, from flags over file over defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, if there is one.
    pub config_file: Option<ConfigFile>,
    /// Name of the server; `None` means its id.
    pub server_name: Option<String>,
    /// Tags for placement and filters, in lower case, in the order given.
    pub server_tags: Vec<String>,
    /// Free-form metadata, shown in monitoring.
    pub server_metadata: BTreeMap<String, String>,
    /// Where clients connect.
    pub listen: HostPort,
    /// The address that INFO advertises to clients in place of the listening one.
    pub client_advertise: Option<Advertise>,
    /// The HTTP monitoring port; `None` means off.
    pub monitor: Option<MonitorOptions>,
    /// What is logged and where.
    pub log: LogOptions,
    /// File that gets the process id.
    pub pid_file: Option<String>,
    /// Directory that gets the ports file.
    pub ports_file_dir: Option<String>,
    /// Limits of client connections.
    pub limits: ConnectionLimits,
    /// Time between the server's own PINGs to a client.
    pub ping_interval: Duration,
    /// Unanswered PINGs after which a client is stale.
    pub ping_max: u32,
    /// How long a write to a client may be stuck before the client is cut as a slow consumer.
    pub write_deadline: Duration,
    /// Over how long the clients are closed in lame duck mode.
    pub lame_duck_duration: Duration,
    /// How long lame duck mode waits before it closes the first client; less than the duration.
    pub lame_duck_grace_period: Duration,
    /// Failed first connects to a peer are logged at the first and every so many attempts.
    pub connect_error_reports: u32,
    /// The same for attempts after a connection was lost.
    pub reconnect_error_reports: u32,
    /// Who may log in.
    pub users: Arc<Users>,
    /// How long a client may take to log in.
    pub auth_timeout: Duration,
    /// `$G` first, the system account second, then the others in the order of the file.
    pub accounts: Vec<AccountOptions>,
    /// Name of the system account; one of `accounts`.
    pub system_account: String,
    /// Whether the system account's events and requests are served (`no_system_account` is not set).
    pub system_events: bool,
    /// Name of the cluster, if one is configured: a server of its own may have it too.
    pub cluster_name: Option<String>,
    /// The cluster; `None` means a server of its own.
    pub cluster: Option<ClusterOptions>,
    /// JetStream; `None` means off.
    pub jetstream: Option<JetStreamOptions>,
}

/// The file that the options were read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// As it was given on the command line.
    pub path: String,
    /// `sha256:<hex>` over the canonical JSON of its content.
    pub digest: String,
}

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; 0 means any free one (written -1 in the configuration).
    pub port: u16,
}

impl HostPort {
    /// A host and a port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }
}

impl fmt::Display for HostPort {
    /// `host:port`, with brackets around an IPv6 address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// An address to tell to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; `None` means the port listened on.
    pub port: Option<u16>,
}

/// The HTTP monitoring port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorOptions {
    /// Where it listens.
    pub listen: HostPort,
    /// Prefix of every endpoint: `/`, or a path that begins with a slash and does not end with one.
    pub base_path: String,
}

/// What is logged and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// `[DBG]` lines.
    pub debug: bool,
    /// `[TRC]` lines: the protocol of each client.
    pub trace: bool,
    /// Trace the system account too.
    pub trace_verbose: bool,
    /// Trace headers of messages instead of their payload.
    pub trace_headers: bool,
    /// Begin lines with the time.
    pub time: bool,
    /// In UTC instead of local time.
    pub utc: bool,
    /// File to append to; `None` means standard error.
    pub file: Option<String>,
    /// Bytes after which the file is rotated; 0 means never.
    pub size_limit: u64,
    /// Rotated files kept, the current one included; 0 means all.
    pub max_files: u32,
    /// Bytes of a payload that are traced; 0 means all.
    pub max_traced_msg_len: u64,
}

/// Limits of client connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Client connections; `None` means unlimited.
    pub max_connections: Option<u64>,
    /// Subscriptions of one connection; `None` means unlimited.
    pub max_subscriptions: Option<u64>,
    /// Tokens of a subscription's subject; `None` means unlimited.
    pub max_subscription_tokens: Option<u8>,
    /// Bytes of a protocol line.
    pub max_control_line: u32,
    /// Bytes of a message, headers included.
    pub max_payload: u32,
    /// Bytes that may wait for a client before it is cut as a slow consumer.
    pub max_pending: u64,
    /// Closed connections that monitoring remembers.
    pub max_closed_clients: u64,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountOptions {
    /// Name.
    pub name: String,
    /// Names of its users.
    pub users: Vec<String>,
    /// Its limits.
    pub limits: AccountLimits,
    /// Its share of JetStream; `None` means that it may not use JetStream. `Some` says nothing of whether the
    /// server has JetStream: see [`Options::jetstream`].
    pub jetstream: Option<JetStreamLimits>,
}

/// What an account may use of JetStream; -1 means unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JetStreamLimits {
    /// Bytes of memory streams.
    pub max_memory: i64,
    /// Bytes of file streams.
    pub max_store: i64,
    /// Streams.
    pub max_streams: i64,
    /// Consumers, over all streams.
    pub max_consumers: i64,
    /// The highest `max_ack_pending` of a consumer.
    pub max_ack_pending: i64,
    /// Bytes of one memory stream.
    pub mem_max_stream_bytes: i64,
    /// Bytes of one file stream.
    pub disk_max_stream_bytes: i64,
    /// Whether each stream must set `max_bytes`.
    pub max_bytes_required: bool,
}

impl Default for JetStreamLimits {
    fn default() -> Self {
        Self {
            max_memory: -1,
            max_store: -1,
            max_streams: -1,
            max_consumers: -1,
            max_ack_pending: -1,
            mem_max_stream_bytes: -1,
            disk_max_stream_bytes: -1,
            max_bytes_required: false,
        }
    }
}

/// The cluster that the server belongs to. Its name is [`Options::cluster_name`], or one that the server makes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Where peers connect.
    pub listen: HostPort,
    /// What peers must present.
    pub credentials: Option<RouteCredentials>,
    /// How long a peer may take to log in.
    pub auth_timeout: Duration,
    /// Peers to connect to, in the order given.
    pub routes: Vec<RouteUrl>,
    /// The address that peers are told.
    pub advertise: Option<Advertise>,
    /// Whether clients are not told of the other servers' addresses.
    pub no_advertise: bool,
    /// Connections to each peer; 1 where pooling is off.
    pub pool_size: u32,
    /// How often a route that was learnt from others is tried again; 0 means once.
    pub connect_retries: u32,
    /// Whether the time between attempts grows.
    pub connect_backoff: bool,
    /// Time between PINGs to a peer.
    pub ping_interval: Duration,
    /// Unanswered PINGs after which a peer is stale.
    pub ping_max: u32,
    /// How long a write to a peer may be stuck.
    pub write_deadline: Duration,
}

/// User and password between peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCredentials {
    /// User.
    pub user: String,
    /// Password.
    pub password: Password,
}

/// A peer to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteUrl {
    /// Where it listens.
    pub address: HostPort,
    /// What to present; `None` means the cluster's own credentials, or nothing.
    pub credentials: Option<RouteCredentials>,
}

/// JetStream of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JetStreamOptions {
    /// Directory that holds `jetstream/`; `None` means `nats` in the system's directory for temporary files.
    pub store_dir: Option<String>,
    /// Bytes of memory streams; `None` means three quarters of the memory.
    pub max_memory: Option<u64>,
    /// Bytes of file streams; `None` means three quarters of the free disk space.
    pub max_store: Option<u64>,
    /// When what is acknowledged is on disk.
    pub sync_interval: SyncInterval,
    /// Domain.
    pub domain: Option<String>,
    /// Tag prefix of which no two replicas of a stream may share a tag.
    pub unique_tag: Option<String>,
    /// Whether API requests with unknown fields are refused.
    pub strict: bool,
    /// Limits of streams and consumers.
    pub limits: JetStreamServerLimits,
    /// Bytes sent ahead to a replica that catches up; `None` means the built-in value.
    pub max_outstanding_catchup: Option<u64>,
    /// Bytes of publishes that may wait for a stream; `None` means the built-in value.
    pub max_buffered_size: Option<u64>,
    /// Publishes that may wait for a stream; `None` means the built-in value.
    pub max_buffered_msgs: Option<u64>,
    /// API requests that may wait.
    pub request_queue_limit: u64,
    /// INFO requests that may wait.
    pub info_queue_limit: u64,
    /// Entries after which the meta log is compacted; `None` means the built-in value.
    pub meta_compact: Option<u64>,
    /// Bytes after which the meta log is compacted; `None` means the built-in value.
    pub meta_compact_size: Option<u64>,
    /// Whether the compaction is synced before the next entry.
    pub meta_compact_sync: bool,
    /// Reads and writes of files that may run at the same time.
    pub max_concurrent_io: u32,
}

/// When what is acknowledged is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncInterval {
    /// Before it is acknowledged.
    Always,
    /// At the latest this long after.
    Every(Duration),
}

/// Limits of streams and consumers on a server; `None` means the built-in value or no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JetStreamServerLimits {
    /// The highest `max_ack_pending` of a consumer.
    pub max_ack_pending: Option<u64>,
    /// Replicated streams on the server.
    pub max_ha_assets: Option<u64>,
    /// The highest batch of a pull request.
    pub max_request_batch: Option<u64>,
    /// The longest duplicate window of a stream.
    pub duplicate_window: Option<Duration>,
    /// Batches in flight on one stream.
    pub batch_max_inflight_per_stream: Option<u64>,
    /// Batches in flight on the server.
    pub batch_max_inflight_total: Option<u64>,
    /// Messages of one batch.
    pub batch_max_msgs: Option<u64>,
    /// How long a batch may stand still.
    pub batch_timeout: Option<Duration>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            debug: false,
            trace: false,
            trace_verbose: false,
            trace_headers: false,
            time: true,
            utc: false,
            file: None,
            size_limit: 0,
            max_files: 0,
            max_traced_msg_len: 0,
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: Some(65_536),
            max_subscriptions: None,
            max_subscription_tokens: None,
            max_control_line: 4_096,
            max_payload: 1_048_576,
            max_pending: 67_108_864,
            max_closed_clients: 10_000,
        }
    }
}

impl Default for JetStreamOptions {
    fn default() -> Self {
        Self {
            store_dir: None,
            max_memory: None,
            max_store: None,
            sync_interval: SyncInterval::Always,
            domain: None,
            unique_tag: None,
            strict: true,
            limits: JetStreamServerLimits::default(),
            max_outstanding_catchup: None,
            max_buffered_size: None,
            max_buffered_msgs: None,
            request_queue_limit: 10_000,
            info_queue_limit: 10_000,
            meta_compact: None,
            meta_compact_size: None,
            meta_compact_sync: false,
            max_concurrent_io: 4_096,
        }
    }
}
