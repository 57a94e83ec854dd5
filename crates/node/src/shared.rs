//! What all workers of a node share: its identity, its options, its accounts with their interest, and counters.
//!
//! Everything here is immutable after start, or an atomic that is written once a turn.

use crate::clock::Timeline;
use crate::cluster::PeerTable;
use crate::directory::Directory;
use crate::interest::Interest;
use crate::room::{Room, Stored};
use crate::system::{PastTraffic, SystemShared};
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidelock_api::ApiStats;
use tidelock_auth::{ConnectionType, Credentials, Verdict};
use tidelock_base::{API_LEVEL, AccountId, BootId, GroupId, NodeId, Now, WorkerId};
use tidelock_conf::{JetStreamLimits, Options};

/// Who this server is.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// Random id of the store; of this start, if there is no store.
    pub node: NodeId,
    /// Random id of this start.
    pub boot: BootId,
    /// Public server key (`N…`).
    pub server_id: Arc<str>,
    /// Configured name, or the server id.
    pub name: Arc<str>,
    /// Process id, for monitoring.
    pub pid: u32,
    /// Cores of the machine.
    pub cores: usize,
    /// When the server started.
    pub start: Now,
}

/// One account.
pub struct Account {
    /// Its number in this process.
    pub id: AccountId,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it is the system account.
    pub system: bool,
    /// Its share of JetStream, if it may use it and the server has it.
    pub jetstream: Option<JetStreamLimits>,
    /// Who wants which subjects.
    pub interest: Interest,
    /// Open client connections.
    pub connections: AtomicU64,
    /// Subscriptions of clients.
    pub subscriptions: AtomicU64,
    /// Subscriptions of clients that there ever were.
    pub subscriptions_ever: AtomicU64,
    /// JetStream API requests of its clients, and those answered with an error.
    pub api: (AtomicU64, AtomicU64),
    /// Traffic of connections that are gone.
    pub past: PastTraffic,
    /// What its streams hold on this node.
    pub(crate) stored: Stored,
}

/// Addresses as they came out after binding, for INFO and monitoring.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Host that INFO shows.
    pub client_host: String,
    /// Client port that INFO shows.
    pub client_port: u16,
    /// Client port that is listened on.
    pub listen_port: u16,
    /// `host:port` of this server's client listener, for `connect_urls`; several for a wildcard address.
    pub client_urls: Vec<Arc<str>>,
    /// Cluster listener.
    pub cluster_host: String,
    /// Cluster port.
    pub cluster_port: u16,
    /// Monitoring host.
    pub http_host: String,
    /// Monitoring port; 0 if off.
    pub http_port: u16,
}

/// Counters over all workers. Messages and bytes are counted by connections and accounts.
#[derive(Debug, Default)]
pub struct Totals {
    /// Clients cut as slow consumers.
    pub slow_consumers: AtomicU64,
    /// Links to other nodes cut as slow consumers.
    pub slow_routes: AtomicU64,
    /// Stale clients.
    pub stale_connections: AtomicU64,
    /// Connections ever.
    pub total_connections: AtomicU64,
    /// Open client connections.
    pub connections: AtomicU64,
    /// Subscriptions of clients.
    pub subscriptions: AtomicU64,
    /// Times a publisher was paused because receivers were behind.
    pub stalled_clients: AtomicU64,
    /// JetStream API requests.
    pub api_total: AtomicU64,
    /// Those answered with an error.
    pub api_errors: AtomicU64,
    next_cid: AtomicU64,
}

/// Sizes in bytes that decide when the log forgets and when stores write, and what is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// A worker's log may hold so much before groups are checkpointed (DESIGN section 9).
    pub log: u64,
    /// A group with fewer bytes in what the log has beyond that is copied forward instead.
    pub log_remains: u64,
    /// So much of a worker's log is kept at most for members of its groups that are behind. Who needs more gets a snapshot.
    pub log_held: u64,
    /// Applied entries of one group that are kept in memory; older ones are read back from the log for who needs them.
    pub entries: usize,
    /// A block of a stream is closed when its records reach this.
    pub block: u64,
    /// Records of a stream stay in memory, unwritten, up to this.
    pub tail: u64,
    /// A stream whose disk is so far behind with writing blocks takes no more entries until it has caught up. More
    /// than `tail` and three times `block`: so much may stay in memory without anything being written.
    pub backlog: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            log: 64 << 20,
            log_remains: 256 << 10,
            log_held: 256 << 20,
            entries: 1 << 20,
            block: 4 << 20,
            tail: 1 << 20,
            backlog: 32 << 20,
        }
    }
}

