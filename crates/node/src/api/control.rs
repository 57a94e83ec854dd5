//! What one node tells another in place of an answer to a request.
//!
//! Shape: a [`crate::cell::Reply`] whose header begins with `TL/1.0 `, which no header of a message does, then one
//! word and, where there is one, a number in hexadecimal. Of a refusal the payload holds the error's number (u16,
//! little-endian) and its text.

use bytes::{BufMut, Bytes, BytesMut};
use tidelock_base::{ApiError, ApiErrorCode, NodeId, api_error_by_code};

const PREFIX: &[u8] = b"TL/1.0 ";

/// In place of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// The node does not lead the group; this one may.
    NotLeader(Option<NodeId>),
    /// The stream exists: it is in the directory as of the reply's `after_meta`.
    Again,
    /// No answer will come.
    Nothing,
    /// Nobody listens to the subject.
    NoResponders,
    /// The answer between nodes is an error.
    Refused(ApiError),
}

impl Control {
    /// Header and payload.
    pub(super) fn encode(&self) -> (Bytes, Bytes) {
        let plain = |text: &'static [u8]| (Bytes::from_static(text), Bytes::new());
        match self {
            Self::NotLeader(None) => plain(b"TL/1.0 NOT-LEADER"),
            Self::NotLeader(Some(node)) => (format!("TL/1.0 NOT-LEADER {:x}", node.0).into(), Bytes::new()),
            Self::Again => plain(b"TL/1.0 AGAIN"),
            Self::Nothing => plain(b"TL/1.0 NOTHING"),
            Self::NoResponders => plain(b"TL/1.0 NO-RESPONDERS"),
            Self::Refused(error) => {
                let mut payload = BytesMut::with_capacity(2 + error.description.len());
                payload.put_u16_le(error.code.err_code());
                payload.put_slice(error.description.as_bytes());
                (Bytes::from_static(b"TL/1.0 REFUSED"), payload.freeze())
            }
        }
    }

    /// Reads a reply; `None` if it is an answer.
    pub(super) fn decode(header: &[u8], payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header.strip_prefix(PREFIX)?).ok()?;
        let (word, number) = text.split_once(' ').unwrap_or((text, ""));
        Some(match word {
            "NOT-LEADER" => Self::NotLeader(u64::from_str_radix(number, 16).ok().map(NodeId)),
            "AGAIN" => Self::Again,
            "NO-RESPONDERS" => Self::NoResponders,
            "REFUSED" => Self::Refused(refusal(payload)),
            _ => Self::Nothing,
        })
    }
}

fn refusal(payload: &[u8]) -> ApiError {
    let unreadable = || ApiError::new(ApiErrorCode::ClusterNotAvail);
    let Some((number, text)) = payload.split_first_chunk::<2>() else {
        return unreadable();
    };
    match api_error_by_code(u16::from_le_bytes(*number)) {
        Some(code) => ApiError::text(code, String::from_utf8_lossy(text).into_owned()),
        None => unreadable(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for control in [
            Control::NotLeader(None),
            Control::NotLeader(Some(NodeId(u64::MAX))),
            Control::Again,
            Control::Nothing,
            Control::NoResponders,
            Control::Refused(ApiError::text(
                ApiErrorCode::StreamUpdate,
                "change to limits violates consumers: a",
            )),
        ] {
            let (header, payload) = control.encode();
            assert_eq!(Control::decode(&header, &payload), Some(control));
        }
        assert_eq!(Control::decode(b"NATS/1.0 404\r\n\r\n", b""), None);
        assert_eq!(Control::decode(b"", b""), None);
        let unreadable = Control::Refused(ApiErrorCode::ClusterNotAvail.into());
        assert_eq!(Control::decode(b"TL/1.0 REFUSED", b"\x01"), Some(unreadable));
    }
}
