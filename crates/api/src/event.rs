//! What the system account says and answers: the envelope of its requests and the events of connections.

use crate::json::{is_zero, to_json};
use crate::{Nanos, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// Bits of `flags` of a [`ServerInfo`].
pub mod server_flags {
    /// JetStream is on.
    pub const JETSTREAM: u64 = 1;
    /// Snapshots of streams in binary form are understood.
    pub const BINARY_SNAPSHOTS: u64 = 2;
    /// Raft traffic of an account may go through that account.
    pub const ACCOUNT_NRG: u64 = 4;
}

/// The server that speaks (`server`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerInfo {
    /// Its name.
    pub name: String,
    /// The address it listens on.
    pub host: String,
    /// Its id, a public key.
    pub id: String,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster: String,
    /// JetStream domain.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: String,
    /// Compatible version.
    pub ver: String,
    /// Tags.
    #[serde(skip_serializing_if = "is_zero")]
    pub tags: Vec<String>,
    /// Labels.
    #[serde(skip_serializing_if = "is_zero")]
    pub metadata: BTreeMap<String, String>,
    /// Switches of features.
    #[serde(skip_serializing_if = "is_zero")]
    pub feature_flags: BTreeMap<String, bool>,
    /// JetStream is on.
    pub jetstream: bool,
    /// Bits of [`server_flags`].
    pub flags: u64,
    /// Number of this message of the server.
    pub seq: u64,
    /// When it was written.
    pub time: Time,
}

/// A client, as events and the header `Nats-Request-Info` show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClientInfo {
    /// When it connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Time>,
    /// Its address.
    #[serde(skip_serializing_if = "is_zero")]
    pub host: String,
    /// Its connection number.
    #[serde(skip_serializing_if = "is_zero")]
    pub id: u64,
    /// Its account.
    #[serde(rename = "acc", skip_serializing_if = "is_zero")]
    pub account: String,
    /// Account of the service it asked.
    #[serde(rename = "svc", skip_serializing_if = "is_zero")]
    pub service: String,
    /// Its user; `[REDACTED]` for a token.
    #[serde(skip_serializing_if = "is_zero")]
    pub user: String,
    /// Its name.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Language of its library.
    #[serde(skip_serializing_if = "is_zero")]
    pub lang: String,
    /// Version of its library.
    #[serde(skip_serializing_if = "is_zero")]
    pub ver: String,
    /// Round trip time.
    #[serde(skip_serializing_if = "is_zero")]
    pub rtt: Nanos,
    /// The server it is connected to.
    #[serde(skip_serializing_if = "is_zero")]
    pub server: String,
    /// The cluster of that server.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster: String,
    /// Other clusters near it.
    #[serde(rename = "alts", skip_serializing_if = "is_zero")]
    pub alternates: Vec<String>,
    /// When it disconnected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// Its JWT.
    #[serde(skip_serializing_if = "is_zero")]
    pub jwt: String,
    /// Key that signed it.
    #[serde(skip_serializing_if = "is_zero")]
    pub issuer_key: String,
    /// Name in the JWT.
    #[serde(skip_serializing_if = "is_zero")]
    pub name_tag: String,
    /// Tags in the JWT.
    #[serde(skip_serializing_if = "is_zero")]
    pub tags: Vec<String>,
    /// `Client`, `Leafnode`, `JetStream` and so on.
    #[serde(skip_serializing_if = "is_zero")]
    pub kind: String,
    /// `nats`, `websocket` or `mqtt`.
    #[serde(skip_serializing_if = "is_zero")]
    pub client_type: String,
    /// Client id of MQTT.
    #[serde(skip_serializing_if = "is_zero")]
    pub client_id: String,
    /// Nonce it signed.
    #[serde(skip_serializing_if = "is_zero")]
    pub nonce: String,
    /// Reply subject of the request, in `Nats-Request-Info`.
    #[serde(skip_serializing_if = "is_zero")]
    pub reply: String,
}

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Messages.
    pub msgs: u64,
    /// Bytes of headers and payloads.
    pub bytes: u64,
}

