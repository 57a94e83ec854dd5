//! Bodies of the requests of the JetStream API.

use crate::json::decodable;
use crate::{ConsumerAction, ConsumerConfig, Nanos, Placement, StreamConfig, StreamState, Time};
use crate::{Decode, DecodeError, Reader};
use std::borrow::Cow;

/// `STREAM.CREATE` and `STREAM.UPDATE`: a configuration and `pedantic` in one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamConfigRequest {
    /// The configuration.
    pub config: StreamConfig,
    /// Refuse what would otherwise be corrected.
    pub pedantic: bool,
}

impl Decode for StreamConfigRequest {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("server.StreamConfigRequest")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let Self { config, pedantic } = self;
        reader.object("server.StreamConfigRequest", |reader, key| {
            if key.eq_ignore_ascii_case("pedantic") {
                return pedantic.decode(reader);
            }
            config.decode_field(key, reader)
        })
    }
}

/// `CONSUMER.CREATE` and `CONSUMER.DURABLE.CREATE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateConsumerRequest {
    /// Name of the stream; must match the subject.
    pub stream_name: String,
    /// The configuration.
    pub config: ConsumerConfig,
    /// Whether it may create, update or both.
    pub action: ConsumerAction,
    /// Refuse what would otherwise be corrected.
    pub pedantic: bool,
}

decodable!(CreateConsumerRequest as "CreateConsumerRequest" { stream_name, config, action, pedantic });

/// `STREAM.NAMES`. It asks for the same as `STREAM.LIST`; what is wrong with it is told under a name of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamNamesRequest {
    /// How many to leave out; a negative one is 0.
    pub offset: i64,
    /// Only streams with a subject that overlaps this one.
    pub subject: String,
}

decodable!(StreamNamesRequest as "JSApiStreamNamesRequest" { offset: "int", subject });

/// `STREAM.LIST`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamListRequest {
    /// How many to leave out; a negative one is 0.
    pub offset: i64,
    /// Only streams with a subject that overlaps this one.
    pub subject: String,
}

decodable!(StreamListRequest as "JSApiStreamListRequest" { offset: "int", subject });

/// `STREAM.INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamInfoRequest {
    /// How many subjects to leave out.
    pub offset: i64,
    /// List the deleted sequences.
    pub deleted_details: bool,
    /// Count the messages of each subject that this filter matches; empty means not at all.
    pub subjects_filter: String,
}

decodable!(StreamInfoRequest as "JSApiStreamInfoRequest" { offset: "int", deleted_details, subjects_filter });

/// `STREAM.PURGE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Remove what is before this sequence; 0 means not set.
    pub seq: u64,
    /// Remove only what this filter matches; empty means all.
    pub filter: String,
    /// Leave so many of the newest; 0 means not set.
    pub keep: u64,
}

decodable!(PurgeRequest as "JSApiStreamPurgeRequest" { seq, filter, keep });

/// `STREAM.MSG.DELETE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MsgDeleteRequest {
    /// Which message.
    pub seq: u64,
    /// Do not overwrite its bytes.
    pub no_erase: bool,
}

decodable!(MsgDeleteRequest as "JSApiMsgDeleteRequest" { seq, no_erase });

/// The fields that `STREAM.MSG.GET` and `DIRECT.GET` share; for the first they are checked strictly, for the second
/// unknown ones are ignored. Which combinations make sense is for the endpoint to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MsgGetRequest {
    /// Sequence; 0 means not set.
    pub seq: u64,
    /// Last message that this filter matches.
    pub last_by_subj: String,
    /// First message that this filter matches, at or after `seq` or `start_time`.
    pub next_by_subj: String,
    /// Messages of a batch; `DIRECT.GET` only.
    pub batch: i64,
    /// Bytes of a batch; `DIRECT.GET` only.
    pub max_bytes: i64,
    /// First message at or after this time.
    pub start_time: Option<Time>,
    /// Last message of every subject that these filters match; `DIRECT.GET` only.
    pub multi_last: Vec<String>,
    /// Only up to this sequence, with `multi_last`.
    pub up_to_seq: u64,
    /// Only before this time, with `multi_last`.
    pub up_to_time: Option<Time>,
    /// Without headers.
    pub no_hdr: bool,
}

decodable!(MsgGetRequest as "JSApiMsgGetRequest" {
    seq, last_by_subj, next_by_subj, batch: "int", max_bytes: "int", start_time, multi_last, up_to_seq, up_to_time,
    no_hdr,
});

/// The body of `DIRECT.GET`.
pub type DirectGetRequest = MsgGetRequest;

/// `STREAM.SNAPSHOT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Where the chunks go.
    pub deliver_subject: String,
    /// Leave the consumers out.
    pub no_consumers: bool,
    /// Size of a chunk in bytes; 0 means the default.
    pub chunk_size: i64,
    /// Bytes in flight; 0 means the default.
    pub window_size: i64,
    /// Check the stream first.
    pub jsck: bool,
}

decodable!(SnapshotRequest as "JSApiStreamSnapshotRequest" {
    deliver_subject, no_consumers, chunk_size: "int", window_size: "int", jsck,
});

/// `STREAM.RESTORE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreRequest {
    /// The configuration to restore.
    pub config: StreamConfig,
    /// What the snapshot holds.
    pub state: StreamState,
}

