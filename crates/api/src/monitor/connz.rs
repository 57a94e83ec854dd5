//! `/connz`: the connections of clients and leafnodes.

use crate::Time;
use crate::json::is_zero;
use serde::Serialize;

/// Connections, a page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connz {
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// Connections on this page.
    pub num_connections: u64,
    /// Connections there are.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most connections of an answer.
    pub limit: u64,
    /// The connections; `null` where an account was asked for that is not there.
    pub connections: Option<Vec<ConnInfo>>,
}

/// One connection. `in` and `out` are from the server's point of view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnInfo {
    /// Its number.
    pub cid: u64,
    /// `Client`, `Leafnode`.
    #[serde(skip_serializing_if = "is_zero")]
    pub kind: String,
    /// `nats`, `websocket`, `mqtt`.
    #[serde(rename = "type", skip_serializing_if = "is_zero")]
    pub client_type: String,
    /// Its address.
    pub ip: String,
    /// Its port.
    pub port: u64,
    /// When it connected.
    pub start: Time,
    /// When something was last sent or received.
    pub last_activity: Time,
    /// When it was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// Why it was closed.
    #[serde(skip_serializing_if = "is_zero")]
    pub reason: String,
    /// Round trip time, see [`super::rtt_text`].
    #[serde(skip_serializing_if = "is_zero")]
    pub rtt: String,
    /// How long it is or was connected, see [`super::uptime`].
    pub uptime: String,
    /// How long nothing happened.
    pub idle: String,
    /// Bytes waiting.
    pub pending_bytes: u64,
    /// Messages received.
    pub in_msgs: u64,
    /// Messages sent.
    pub out_msgs: u64,
    /// Bytes received.
    pub in_bytes: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// How often it had to wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub stalls: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Its name.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Language of its library.
    #[serde(skip_serializing_if = "is_zero")]
    pub lang: String,
    /// Version of its library.
    #[serde(skip_serializing_if = "is_zero")]
    pub version: String,
    /// TLS version.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_version: String,
    /// TLS cipher suite.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_cipher_suite: String,
    /// Its certificates.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_peer_certs: Vec<PeerCertificate>,
    /// TLS came before INFO.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_first: bool,
    /// Its user, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub authorized_user: String,
    /// Its account, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: String,
    /// Its subscriptions, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list: Vec<String>,
    /// The same with details.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list_detail: Vec<SubDetail>,
    /// Its JWT.
    #[serde(skip_serializing_if = "is_zero")]
    pub jwt: String,
    /// Key that signed it.
    #[serde(skip_serializing_if = "is_zero")]
    pub issuer_key: String,
    /// Name of the account.
    #[serde(skip_serializing_if = "is_zero")]
    pub name_tag: String,
    /// Tags of the user.
    #[serde(skip_serializing_if = "is_zero")]
    pub tags: Vec<String>,
    /// Client id of MQTT.
    #[serde(skip_serializing_if = "is_zero")]
    pub mqtt_client: String,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerCertificate {
    /// Its subject.
    pub subject: String,
    /// Hash of its key.
    pub spki_sha256: String,
    /// Hash of it.
    pub cert_sha256: String,
}

/// A subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SubDetail {
    /// Its account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: String,
    /// Name of the account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account_tag: String,
    /// Its subject.
    pub subject: String,
    /// Its queue group.
    #[serde(skip_serializing_if = "is_zero")]
    pub qgroup: String,
    /// Its id.
    pub sid: String,
    /// Messages delivered.
    pub msgs: u64,
    /// Messages after which it ends.
    #[serde(skip_serializing_if = "is_zero")]
    pub max: u64,
    /// Number of its connection.
    pub cid: u64,
}
