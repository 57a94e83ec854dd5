//! Answers of the JetStream API: an object that starts with its `type`, then either the result or an `error`.

use crate::json::{decodable, is_zero, to_json};
use crate::{ConsumerInfo, Nanos, StoredMsg, StreamConfig, StreamInfo, StreamState, Time};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use tidelock_base::ApiError;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Which answer it is: the endpoint's `type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ResponseKind {
            $($(#[$doc])* $name,)*
        }

        impl ResponseKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The string of `type`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("io.nats.jetstream.api.v1.", $text),)*
                }
            }
        }
    };
}

kinds! {
    /// `INFO`
    AccountInfo = "account_info_response",
    /// `STREAM.CREATE`
    StreamCreate = "stream_create_response",
    /// `STREAM.UPDATE`, `ACCOUNT.STREAM.MOVE`
    StreamUpdate = "stream_update_response",
    /// `STREAM.NAMES`
    StreamNames = "stream_names_response",
    /// `STREAM.LIST`
    StreamList = "stream_list_response",
    /// `STREAM.INFO`
    StreamInfo = "stream_info_response",
    /// `STREAM.DELETE`
    StreamDelete = "stream_delete_response",
    /// `STREAM.PURGE`
    StreamPurge = "stream_purge_response",
    /// `STREAM.MSG.DELETE`
    StreamMsgDelete = "stream_msg_delete_response",
    /// `STREAM.MSG.GET`
    StreamMsgGet = "stream_msg_get_response",
    /// `STREAM.SNAPSHOT`
    StreamSnapshot = "stream_snapshot_response",
    /// `STREAM.RESTORE`
    StreamRestore = "stream_restore_response",
    /// `STREAM.LEADER.STEPDOWN`
    StreamLeaderStepdown = "stream_leader_stepdown_response",
    /// `STREAM.PEER.REMOVE`
    StreamRemovePeer = "stream_remove_peer_response",
    /// `STREAM.PEER.EVACUATE`
    StreamEvacuatePeer = "stream_evacuate_peer_response",
    /// `STREAM.CANCEL_MOVE`, `ACCOUNT.STREAM.CANCEL_MOVE`
    StreamCancelMove = "stream_cancel_move_response",
    /// `CONSUMER.CREATE`, `CONSUMER.DURABLE.CREATE`
    ConsumerCreate = "consumer_create_response",
    /// `CONSUMER.NAMES`
    ConsumerNames = "consumer_names_response",
    /// `CONSUMER.LIST`
    ConsumerList = "consumer_list_response",
    /// `CONSUMER.INFO`
    ConsumerInfo = "consumer_info_response",
    /// `CONSUMER.DELETE`
    ConsumerDelete = "consumer_delete_response",
    /// `CONSUMER.PAUSE`
    ConsumerPause = "consumer_pause_response",
    /// `CONSUMER.UNPIN`
    ConsumerUnpin = "consumer_unpin_response",
    /// `CONSUMER.RESET`
    ConsumerReset = "consumer_reset_response",
    /// `CONSUMER.LEADER.STEPDOWN`
    ConsumerLeaderStepdown = "consumer_leader_stepdown_response",
    /// `CONSUMER.PEER.REMOVE`
    ConsumerRemovePeer = "consumer_remove_peer_response",
    /// `CONSUMER.PEER.EVACUATE`
    ConsumerEvacuatePeer = "consumer_evacuate_peer_response",
    /// `META.LEADER.STEPDOWN`
    MetaLeaderStepdown = "meta_leader_stepdown_response",
    /// `SERVER.REMOVE`
    MetaServerRemove = "meta_server_remove_response",
    /// `SERVER.EVACUATE`
    MetaServerEvacuate = "meta_server_evacuate_response",
    /// `META.RESCUE`
    MetaRescue = "meta_rescue_response",
    /// `ACCOUNT.PURGE`
    AccountPurge = "account_purge_response",
    /// Requests of the system account to endpoints that it may not use.
    System = "system_response",
}

impl ResponseKind {
    /// What an answer of this kind carries beside the error: members that nats-server never leaves out.
    const fn error_tail(self) -> &'static str {
        match self {
            Self::StreamNames => ",\"total\":0,\"offset\":0,\"limit\":0,\"streams\":null",
            Self::StreamList => ",\"total\":0,\"offset\":0,\"limit\":0,\"streams\":[]",
            Self::StreamInfo => ",\"total\":0,\"offset\":0,\"limit\":0",
            Self::StreamPurge => ",\"purged\":0",
            Self::StreamRestore => ",\"deliver_subject\":\"\"",
            Self::ConsumerNames | Self::ConsumerList => {
                ",\"total\":0,\"offset\":0,\"limit\":0,\"consumers\":[]"
            }
            Self::ConsumerPause => ",\"paused\":false,\"pause_until\":\"0001-01-01T00:00:00Z\"",
            Self::AccountInfo
            | Self::StreamCreate
            | Self::StreamUpdate
            | Self::StreamDelete
            | Self::StreamMsgDelete
            | Self::StreamMsgGet
            | Self::StreamSnapshot
            | Self::StreamLeaderStepdown
            | Self::StreamRemovePeer
            | Self::StreamEvacuatePeer
            | Self::StreamCancelMove
            | Self::ConsumerCreate
            | Self::ConsumerInfo
            | Self::ConsumerDelete
            | Self::ConsumerUnpin
            | Self::ConsumerReset
            | Self::ConsumerLeaderStepdown
            | Self::ConsumerRemovePeer
            | Self::ConsumerEvacuatePeer
            | Self::MetaLeaderStepdown
            | Self::MetaServerRemove
            | Self::MetaServerEvacuate
            | Self::MetaRescue
            | Self::AccountPurge
            | Self::System => "",
        }
    }
}

