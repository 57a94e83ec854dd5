//! The `cluster` block.

use tidelock_auth::Password;

use super::{ClusterSettings, top};
use crate::options::{RouteCredentials, RouteUrl};
use crate::read::{Reader, parse_url};
use crate::value::{Entry, Node, Value};

/// The port of a route whose URL has none.
pub(crate) const ROUTE_PORT: u16 = 6222;

/// Compression modes that come to none here: the link between servers is Tidelock's own.
const UNCOMPRESSED: &[&str] = &["accept", "off", "disabled", "not supported", "false"];
const COMPRESSED: &[&str] = &[
    "on",
    "enabled",
    "true",
    "s2_fast",
    "fast",
    "s2_better",
    "better",
    "s2_best",
    "best",
    "s2_auto",
    "auto",
];

/// Reads `cluster`.
pub(super) fn cluster(cluster: &mut ClusterSettings, entry: &Entry, reader: &mut Reader) {
    let Value::Map(map) = &entry.node.value else {
        let got = entry.node.value.type_name();
        return reader.problem(
            &entry.node.at,
            format!("Expected map to define cluster, got {got}"),
        );
    };
    for entry in map.entries() {
        let key = entry.key.to_ascii_lowercase();
        if !addresses(cluster, &key, entry, reader) && !behaviour(cluster, &key, entry, reader) {
            match key.as_str() {
                "tls" | "permissions" | "accounts" => reader.unsupported(entry),
                "compression" => compression(&entry.node, reader),
                _ => reader.unknown(entry),
            }
        }
    }
}

fn addresses(cluster: &mut ClusterSettings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let node = &entry.node;
    match key {
        "name" => {
            cluster.name = reader.text_if_any(node);
            if cluster.name.as_ref().is_some_and(|name| name.contains(' ')) {
                reader.problem(&node.at, "cluster name cannot contain spaces");
            }
        }
        "listen" => {
            let (host, port) = reader.listen(node);
            cluster.host = host.or_else(|| cluster.host.take());
            cluster.port = port.or(cluster.port);
        }
        "host" | "net" => cluster.host = reader.text_if_any(node),
        "port" => cluster.port = reader.port(node),
        "authorization" => authorization(cluster, entry, reader),
        "routes" => cluster.routes = routes(node, reader),
        "advertise" | "cluster_advertise" => cluster.advertise = reader.advertise(node),
        "no_advertise" => cluster.no_advertise = reader.bool(node).unwrap_or(false),
        _ => return false,
    }
    true
}

fn behaviour(cluster: &mut ClusterSettings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    match key {
        "pool_size" => {
            // A negative size turns pooling off, which leaves one connection.
            if let Some(size) = reader.integer(&entry.node) {
                match u32::try_from(size.max(-1)) {
                    Ok(0) => cluster.pool_size = None,
                    Ok(size) => cluster.pool_size = Some(size),
                    Err(_) if size < 0 => cluster.pool_size = Some(1),
                    Err(_) => reader.problem(&entry.node.at, "pool_size value is too big"),
                }
            }
        }
        "connect_retries" => cluster.connect_retries = reader.number(entry).unwrap_or(0),
        "connect_backoff" => cluster.connect_backoff = reader.bool(&entry.node).unwrap_or(false),
        "ping_interval" => cluster.ping_interval = reader.duration(entry),
        "ping_max" => cluster.ping_max = reader.number(entry).filter(|max| *max > 0),
        "write_deadline" => cluster.write_deadline = reader.duration(entry),
        "write_timeout" => top::write_timeout(entry, &["default", "retry"], reader),
        _ => return false,
    }
    true
}

fn authorization(cluster: &mut ClusterSettings, entry: &Entry, reader: &mut Reader) {
    let Some(map) = reader.map(&entry.node) else {
        return;
    };
    for entry in map.entries() {
        let node = &entry.node;
        match entry.key.to_ascii_lowercase().as_str() {
            "user" | "username" => cluster.user = reader.text_if_any(node),
            "pass" | "password" => cluster.password = reader.text_if_any(node).map(Password::new),
            "timeout" => cluster.auth_timeout = reader.time_limit(entry),
            "users" => reader.problem(&node.at, "Cluster authorization does not allow multiple users"),
            "token" => reader.problem(&node.at, "Cluster authorization does not support tokens"),
            "auth_callout" | "auth_hook" => {
                reader.problem(&node.at, "Cluster authorization does not support callouts");
            }
            "default_permission" | "default_permissions" | "permissions" => reader.unsupported(entry),
            "proxy_required" => reader.unsupported_unless_off(entry),
            _ => reader.unknown(entry),
        }
    }
}

fn routes(node: &Node, reader: &mut Reader) -> Vec<RouteUrl> {
    let mut routes: Vec<RouteUrl> = Vec::new();
    let Some(nodes) = reader.array(node) else {
        return routes;
    };
    for node in nodes {
        let Some(url) = reader.text(node) else { continue };
        match route(&url) {
            // Without the URL: it may hold a password.
            Err(reason) => reader.problem(&node.at, format!("error parsing route url: {reason}")),
            Ok(route) if routes.contains(&route) => {
                reader.warning(&node.at, "routes", "Duplicate route entry detected");
            }
            Ok(route) => routes.push(route),
        }
    }
    routes
}

/// Parses a route's URL.
pub(crate) fn route(url: &str) -> Result<RouteUrl, String> {
    let url = parse_url(url)?;
    let address = url.address(ROUTE_PORT);
    if address.port == 0 {
        return Err("expected a port to connect to".to_owned());
    }
    let password = Password::new(url.password.unwrap_or_default());
    let credentials = url.user.map(|user| RouteCredentials { user, password });
    Ok(RouteUrl { address, credentials })
}

/// A mode, or a map with a mode and thresholds, which only a mode that is not there would look at.
fn compression(node: &Node, reader: &mut Reader) {
    let mode = match &node.value {
        Value::Bool(on) => on.to_string(),
        Value::Text(mode) => mode.to_ascii_lowercase(),
        Value::Map(map) => {
            for entry in map.entries() {
                match entry.key.to_ascii_lowercase().as_str() {
                    "mode" if !matches!(entry.node.value, Value::Map(_)) => compression(&entry.node, reader),
                    "rtt_thresholds" | "thresholds" | "rtts" | "rtt" => _ = reader.array(&entry.node),
                    _ => reader.unknown(entry),
                }
            }
            return;
        }
        other => {
            reader.problem(
                &node.at,
                format!("expected a compression mode, got {}", other.kind()),
            );
            return;
        }
    };
    if COMPRESSED.contains(&mode.as_str()) {
        let reason = format!("compression {mode:?} is not supported by this version of Tidelock yet");
        reader.problem(&node.at, reason);
    } else if !UNCOMPRESSED.contains(&mode.as_str()) {
        reader.problem(&node.at, format!("unsupported compression mode {mode:?}"));
    }
}
