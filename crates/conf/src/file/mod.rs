//! A file's tree, read into the settings it makes. Nothing is checked here but each value for itself; what concerns
//! several keys is checked when flags are worked in.

mod accounts;
mod auth;
mod cluster;
mod jetstream;
mod top;

pub(crate) use cluster::route;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidelock_auth::{AccountLimits, ConnectionTypes, Password, Permissions};

use crate::options::{Advertise, ConnectionLimits, JetStreamLimits, JetStreamOptions, LogOptions, RouteUrl};
use crate::read::Reader;
use crate::value::Map;

/// Settings as they are given; `None` where the default holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) server_name: Option<String>,
    pub(crate) server_tags: Vec<String>,
    pub(crate) server_metadata: BTreeMap<String, String>,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) client_advertise: Option<Advertise>,
    pub(crate) http_host: Option<String>,
    pub(crate) http_port: Option<u16>,
    pub(crate) http_base_path: Option<String>,
    pub(crate) log: LogOptions,
    pub(crate) pid_file: Option<String>,
    pub(crate) ports_file_dir: Option<String>,
    pub(crate) limits: ConnectionLimits,
    /// A `max_pending` below zero, which no server starts with.
    pub(crate) negative_max_pending: Option<i64>,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_max: Option<u32>,
    pub(crate) write_deadline: Option<Duration>,
    pub(crate) lame_duck_duration: Option<Duration>,
    pub(crate) lame_duck_grace_period: Option<Duration>,
    pub(crate) connect_error_reports: Option<u32>,
    pub(crate) reconnect_error_reports: Option<u32>,
    pub(crate) auth: Option<AuthSettings>,
    pub(crate) accounts: Vec<AccountSettings>,
    pub(crate) no_auth_user: Option<String>,
    pub(crate) system_account: Option<String>,
    pub(crate) no_system_account: bool,
    pub(crate) cluster: ClusterSettings,
    pub(crate) jetstream: JetStreamSettings,
    /// `store_dir` outside of the `jetstream` block.
    pub(crate) store_dir: Option<String>,
}

/// The `authorization` block.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthSettings {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) token: Option<Password>,
    pub(crate) users: Vec<UserSettings>,
    pub(crate) permissions: Option<Arc<Permissions>>,
    pub(crate) timeout: Option<Duration>,
}

/// A user.
#[derive(Clone, Debug)]
pub(crate) struct UserSettings {
    pub(crate) name: String,
    pub(crate) password: Password,
    pub(crate) permissions: Option<Arc<Permissions>>,
    pub(crate) connection_types: ConnectionTypes,
}

/// An account.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountSettings {
    pub(crate) name: String,
    pub(crate) users: Vec<UserSettings>,
    pub(crate) permissions: Option<Arc<Permissions>>,
    pub(crate) limits: AccountLimits,
    pub(crate) jetstream: Option<JetStreamLimits>,
}

/// The `cluster` block.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterSettings {
    pub(crate) name: Option<String>,
    pub(crate) host: Option<String>,
    /// `None`: the server does not listen for routes, so that it is in no cluster.
    pub(crate) port: Option<u16>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) auth_timeout: Option<Duration>,
    pub(crate) routes: Vec<RouteUrl>,
    pub(crate) advertise: Option<Advertise>,
    pub(crate) no_advertise: bool,
    pub(crate) pool_size: Option<u32>,
    pub(crate) connect_retries: u32,
    pub(crate) connect_backoff: bool,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_max: Option<u32>,
    pub(crate) write_deadline: Option<Duration>,
}

/// The `jetstream` block.
#[derive(Clone, Debug, Default)]
pub(crate) struct JetStreamSettings {
    pub(crate) enabled: bool,
    pub(crate) options: JetStreamOptions,
}

/// Names that must not come twice, over all parts of the file.
#[derive(Debug, Default)]
struct Seen {
    users: BTreeSet<String>,
}

/// Reads a whole file.
pub(crate) fn read(map: &Map, reader: &mut Reader) -> Settings {
    let mut settings = Settings::default();
    let mut seen = Seen::default();
    for entry in map.entries() {
        top::entry(&mut settings, entry, &mut seen, reader);
    }
    accounts::check_single_user(map, &settings, reader);
    settings
}
