//! JetStream as monitoring shows it: `jsz`, its part of `varz`, `healthz`, `raftz`; made of what the groups of all
//! workers contribute ([`super::groups`]).

use super::body::{Body, Reply};
use crate::worker::Core;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_api::monitor::{
    AccountDetailJs, HealthError, Healthz, HealthzOptions, JetStreamConfig, JetStreamLimits, JetStreamStats,
    JetStreamVarz, Jsz, JszOptions, MetaCluster, StreamDetail,
};
use tidelock_api::{ApiStats, Time};
use tidelock_base::{API_LEVEL, AccountId, ApiErrorCode, GroupId};
use tidelock_conf::{JetStreamOptions, SyncInterval};
use tidelock_jetstream::config::Storage;

/// Accounts of an answer that sets no limit.
const ACCOUNTS: usize = 1024;
/// Most consumers of a stream that sets no limit; nats-server shows it as a limit of the server.
const CONSUMERS_MAX: u64 = 1000;
/// The default of `sync_interval` on nats-server.
const SYNC_INTERVAL: Duration = Duration::from_secs(120);

/// What a worker's groups contribute.
#[derive(Clone, Debug, Default)]
pub(crate) struct JetStreamPart {
    /// The metadata's group, where it is.
    pub(crate) meta: Option<MetaCluster>,
    /// This node leads it.
    pub(crate) leads_meta: bool,
    /// Streams with a replica here.
    pub(crate) streams: Vec<StreamPart>,
    /// What is wrong.
    pub(crate) health: HealthPart,
    /// Consensus, by account and group.
    pub(crate) raft: BTreeMap<String, BTreeMap<String, RaftGroup>>,
}

/// One stream with a replica on this node.
#[derive(Clone, Debug)]
pub(crate) struct StreamPart {
    /// Its account.
    pub(crate) account: AccountId,
    /// It is kept in memory.
    pub(crate) in_memory: bool,
    /// It has other replicas.
    pub(crate) replicated: bool,
    /// This node leads it.
    pub(crate) leads: bool,
    /// Messages it holds.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes it has reserved.
    pub(crate) reserved: u64,
    /// Its consumers.
    pub(crate) consumers: u64,
    /// More of it, if asked for.
    pub(crate) detail: Option<Box<StreamDetail>>,
}

/// Whether groups are well.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthPart {
    /// What is wrong with those that are here.
    pub(crate) errors: Vec<HealthError>,
    /// Replicas that are here.
    pub(crate) present: BTreeSet<GroupId>,
    /// Replicas that the metadata wants here, where it is known.
    pub(crate) wanted: Option<Vec<(GroupId, String, String)>>,
    /// Streams that are placed here, by account and name, whose account is not configured or has no JetStream.
    pub(crate) unserved: BTreeSet<(String, String)>,
}

/// Consensus of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RaftGroup {
    pub(crate) id: String,
    pub(crate) state: &'static str,
    pub(crate) size: u64,
    pub(crate) quorum_needed: u64,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) leader: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader_since: Option<Time>,
    pub(crate) ever_had_leader: bool,
    pub(crate) term: u64,
    pub(crate) pindex: u64,
    pub(crate) system_account: bool,
    pub(crate) traffic_account: String,
    pub(crate) ipq_proposal_len: u64,
    pub(crate) ipq_entry_len: u64,
    pub(crate) ipq_resp_len: u64,
    pub(crate) ipq_apply_len: u64,
    pub(crate) wal: RaftLog,
    pub(crate) peers: BTreeMap<String, RaftPeer>,
}

/// The log of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RaftLog {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
}

/// One member of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RaftPeer {
    pub(crate) name: String,
    pub(crate) known: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_replicated_index: Option<u64>,
}

impl JetStreamPart {
    pub(crate) fn add(&mut self, other: Self) {
        self.meta = self.meta.take().or(other.meta);
        self.leads_meta |= other.leads_meta;
        self.streams.extend(other.streams);
        self.health.errors.extend(other.health.errors);
        self.health.present.extend(other.health.present);
        self.health.wanted = self.health.wanted.take().or(other.health.wanted);
        self.health.unserved.extend(other.health.unserved);
        for (account, groups) in other.raft {
            self.raft.entry(account).or_default().extend(groups);
        }
    }

