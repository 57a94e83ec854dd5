//! `/healthz`: whether a server is well.

use crate::json::is_zero;
use serde::Serialize;

/// The state of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Healthz {
    /// `ok`, `unavailable` or `error`.
    pub status: String,
    /// 200, 400, 404, 500 or 503: the status of the HTTP answer. Written only in answers of the system account; 0
    /// leaves it out.
    #[serde(skip_serializing_if = "is_zero")]
    pub status_code: u16,
    /// What is wrong, if no details are asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub error: String,
    /// What is wrong, one by one.
    #[serde(skip_serializing_if = "is_zero")]
    pub errors: Vec<HealthError>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealthError {
    /// `CONNECTION`, `BAD_REQUEST`, `JETSTREAM`, `ACCOUNT`, `STREAM` or `CONSUMER`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: String,
    /// The stream.
    #[serde(skip_serializing_if = "is_zero")]
    pub stream: String,
    /// The consumer.
    #[serde(skip_serializing_if = "is_zero")]
    pub consumer: String,
    /// What.
    pub error: String,
}
