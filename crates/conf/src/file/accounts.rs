//! The `accounts` block.

use tidelock_auth::{AccountLimits, GLOBAL_ACCOUNT};

use super::{AccountSettings, Seen, Settings, auth};
use crate::options::JetStreamLimits;
use crate::read::Reader;
use crate::value::{Entry, Map, Node, Value};

/// Reads `accounts`: a list of names, or a map from names to what they are.
pub(super) fn accounts(entry: &Entry, seen: &mut Seen, reader: &mut Reader) -> Vec<AccountSettings> {
    let mut accounts = Vec::new();
    match &entry.node.value {
        Value::Array(nodes) => {
            for node in nodes {
                let Some(name) = reader.text(node) else { continue };
                let account = AccountSettings {
                    name,
                    ..AccountSettings::default()
                };
                if accounts
                    .iter()
                    .any(|known: &AccountSettings| known.name == account.name)
                {
                    reader.problem(&node.at, format!("Duplicate Account Entry: {}", account.name));
                } else {
                    add(&mut accounts, account, node, reader);
                }
            }
        }
        Value::Map(map) => {
            for entry in map.entries() {
                if let Some(account) = account(entry, seen, reader) {
                    add(&mut accounts, account, &entry.node, reader);
                }
            }
        }
        other => {
            let reason = format!("expected an array or a map, got {}", other.kind());
            reader.problem(&entry.node.at, reason);
        }
    }
    accounts
}

fn add(accounts: &mut Vec<AccountSettings>, account: AccountSettings, node: &Node, reader: &mut Reader) {
    if account.name == GLOBAL_ACCOUNT {
        reader.problem(&node.at, format!("{GLOBAL_ACCOUNT:?} is a Reserved Account"));
    } else if account.name.is_empty() {
        reader.problem(&node.at, "an account needs a name");
    } else {
        accounts.push(account);
    }
}

fn account(entry: &Entry, seen: &mut Seen, reader: &mut Reader) -> Option<AccountSettings> {
    let Value::Map(map) = &entry.node.value else {
        if !entry.used_as_variable {
            reader.problem(&entry.node.at, "Expected map entries for accounts");
        }
        return None;
    };
    let mut account = AccountSettings {
        name: entry.key.clone(),
        ..AccountSettings::default()
    };
    for entry in map.entries() {
        let node = &entry.node;
        match entry.key.to_ascii_lowercase().as_str() {
            "users" => account.users = auth::users(node, seen, reader),
            "default_permissions" => account.permissions = auth::permissions(node, reader),
            "limits" => limits(&mut account.limits, node, reader),
            "jetstream" => account.jetstream = jetstream(node, reader),
            "nkey" | "exports" | "imports" | "mappings" | "maps" | "msg_trace" | "trace_dest" => {
                reader.unsupported(entry);
            }
            _ => reader.unknown(entry),
        }
    }
    Some(account)
}

fn limits(limits: &mut AccountLimits, node: &Node, reader: &mut Reader) {
    let Some(map) = reader.map(node) else { return };
    for entry in map.entries() {
        let limit = match entry.key.to_ascii_lowercase().as_str() {
            "max_connections" | "max_conn" => &mut limits.max_connections,
            "max_subscriptions" | "max_subs" => &mut limits.max_subscriptions,
            "max_payload" | "max_pay" => &mut limits.max_payload,
            "max_leafnodes" | "max_leafs" => &mut limits.max_leafnodes,
            _ if entry.used_as_variable => continue,
            _ => {
                let reason = format!("Unknown field {:?} parsing account limits", entry.key);
                reader.problem(&entry.node.at, reason);
                continue;
            }
        };
        *limit = reader.integer(&entry.node).unwrap_or(-1);
    }
}

fn jetstream(node: &Node, reader: &mut Reader) -> Option<JetStreamLimits> {
    let map = match &node.value {
        Value::Bool(enabled) => return enabled.then(JetStreamLimits::default),
        Value::Text(word) => match word.to_ascii_lowercase().as_str() {
            "enabled" | "enable" => return Some(JetStreamLimits::default()),
            "disabled" | "disable" => return None,
            _ => {
                let reason = format!("Expected 'enabled' or 'disabled' for string value, got '{word}'");
                reader.problem(&node.at, reason);
                return None;
            }
        },
        Value::Map(map) => map,
        other => {
            let reason = format!(
                "Expected map, bool or string to define JetStream, got {}",
                other.type_name()
            );
            reader.problem(&node.at, reason);
            return None;
        }
    };
    Some(jetstream_limits(map, reader))
}

fn jetstream_limits(map: &Map, reader: &mut Reader) -> JetStreamLimits {
    let mut limits = JetStreamLimits::default();
    for entry in map.entries() {
        let limit = match entry.key.to_ascii_lowercase().as_str() {
            "max_memory" | "max_mem" | "mem" | "memory" => &mut limits.max_memory,
            "max_store" | "max_file" | "max_disk" | "store" | "disk" => &mut limits.max_store,
            "max_streams" | "streams" => &mut limits.max_streams,
            "max_consumers" | "consumers" => &mut limits.max_consumers,
            "max_ack_pending" => &mut limits.max_ack_pending,
            "mem_max_stream_bytes" | "memory_max_stream_bytes" => &mut limits.mem_max_stream_bytes,
            "disk_max_stream_bytes" | "store_max_stream_bytes" => &mut limits.disk_max_stream_bytes,
            "max_bytes_required" | "max_stream_bytes" | "max_bytes" => {
                limits.max_bytes_required = reader.bool(&entry.node).unwrap_or(false);
                continue;
            }
            "cluster_traffic" => {
                cluster_traffic(entry, reader);
                continue;
            }
            _ => {
                reader.unknown(entry);
                continue;
            }
        };
        *limit = match entry.node.value {
            Value::Integer(value) => value,
            _ => {
                let reason = format!("Expected a parseable size for {:?}", entry.key);
                reader.problem(&entry.node.at, reason);
                -1
            }
        };
    }
    limits
}

/// The account whose connections replication uses: only the system account's is there.
fn cluster_traffic(entry: &Entry, reader: &mut Reader) {
    let Some(account) = reader.text(&entry.node) else {
        return;
    };
    match account.as_str() {
        "system" | "" => {}
        "owner" => {
            let reason = "cluster_traffic \"owner\" is not supported by this version of Tidelock yet";
            reader.problem(&entry.node.at, reason);
        }
        other => {
            let reason =
                format!("Expected 'system' or 'owner' string value for \"cluster_traffic\", got {other}");
            reader.problem(&entry.node.at, reason);
        }
    }
}

/// A single user or token, and users in accounts, exclude one another.
pub(super) fn check_single_user(map: &Map, settings: &Settings, reader: &mut Reader) {
    let Some(auth) = &settings.auth else { return };
    let in_accounts = settings.accounts.iter().any(|account| !account.users.is_empty());
    let accounts = map
        .entries()
        .iter()
        .find(|entry| entry.key.eq_ignore_ascii_case("accounts"));
    let Some(at) = accounts.map(|entry| &entry.node.at).filter(|_| in_accounts) else {
        return;
    };
    if auth.user.is_some() {
        reader.problem(at, "Can not have a single user/pass and accounts");
    } else if auth.token.is_some() {
        reader.problem(at, "Can not have a token and accounts");
    }
}
