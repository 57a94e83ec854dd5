//! The JSON that NATS clients and tools exchange with a server: the JetStream API, its advisories, the events of the
//! system account and the bodies of the monitoring endpoints.
//!
//! The crate owns the *wire form*: which fields exist, in which order they are written, which are left out when they
//! are zero, and which texts a malformed request is refused with. It does not decide whether a request makes sense;
//! that is for the state machines. Since clients compare what they get with what they sent, field order and omission
//! follow nats-server 2.15.1 exactly, and the encoder ([`to_json`]) renders like Go's.
//!
//! Conventions: durations are [`Nanos`], points in time are [`Time`] (written as RFC 3339 with nanoseconds, in UTC),
//! a field that may be absent is an `Option` or is left out when it is zero.

mod account;
pub mod advisory;
mod cluster;
mod consumer;
mod enums;
pub mod event;
mod json;
mod message;
pub mod monitor;
mod pub_ack;
mod request;
mod response;
mod stream;
mod time;

pub use account::{AccountInfo, AccountLimits, AccountTier, ApiStats};
pub use cluster::{ClusterInfo, DesiredInfo, DesiredOrigin, DesiredPeer, DesiredStatus, PeerInfo};
pub use consumer::{ConsumerConfig, ConsumerInfo, PriorityGroupState, SequenceInfo};
pub use enums::{
    AckPolicy, Compression, ConsumerAction, DeliverPolicy, Discard, PersistMode, PriorityPolicy,
    ReplayPolicy, Retention, Storage,
};
pub use json::{
    Decode, DecodeError, Kind, Reader, decode_lenient, decode_optional, decode_strict, fuzz,
    is_empty_request, to_json, to_json_pretty,
};
pub use message::StoredMsg;
pub use pub_ack::{write_pub_ack, write_pub_ack_error};
pub use request::{
    ConsumerListRequest, ConsumerResetRequest, ConsumerUnpinRequest, CreateConsumerRequest, DirectGetRequest,
    MetaRescueRequest, MsgDeleteRequest, MsgGetRequest, PauseRequest, PeerRequest, PullRequest, PurgeRequest,
    RestoreRequest, ServerRemoveRequest, SnapshotRequest, StepdownRequest, StreamConfigRequest,
    StreamInfoRequest, StreamListRequest, StreamMoveRequest, StreamNamesRequest,
};
pub use response::{
    ConsumerList, ConsumerNames, ConsumerResetResponse, ErrorBody, Initiated, MetaRescueResponse,
    MsgGetResponse, NoFields, PauseResponse, PurgeResponse, ResponseKind, SnapshotResponse,
    StreamCreateResponse, StreamInfoResponse, StreamList, StreamNames, Success, error_response, ok_response,
};
pub use stream::{
    Alternate, ConsumerLimits, External, LostData, Placement, Republish, SourceConsumer, StreamConfig,
    StreamInfo, StreamSource, StreamSourceInfo, StreamState, SubjectTransform,
};
pub use time::{Nanos, Time};
