//! Advisories and metrics of JetStream, published under `$JS.EVENT.` where someone listens.
//!
//! Each type knows its subject and its `type`; [`advisory`] puts `type`, `id` and `timestamp` in front. Which account
//! gets it is said with the type: most go to the account of the asset, those of servers to the system account, those
//! of groups to both (there `account` is set).

use crate::event::ClientInfo;
use crate::json::{is_zero, to_json};
use crate::{Nanos, PeerInfo, StreamState, Time};
use serde::Serialize;

/// What an advisory needs besides its members.
pub trait Advisory: Serialize {
    /// The string of `type`.
    fn kind(&self) -> &'static str;

    /// Where it is published.
    fn subject(&self) -> String;
}

/// Renders an advisory. `id` is a fresh unique id of 22 characters.
#[must_use]
pub fn advisory<A: Advisory>(body: &A, id: &str, timestamp: Time) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a, A> {
        #[serde(rename = "type")]
        kind: &'static str,
        id: &'a str,
        timestamp: Time,
        #[serde(flatten)]
        body: &'a A,
    }
    to_json(&Envelope {
        kind: body.kind(),
        id,
        timestamp,
        body,
    })
}

macro_rules! advisory {
    ($name:ident, $kind:literal, $subject:literal $(, $field:ident)*) => {
        impl Advisory for $name<'_> {
            fn kind(&self) -> &'static str {
                concat!("io.nats.jetstream.", $kind)
            }

            fn subject(&self) -> String {
                format!(concat!("$JS.EVENT.", $subject) $(, self.$field)*)
            }
        }
    };
}

/// A request of the API was answered. Published in the account that asked.
#[derive(Clone, Debug, Serialize)]
pub struct ApiAudit<'a> {
    /// Name of the server that answered.
    pub server: &'a str,
    /// Who asked.
    pub client: &'a ClientInfo,
    /// Subject of the request.
    pub subject: &'a str,
    /// Its body.
    #[serde(skip_serializing_if = "is_zero")]
    pub request: &'a str,
    /// The answer.
    pub response: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(ApiAudit, "advisory.v1.api_audit", "ADVISORY.API");

/// Requests were dropped since too many waited. Published in the system account.
#[derive(Clone, Debug, Serialize)]
pub struct ApiLimitReached<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
    /// How many.
    pub dropped: u64,
}
advisory!(
    ApiLimitReached,
    "advisory.v1.api_limit_reached",
    "ADVISORY.API.LIMIT_REACHED"
);

/// What happened to a stream or consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Created.
    Create,
    /// Deleted.
    Delete,
    /// Updated; streams only.
    Modify,
}

impl Action {
    const fn token(self) -> &'static str {
        match self {
            Self::Create => "CREATED",
            Self::Delete => "DELETED",
            Self::Modify => "UPDATED",
        }
    }
}

/// A stream was created, updated or deleted.
#[derive(Clone, Debug, Serialize)]
pub struct StreamAction<'a> {
    /// The stream.
    pub stream: &'a str,
    /// What happened.
    pub action: Action,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}

impl Advisory for StreamAction<'_> {
    fn kind(&self) -> &'static str {
        "io.nats.jetstream.advisory.v1.stream_action"
    }

    fn subject(&self) -> String {
        format!(
            "$JS.EVENT.ADVISORY.STREAM.{}.{}",
            self.action.token(),
            self.stream
        )
    }
}

/// A consumer was created or deleted.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumerAction<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// What happened.
    pub action: Action,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}

impl Advisory for ConsumerAction<'_> {
    fn kind(&self) -> &'static str {
        "io.nats.jetstream.advisory.v1.consumer_action"
    }

    fn subject(&self) -> String {
        let token = self.action.token();
        format!(
            "$JS.EVENT.ADVISORY.CONSUMER.{token}.{}.{}",
            self.stream, self.consumer
        )
    }
}

/// A consumer was paused or resumed.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumerPause<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// It is paused now.
    pub paused: bool,
    /// Until when.
    pub pause_until: Time,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    ConsumerPause,
    "advisory.v1.consumer_pause",
    "ADVISORY.CONSUMER.PAUSE.{}.{}",
    stream,
    consumer
);

/// A message was delivered as often as it may be.
#[derive(Clone, Debug, Serialize)]
pub struct MaxDeliveries<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// The message.
    pub stream_seq: u64,
    /// How often.
    pub deliveries: u64,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    MaxDeliveries,
    "advisory.v1.max_deliver",
    "ADVISORY.CONSUMER.MAX_DELIVERIES.{}.{}",
    stream,
    consumer
);

