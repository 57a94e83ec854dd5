//! The keys of the top level.

use std::time::Duration;

use super::{Seen, Settings, accounts, auth, cluster, jetstream};
use crate::duration;
use crate::read::Reader;
use crate::value::{Entry, Value};

/// Keys of nats-server that Tidelock does not have yet.
const UNSUPPORTED: &[&str] = &[
    "account_resolver",
    "accounts_resolver",
    "default_js_domain",
    "default_sentinel",
    "feature_flags",
    "gateway",
    "leaf",
    "leafnodes",
    "mappings",
    "maps",
    "mqtt",
    "ocsp_cache",
    "operator",
    "operators",
    "proxies",
    "remote_syslog",
    "resolver",
    "resolver_pinned_accounts",
    "resolver_preload",
    "resolver_tls",
    "root",
    "root_operator",
    "root_operators",
    "roots",
    "tls",
    "trusted",
    "trusted_keys",
    "websocket",
    "ws",
];

/// The same for switches and numbers that may be given as off.
const UNSUPPORTED_UNLESS_OFF: &[&str] = &[
    "disable_sublist_cache",
    "https",
    "https_port",
    "no_fast_producer_stall",
    "no_header_support",
    "no_sublist_cache",
    "ocsp",
    "prof_block_rate",
    "prof_port",
    "proxy_protocol",
    "syslog",
];

/// Reads one key of the top level.
pub(super) fn entry(settings: &mut Settings, entry: &Entry, seen: &mut Seen, reader: &mut Reader) {
    let key = entry.key.to_ascii_lowercase();
    let key = key.as_str();
    let known = network(settings, key, entry, reader)
        || logging(settings, key, entry, reader)
        || limits(settings, key, entry, reader)
        || timing(settings, key, entry, reader)
        || blocks(settings, key, entry, seen, reader);
    if known {
        return;
    }
    if UNSUPPORTED.contains(&key) {
        reader.unsupported(entry);
    } else if UNSUPPORTED_UNLESS_OFF.contains(&key) {
        reader.unsupported_unless_off(entry);
    } else {
        reader.unknown(entry);
    }
}

fn network(settings: &mut Settings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let node = &entry.node;
    match key {
        "listen" => {
            let (host, port) = reader.listen(node);
            settings.host = host.or_else(|| settings.host.take());
            settings.port = port.or(settings.port);
        }
        "host" | "net" => settings.host = reader.text_if_any(node),
        "port" => settings.port = reader.port(node),
        "client_advertise" => settings.client_advertise = reader.advertise(node),
        "server_name" => {
            if let Some(name) = reader.text_if_any(node) {
                if name.contains(' ') {
                    reader.problem(&node.at, "server name cannot contain spaces");
                }
                settings.server_name = Some(name);
            }
        }
        "server_tags" => {
            settings.server_tags.clear();
            for (tag, _) in reader.tags(node) {
                let tag = tag.trim().to_lowercase();
                if !tag.is_empty() && !settings.server_tags.contains(&tag) {
                    settings.server_tags.push(tag);
                }
            }
        }
        "server_metadata" => settings.server_metadata = reader.text_map(node),
        "http" => {
            let (host, port) = reader.listen(node);
            settings.http_host = host.or_else(|| settings.http_host.take());
            settings.http_port = port.or(settings.http_port);
        }
        "http_port" | "monitor_port" => settings.http_port = reader.port(node),
        "http_base_path" => settings.http_base_path = reader.text_if_any(node),
        "pidfile" | "pid_file" => settings.pid_file = reader.text_if_any(node),
        "ports_file_dir" => settings.ports_file_dir = reader.text_if_any(node),
        // Only TLS gives this a meaning: without it, all clients may do without it.
        "allow_non_tls" => _ = reader.bool(node),
        _ => return false,
    }
    true
}

fn logging(settings: &mut Settings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let node = &entry.node;
    let log = &mut settings.log;
    match key {
        "debug" => log.debug = reader.bool(node).unwrap_or(log.debug),
        "trace" => log.trace = reader.bool(node).unwrap_or(log.trace),
        "trace_verbose" => {
            log.trace_verbose = reader.bool(node).unwrap_or(log.trace_verbose);
            log.trace |= log.trace_verbose;
        }
        "trace_headers" => {
            log.trace_headers = reader.bool(node).unwrap_or(log.trace_headers);
            log.trace |= log.trace_headers;
        }
        "logtime" => log.time = reader.bool(node).unwrap_or(log.time),
        "logtime_utc" => log.utc = reader.bool(node).unwrap_or(log.utc),
        "logfile" | "log_file" => log.file = reader.text_if_any(node),
        "logfile_size_limit" | "log_size_limit" => {
            log.size_limit = reader.number(entry).unwrap_or(log.size_limit);
        }
        "logfile_max_num" | "log_max_num" => log.max_files = reader.number(entry).unwrap_or(log.max_files),
        "max_traced_msg_len" => {
            log.max_traced_msg_len = reader.number(entry).unwrap_or(log.max_traced_msg_len);
        }
        _ => return false,
    }
    true
}

