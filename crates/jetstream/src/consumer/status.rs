//! Status messages: header blocks without a payload that tell a client how its request or subscription fares.

use super::state::Position;
use std::io::Write as _;
use std::time::Duration;
use tidelock_api::Nanos;

/// A status message. Its header block is made by [`Status::render`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// `100 Idle Heartbeat`: nothing is wrong, there is just nothing to deliver.
    IdleHeartbeat {
        /// What was delivered last.
        last: Position,
        /// The flow control request of a push consumer that was not answered.
        stalled: Option<Vec<u8>>,
    },
    /// `100 FlowControl Request`: to be answered by an empty message to the reply subject.
    FlowControlRequest,
    /// `400 Bad Request` with what is wrong.
    BadRequest(String),
    /// `404 No Messages`.
    NoMessages,
    /// `408 Request Timeout`, with what was not delivered.
    RequestTimeout(Remaining),
    /// `408 Requests Pending`: others wait for all there is.
    RequestsPending,
    /// `409 Batch Completed`, with bytes to spare.
    BatchCompleted(Remaining),
    /// `409 Message Size Exceeds MaxBytes`: the next message does not fit the request.
    MessageSizeExceedsMaxBytes(Remaining),
    /// `409 Exceeded MaxWaiting`.
    ExceededMaxWaiting,
    /// `409 Exceeded MaxRequestBatch of N`.
    ExceededMaxRequestBatch(u32),
    /// `409 Exceeded MaxRequestExpires of D`.
    ExceededMaxRequestExpires(Duration),
    /// `409 Exceeded MaxRequestMaxBytes of N`.
    ExceededMaxRequestMaxBytes(u64),
    /// `409 Consumer is push based`.
    PushBased,
    /// `409 Consumer Deleted`.
    ConsumerDeleted,
    /// `409 Leadership Change`.
    LeadershipChange,
    /// `409 Server Shutdown`, with what was not delivered.
    ServerShutdown(Remaining),
    /// `412 Required Api Level`.
    RequiredApiLevel,
}

/// What a request was not given, as it counts it: a batch that was not positive stays so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Messages.
    pub messages: i64,
    /// Bytes; 0 if the request had no limit.
    pub bytes: i64,
}

impl Status {
    /// Appends the header block, `NATS/1.0 …\r\n` to the empty line.
    pub fn render(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"NATS/1.0 ");
        // Writing into a vector does not fail.
        let _ = match self {
            Self::BadRequest(reason) => write!(out, "400 Bad Request - {reason}"),
            Self::ExceededMaxRequestBatch(most) => write!(out, "409 Exceeded MaxRequestBatch of {most}"),
            Self::ExceededMaxRequestExpires(most) => {
                write!(out, "409 Exceeded MaxRequestExpires of {}", Nanos::from(*most))
            }
            Self::ExceededMaxRequestMaxBytes(most) => {
                write!(out, "409 Exceeded MaxRequestMaxBytes of {most}")
            }
            Self::IdleHeartbeat { .. } => write!(out, "100 Idle Heartbeat"),
            Self::FlowControlRequest => write!(out, "100 FlowControl Request"),
            Self::NoMessages => write!(out, "404 No Messages"),
            Self::RequestTimeout(_) => write!(out, "408 Request Timeout"),
            Self::RequestsPending => write!(out, "408 Requests Pending"),
            Self::BatchCompleted(_) => write!(out, "409 Batch Completed"),
            Self::MessageSizeExceedsMaxBytes(_) => write!(out, "409 Message Size Exceeds MaxBytes"),
            Self::ExceededMaxWaiting => write!(out, "409 Exceeded MaxWaiting"),
            Self::PushBased => write!(out, "409 Consumer is push based"),
            Self::ConsumerDeleted => write!(out, "409 Consumer Deleted"),
            Self::LeadershipChange => write!(out, "409 Leadership Change"),
            Self::ServerShutdown(_) => write!(out, "409 Server Shutdown"),
            Self::RequiredApiLevel => write!(out, "412 Required Api Level"),
        };
        out.extend_from_slice(b"\r\n");
        if let Self::IdleHeartbeat { last, stalled } = self {
            let _ = write!(out, "Nats-Last-Consumer: {}\r\n", last.deliver_seq);
            let _ = write!(out, "Nats-Last-Stream: {}\r\n", last.stream_seq);
            if let Some(reply) = stalled {
                out.extend_from_slice(b"Nats-Consumer-Stalled: ");
                out.extend_from_slice(reply);
                out.extend_from_slice(b"\r\n");
            }
        }
        if let Some(Remaining { messages, bytes }) = self.remaining() {
            let _ = write!(
                out,
                "Nats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {bytes}\r\n"
            );
        }
        out.extend_from_slice(b"\r\n");
    }

    const fn remaining(&self) -> Option<Remaining> {
        match self {
            Self::RequestTimeout(remaining)
            | Self::BatchCompleted(remaining)
            | Self::MessageSizeExceedsMaxBytes(remaining)
            | Self::ServerShutdown(remaining) => Some(*remaining),
            Self::IdleHeartbeat { .. }
            | Self::FlowControlRequest
            | Self::BadRequest(_)
            | Self::NoMessages
            | Self::RequestsPending
            | Self::ExceededMaxWaiting
            | Self::ExceededMaxRequestBatch(_)
            | Self::ExceededMaxRequestExpires(_)
            | Self::ExceededMaxRequestMaxBytes(_)
            | Self::PushBased
            | Self::ConsumerDeleted
            | Self::LeadershipChange
            | Self::RequiredApiLevel => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::{DeliverSeq, StreamSeq};

    fn rendered(status: &Status) -> String {
        let mut out = Vec::new();
        status.render(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts_are_those_of_nats_server() {
        let remaining = Remaining {
            messages: -1,
            bytes: 48,
        };
        assert_eq!(
            rendered(&Status::RequestTimeout(remaining)),
            "NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: -1\r\nNats-Pending-Bytes: 48\r\n\r\n"
        );
        assert_eq!(rendered(&Status::NoMessages), "NATS/1.0 404 No Messages\r\n\r\n");
        assert_eq!(
            rendered(&Status::BadRequest("heartbeat value too large".to_owned())),
            "NATS/1.0 400 Bad Request - heartbeat value too large\r\n\r\n"
        );
        assert_eq!(
            rendered(&Status::ExceededMaxRequestExpires(Duration::from_secs(90))),
            "NATS/1.0 409 Exceeded MaxRequestExpires of 1m30s\r\n\r\n"
        );
        let last = Position {
            stream_seq: StreamSeq(9),
            deliver_seq: DeliverSeq(7),
        };
        assert_eq!(
            rendered(&Status::IdleHeartbeat {
                last,
                stalled: Some(b"$JS.FC.S.C.0001".to_vec())
            }),
            "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\nNats-Last-Stream: 9\r\n\
             Nats-Consumer-Stalled: $JS.FC.S.C.0001\r\n\r\n"
        );
    }
}