/// Messages and bytes of an account, with what went through each kind of link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountTraffic {
    /// All.
    #[serde(flatten)]
    pub total: Traffic,
    /// Through gateways.
    pub gateways: Traffic,
    /// Through routes.
    pub routes: Traffic,
    /// Through leafnodes.
    pub leafs: Traffic,
}

/// A client connected: `$SYS.ACCOUNT.<account>.CONNECT`.
#[derive(Clone, Debug, Serialize)]
pub struct ClientConnect<'a> {
    /// The server.
    pub server: &'a ServerInfo,
    /// The client.
    pub client: &'a ClientInfo,
}

/// A client disconnected, or could not prove who it is: `$SYS.ACCOUNT.<account>.DISCONNECT`,
/// `$SYS.SERVER.<id>.CLIENT.AUTH.ERR`.
#[derive(Clone, Debug, Serialize)]
pub struct ClientDisconnect<'a> {
    /// The server.
    pub server: &'a ServerInfo,
    /// The client.
    pub client: &'a ClientInfo,
    /// What the client sent.
    pub sent: Traffic,
    /// What it received.
    pub received: Traffic,
    /// Why.
    pub reason: &'a str,
}

/// Connections of an account: `$SYS.ACCOUNT.<account>.SERVER.CONNS` and
/// `$SYS.SERVER.ACCOUNT.<account>.CONNS`.
#[derive(Clone, Debug, Serialize)]
pub struct AccountConnections<'a> {
    /// The server.
    pub server: &'a ServerInfo,
    /// Its state.
    #[serde(flatten)]
    pub stat: AccountStat,
}

/// Connections and traffic of an account on one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountStat {
    /// The account.
    #[serde(rename = "acc")]
    pub account: String,
    /// Its name.
    pub name: String,
    /// Clients.
    pub conns: u64,
    /// Leafnodes.
    pub leafnodes: u64,
    /// Both.
    pub total_conns: u64,
    /// Subscriptions.
    pub num_subscriptions: u64,
    /// What the server sent.
    pub sent: AccountTraffic,
    /// What it received.
    pub received: AccountTraffic,
    /// Connections that were too slow.
    pub slow_consumers: u64,
}

/// Which event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`ClientConnect`]
    ClientConnect,
    /// [`ClientDisconnect`]
    ClientDisconnect,
    /// [`AccountConnections`]
    AccountConnections,
}

impl EventKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ClientConnect => "io.nats.server.advisory.v1.client_connect",
            Self::ClientDisconnect => "io.nats.server.advisory.v1.client_disconnect",
            Self::AccountConnections => "io.nats.server.advisory.v1.account_connections",
        }
    }
}

/// Renders an event: `type`, `id` (a fresh unique id of 22 characters) and `timestamp`, then the members of `body`.
#[must_use]
pub fn event<T: Serialize>(kind: EventKind, id: &str, timestamp: Time, body: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a, T> {
        #[serde(rename = "type")]
        kind: &'static str,
        id: &'a str,
        timestamp: Time,
        #[serde(flatten)]
        body: &'a T,
    }
    to_json(&Envelope {
        kind: kind.as_str(),
        id,
        timestamp,
        body,
    })
}

/// Renders the answer of a system request: `server`, then `data`.
#[must_use]
pub fn system_reply<T: Serialize>(server: &ServerInfo, data: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Reply<'a, T> {
        server: &'a ServerInfo,
        data: &'a T,
    }
    to_json(&Reply { server, data })
}

/// Renders the answer of a system request that has nothing to say but that it was done: `RELOAD`, `KICK`, `LDM`.
#[must_use]
pub fn system_done(server: &ServerInfo) -> Vec<u8> {
    #[derive(Serialize)]
    struct Reply<'a> {
        server: &'a ServerInfo,
    }
    to_json(&Reply { server })
}

/// Renders the refusal of a system request: 400 for a body that is no JSON, 500 for what went wrong.
#[must_use]
pub fn system_error(server: &ServerInfo, code: u16, description: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Failure<'a> {
        code: u16,
        description: &'a str,
    }
    #[derive(Serialize)]
    struct Reply<'a> {
        server: &'a ServerInfo,
        error: Failure<'a>,
    }
    to_json(&Reply {
        server,
        error: Failure { code, description },
    })
}