fn limits(settings: &mut Settings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let defaults = crate::options::ConnectionLimits::default();
    let limits = &mut settings.limits;
    match key {
        "max_connections" | "max_conn" => {
            limits.max_connections = reader.unlimited_if_not_positive(entry, limits.max_connections);
        }
        "max_subscriptions" | "max_subs" => {
            limits.max_subscriptions = reader.unlimited_if_not_positive(entry, limits.max_subscriptions);
        }
        "max_subscription_tokens" | "max_sub_tokens" => match reader.number(entry) {
            Some(0) => reader.problem(&entry.node.at, format!("{} value can not be negative", entry.key)),
            value => limits.max_subscription_tokens = value,
        },
        "max_control_line" => limits.max_control_line = reader.size32(entry, defaults.max_control_line),
        "max_payload" => limits.max_payload = reader.size32(entry, defaults.max_payload),
        "max_pending" => {
            let value = reader.integer(&entry.node).unwrap_or(0);
            settings.negative_max_pending = Some(value).filter(|value| *value < 0);
            let value = u64::try_from(value).unwrap_or(0);
            limits.max_pending = if value > 0 { value } else { defaults.max_pending };
        }
        "max_closed_clients" => {
            limits.max_closed_clients = reader.number_or(entry, defaults.max_closed_clients);
        }
        _ => return false,
    }
    true
}

fn timing(settings: &mut Settings, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    match key {
        "ping_interval" => settings.ping_interval = reader.duration(entry),
        "ping_max" => settings.ping_max = reader.number(entry).filter(|max| *max > 0),
        "write_deadline" => settings.write_deadline = reader.duration(entry),
        "write_timeout" => write_timeout(entry, &["default", "close"], reader),
        "lame_duck_duration" => {
            if let Some(value) = reader.strict_duration(entry) {
                if value < Duration::from_secs(30) {
                    let shown = duration::show(value);
                    let reason = format!("invalid lame_duck_duration of {shown}, minimum is 30 seconds");
                    reader.problem(&entry.node.at, reason);
                }
                settings.lame_duck_duration = Some(value);
            }
        }
        "lame_duck_grace_period" => {
            settings.lame_duck_grace_period = reader.strict_duration(entry).filter(|grace| !grace.is_zero());
        }
        "connect_error_reports" => {
            settings.connect_error_reports = reader.number(entry).filter(|every| *every > 0);
        }
        "reconnect_error_reports" => {
            settings.reconnect_error_reports = reader.number(entry).filter(|every| *every > 0);
        }
        _ => return false,
    }
    true
}

/// `write_timeout` says what happens when a write is stuck: only nats-server's usual way is there, which is to close
/// clients and to go on with peers.
pub(super) fn write_timeout(entry: &Entry, there: &[&str], reader: &mut Reader) {
    let Some(policy) = reader.text(&entry.node) else {
        return;
    };
    if !matches!(policy.as_str(), "default" | "close" | "retry") {
        reader.problem(
            &entry.node.at,
            "write_timeout must be 'default', 'close' or 'retry'",
        );
    } else if !there.contains(&policy.as_str()) {
        let reason = format!("write_timeout {policy:?} is not supported by this version of Tidelock yet");
        reader.problem(&entry.node.at, reason);
    }
}

fn blocks(settings: &mut Settings, key: &str, entry: &Entry, seen: &mut Seen, reader: &mut Reader) -> bool {
    let node = &entry.node;
    match key {
        "authorization" => settings.auth = auth::authorization(entry, seen, reader),
        "accounts" => settings.accounts = accounts::accounts(entry, seen, reader),
        "no_auth_user" => settings.no_auth_user = reader.text_if_any(node),
        "system_account" | "system" => {
            if !matches!(node.value, Value::Text(_)) {
                reader.problem(&node.at, "system account name must be a string");
                return true;
            }
            settings.system_account = reader.text_if_any(node);
        }
        "no_system_account" | "no_system" | "no_sys_acc" => {
            settings.no_system_account = reader.bool(node).unwrap_or(false);
        }
        "cluster" => cluster::cluster(&mut settings.cluster, entry, reader),
        "jetstream" => jetstream::jetstream(settings, entry, reader),
        "store_dir" | "storedir" => {
            settings.store_dir = reader.text_if_any(node);
            jetstream::check_store_dir(settings, entry, reader);
        }
        _ => return false,
    }
    true
}