/// A successful answer: `type`, then the members of `body`.
#[must_use]
pub fn ok_response<T: Serialize>(kind: ResponseKind, body: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a, T> {
        #[serde(rename = "type")]
        kind: &'static str,
        #[serde(flatten)]
        body: &'a T,
    }
    to_json(&Answer {
        kind: kind.as_str(),
        body,
    })
}

/// An answer with an error: `type`, `error`, then the members that an answer of this kind always has.
#[must_use]
pub fn error_response(kind: ResponseKind, error: &ApiError) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_str().as_bytes());
    out.extend_from_slice(b"\",\"error\":");
    out.extend_from_slice(&to_json(&ErrorBody::from(error)));
    out.extend_from_slice(kind.error_tail().as_bytes());
    out.push(b'}');
    out
}

/// The `error` object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// The code in the manner of HTTP.
    pub code: i64,
    /// The number that clients match on.
    pub err_code: u64,
    /// Text for people.
    pub description: String,
}

decodable!(ErrorBody as "ApiError" { code: "int", err_code: "uint16", description });

impl From<&ApiError> for ErrorBody {
    fn from(error: &ApiError) -> Self {
        Self {
            code: i64::from(error.code.code()),
            err_code: u64::from(error.code.err_code()),
            description: error.description.clone().into_owned(),
        }
    }
}

impl Serialize for ErrorBody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("ApiError", 3)?;
        object.serialize_field("code", &self.code)?;
        if self.err_code != 0 {
            object.serialize_field("err_code", &self.err_code)?;
        }
        if !self.description.is_empty() {
            object.serialize_field("description", &self.description)?;
        }
        object.end()
    }
}

/// No members besides `type`: `CONSUMER.UNPIN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoFields {}

/// `{"success":true}`: deletes, step-downs, peer and server removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Success {
    /// True.
    pub success: bool,
}

impl Success {
    /// The answer.
    pub const YES: Self = Self { success: true };
}

/// `STREAM.CREATE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamCreateResponse {
    /// The stream.
    #[serde(flatten)]
    pub info: StreamInfo,
    /// True, for a stream that existed already too.
    #[serde(skip_serializing_if = "is_zero")]
    pub did_create: bool,
}

/// `STREAM.INFO`; the page is that of `state.subjects`, zeros without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamInfoResponse {
    /// Subjects that the filter matches.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most subjects of an answer.
    pub limit: u64,
    /// The stream.
    #[serde(flatten)]
    pub info: StreamInfo,
}

/// `STREAM.NAMES`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamNames {
    /// Streams there are.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most names of an answer.
    pub limit: u64,
    /// The names; `None`, written as `null`, when there is none.
    pub streams: Option<Vec<String>>,
}

/// `STREAM.LIST`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamList {
    /// Streams there are.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most streams of an answer.
    pub limit: u64,
    /// The streams.
    pub streams: Vec<StreamInfo>,
    /// Names of those that did not answer.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: Vec<String>,
    /// Those that can not be served, with the reason.
    #[serde(skip_serializing_if = "is_zero")]
    pub offline: BTreeMap<String, String>,
}

/// `STREAM.PURGE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PurgeResponse {
    /// True.
    pub success: bool,
    /// Messages removed.
    pub purged: u64,
}

/// `STREAM.MSG.GET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MsgGetResponse<'a> {
    /// The message.
    pub message: StoredMsg<'a>,
}

/// `STREAM.SNAPSHOT`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotResponse {
    /// The configuration, without what is added for answers.
    pub config: StreamConfig,
    /// What the snapshot holds.
    pub state: StreamState,
}

/// `CONSUMER.NAMES`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerNames {
    /// Consumers there are.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most names of an answer.
    pub limit: u64,
    /// The names.
    pub consumers: Vec<String>,
}

/// `CONSUMER.LIST`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerList {
    /// Consumers there are.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most consumers of an answer.
    pub limit: u64,
    /// The consumers.
    pub consumers: Vec<ConsumerInfo>,
    /// Names of those that did not answer.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: Vec<String>,
    /// Those that can not be served, with the reason.
    #[serde(skip_serializing_if = "is_zero")]
    pub offline: BTreeMap<String, String>,
}

/// `CONSUMER.PAUSE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PauseResponse {
    /// Delivery is paused now.
    pub paused: bool,
    /// Until when; zero if it is not.
    pub pause_until: Time,
    /// For how long yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub pause_remaining: Nanos,
}

/// `CONSUMER.RESET` (ADR-60).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerResetResponse {
    /// The consumer.
    #[serde(flatten)]
    pub info: ConsumerInfo,
    /// First sequence it will deliver.
    pub reset_seq: u64,
}

/// `META.RESCUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaRescueResponse {
    /// Name of the server.
    pub server: String,
    /// Its id.
    pub server_id: String,
    /// Quorum before.
    pub prev_quorum: u64,
    /// Quorum now.
    pub new_quorum: u64,
}

/// `ACCOUNT.PURGE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Initiated {
    /// True.
    pub initiated: bool,
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