impl Account {
    /// Its requests to the JetStream API.
    pub(crate) fn api_stats(&self) -> ApiStats {
        ApiStats {
            level: u64::from(API_LEVEL),
            total: self.api.0.load(Ordering::Relaxed),
            errors: self.api.1.load(Ordering::Relaxed),
            inflight: 0,
        }
    }
}

/// What the workers of a node share.
pub struct NodeShared {
    /// Who this server is.
    pub identity: ServerIdentity,
    /// What the operator decided.
    pub options: Options,
    /// Accounts by number.
    pub accounts: Vec<Account>,
    accounts_by_name: HashMap<Arc<str>, AccountId>,
    /// Whether a client without credentials is let in.
    pub anonymous_allowed: bool,
    /// Number of workers.
    pub workers: u16,
    /// Sizes of logs, stores and caches.
    pub budgets: Budgets,
    /// Groups that another worker has than a new one would get.
    placed: OnceLock<BTreeMap<GroupId, WorkerId>>,
    /// Path of the store's folder, for log lines; not set where nobody has to know.
    pub store_folder: OnceLock<String>,
    /// Where it listens.
    pub addresses: ArcSwap<Addresses>,
    /// Addresses of clients of the cluster's other servers, for `connect_urls`.
    pub peer_client_urls: ArcSwap<Vec<Arc<str>>>,
    /// The other nodes of the cluster that there are links with.
    pub peers: ArcSwap<PeerTable>,
    /// The time by which entries are stamped.
    pub(crate) time: ArcSwap<Timeline>,
    /// How many servers the metadata lists, as far as it was applied here.
    pub(crate) servers_listed: AtomicUsize,
    /// The wall clock of this server is not that of the others.
    pub(crate) clock_is_off: AtomicBool,
    /// Where streams are.
    pub directory: ArcSwap<Directory>,
    cluster_name: ArcSwap<Option<Arc<str>>>,
    /// Counters.
    pub totals: Totals,
    /// What may be stored, and is.
    pub room: Room,
    /// Set when lame duck mode begins.
    pub lame_duck: AtomicBool,
    /// Monitoring, and how the node ends.
    pub system: SystemShared,
}

impl NodeShared {
    /// A node of these options.
    #[must_use]
    pub fn new(identity: ServerIdentity, options: Options, workers: u16) -> Self {
        let time = Timeline::new(identity.start);
        let server_jetstream = options.jetstream.is_some();
        let accounts: Vec<Account> = options
            .accounts
            .iter()
            .zip(0_u32..)
            .map(|(account, id)| Account {
                id: AccountId(id),
                name: account.name.as_str().into(),
                system: account.name == options.system_account,
                jetstream: account.jetstream.clone().filter(|_| server_jetstream),
                interest: Interest::default(),
                connections: AtomicU64::new(0),
                subscriptions: AtomicU64::new(0),
                subscriptions_ever: AtomicU64::new(0),
                api: <(AtomicU64, AtomicU64)>::default(),
                past: PastTraffic::default(),
                stored: Stored::default(),
            })
            .collect();
        let accounts_by_name = accounts.iter().map(|a| (Arc::clone(&a.name), a.id)).collect();
        let cluster_name = options.cluster.as_ref().map(|_| {
            options
                .cluster_name
                .as_deref()
                .unwrap_or(&identity.server_id)
                .into()
        });
        let nothing = Credentials {
            user: "",
            pass: "",
            token: "",
            other: false,
            connection: ConnectionType::Standard,
        };
        let anonymous_allowed = matches!(options.users.authenticate(&nothing), Verdict::Accepted(_));
        let totals = Totals {
            next_cid: AtomicU64::new(4),
            ..Totals::default()
        };
        let room = Room::default();
        if let Some(js) = &options.jetstream {
            room.set_memory_max(js.max_memory.unwrap_or(u64::MAX));
            room.set_files_max(js.max_store.unwrap_or(u64::MAX));
        }
        let shared = Self {
            identity,
            options,
            accounts,
            accounts_by_name,
            anonymous_allowed,
            workers,
            budgets: Budgets::default(),
            placed: OnceLock::new(),
            store_folder: OnceLock::new(),
            addresses: ArcSwap::from_pointee(Addresses::default()),
            peer_client_urls: ArcSwap::from_pointee(Vec::new()),
            peers: ArcSwap::from_pointee(PeerTable::default()),
            time: ArcSwap::from_pointee(time),
            servers_listed: AtomicUsize::new(0),
            clock_is_off: AtomicBool::new(false),
            directory: ArcSwap::from_pointee(Directory::default()),
            cluster_name: ArcSwap::from_pointee(cluster_name),
            totals,
            room,
            lame_duck: AtomicBool::new(false),
            system: SystemShared::default(),
        };
        crate::system::register(&shared);
        shared
    }