    /// What streams that are picked use and reserve.
    fn usage(&self, picks: impl Fn(&StreamPart) -> bool) -> JetStreamStats {
        let mut stats = JetStreamStats::default();
        for stream in self.streams.iter().filter(|stream| picks(stream)) {
            let (used, reserved) = if stream.in_memory {
                (&mut stats.memory, &mut stats.reserved_memory)
            } else {
                (&mut stats.storage, &mut stats.reserved_storage)
            };
            *used += stream.bytes;
            *reserved += stream.reserved;
        }
        stats
    }
}

impl Core {
    /// JetStream in `varz` and in the short figures; only the first shows where it keeps its files.
    pub(super) fn jetstream_varz(&self, part: &JetStreamPart, with_folder: bool) -> JetStreamVarz {
        let Some(options) = &self.shared.options.jetstream else {
            return JetStreamVarz::default();
        };
        let mut config = self.jetstream_config(options);
        if !with_folder {
            config.store_dir = String::new();
        }
        JetStreamVarz {
            config: Some(config),
            stats: Some(self.jetstream_stats(part)),
            meta: part.meta.clone(),
            limits: Some(limits(options)),
        }
    }

    fn jetstream_config(&self, options: &JetStreamOptions) -> JetStreamConfig {
        let resources = self.shared.system.resources();
        let bytes = |storage: Storage| i64::try_from(self.shared.room.max(storage)).unwrap_or(i64::MAX);
        let (sync_interval, sync_always) = match options.sync_interval {
            // The interval that nats-server keeps, and shows, beside this.
            SyncInterval::Always => (SYNC_INTERVAL, true),
            SyncInterval::Every(interval) => (interval, false),
        };
        JetStreamConfig {
            max_memory: bytes(Storage::Memory),
            max_storage: bytes(Storage::File),
            store_dir: resources.store_dir,
            sync_interval: sync_interval.into(),
            sync_always,
            domain: options.domain.clone().unwrap_or_default(),
            // Only whoever offers it to peers says so; a default nats-server leaves it out.
            compress_ok: false,
            unique_tag: options.unique_tag.clone().unwrap_or_default(),
            strict: options.strict,
        }
    }

    fn jetstream_stats(&self, part: &JetStreamPart) -> JetStreamStats {
        let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let totals = &self.shared.totals;
        let replicated = part.streams.iter().filter(|stream| stream.replicated).count() as u64;
        JetStreamStats {
            accounts: self.jetstream_accounts().count() as u64,
            ha_assets: replicated + u64::from(part.meta.is_some()),
            api: ApiStats {
                level: u64::from(API_LEVEL),
                total: load(&totals.api_total),
                errors: load(&totals.api_errors),
                inflight: 0,
            },
            ..part.usage(|_| true)
        }
    }

    fn jetstream_accounts(&self) -> impl Iterator<Item = &crate::shared::Account> {
        self.shared
            .accounts
            .iter()
            .filter(|account| account.jetstream.is_some())
    }

    /// `jsz`
    pub(super) fn jsz(&self, options: &JszOptions, part: &JetStreamPart) -> Reply {
        let server_id = self.shared.identity.server_id.to_string();
        let mut jsz = Jsz {
            server_id,
            now: Time(self.now.wall),
            ..Jsz::default()
        };
        let Some(jetstream) = &self.shared.options.jetstream else {
            jsz.disabled = true;
            return Reply::Body(Body::Jsz(Box::new(jsz)));
        };
        if options.leader_only && part.meta.is_some() && !part.leads_meta {
            return Reply::NotLeader;
        }
        jsz.stats = self.jetstream_stats(part);
        jsz.config = Some(self.jetstream_config(jetstream));
        jsz.limits = Some(limits(jetstream));
        jsz.meta_cluster = part.meta.clone();
        jsz.streams = part.streams.len() as u64;
        jsz.consumers = part.streams.iter().map(|stream| stream.consumers).sum();
        jsz.messages = part.streams.iter().map(|stream| stream.messages).sum();
        jsz.bytes = part.streams.iter().map(|stream| stream.bytes).sum();
        if options.raft {
            let led = part.streams.iter().filter(|stream| stream.leads);
            jsz.streams_leader = led.clone().count() as u64;
            jsz.consumers_leader = led.map(|stream| stream.consumers).sum();
        }
        let accounts: Vec<_> = self.jetstream_accounts().collect();
        jsz.total = accounts.len() as u64;
        if !options.account.is_empty() {
            let one = accounts.iter().find(|account| *account.name == *options.account);
            jsz.account_details = one
                .map(|account| account_detail(account, part))
                .into_iter()
                .collect();
        } else if options.accounts || options.streams || options.consumer || options.config {
            let limit = usize::try_from(options.limit)
                .ok()
                .filter(|limit| *limit > 0)
                .unwrap_or(ACCOUNTS);
            let page = accounts
                .iter()
                .skip(usize::try_from(options.offset).unwrap_or(0))
                .take(limit);
            jsz.account_details = page.map(|account| account_detail(account, part)).collect();
        }
        Reply::Body(Body::Jsz(Box::new(jsz)))
    }