/// A message was refused by its receiver and will be delivered again.
#[derive(Clone, Debug, Serialize)]
pub struct MsgNaked<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// The delivery.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    MsgNaked,
    "advisory.v1.nak",
    "ADVISORY.CONSUMER.MSG_NAKED.{}.{}",
    stream,
    consumer
);

/// A message was given up by its receiver.
#[derive(Clone, Debug, Serialize)]
pub struct MsgTerminated<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// The delivery.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Why.
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    MsgTerminated,
    "advisory.v1.terminated",
    "ADVISORY.CONSUMER.MSG_TERMINATED.{}.{}",
    stream,
    consumer
);

/// An acknowledgement was sampled.
#[derive(Clone, Debug, Serialize)]
pub struct AckMetric<'a> {
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// The delivery.
    pub consumer_seq: u64,
    /// The message.
    pub stream_seq: u64,
    /// From delivery to acknowledgement.
    pub ack_time: Nanos,
    /// How often it was delivered.
    pub deliveries: u64,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    AckMetric,
    "metric.v1.consumer_ack",
    "METRIC.CONSUMER.ACK.{}.{}",
    stream,
    consumer
);

/// A snapshot of a stream begins.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotCreate<'a> {
    /// The stream.
    pub stream: &'a str,
    /// What it holds.
    pub state: &'a StreamState,
    /// Who asked.
    pub client: &'a ClientInfo,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    SnapshotCreate,
    "advisory.v1.snapshot_create",
    "ADVISORY.STREAM.SNAPSHOT_CREATE.{}",
    stream
);

/// A snapshot of a stream ended.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotComplete<'a> {
    /// The stream.
    pub stream: &'a str,
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
    /// Who asked.
    pub client: &'a ClientInfo,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
    /// What went wrong.
    #[serde(skip_serializing_if = "is_zero")]
    pub error: &'a str,
}
advisory!(
    SnapshotComplete,
    "advisory.v1.snapshot_complete",
    "ADVISORY.STREAM.SNAPSHOT_COMPLETE.{}",
    stream
);

/// A restore of a stream begins.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreCreate<'a> {
    /// The stream.
    pub stream: &'a str,
    /// Who asked.
    pub client: &'a ClientInfo,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    RestoreCreate,
    "advisory.v1.restore_create",
    "ADVISORY.STREAM.RESTORE_CREATE.{}",
    stream
);

/// A restore of a stream ended.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreComplete<'a> {
    /// The stream.
    pub stream: &'a str,
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
    /// Bytes taken in.
    pub bytes: u64,
    /// Who asked.
    pub client: &'a ClientInfo,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    RestoreComplete,
    "advisory.v1.restore_complete",
    "ADVISORY.STREAM.RESTORE_COMPLETE.{}",
    stream
);

/// A stream has a new leader. Published in its account, and with `account` in the system account.
#[derive(Clone, Debug, Serialize)]
pub struct StreamLeaderElected<'a> {
    /// Its account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: &'a str,
    /// The stream.
    pub stream: &'a str,
    /// Name of the leader.
    pub leader: &'a str,
    /// All servers of the group, the leader too.
    pub replicas: &'a [PeerInfo],
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    StreamLeaderElected,
    "advisory.v1.stream_leader_elected",
    "ADVISORY.STREAM.LEADER_ELECTED.{}",
    stream
);

/// A stream has no quorum. Published as [`StreamLeaderElected`] is.
#[derive(Clone, Debug, Serialize)]
pub struct StreamQuorumLost<'a> {
    /// Its account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: &'a str,
    /// The stream.
    pub stream: &'a str,
    /// All servers of the group.
    pub replicas: &'a [PeerInfo],
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    StreamQuorumLost,
    "advisory.v1.stream_quorum_lost",
    "ADVISORY.STREAM.QUORUM_LOST.{}",
    stream
);

/// A consumer has a new leader. Published as [`StreamLeaderElected`] is.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumerLeaderElected<'a> {
    /// Its account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: &'a str,
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// Name of the leader.
    pub leader: &'a str,
    /// All servers of the group, the leader too.
    pub replicas: &'a [PeerInfo],
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    ConsumerLeaderElected,
    "advisory.v1.consumer_leader_elected",
    "ADVISORY.CONSUMER.LEADER_ELECTED.{}.{}",
    stream,
    consumer
);