/// Renders the answer of a system request that was understood and could not be answered: `data` is there, and null.
#[must_use]
pub fn system_fault(server: &ServerInfo, description: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Failure<'a> {
        code: u16,
        description: &'a str,
    }
    #[derive(Serialize)]
    struct Reply<'a> {
        server: &'a ServerInfo,
        data: Option<()>,
        error: Failure<'a>,
    }
    to_json(&Reply {
        server,
        data: None,
        error: Failure {
            code: 500,
            description,
        },
    })
}

/// The answer of `$SYS.REQ.SERVER.PING.IDZ`, without an envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerId {
    /// Its name.
    pub name: String,
    /// The address it listens on.
    pub host: String,
    /// Its id.
    pub id: String,
}

/// The answer of `$SYS.REQ.USER.INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The user.
    pub user: String,
    /// Its account.
    pub account: String,
    /// Name of the account.
    #[serde(skip_serializing_if = "is_zero")]
    pub account_name: String,
    /// Name of the user.
    #[serde(skip_serializing_if = "is_zero")]
    pub user_name: String,
    /// What it may do; absent means everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// How long it may stay connected.
    #[serde(skip_serializing_if = "is_zero")]
    pub expires: Nanos,
}

/// What a user may publish and subscribe to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Permissions {
    /// Publishing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<SubjectPermission>,
    /// Subscribing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<SubjectPermission>,
    /// Replies to requests that it received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<ResponsePermission>,
}

/// Subjects allowed and denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SubjectPermission {
    /// Allowed; none means all.
    #[serde(skip_serializing_if = "is_zero")]
    pub allow: Vec<String>,
    /// Denied.
    #[serde(skip_serializing_if = "is_zero")]
    pub deny: Vec<String>,
}

/// How many replies, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResponsePermission {
    /// Replies to one request.
    pub max: i64,
    /// How long after the request.
    pub ttl: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::Wall;

    #[test]
    fn connections_of_an_account_are_those_of_nats_server() {
        let server = ServerInfo {
            name: "PROBE".to_owned(),
            host: "0.0.0.0".to_owned(),
            id: "NCX".to_owned(),
            ver: "2.15.1".to_owned(),
            jetstream: true,
            flags: 7,
            seq: 198,
            time: Time(Wall(1)),
            ..ServerInfo::default()
        };
        let stat = AccountStat {
            account: "A".to_owned(),
            name: "A".to_owned(),
            conns: 1,
            total_conns: 1,
            num_subscriptions: 13,
            ..AccountStat::default()
        };
        let body = AccountConnections {
            server: &server,
            stat,
        };
        let bytes = event(
            EventKind::AccountConnections,
            "ID",
            Time(Wall(1_000_000_000)),
            &body,
        );
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            concat!(
                r#"{"type":"io.nats.server.advisory.v1.account_connections","id":"ID","timestamp":"1970-01-01T00:00:01Z","#,
                r#""server":{"name":"PROBE","host":"0.0.0.0","id":"NCX","ver":"2.15.1","jetstream":true,"flags":7,"seq":198,"time":"1970-01-01T00:00:00.000000001Z"},"#,
                r#""acc":"A","name":"A","conns":1,"leafnodes":0,"total_conns":1,"num_subscriptions":13,"#,
                r#""sent":{"msgs":0,"bytes":0,"gateways":{"msgs":0,"bytes":0},"routes":{"msgs":0,"bytes":0},"leafs":{"msgs":0,"bytes":0}},"#,
                r#""received":{"msgs":0,"bytes":0,"gateways":{"msgs":0,"bytes":0},"routes":{"msgs":0,"bytes":0},"leafs":{"msgs":0,"bytes":0}},"#,
                r#""slow_consumers":0}"#,
            )
        );
    }

    #[test]
    fn a_refusal_has_no_data() {
        let bytes = system_error(&ServerInfo::default(), 400, "unexpected end of JSON input");
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.ends_with(r#","error":{"code":400,"description":"unexpected end of JSON input"}}"#),
            "{text}"
        );
        assert!(!text.contains("data"));
    }
}
