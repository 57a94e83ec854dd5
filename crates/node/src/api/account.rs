//! INFO: what an account uses and may use; ACCOUNT.PURGE.

use super::Job;
use super::catalog::account_limits;
use super::subjects::{Call, Endpoint};
use super::tracking::Origin;
use super::{Stage, subjects::INNER_PREFIX};
use crate::cell::{Cell, Request};
use crate::groups::{Machine, Waiter};
use crate::worker::Core;
use bytes::{BufMut, Bytes, BytesMut};
use tidelock_api::{AccountInfo, AccountTier, Initiated, ResponseKind};
use tidelock_base::{AccountId, ApiError, ApiErrorCode, LogIndex, NodeId, WorkerId};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::MetaCommand;

/// What an account uses.
///
/// Shape between nodes, little-endian: memory u64 | storage u64 | consumers u64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    memory: u64,
    storage: u64,
    consumers: u64,
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(other.memory),
            storage: self.storage.saturating_add(other.storage),
            consumers: self.consumers.saturating_add(other.consumers),
        }
    }

    fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(24);
        out.put_u64_le(self.memory);
        out.put_u64_le(self.storage);
        out.put_u64_le(self.consumers);
        out.freeze()
    }

    /// Nothing, for bytes that are something else.
    fn decode(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Self {
            memory: word(0),
            storage: word(1),
            consumers: word(2),
        }
    }
}

impl Core {
    /// INFO at the metadata's leader: every server says what the account uses of it.
    pub(super) fn account_info(&mut self, job: Box<Job>) {
        let account = job.request.account;
        let online = |node: &NodeId| self.is_online(*node);
        let nodes: Vec<NodeId> = match self.meta() {
            Some(meta) => meta
                .servers()
                .map(|server| server.spec.id)
                .filter(online)
                .collect(),
            None => Vec::new(),
        };
        if nodes.is_empty() {
            return self.account_used(&job, &[]);
        }
        let gather = self.gather(job, nodes.len());
        for (part, node) in nodes.into_iter().enumerate() {
            self.ask_node(Origin::Gather(gather, part), node, account, "USAGE", "0");
        }
    }

    /// What an account uses of this node: each worker adds its own to what the request brings along, and passes it
    /// on to the next; the last one answers.
    pub(super) fn usage_request(&mut self, mut request: Request) {
        let usage = Usage::decode(&request.payload).plus(self.usage_of(request.account));
        request.payload = usage.encode();
        let next = WorkerId(self.id.0 + 1);
        if next.0 < self.shared.workers && self.starts_at(&request) {
            request.subject = format!("{INNER_PREFIX}USAGE.{next}").into();
            let (node, cell) = (self.shared.identity.node, Cell::Request(Box::new(request)));
            self.out.cells.push_back((
                next,
                Cell::Arrived {
                    node,
                    cell: Box::new(cell),
                },
            ));
            return;
        }
        self.reply_to(&request, Bytes::new(), usage.encode(), true, LogIndex(0));
    }

    /// Whether a usage request has been at all workers before this one. It may begin anywhere: then this worker's
    /// number is not the one that it asks for, and only this worker's part is known.
    fn starts_at(&self, request: &Request) -> bool {
        let subject = request.subject.clone();
        Call::parse(&subject).is_some_and(|call| call.stream == self.id.to_string())
    }

    fn usage_of(&self, account: AccountId) -> Usage {
        let own = self.groups.slots.values().filter(|slot| slot.account == account);
        own.fold(Usage::default(), |mut usage, slot| {
            let Machine::Stream(stream) = &slot.machine else {
                return usage;
            };
            let bytes = stream.state().bytes;
            match stream.config().storage {
                Storage::Memory => usage.memory = usage.memory.saturating_add(bytes),
                Storage::File => usage.storage = usage.storage.saturating_add(bytes),
            }
            if slot.leads {
                // In a cluster the consumers that servers made for mirrors and sources do not count, as on nats-server.
                let counts = |direct: bool| !direct || !self.is_clustered();
                let consumers = stream.consumers().filter(|one| counts(one.config().direct));
                usage.consumers += consumers.count() as u64;
            }
            usage
        })
    }

    /// All servers have said what they will.
    pub(super) fn account_used(&mut self, job: &Job, parts: &[Option<Bytes>]) {
        let account = job.request.account;
        let used = parts
            .iter()
            .flatten()
            .fold(Usage::default(), |sum, part| sum.plus(Usage::decode(part)));
        let name = self.account_name(account);
        let reserved = |kind: Storage| {
            let streams = self.meta().into_iter().flat_map(|meta| meta.streams_of(&name));
            let of_kind = streams.filter(|entry| entry.spec.storage == kind);
            of_kind
                // Clients are told what the streams were given, not what that comes to on all replicas.
                .map(|entry| entry.spec.max_bytes.unwrap_or(0))
                .fold(0, u64::saturating_add)
        };
        let limits = self
            .shared
            .account(account)
            .and_then(|own| own.jetstream.as_ref())
            .map(account_limits);
        let info = AccountInfo {
            total: AccountTier {
                memory: used.memory,
                storage: used.storage,
                reserved_memory: reserved(Storage::Memory),
                reserved_storage: reserved(Storage::File),
                streams: self
                    .meta()
                    .map_or(0, |meta| meta.streams_of(&name).count() as u64),
                consumers: used.consumers,
                limits: limits.unwrap_or_default(),
            },
            domain: self.domain(),
            api: self
                .shared
                .account(account)
                .map(crate::shared::Account::api_stats)
                .unwrap_or_default(),
            ..AccountInfo::default()
        };
        self.reply_changed(&job.request, ResponseKind::AccountInfo, &info);
    }

    /// ACCOUNT.PURGE: all streams of an account are deleted. The name of an account that is not there is as good.
    pub(super) fn account_purge(&mut self, job: Box<Job>, call: &Call<'_>) {
        if call.stream.contains(['/', '\\']) {
            let text = "account name can not contain path separators";
            let error = ApiError::text(ApiErrorCode::StreamGeneralErrorF, text);
            return self.refuse(&job.request, Endpoint::AccountPurge, &error);
        }
        let command = MetaCommand::AccountPurge {
            account: call.stream.to_owned(),
        };
        self.meta_command(command, Waiter::Api(job.at(Stage::Command)));
    }

    pub(super) fn account_purged(&mut self, job: &Job) {
        self.reply_changed(
            &job.request,
            ResponseKind::AccountPurge,
            &Initiated { initiated: true },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_travels_between_nodes() {
        let usage = Usage {
            memory: 1,
            storage: u64::MAX,
            consumers: 3,
        };
        assert_eq!(Usage::decode(&usage.encode()), usage);
        assert_eq!(Usage::decode(b""), Usage::default());
        assert_eq!(usage.plus(usage).storage, u64::MAX);
    }
}