    /// `ACCOUNT.<name>.JSZ`
    pub(super) fn account_jsz(&self, options: &JszOptions, part: &JetStreamPart) -> Reply {
        let account = self
            .jetstream_accounts()
            .find(|account| *account.name == *options.account);
        match account {
            Some(account) => Reply::Body(Body::AccountJs(Box::new(account_detail(account, part)))),
            None => Reply::Fault(400, format!("account {:?} not found", options.account)),
        }
    }

    /// `raftz`
    pub(super) fn raftz(&self, part: &JetStreamPart) -> Reply {
        Reply::Body(Body::Raftz(part.raft.clone()))
    }

    /// `healthz`
    pub(super) fn healthz(&self, options: &HealthzOptions, part: &JetStreamPart) -> Reply {
        let (status, errors) = match self.check(options, part) {
            Ok(()) => {
                let healthy = Healthz {
                    status: "ok".to_owned(),
                    status_code: 200,
                    ..Healthz::default()
                };
                return Reply::Health(healthy);
            }
            Err(failure) => failure,
        };
        let mut healthz = Healthz {
            status_code: status,
            ..Healthz::default()
        };
        if options.details {
            tracing::warn!("Healthcheck failed: {} errors", errors.len());
            "error".clone_into(&mut healthz.status);
            healthz.errors = errors;
        } else {
            let error = errors
                .into_iter()
                .next()
                .map(|error| error.error)
                .unwrap_or_default();
            tracing::warn!("Healthcheck failed: {error:?}");
            let word = if status == 503 || status == 404 {
                "unavailable"
            } else {
                "error"
            };
            word.clone_into(&mut healthz.status);
            healthz.error = error;
        }
        Reply::Health(healthz)
    }

    /// The checks, in the order that tools rely on: what was asked for, listeners, the metadata, assets.
    fn check(&self, options: &HealthzOptions, part: &JetStreamPart) -> Result<(), (u16, Vec<HealthError>)> {
        let fail = |status, kind: &str, error: &str| {
            let one = HealthError {
                kind: kind.to_owned(),
                error: error.to_owned(),
                ..HealthError::default()
            };
            Err((status, vec![one]))
        };
        if !options.stream.is_empty() && options.account.is_empty() {
            return fail(
                400,
                "BAD_REQUEST",
                "\"account\" must not be empty when checking stream health",
            );
        }
        if !options.consumer.is_empty() && options.stream.is_empty() {
            return fail(
                400,
                "BAD_REQUEST",
                "\"stream\" must not be empty when checking consumer health",
            );
        }
        if self.shared.lame_duck.load(Ordering::Relaxed) || !self.shared.system.is_ready() {
            return fail(
                500,
                "CONNECTION",
                "failed to be ready for connections after 1ms: server",
            );
        }
        if options.js_server_only || self.shared.options.jetstream.is_none() {
            return Ok(());
        }
        if options.js_enabled || options.js_enabled_only {
            return Ok(());
        }
        if let Some(trouble) = self.shared.room.trouble() {
            return fail(
                503,
                "JETSTREAM",
                &format!("JetStream is not available: {trouble}"),
            );
        }
        // Before a server of a cluster has any metadata, it does not know what it lacks.
        if self.is_clustered() && part.health.wanted.is_none() {
            return fail(
                503,
                "JETSTREAM",
                "JetStream has not established contact with a meta leader",
            );
        }
        let meta_errors: Vec<_> = part
            .health
            .errors
            .iter()
            .filter(|error| error.kind == "JETSTREAM")
            .cloned()
            .collect();
        if !meta_errors.is_empty() {
            return Err((503, meta_errors));
        }
        let clustered = self.is_clustered();
        let unserved = self.unserved(options, part, clustered);
        // A server of its own takes them for what it could not read at its start, and says so first.
        if !clustered && !unserved.is_empty() {
            return Err((503, unserved));
        }
        if options.js_meta_only {
            return Ok(());
        }
        self.check_assets(options, part, unserved)
    }