    /// Name of the cluster, if there is one. A name that was made up gives way to one that was configured.
    #[must_use]
    pub fn cluster_name(&self) -> Option<Arc<str>> {
        Option::clone(&self.cluster_name.load())
    }

    /// The cluster is called otherwise from now on.
    pub(crate) fn set_cluster_name(&self, name: Arc<str>) {
        self.cluster_name.store(Arc::new(Some(name)));
    }

    /// The account with this number. Numbers come from this node's own table, so it is there; a number from
    /// elsewhere is answered with nothing.
    #[must_use]
    pub fn account(&self, id: AccountId) -> Option<&Account> {
        self.accounts.get(id.0 as usize)
    }

    /// The number of the account with this name.
    #[must_use]
    pub fn account_id(&self, name: &str) -> Option<AccountId> {
        self.accounts_by_name.get(name).copied()
    }

    /// The system account.
    #[must_use]
    pub fn system_account(&self) -> Option<&Account> {
        self.accounts.iter().find(|account| account.system)
    }

    /// A client subscribed, or gave it up.
    pub(crate) fn count_subscription(&self, account: AccountId, added: bool) {
        let Some(account) = self.account(account) else {
            return;
        };
        if added {
            self.totals.subscriptions.fetch_add(1, Ordering::Relaxed);
            account.subscriptions.fetch_add(1, Ordering::Relaxed);
            account.subscriptions_ever.fetch_add(1, Ordering::Relaxed);
        } else {
            self.totals.subscriptions.fetch_sub(1, Ordering::Relaxed);
            account.subscriptions.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The next connection number; the first one is 5, as on nats-server, where internal clients take the others.
    pub fn next_cid(&self) -> u64 {
        self.totals.next_cid.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Says in which worker's lane each group was found at the start. A group stays there for as long as the process
    /// runs, whatever the number of workers was when it came. To be called once, before any worker starts.
    pub fn place_groups(&self, found: impl Iterator<Item = (GroupId, WorkerId)>) {
        let elsewhere: BTreeMap<GroupId, WorkerId> = found
            .filter(|(group, at)| self.usual_worker(*group) != *at)
            .collect();
        // A second call would move groups under way; the first one holds.
        let _ = self.placed.set(elsewhere);
    }

    /// The worker that owns a group on this node.
    #[must_use]
    pub fn worker_of(&self, group: GroupId) -> WorkerId {
        let placed = self.placed.get().and_then(|placed| placed.get(&group));
        placed.copied().unwrap_or_else(|| self.usual_worker(group))
    }

    /// The worker that gets a group which is new here.
    fn usual_worker(&self, group: GroupId) -> WorkerId {
        WorkerId(u16::try_from(group.0 % u64::from(self.workers.max(1))).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No files, no environment.
    struct Nothing;

    impl tidelock_conf::Sources for Nothing {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            Err("there is none".to_owned())
        }

        fn env(&self, _: &str) -> Option<String> {
            None
        }
    }

    #[test]
    fn a_group_stays_with_the_worker_in_whose_lane_it_is() {
        let identity = ServerIdentity {
            node: NodeId(1),
            boot: BootId(1),
            server_id: "N".into(),
            name: "n".into(),
            pid: 1,
            cores: 3,
            start: Now::default(),
        };
        let (flags, _) = tidelock_conf::parse_flags(&[]).expect("no flags");
        let options = tidelock_conf::load(&flags, &Nothing)
            .expect("no configuration")
            .options;
        let shared = NodeShared::new(identity, options, 3);
        let found =
            [(1, 1), (2, 0), (3, 2), (4, 1)].map(|(group, worker)| (GroupId(group), WorkerId(worker)));
        shared.place_groups(found.into_iter());
        let of = |group| shared.worker_of(GroupId(group)).0;
        assert_eq!([1, 2, 3, 4, 5].map(of), [1, 0, 2, 1, 2]);
    }
}
