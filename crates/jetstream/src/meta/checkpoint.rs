//! The state of the meta group as bytes: version u8, then JSON, like its entries.

use super::{
    GroupState, META_ENTRY_VERSION, Meta, MetaError, PendingUpdate, Replica, Server, StreamEntry, StreamSpec,
    Survivor, ids, key_of,
};
use serde::{Deserialize, Serialize};
use tidelock_base::{ClusterId, GroupId, LogIndex, ReplicaId, Wall};

impl Meta {
    /// The whole state, for a snapshot or a checkpoint.
    ///
    /// # Panics
    /// Never: the state is plain data.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        let image = Image {
            cluster: self.cluster,
            applied: self.applied.0,
            stamp: self.stamp,
            servers: self.servers.values().cloned().collect(),
            streams: self.streams.values().map(StreamImage::of).collect(),
            next_group: self.next_group,
            next_replica: self.next_replica,
        };
        let mut out = vec![META_ENTRY_VERSION];
        serde_json::to_writer(&mut out, &image)
            .expect("plain data can be written as JSON, and a Vec takes all of it");
        out
    }

    /// The state that [`Meta::checkpoint`] wrote.
    ///
    /// # Errors
    /// [`MetaError`] if the bytes are not such a state.
    pub fn restore(bytes: &[u8]) -> Result<Self, MetaError> {
        let (version, json) = bytes
            .split_first()
            .ok_or_else(|| MetaError::Malformed("empty checkpoint".to_owned()))?;
        if *version != META_ENTRY_VERSION {
            return Err(MetaError::Version(*version));
        }
        let image: Image =
            serde_json::from_slice(json).map_err(|error| MetaError::Malformed(error.to_string()))?;
        let streams = image
            .streams
            .into_iter()
            .map(StreamImage::restore)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            cluster: image.cluster,
            applied: LogIndex(image.applied),
            stamp: image.stamp,
            servers: image
                .servers
                .into_iter()
                .map(|server| (server.spec.id, server))
                .collect(),
            groups: streams
                .iter()
                .map(|stream| (stream.group, key_of(stream)))
                .collect(),
            streams: streams
                .into_iter()
                .map(|stream| (key_of(&stream), stream))
                .collect(),
            next_group: image.next_group,
            next_replica: image.next_replica,
        })
    }

    /// A hash of the whole state; equal on replicas that applied the same entries.
    #[must_use]
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.checkpoint())
    }
}

/// The state as a checkpoint has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    #[serde(with = "ids::cluster")]
    cluster: ClusterId,
    applied: u64,
    #[serde(with = "ids::wall")]
    stamp: Wall,
    servers: Vec<Server>,
    streams: Vec<StreamImage>,
    #[serde(with = "ids::group")]
    next_group: GroupId,
    #[serde(with = "ids::replica")]
    next_replica: ReplicaId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamImage {
    account: String,
    config: String,
    rev: u64,
    #[serde(with = "ids::group")]
    group: GroupId,
    replicas: Vec<Replica>,
    #[serde(with = "ids::wall")]
    created: Wall,
    state: GroupState,
    pending: Option<(u64, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    survivors: Vec<Survivor>,
}

impl StreamImage {
    fn of(stream: &StreamEntry) -> Self {
        Self {
            account: stream.account.clone(),
            config: stream.spec.write(),
            rev: stream.rev,
            group: stream.group,
            replicas: stream.replicas.clone(),
            created: stream.created,
            state: stream.state,
            survivors: stream.survivors.clone(),
            pending: stream
                .pending
                .as_ref()
                .map(|pending| (pending.rev, pending.spec.write())),
        }
    }

    fn restore(self) -> Result<StreamEntry, MetaError> {
        let pending = match self.pending {
            Some((rev, config)) => Some(PendingUpdate {
                rev,
                spec: StreamSpec::read(&config)?,
            }),
            None => None,
        };
        Ok(StreamEntry {
            spec: StreamSpec::read(&self.config)?,
            account: self.account,
            rev: self.rev,
            group: self.group,
            replicas: self.replicas,
            created: self.created,
            state: self.state,
            pending,
            survivors: self.survivors,
        })
    }
}