    /// Streams that nobody reaches because their account is not configured, or has no JetStream; in nats-server's
    /// words, which are others in a cluster.
    fn unserved(&self, options: &HealthzOptions, part: &JetStreamPart, clustered: bool) -> Vec<HealthError> {
        let mut errors: Vec<HealthError> = Vec::new();
        for (account, stream) in &part.health.unserved {
            let is_asked_for = (options.account.is_empty() || options.account == *account)
                && (options.stream.is_empty() || options.stream == *stream);
            let known = self.shared.account_id(account).is_some();
            let is_said = !known && errors.last().is_some_and(|last| last.account == *account);
            if !is_asked_for || is_said {
                continue;
            }
            let (kind, error) = match (known, clustered) {
                (true, false) => (
                    "STREAM",
                    format!("JetStream stream '{account} > {stream}' could not be recovered"),
                ),
                (false, false) => (
                    "ACCOUNT",
                    format!("JetStream account '{account}' could not be resolved"),
                ),
                (true, true) => {
                    let error = ApiErrorCode::NotEnabledForAccount;
                    let text = format!(
                        "JetStream stream '{account} > {stream}' is not current: stream assignment error: {} ({})",
                        error.template(),
                        error.err_code()
                    );
                    ("STREAM", text)
                }
                (false, true) => {
                    let text = format!("JetStream can not lookup account {account:?}: account missing");
                    ("ACCOUNT", text)
                }
            };
            errors.push(HealthError {
                kind: kind.to_owned(),
                account: account.clone(),
                stream: if known { stream.clone() } else { String::new() },
                error,
                ..HealthError::default()
            });
        }
        errors
    }

    fn check_assets(
        &self,
        options: &HealthzOptions,
        part: &JetStreamPart,
        unserved: Vec<HealthError>,
    ) -> Result<(), (u16, Vec<HealthError>)> {
        let HealthzOptions {
            account,
            stream,
            consumer,
            ..
        } = options;
        if unserved.is_empty()
            && !account.is_empty()
            && !self.jetstream_accounts().any(|known| *known.name == **account)
        {
            let error = format!("JetStream account {account:?} not found");
            let account = account.clone();
            return Err((
                404,
                vec![HealthError {
                    kind: "ACCOUNT".to_owned(),
                    account,
                    error,
                    ..HealthError::default()
                }],
            ));
        }
        let mut errors = part.health.errors.clone();
        for (group, account, stream) in part.health.wanted.iter().flatten() {
            if !part.health.present.contains(group) {
                let error = format!("JetStream stream '{account} > {stream}' could not be found");
                let (account, stream) = (account.clone(), stream.clone());
                errors.push(HealthError {
                    kind: "STREAM".to_owned(),
                    account,
                    stream,
                    error,
                    ..HealthError::default()
                });
            }
        }
        errors.retain(|error| {
            (account.is_empty() || error.account == *account)
                && (stream.is_empty() || error.stream == *stream)
                && (consumer.is_empty() || error.consumer.is_empty() || error.consumer == *consumer)
        });
        errors.extend(unserved);
        if errors.is_empty() {
            return Ok(());
        }
        let missing = errors.iter().any(|error| error.error.contains("not found"));
        Err((if missing { 404 } else { 503 }, errors))
    }
}

fn account_detail(account: &crate::shared::Account, part: &JetStreamPart) -> AccountDetailJs {
    let mut stats = part.usage(|stream| stream.account == account.id);
    let reserved = |limit: i64| u64::try_from(limit).unwrap_or(u64::MAX);
    let limits = account.jetstream.clone().unwrap_or_default();
    stats.api = account.api_stats();
    stats.reserved_memory = reserved(limits.max_memory);
    stats.reserved_storage = reserved(limits.max_store);
    let mut stream_detail: Vec<StreamDetail> = part
        .streams
        .iter()
        .filter(|stream| stream.account == account.id)
        .filter_map(|stream| stream.detail.as_deref().cloned())
        .collect();
    stream_detail.sort_by(|a, b| a.name.cmp(&b.name));
    AccountDetailJs {
        name: account.name.to_string(),
        id: account.name.to_string(),
        stats,
        stream_detail,
    }
}

fn limits(options: &JetStreamOptions) -> JetStreamLimits {
    let limits = &options.limits;
    JetStreamLimits {
        max_request_batch: limits.max_request_batch.unwrap_or(0),
        max_ack_pending: limits.max_ack_pending.unwrap_or(0),
        max_ha_assets: limits.max_ha_assets.unwrap_or(0),
        max_duplicate_window: limits.duplicate_window.map(Into::into).unwrap_or_default(),
        default_max_consumers: CONSUMERS_MAX,
    }
}
