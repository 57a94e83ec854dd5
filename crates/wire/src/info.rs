//! The INFO message: what the server says about itself to a client.

use serde::Serialize;

/// Fields of INFO on a client connection, in the order in which nats-server sends them. What is empty, zero or false
/// and optional is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Public nkey of the server.
    pub server_id: String,
    /// Configured name, or the id.
    pub server_name: String,
    /// The compatible nats-server version; clients gate features on it.
    pub version: String,
    /// Protocol level of the port: 1.
    pub proto: i32,
    /// Short commit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub git_commit: String,
    /// Version of the language runtime; always there.
    pub go: String,
    /// Host that is listened on or advertised.
    pub host: String,
    /// Port that is listened on or advertised.
    pub port: u16,
    /// Whether the server takes headers.
    pub headers: bool,
    /// Whether CONNECT must carry credentials.
    #[serde(skip_serializing_if = "is_false")]
    pub auth_required: bool,
    /// Whether TLS is required.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_required: bool,
    /// Whether a client certificate is required.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_verify: bool,
    /// Whether TLS is possible but not required.
    #[serde(skip_serializing_if = "is_false")]
    pub tls_available: bool,
    /// Largest header and payload of a publish, in bytes.
    pub max_payload: i64,
    /// Whether JetStream is on.
    #[serde(skip_serializing_if = "is_false")]
    pub jetstream: bool,
    /// The connection's id.
    #[serde(skip_serializing_if = "is_zero")]
    pub client_id: u64,
    /// The client's address as the server sees it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip: String,
    /// What an nkey or JWT user has to sign.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Whether that name was made up.
    #[serde(skip_serializing_if = "is_false")]
    pub cluster_dynamic: bool,
    /// JetStream domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// `host:port` of the servers that a client may connect to, this one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_urls: Vec<String>,
    /// The same for WebSocket clients.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ws_connect_urls: Vec<String>,
    /// Whether the server is about to stop.
    #[serde(rename = "ldm", skip_serializing_if = "is_false")]
    pub lame_duck_mode: bool,
    /// Whether this INFO answers CONNECT (it follows the first PONG).
    #[serde(skip_serializing_if = "is_false")]
    pub connect_info: bool,
    /// Account that the connection is bound to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_account: String,
    /// Whether that is the system account.
    #[serde(skip_serializing_if = "is_false")]
    pub acc_is_sys: bool,
    /// Level of the JetStream API (ADR-44).
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub api_lvl: u32,
    /// Public curve key of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub xkey: String,
    /// Tidelock's own version; not a field of nats-server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tidelock: String,
}

impl Info {
    /// Appends the whole line: `INFO {json} \r\n`. The space before the line's end is nats-server's.
    #[expect(
        clippy::missing_panics_doc,
        reason = "strings, numbers and booleans always serialise into memory"
    )]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"INFO ");
        serde_json::to_writer(&mut *out, self).expect("plain fields serialise into memory");
        out.extend_from_slice(b" \r\n");
    }

    /// The whole line.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = Vec::with_capacity(512);
        self.write(&mut line);
        line
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
const fn is_false(b: &bool) -> bool {
    !*b
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
const fn is_zero_u32(n: &u32) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_plain_server() {
        let info = Info {
            server_id: "NX".into(),
            server_name: "n1".into(),
            version: "2.15.1".into(),
            proto: 1,
            go: "go1.27.2".into(),
            host: "127.0.0.1".into(),
            port: 4222,
            headers: true,
            max_payload: 1_048_576,
            client_id: 5,
            client_ip: "127.0.0.1".into(),
            connect_info: true,
            remote_account: "$G".into(),
            api_lvl: 5,
            ..Info::default()
        };
        let expected = concat!(
            r#"INFO {"server_id":"NX","server_name":"n1","version":"2.15.1","proto":1,"go":"go1.27.2","#,
            r#""host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"client_id":5,"#,
            r#""client_ip":"127.0.0.1","connect_info":true,"remote_account":"$G","api_lvl":5}"#,
            " \r\n"
        );
        assert_eq!(String::from_utf8(info.to_line()).unwrap(), expected);
    }
}