decodable!(RestoreRequest as "JSApiStreamRestoreRequest" { config, state });

/// `STREAM.LEADER.STEPDOWN`, `CONSUMER.LEADER.STEPDOWN` and `META.LEADER.STEPDOWN`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepdownRequest {
    /// Which server should lead next.
    pub placement: Option<Placement>,
}

decodable!(StepdownRequest as "JSApiLeaderStepdownRequest" { placement });

/// `STREAM.PEER.REMOVE`, `STREAM.PEER.EVACUATE` and the same of consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerRequest {
    /// Name or id of the server.
    pub peer: String,
}

decodable!(PeerRequest as "JSApiStreamRemovePeerRequest" { peer });

/// `SERVER.REMOVE` and `SERVER.EVACUATE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerRemoveRequest {
    /// Name of the server.
    pub peer: String,
    /// Its id, which wins over the name.
    pub peer_id: String,
}

decodable!(ServerRemoveRequest as "JSApiMetaServerRemoveRequest" { peer, peer_id });

/// `META.RESCUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaRescueRequest {
    /// The quorum to work with.
    pub quorum_needed: i64,
}

decodable!(MetaRescueRequest as "JSApiMetaRescueRequest" { quorum_needed: "int" });

/// `ACCOUNT.STREAM.MOVE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamMoveRequest {
    /// The server to leave.
    pub server: String,
    /// The cluster to go to.
    pub cluster: String,
    /// The domain.
    pub domain: String,
    /// Tags that the new servers must have.
    pub tags: Vec<String>,
}

decodable!(StreamMoveRequest as "JSApiMetaServerStreamMoveRequest" { server, cluster, domain, tags });

/// `CONSUMER.NAMES` and `CONSUMER.LIST`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerListRequest {
    /// How many to leave out; a negative one is 0.
    pub offset: i64,
}

decodable!(ConsumerListRequest as "JSApiConsumersRequest" { offset: "int" });

/// `CONSUMER.PAUSE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseRequest {
    /// Until when; zero or past means resume.
    pub pause_until: Time,
}

decodable!(PauseRequest as "JSApiConsumerPauseRequest" { pause_until });

/// `CONSUMER.RESET` (ADR-60); unknown fields are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerResetRequest {
    /// First sequence to deliver again; 0 means the one after the ack floor.
    pub seq: u64,
}

decodable!(ConsumerResetRequest as "JSApiConsumerResetRequest" { seq });

/// `CONSUMER.UNPIN`; unknown fields are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerUnpinRequest {
    /// Which priority group.
    pub group: String,
}

decodable!(ConsumerUnpinRequest as "JSApiConsumerUnpinRequest" { group });

/// `CONSUMER.MSG.NEXT`; unknown fields are ignored. The body may also be empty (one message) or a bare number, see
/// [`PullRequest::from_body`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullRequest {
    /// How long the request lives; 0 means until it is served.
    pub expires: Nanos,
    /// Messages wanted.
    pub batch: i64,
    /// Bytes wanted; 0 means no limit.
    pub max_bytes: i64,
    /// End at once when there is nothing.
    pub no_wait: bool,
    /// Heartbeat while waiting; 0 means none.
    pub idle_heartbeat: Nanos,
    /// Priority group.
    pub group: String,
    /// Serve only with so many messages pending.
    pub min_pending: i64,
    /// Serve only with so many acknowledgements pending.
    pub min_ack_pending: i64,
    /// Id of the pinned client.
    pub id: String,
    /// Priority, lower first.
    pub priority: i64,
}

decodable!(PullRequest as "JSApiConsumerGetNextRequest" {
    expires, batch: "int", max_bytes: "int", no_wait, idle_heartbeat, group, min_pending, min_ack_pending, id,
    priority: "int",
});

impl PullRequest {
    /// Reads the body of `CONSUMER.MSG.NEXT`: JSON, a number of messages, or nothing. A text that is no number
    /// means one message, and so does a batch that is not positive: it stays as it is, since a status shows it.
    ///
    /// # Errors
    /// The body starts with `{` and can not be decoded; answered with `400 Bad Request - <error>`.
    pub fn from_body(body: &[u8]) -> Result<Self, DecodeError> {
        let text = body.trim_ascii();
        Ok(if text.starts_with(b"{") {
            crate::decode_lenient(text)?
        } else {
            let number = std::str::from_utf8(text)
                .ok()
                .and_then(|digits| digits.parse().ok());
            Self {
                batch: number.unwrap_or(1),
                ..Self::default()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_request_is_a_number_or_json_or_nothing() {
        let batch = |body: &str| PullRequest::from_body(body.as_bytes()).unwrap().batch;
        assert_eq!(batch(""), 1);
        assert_eq!(batch(" 2"), 2);
        assert_eq!(batch("0"), 0);
        assert_eq!(batch("-3"), -3);
        assert_eq!(batch("many"), 1);
        assert_eq!(batch("{}"), 0);
        assert_eq!(batch("{\"batch\":7,\"unknown\":1}"), 7);
        assert_eq!(
            PullRequest::from_body(b"{bad").unwrap_err().to_string(),
            "invalid character 'b' looking for beginning of object key string"
        );
        assert_eq!(
            PullRequest::from_body(b"{").unwrap_err().to_string(),
            "unexpected end of JSON input"
        );
    }
}
