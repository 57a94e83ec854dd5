//! `/accountz` and `/accstatz`: accounts.

use super::SublistStats;
use crate::Time;
use crate::event::AccountStat;
use crate::json::is_zero;
use serde::Serialize;
use std::collections::BTreeMap;

/// Names of the accounts, or one of them in detail.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Accountz {
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// Name of the system account.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_account: String,
    /// The names.
    #[serde(skip_serializing_if = "is_zero")]
    pub accounts: Vec<String>,
    /// The account that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_detail: Option<AccountDetail>,
}

/// One account.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccountDetail {
    /// Its name.
    pub account_name: String,
    /// When it was last read.
    pub update_time: Time,
    /// It is the system account.
    #[serde(skip_serializing_if = "is_zero")]
    pub is_system: bool,
    /// Its JWT expired.
    pub expired: bool,
    /// All its imports are resolved.
    pub complete: bool,
    /// It has JetStream.
    pub jetstream_enabled: bool,
    /// Leafnodes.
    pub leafnode_connections: u64,
    /// Clients.
    pub client_connections: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Subject mappings.
    #[serde(skip_serializing_if = "is_zero")]
    pub mappings: BTreeMap<String, Vec<MappedDestination>>,
    /// Imports.
    #[serde(skip_serializing_if = "is_zero")]
    pub imports: Vec<AccountImport>,
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
    /// Its subscriptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sublist_stats: Option<SublistStats>,
}

/// Where a mapped subject goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappedDestination {
    /// The subject.
    pub dest: String,
    /// Its share in percent.
    pub weight: u64,
    /// Only in this cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster: String,
}

/// One import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountImport {
    /// Subject there.
    pub subject: String,
    /// The other account.
    pub account: String,
    /// Subject here, in the older form.
    #[serde(skip_serializing_if = "is_zero")]
    pub to: String,
    /// Subject here.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_subject: String,
    /// `stream` or `service`.
    #[serde(rename = "type")]
    pub kind: String,
    /// It can not be used.
    pub invalid: bool,
    /// The requester is told to the responder.
    pub share: bool,
    /// Latencies are measured.
    pub tracking: bool,
}

/// Connections and traffic of accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountStatz {
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// The accounts.
    pub account_statz: Vec<AccountStat>,
}
