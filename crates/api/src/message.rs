//! A stored message in JSON, as `STREAM.MSG.GET` answers.

use crate::Time;
use crate::json::is_zero;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

/// A stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoredMsg<'a> {
    /// Its subject.
    pub subject: &'a str,
    /// Its sequence.
    pub seq: u64,
    /// The header block, `NATS/1.0\r\n` to the empty line; base64 in JSON.
    #[serde(skip_serializing_if = "is_zero", serialize_with = "base64_text")]
    pub hdrs: &'a [u8],
    /// The payload; base64 in JSON.
    #[serde(skip_serializing_if = "is_zero", serialize_with = "base64_text")]
    pub data: &'a [u8],
    /// When it was stored.
    pub time: Time,
}

fn base64_text<S: Serializer>(bytes: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}