/// A consumer has no quorum. Published as [`StreamLeaderElected`] is.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumerQuorumLost<'a> {
    /// Its account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: &'a str,
    /// The stream.
    pub stream: &'a str,
    /// The consumer.
    pub consumer: &'a str,
    /// All servers of the group.
    pub replicas: &'a [PeerInfo],
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    ConsumerQuorumLost,
    "advisory.v1.consumer_quorum_lost",
    "ADVISORY.CONSUMER.QUORUM_LOST.{}.{}",
    stream,
    consumer
);

/// The meta group has a new leader. Published in the system account.
#[derive(Clone, Debug, Serialize)]
pub struct DomainLeaderElected<'a> {
    /// Id of the leader.
    pub leader: &'a str,
    /// All servers of the group.
    pub replicas: &'a [PeerInfo],
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    DomainLeaderElected,
    "advisory.v1.domain_leader_elected",
    "ADVISORY.DOMAIN.LEADER_ELECTED"
);

/// A server has no space left. Published in the system account.
#[derive(Clone, Debug, Serialize)]
pub struct ServerOutOfStorage<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// Its id.
    pub server_id: &'a str,
    /// The stream that noticed.
    #[serde(skip_serializing_if = "is_zero")]
    pub stream: &'a str,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    ServerOutOfStorage,
    "advisory.v1.server_out_of_space",
    "ADVISORY.SERVER.OUT_OF_STORAGE"
);

/// A server was removed from the meta group. Published in the system account.
#[derive(Clone, Debug, Serialize)]
pub struct ServerRemoved<'a> {
    /// Name of the server.
    pub server: &'a str,
    /// Its id.
    pub server_id: &'a str,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: &'a str,
}
advisory!(
    ServerRemoved,
    "advisory.v1.server_removed",
    "ADVISORY.SERVER.REMOVED"
);

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::Wall;

    fn text<A: Advisory>(body: &A) -> (String, String) {
        let bytes = advisory(body, "ID", Time(Wall(1_500_000_000)));
        (body.subject(), String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_consumer_action_names_both() {
        let (subject, body) = text(&ConsumerAction {
            stream: "T",
            consumer: "D",
            action: Action::Create,
            domain: "",
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.CONSUMER.CREATED.T.D");
        assert_eq!(
            body,
            r#"{"type":"io.nats.jetstream.advisory.v1.consumer_action","id":"ID","timestamp":"1970-01-01T00:00:01.5Z","stream":"T","consumer":"D","action":"create"}"#
        );
    }

    #[test]
    fn a_leader_election_has_the_account_only_in_the_system_account() {
        let peer = PeerInfo {
            name: "K2".to_owned(),
            current: true,
            active: Nanos(357_803),
            peer: "gRl0zp5U".to_owned(),
            ..PeerInfo::default()
        };
        let mut elected = StreamLeaderElected {
            account: "A",
            stream: "B1",
            leader: "K2",
            replicas: &[peer],
            domain: "",
        };
        let (subject, body) = text(&elected);
        assert_eq!(subject, "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.B1");
        assert_eq!(
            body,
            r#"{"type":"io.nats.jetstream.advisory.v1.stream_leader_elected","id":"ID","timestamp":"1970-01-01T00:00:01.5Z","account":"A","stream":"B1","leader":"K2","replicas":[{"name":"K2","current":true,"active":357803,"peer":"gRl0zp5U"}]}"#
        );
        elected.account = "";
        assert!(!text(&elected).1.contains("account"));
    }

    #[test]
    fn an_audit_carries_request_and_answer_as_text() {
        let client = ClientInfo {
            host: "127.0.0.1".to_owned(),
            id: 47,
            account: "A".to_owned(),
            kind: "Client".to_owned(),
            client_type: "nats".to_owned(),
            ..ClientInfo::default()
        };
        let (subject, body) = text(&ApiAudit {
            server: "PROBE",
            client: &client,
            subject: "$JS.API.STREAM.INFO.T",
            request: "",
            response: "{\"a\":\"<\"}",
            domain: "hub",
        });
        assert_eq!(subject, "$JS.EVENT.ADVISORY.API");
        assert_eq!(
            body,
            r#"{"type":"io.nats.jetstream.advisory.v1.api_audit","id":"ID","timestamp":"1970-01-01T00:00:01.5Z","server":"PROBE","client":{"host":"127.0.0.1","id":47,"acc":"A","kind":"Client","client_type":"nats"},"subject":"$JS.API.STREAM.INFO.T","response":"{\"a\":\"\u003c\"}","domain":"hub"}"#
        );
    }
}
