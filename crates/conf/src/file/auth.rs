//! The `authorization` block, users and permissions.

use std::sync::Arc;

use tidelock_auth::{
    ConnectionType, ConnectionTypes, Password, Permissions, PermissionsSpec, Responses, SubjectRules,
};

use super::{AuthSettings, Seen, UserSettings};
use crate::read::Reader;
use crate::value::{Entry, Map, Node, Value};

/// Reads `authorization`.
pub(super) fn authorization(entry: &Entry, seen: &mut Seen, reader: &mut Reader) -> Option<AuthSettings> {
    let map = reader.map(&entry.node)?;
    let mut auth = AuthSettings::default();
    let mut has_users = false;
    for entry in map.entries() {
        let node = &entry.node;
        match entry.key.to_ascii_lowercase().as_str() {
            "user" | "username" => auth.user = reader.text_if_any(node),
            "pass" | "password" => auth.password = reader.text_if_any(node).map(Password::new),
            "token" => auth.token = reader.text_if_any(node).map(Password::new),
            "timeout" => auth.timeout = reader.time_limit(entry),
            "users" => {
                auth.users = users(node, seen, reader);
                has_users = true;
            }
            "default_permission" | "default_permissions" | "permissions" => {
                auth.permissions = permissions(node, reader);
            }
            "auth_callout" | "auth_hook" => reader.unsupported(entry),
            "proxy_required" => reader.unsupported_unless_off(entry),
            _ => reader.unknown(entry),
        }
    }
    let at = &entry.node.at;
    let single = auth.user.is_some() || auth.password.is_some();
    if single && auth.token.is_some() {
        reader.problem(at, "Cannot have a user/pass and token");
    } else if single && has_users {
        reader.problem(at, "Can not have a single user/pass and a users array");
    } else if auth.token.is_some() && has_users {
        reader.problem(at, "Can not have a token and a users array");
    } else if single && auth.user.is_none() {
        // nats-server starts without any authentication here.
        reader.problem(at, "a password needs a user");
    }
    Some(auth)
}

/// Reads a list of users.
pub(super) fn users(node: &Node, seen: &mut Seen, reader: &mut Reader) -> Vec<UserSettings> {
    let Some(nodes) = reader.users(node) else {
        return Vec::new();
    };
    nodes.iter().filter_map(|node| user(node, seen, reader)).collect()
}

fn user(node: &Node, seen: &mut Seen, reader: &mut Reader) -> Option<UserSettings> {
    let map = reader.map(node)?;
    let mut name = None;
    let mut password = Password::new("");
    let mut own_permissions = None;
    let mut connection_types = ConnectionTypes::ALL;
    let mut refused = false;
    for entry in map.entries() {
        let node = &entry.node;
        match entry.key.to_ascii_lowercase().as_str() {
            "user" | "username" => name = reader.text_if_any(node),
            "pass" | "password" => password = Password::new(reader.text(node).unwrap_or_default()),
            "permission" | "permissions" | "authorization" => own_permissions = permissions(node, reader),
            "allowed_connection_types" | "connection_types" | "clients" => {
                connection_types = self::connection_types(node, reader);
            }
            "nkey" => {
                reader.unsupported(entry);
                refused = true;
            }
            "proxy_required" => reader.unsupported_unless_off(entry),
            _ => reader.unknown(entry),
        }
    }
    let Some(name) = name else {
        if !refused {
            reader.problem(&node.at, "User entry requires a user");
        }
        return None;
    };
    if !seen.users.insert(name.clone()) {
        reader.problem(&node.at, format!("Duplicate user {name:?} detected"));
        return None;
    }
    Some(UserSettings {
        name,
        password,
        permissions: own_permissions,
        connection_types,
    })
}

fn connection_types(node: &Node, reader: &mut Reader) -> ConnectionTypes {
    let mut types = ConnectionTypes::NONE;
    let mut unknown = Vec::new();
    for (name, _) in reader.texts(node) {
        match ConnectionType::parse(&name) {
            Some(kind) => types = types.with(kind),
            None => unknown.push(name.to_ascii_uppercase()),
        }
    }
    if !unknown.is_empty() {
        reader.problem(&node.at, format!("invalid connection types {unknown:?}"));
    }
    if types == ConnectionTypes::NONE {
        ConnectionTypes::ALL
    } else {
        types
    }
}

/// Reads a permissions map.
pub(super) fn permissions(node: &Node, reader: &mut Reader) -> Option<Arc<Permissions>> {
    let map = reader.map(node)?;
    let mut spec = PermissionsSpec::default();
    for entry in map.entries() {
        match entry.key.to_ascii_lowercase().as_str() {
            "pub" | "publish" | "import" => spec.publish = rules(entry, reader),
            "sub" | "subscribe" | "export" => spec.subscribe = rules(entry, reader),
            "publish_allow_responses" | "allow_responses" => spec.responses = responses(entry, reader),
            _ if entry.used_as_variable => {}
            _ => reader.problem(
                &entry.node.at,
                format!("Unknown field {:?} parsing permissions", entry.key),
            ),
        }
    }
    match Permissions::new(spec) {
        Ok(permissions) => Some(Arc::new(permissions)),
        Err(error) => {
            reader.problem(&node.at, error.to_string());
            None
        }
    }
}

/// One subject, a list of subjects, or a map of `allow` and `deny`.
fn rules(entry: &Entry, reader: &mut Reader) -> Option<SubjectRules> {
    let Value::Map(map) = &entry.node.value else {
        return Some(SubjectRules {
            allow: Some(subjects(&entry.node, reader)),
            deny: Vec::new(),
        });
    };
    Some(allow_and_deny(map, reader))
}

fn allow_and_deny(map: &Map, reader: &mut Reader) -> SubjectRules {
    let mut rules = SubjectRules::default();
    for entry in map.entries() {
        match entry.key.to_ascii_lowercase().as_str() {
            "allow" => rules.allow = Some(subjects(&entry.node, reader)),
            "deny" => rules.deny = subjects(&entry.node, reader),
            _ if entry.used_as_variable => {}
            _ => {
                let reason = format!(
                    "Unknown field name {:?} parsing subject permissions, only 'allow' or 'deny' are permitted",
                    entry.key
                );
                reader.problem(&entry.node.at, reason);
            }
        }
    }
    rules
}

fn subjects(node: &Node, reader: &mut Reader) -> Vec<String> {
    reader
        .texts(node)
        .into_iter()
        .map(|(subject, _)| subject)
        .collect()
}

fn responses(entry: &Entry, reader: &mut Reader) -> Option<Responses> {
    let map = match &entry.node.value {
        Value::Bool(allowed) => return allowed.then(Responses::default),
        Value::Map(map) => map,
        _ => {
            let reason = "error parsing response permissions, expected a boolean or a map";
            reader.problem(&entry.node.at, reason);
            return None;
        }
    };
    let mut responses = Responses::default();
    for entry in map.entries() {
        match entry.key.to_ascii_lowercase().as_str() {
            "max" | "max_msgs" | "max_messages" | "max_responses" => {
                // Zero means the default, a negative number no limit.
                if let Some(max) = reader.integer(&entry.node).filter(|max| *max != 0) {
                    responses.max = max;
                }
            }
            "expires" | "expiration" | "ttl" => {
                if let Some(nanos) = reader.strict_nanos(entry).filter(|nanos| *nanos != 0) {
                    responses.expires_ns = nanos;
                }
            }
            _ if entry.used_as_variable => {}
            _ => reader.problem(
                &entry.node.at,
                format!("Unknown field {:?} parsing permissions", entry.key),
            ),
        }
    }
    Some(responses)
}
